//! Applies what other nodes send.

use encke_clock::SteadyTime;

use super::node::PresenceFleet;
use super::packet::{Content, Packet, PacketRefused, PacketSource, Section};
use super::peer::{Lack, Peer, PeerPhase};
use super::peers::SILENCE;
use crate::state::RegistryState;

impl RegistryState {
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
            Content::Heartbeat { sequence, digest } => fleet.compare(place, sequence, digest, now),
            Content::Delta { sequence, sections } => {
                self.apply_delta(place, sequence, &sections, now)?;
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
                    self.apply_part(place, (request, part, sequence), &sections, now)?;
                    if is_last {
                        self.complete_state(place);
                    }
                } else if sync.shows_loss(request, part) {
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
        from: PacketSource<'_>,
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
        now: SteadyTime,
    ) -> Result<(), PacketRefused> {
        let sync = &mut self.fleet.as_mut().expect(FLEET).peers[place].sync;
        if sequence <= sync.applied {
            return Ok(());
        }
        if sequence - sync.applied > 1 {
            sync.need(Lack::Deltas);
            return Ok(());
        }
        self.check_bound(place, sections, now)?;
        self.apply_sections(place, sections);
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
        (request, part, sequence): (u64, u32, u64),
        sections: &[Section<'_>],
        now: SteadyTime,
    ) -> Result<(), PacketRefused> {
        self.check_bound(place, sections, now)?;
        self.fleet.as_mut().expect(FLEET).peers[place]
            .sync
            .begin_part(request, part, sequence, now);
        self.apply_sections(place, sections);
        Ok(())
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
}

impl PresenceFleet {
    /// Compares what a process says it has sent with what was applied.
    fn compare(&mut self, place: usize, sequence: u64, digest: u64, now: SteadyTime) {
        let peer = &mut self.peers[place];
        if sequence > peer.sync.applied {
            peer.sync.need(Lack::Deltas);
        } else if sequence == peer.sync.applied && peer.sync.lack != Lack::State {
            let agrees = digest == peer.digest;
            self.figures.differed += u64::from(!agrees);
            peer.sync.compared(agrees, now);
        }
    }
}

/// Why there is a fleet where it is needed.
pub(super) const FLEET: &str = "packets are received in a fleet only";
