//! The nodes of a fleet: each says what it holds, and all compute the sum.

mod answer;
mod apply;
mod digest;
mod outbox;
mod packet;
mod peer;
mod peers;
mod receive;

use std::time::Duration;

use encke_clock::SteadyTime;

use crate::figures::PacketFigures;
use crate::state::State;
use answer::Answers;
use outbox::Outbox;
use packet::{Content, Packet, Source};
pub use packet::{NODE_NAME_BYTES_MAX, PACKET_BYTES_MAX, PacketRefused};
use peer::PeerPhase;
use peers::Peers;

/// This process, as other nodes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceNode {
    /// The name of the node; at most [`NODE_NAME_BYTES_MAX`], or other nodes refuse all its packets.
    pub name: Box<str>,
    /// A random number of the process. Another process of the same name replaces the former one.
    pub incarnation: u64,
}

/// A packet that is to be sent. Its bytes are at most [`PACKET_BYTES_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Which nodes get it.
    pub to: Recipient,
    /// The packet.
    pub packet: Vec<u8>,
}

/// Which nodes get a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// All nodes. This node itself may get it too.
    All,
    /// The node of this name. Others ignore the packet.
    Node(Box<str>),
}

/// This node in its fleet.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) name: Box<str>,
    incarnation: u64,
    pub(crate) outbox: Outbox,
    answers: Answers,
    pub(crate) peers: Peers,
    awake: AwakeClock,
    /// The number of the last request to another node.
    request: u64,
    heartbeat: Option<SteadyTime>,
    is_heartbeat_due: bool,
    /// This node has said goodbye.
    has_ended: bool,
    pub(crate) figures: PacketFigures,
}

/// A clock that stands while this node is paused, because it hears of no other node then.
#[derive(Debug, Default)]
struct AwakeClock {
    last: Option<SteadyTime>,
    awake: SteadyTime,
}

impl Fleet {
    pub(crate) fn new(node: PresenceNode) -> Fleet {
        Fleet {
            outbox: Outbox::new(node.incarnation),
            name: node.name,
            incarnation: node.incarnation,
            answers: Answers::default(),
            peers: Peers::default(),
            awake: AwakeClock::default(),
            request: 0,
            heartbeat: None,
            is_heartbeat_due: true,
            has_ended: false,
            figures: PacketFigures::default(),
        }
    }

    fn is_self(&self, source: Source<'_>) -> bool {
        source.incarnation == self.incarnation && *source.name == *self.name
    }

    /// Requests to all nodes of which something is lacking.
    fn ask(&mut self, now: SteadyTime, out: &mut Vec<Outgoing>) {
        let from = Source {
            name: &self.name,
            incarnation: self.incarnation,
        };
        for (_, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.is_present()) {
            let request = self.request + 1;
            let Some(after) = peer.sync.ask(request, now) else {
                continue;
            };
            self.request = request;
            self.figures.asked += 1;
            let of = Source {
                name: &peer.name,
                incarnation: peer.incarnation,
            };
            let packet = Packet {
                from,
                content: Content::Ask { of, request, after },
            }
            .encode();
            out.push(Outgoing {
                to: Recipient::Node((*peer.name).into()),
                packet,
            });
        }
    }
}

impl State {
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
        let from = Source {
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
        let from = Source {
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

impl AwakeClock {
    fn at(&mut self, now: SteadyTime) -> SteadyTime {
        let passed = now.since(self.last.unwrap_or(now));
        self.last = self.last.max(Some(now));
        self.awake = self.awake.after(passed.min(HEARTBEAT));
        self.awake
    }
}

/// A node says at least this often that it is there.
pub const HEARTBEAT: Duration = Duration::from_millis(500);

/// A node that was not heard for this time is gone.
pub const SILENCE: Duration = Duration::from_secs(3);

/// Processes that are known, those that are gone for a short time included.
pub const NODES_MAX: usize = 256;
