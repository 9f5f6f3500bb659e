//! Applies what other nodes send.

use std::sync::Arc;

use encke_clock::SteadyTime;

use super::SILENCE;
use super::digest;
use super::packet::{Change, Content, Packet, PacketRefused, Section, Source};
use super::peer::{Lack, Peer, PeerPhase, RemoteHolding};
use crate::Member;
use crate::fleet::Fleet;
use crate::member::Shown;
use crate::state::State;

impl State {
    pub(crate) fn receive(&mut self, bytes: &[u8], now: SteadyTime) -> Result<(), PacketRefused> {
        if self.fleet.is_none() {
            return Ok(());
        }
        let received = Packet::decode(bytes).and_then(|packet| self.apply(packet, now));
        if let Some(fleet) = &mut self.fleet {
            match received {
                Ok(()) => {}
                Err(PacketRefused::Format(_)) => fleet.figures.foreign += 1,
                Err(_) => fleet.figures.refused += 1,
            }
        }
        received
    }

    fn apply(&mut self, packet: Packet<'_>, now: SteadyTime) -> Result<(), PacketRefused> {
        let Some(place) = self.source(packet.from, now)? else {
            return Ok(());
        };
        let fleet = self.fleet.as_mut().expect(FLEET);
        fleet.figures.received += 1;
        match packet.content {
            Content::Heartbeat { sequence, digest } => fleet.compare(place, sequence, digest),
            Content::Delta { sequence, sections } => {
                self.apply_delta(place, sequence, &sections)?;
            }
            Content::Ask { of, request, after } => {
                if fleet.is_self(of) {
                    fleet.answers.ask(packet.from, request, after);
                }
            }
            Content::State {
                to,
                request,
                sequence,
                part,
                is_last,
                sections,
            } => {
                let sync = &fleet.peers[place].sync;
                if !fleet.is_self(to) {
                    return Ok(());
                }
                if sync.expects(request, part, sequence) {
                    self.apply_part(place, (part, sequence), &sections, now)?;
                    if is_last {
                        self.complete_state(place);
                    }
                } else if sync.next_part.is_some_and(|next| part >= next) {
                    // A part or a delta was lost.
                    fleet.peers[place].sync.need(Lack::State);
                }
            }
            Content::Goodbye => {
                self.depart(place, PeerPhase::Ended(now), now, |grace| grace);
                self.end_remote_connections(place);
            }
        }
        Ok(())
    }

    /// The process that has sent a packet. None: the packet is to be ignored.
    fn source(
        &mut self,
        from: Source<'_>,
        now: SteadyTime,
    ) -> Result<Option<usize>, PacketRefused> {
        let fleet = self.fleet.as_mut().expect(FLEET);
        let awake = fleet.awake.at(now);
        if *fleet.name == *from.name {
            fleet.figures.stale += u64::from(from.incarnation != fleet.incarnation);
            return Ok(None);
        }
        if let Some(place) = fleet.peers.find(from) {
            match fleet.peers[place].phase {
                PeerPhase::Present => {}
                PeerPhase::Silent(_) => {
                    fleet.peers.revive(place);
                    // What it held may have ended here.
                    fleet.peers[place].sync.need(Lack::State);
                    fleet.is_heartbeat_due = true;
                }
                PeerPhase::Ended(_) => {
                    // It is remembered for as long as it sends.
                    fleet.peers[place].phase = PeerPhase::Ended(now);
                    fleet.figures.stale += 1;
                    return Ok(None);
                }
            }
            fleet.peers[place].heard = awake;
            return Ok(Some(place));
        }
        // The new process learns of this node by its heartbeat.
        fleet.is_heartbeat_due = true;
        let place = fleet.peers.add(Peer::new(from, awake))?;
        let is_former =
            |peer: &Peer| *peer.name == *from.name && !matches!(peer.phase, PeerPhase::Ended(_));
        let all = fleet
            .peers
            .iter()
            .filter(|(other, peer)| *other != place && is_former(peer));
        for former in all.map(|(former, _)| former).collect::<Vec<_>>() {
            self.depart(former, PeerPhase::Ended(now), now, |grace| {
                grace.max(SILENCE)
            });
        }
        Ok(Some(place))
    }

