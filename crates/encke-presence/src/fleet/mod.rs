//! The nodes of a fleet: each says what it holds, and all compute the sum.

mod answer;
mod apply;
mod digest;
pub(crate) mod node;
mod outbox;
mod packet;
mod peer;
mod peers;
mod receive;

use std::time::Duration;

use encke_clock::SteadyTime;

use crate::state::RegistryState;
pub use node::{HEARTBEAT, Outgoing, PresenceNode, Recipient};
use packet::{Content, Packet, PacketSource};
pub use packet::{NODE_NAME_BYTES_MAX, PACKET_BYTES_MAX, PacketRefused};
use peer::PeerPhase;
pub use peers::{NODES_MAX, SILENCE};

impl RegistryState {
    /// The time goes on: graces begin, and nodes fall silent.
    pub(crate) fn begin_turn(&mut self, now: SteadyTime) {
        self.begin_graces(now);
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        let awake = fleet.awake.at(now);
        fleet.peers.forget(now);
        for place in fleet.peers.silent(awake) {
            self.silence(place, now);
        }
    }

    /// What departed nodes hold ends, at most about `max` members. Returns whether there may be more.
    pub(crate) fn end_departed(&mut self, now: SteadyTime, max: usize) -> bool {
        let next = self
            .fleet
            .as_ref()
            .and_then(|fleet| fleet.peers.next_end(now).map(|end| (&fleet.peers, end)));
        let Some((peers, (place, stream))) = next else {
            return false;
        };
        let of = &peers[place].streams[&stream];
        let slots: Vec<u32> = of.members.keys().copied().take(max).collect();
        if slots.len() == of.members.len() {
            self.set_remote_connections(place, stream, 0);
        }
        for slot in slots {
            self.end_remote(place, stream, slot);
        }
        self.release_remote(place, stream);
        true
    }

    /// What is to be sent now.
    pub(crate) fn outgoing(&mut self, now: SteadyTime) -> Vec<Outgoing> {
        let mut out = Vec::new();
        let Some(fleet) = &mut self.fleet else {
            return out;
        };
        let from = PacketSource {
            name: &fleet.name,
            incarnation: fleet.incarnation,
        };
        let deltas = fleet.outbox.flush(&mut self.roster, from);
        if fleet.has_ended {
            return out;
        }
        out.extend(deltas.into_iter().map(|packet| Outgoing {
            to: Recipient::All,
            packet,
        }));
        for answered in fleet.answers.turn(&fleet.outbox, &self.roster, from) {
            fleet.figures.answered += u64::from(answered.is_state);
            let to = Recipient::Node(answered.to);
            out.extend(answered.packets.into_iter().map(|packet| Outgoing {
                to: to.clone(),
                packet,
            }));
        }
        let is_due = fleet
            .heartbeat
            .is_none_or(|last| now.since(last) >= HEARTBEAT);
        if std::mem::take(&mut fleet.is_heartbeat_due) || is_due {
            fleet.heartbeat = Some(now);
            let content = Content::Heartbeat {
                sequence: fleet.outbox.sequence,
                digest: fleet.outbox.digest,
            };
            out.push(Outgoing {
                to: Recipient::All,
                packet: Packet { from, content }.encode(),
            });
        }
        fleet.ask(now, &mut out);
        out
    }

    pub(crate) fn goodbye(&mut self) -> Option<Outgoing> {
        let fleet = self.fleet.as_mut().filter(|fleet| !fleet.has_ended)?;
        fleet.has_ended = true;
        let from = PacketSource {
            name: &fleet.name,
            incarnation: fleet.incarnation,
        };
        let packet = Packet {
            from,
            content: Content::Goodbye,
        }
        .encode();
        Some(Outgoing {
            to: Recipient::All,
            packet,
        })
    }

    /// A process is not there any more. What it holds ends after the time that `stays` says.
    fn depart(
        &mut self,
        place: usize,
        phase: PeerPhase,
        now: SteadyTime,
        stays: impl Fn(Duration) -> Duration,
    ) {
        if let Some(fleet) = &mut self.fleet {
            fleet.peers.depart(place, phase, now, stays);
        }
    }

    /// A process was not heard for [`SILENCE`].
    fn silence(&mut self, place: usize, now: SteadyTime) {
        if let Some(fleet) = &mut self.fleet {
            fleet.figures.silenced += 1;
        }
        self.depart(place, PeerPhase::Silent(now), now, |grace| {
            grace.saturating_sub(SILENCE)
        });
        self.end_remote_connections(place);
    }

    /// A process has no connections any more.
    fn end_remote_connections(&mut self, place: usize) {
        let streams = self.fleet.as_ref().map(|fleet| {
            fleet.peers[place]
                .streams
                .keys()
                .copied()
                .collect::<Vec<_>>()
        });
        for stream in streams.unwrap_or_default() {
            self.set_remote_connections(place, stream, 0);
            self.release_remote(place, stream);
        }
    }
}
