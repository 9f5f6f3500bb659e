//! Applies what a process says it holds to the sum.

use std::sync::Arc;

use encke_clock::SteadyTime;

use super::digest;
use super::node::PresenceFleet;
use super::packet::{HoldingChange, PacketRefused, Section};
use super::peer::{Lack, RemoteHolding};
use super::receive::FLEET;
use crate::Member;
use crate::member::Shown;
use crate::rules::GRACE_MAX;
use crate::state::RegistryState;

impl RegistryState {
    /// Refuses what would exceed the bound of members that other nodes hold.
    pub(super) fn check_bound(
        &mut self,
        place: usize,
        sections: &[Section<'_>],
        now: SteadyTime,
    ) -> Result<(), PacketRefused> {
        let peers = &mut self.fleet.as_mut().expect(FLEET).peers;
        let max = self.limits.remote_members_max;
        let said: usize = sections.iter().map(|section| section.changes.len()).sum();
        if peers.members + said <= max {
            return Ok(());
        }
        let is_new = |section: &Section<'_>, change: &HoldingChange<'_>| {
            let stream = self.roster.stream(section.stream);
            let found =
                stream.and_then(|stream| Some((stream, self.roster.find(stream, change.key())?)));
            found.is_none_or(|(stream, slot)| peers[place].holding(stream, slot).is_none())
        };
        let new = sections.iter().map(|section| {
            let holds = section
                .changes
                .iter()
                .filter(|change| matches!(change, HoldingChange::Holds { .. }));
            holds.filter(|change| is_new(section, change)).count()
        });
        if peers.members + new.sum::<usize>() > max {
            // Deltas would be refused again, although later ones may have fewer members.
            peers[place].sync.need(Lack::State);
            peers[place].sync.wait(now);
            return Err(PacketRefused::RemoteMembersMax(max));
        }
        Ok(())
    }

    pub(super) fn apply_sections(&mut self, place: usize, sections: &[Section<'_>]) {
        for section in sections {
            let stream = self.roster.stream_or_add(section.stream);
            let peer = &mut self.fleet.as_mut().expect(FLEET).peers[place];
            let round = peer.sync.round;
            let of = peer.streams.entry(stream).or_default();
            of.grace = section.grace().min(GRACE_MAX);
            let before = of.connections;
            if section.connections.is_some() {
                of.round = round;
            }
            // Connections that are gone are counted last, so that a stream is not empty in between.
            let (first, last) = match section.connections {
                Some(after) if after > before => (Some(after), None),
                after => (None, after),
            };
            if let Some(after) = first {
                self.set_remote_connections(place, stream, after);
            }
            for change in &section.changes {
                self.apply_change(place, stream, change);
            }
            if let Some(after) = last {
                self.set_remote_connections(place, stream, after);
            }
            if section.connections.is_some() {
                self.end_former_connections(place, stream);
            }
            self.release_remote(place, stream);
        }
    }

    fn apply_change(&mut self, place: usize, stream: u32, change: &HoldingChange<'_>) {
        let key = change.key();
        let slot = self.roster.find(stream, key);
        let &HoldingChange::Holds {
            id, data, stamp, ..
        } = change
        else {
            if let Some(slot) = slot {
                self.end_remote(place, stream, slot);
            }
            return;
        };
        let shown = slot
            .map(|slot| &self.roster.members[slot].shown)
            .filter(|shown| shown.is(id, data));
        // Equal members are stored once.
        let member = shown.map_or_else(
            || {
                Arc::new(Member {
                    id: id.into(),
                    data: data.map(Into::into),
                })
            },
            Arc::clone,
        );
        let slot =
            slot.unwrap_or_else(|| self.roster.join(stream, key.into(), Arc::clone(&member)));
        let fleet = self.fleet.as_mut().expect(FLEET);
        let peer = &mut fleet.peers[place];
        let shown = Shown { member, stamp };
        let digest = digest::of_member(
            peer.incarnation,
            &self.roster.streams[stream].name,
            key,
            &shown,
        );
        let round = peer.sync.round;
        peer.digest = peer.digest.wrapping_add(digest);
        let holding = RemoteHolding {
            shown,
            digest,
            round,
        };
        let before = peer
            .streams
            .entry(stream)
            .or_default()
            .members
            .insert(slot, holding);
        match before {
            Some(before) => peer.digest = peer.digest.wrapping_sub(before.digest),
            None => {
                self.roster.members[slot].remote_holders += 1;
                fleet.peers.members += 1;
            }
        }
        for former in fleet.former(place) {
            self.end_remote(former, stream, slot);
            self.release_remote(former, stream);
        }
        self.show_newest(slot);
    }

    /// A process does not hold a member any more.
    pub(super) fn end_remote(&mut self, place: usize, stream: u32, slot: u32) {
        let peers = &mut self.fleet.as_mut().expect(FLEET).peers;
        let of = peers[place].streams.get_mut(&stream);
        let Some(holding) = of.and_then(|of| of.members.remove(&slot)) else {
            return;
        };
        peers[place].digest = peers[place].digest.wrapping_sub(holding.digest);
        peers.members -= 1;
        self.roster.members[slot].remote_holders -= 1;
        self.show_newest(slot);
    }

    /// Sets the number of connections that a process has to a stream.
    pub(super) fn set_remote_connections(&mut self, place: usize, stream: u32, after: u32) {
        let peer = &mut self.fleet.as_mut().expect(FLEET).peers[place];
        let Some(of) = peer.streams.get_mut(&stream) else {
            return;
        };
        let before = std::mem::replace(&mut of.connections, after);
        let name = &self.roster.streams[stream].name;
        let digest_of = |connections| digest::of_connections(peer.incarnation, name, connections);
        peer.digest = peer
            .digest
            .wrapping_sub(digest_of(before))
            .wrapping_add(digest_of(after));
        self.roster.set_connections(stream, before, after);
    }

    /// The former process of this name had these connections before.
    fn end_former_connections(&mut self, place: usize, stream: u32) {
        for former in self.fleet.as_ref().expect(FLEET).former(place) {
            self.set_remote_connections(former, stream, 0);
            self.release_remote(former, stream);
        }
    }

    /// A stream has no entry any more if nothing is left of it.
    pub(super) fn release_remote(&mut self, place: usize, stream: u32) {
        self.fleet
            .as_mut()
            .expect(FLEET)
            .peers
            .release(place, stream);
        self.release(stream);
    }
}

impl PresenceFleet {
    /// Former processes with the name of a process, of which something is left.
    fn former(&self, place: usize) -> Vec<usize> {
        let name = &self.peers[place].name;
        let all = self
            .peers
            .iter()
            .filter(|(other, peer)| *other != place && peer.name == *name);
        all.filter(|(_, peer)| !peer.streams.is_empty())
            .map(|(other, _)| other)
            .collect()
    }
}