    fn apply_delta(
        &mut self,
        place: usize,
        sequence: u64,
        sections: &[Section<'_>],
    ) -> Result<(), PacketRefused> {
        let sync = &mut self.fleet.as_mut().expect(FLEET).peers[place].sync;
        if sequence <= sync.applied {
            return Ok(());
        }
        if sequence - sync.applied > 1 {
            sync.need(Lack::Deltas);
            return Ok(());
        }
        self.apply_sections(place, sections)?;
        let sync = &mut self.fleet.as_mut().expect(FLEET).peers[place].sync;
        sync.applied = sequence;
        if sync.lack == Lack::Deltas {
            sync.complete();
        }
        Ok(())
    }

    fn apply_part(
        &mut self,
        place: usize,
        (part, sequence): (u32, u64),
        sections: &[Section<'_>],
        now: SteadyTime,
    ) -> Result<(), PacketRefused> {
        self.check_bound(place, sections)?;
        self.fleet.as_mut().expect(FLEET).peers[place]
            .sync
            .begin_part(part, sequence, now);
        self.apply_sections(place, sections)
    }

    /// All parts of a state were applied: what none of them has said is not held any more.
    fn complete_state(&mut self, place: usize) {
        let peer = &mut self.fleet.as_mut().expect(FLEET).peers[place];
        peer.sync.complete();
        let round = peer.sync.round;
        let streams: Vec<u32> = peer.streams.keys().copied().collect();
        for stream in streams {
            let of = &self.fleet.as_ref().expect(FLEET).peers[place].streams[&stream];
            let old = of
                .members
                .iter()
                .filter(|(_, holding)| holding.round != round);
            let old: Vec<u32> = old.map(|(slot, _)| *slot).collect();
            if of.round != round {
                self.set_remote_connections(place, stream, 0);
            }
            for slot in old {
                self.end_remote(place, stream, slot);
            }
            self.release_remote(place, stream);
        }
    }

    /// Refuses what would exceed the bound of members that other nodes hold.
    fn check_bound(&self, place: usize, sections: &[Section<'_>]) -> Result<(), PacketRefused> {
        let peers = &self.fleet.as_ref().expect(FLEET).peers;
        let max = self.limits.remote_members_max;
        let said: usize = sections.iter().map(|section| section.changes.len()).sum();
        if peers.members + said <= max {
            return Ok(());
        }
        let is_new = |section: &Section<'_>, change: &Change<'_>| {
            let stream = self.roster.stream(section.stream);
            let found =
                stream.and_then(|stream| Some((stream, self.roster.find(stream, change.key())?)));
            found.is_none_or(|(stream, slot)| peers[place].holding(stream, slot).is_none())
        };
        let new = sections.iter().map(|section| {
            let holds = section
                .changes
                .iter()
                .filter(|change| matches!(change, Change::Holds { .. }));
            holds.filter(|change| is_new(section, change)).count()
        });
        if peers.members + new.sum::<usize>() > max {
            return Err(PacketRefused::RemoteMembersMax(max));
        }
        Ok(())
    }

    fn apply_sections(
        &mut self,
        place: usize,
        sections: &[Section<'_>],
    ) -> Result<(), PacketRefused> {
        self.check_bound(place, sections)?;
        for section in sections {
            let stream = self.roster.stream_or_add(section.stream);
            let peer = &mut self.fleet.as_mut().expect(FLEET).peers[place];
            let round = peer.sync.round;
            let of = peer.streams.entry(stream).or_default();
            of.grace = section.grace();
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
        Ok(())
    }

    fn apply_change(&mut self, place: usize, stream: u32, change: &Change<'_>) {
        let key = change.key();
        let slot = self.roster.find(stream, key);
        let &Change::Holds {
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

impl Fleet {
    /// Compares what a process says it has sent with what was applied.
    fn compare(&mut self, place: usize, sequence: u64, digest: u64) {
        let peer = &mut self.peers[place];
        if sequence > peer.sync.applied {
            peer.sync.need(Lack::Deltas);
        } else if sequence == peer.sync.applied && peer.sync.lack != Lack::State {
            if digest == peer.digest {
                peer.sync.complete();
            } else {
                self.figures.differed += 1;
                peer.sync.need(Lack::State);
            }
        }
    }

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

const FLEET: &str = "packets are received in a fleet only";
