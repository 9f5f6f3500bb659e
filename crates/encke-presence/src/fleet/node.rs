//! This node in its fleet.

use std::time::Duration;

use encke_clock::SteadyTime;

use super::answer::Answers;
use super::outbox::PacketOutbox;
use super::packet::{Content, Packet, PacketSource};
use super::peers::Peers;
use crate::figures::PacketFigures;

/// This process, as other nodes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceNode {
    /// The name of the node; at most [`NODE_NAME_BYTES_MAX`](crate::NODE_NAME_BYTES_MAX), or other nodes refuse all its packets.
    pub name: Box<str>,
    /// A random number of the process. Another process of the same name replaces the former one.
    pub incarnation: u64,
}

/// A packet that is to be sent. Its bytes are at most [`PACKET_BYTES_MAX`](crate::PACKET_BYTES_MAX).
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
pub(crate) struct PresenceFleet {
    pub(crate) name: Box<str>,
    pub(crate) incarnation: u64,
    pub(crate) outbox: PacketOutbox,
    pub(super) answers: Answers,
    pub(crate) peers: Peers,
    pub(super) awake: AwakeClock,
    /// The number of the last request to another node.
    pub(super) request: u64,
    pub(super) heartbeat: Option<SteadyTime>,
    pub(super) is_heartbeat_due: bool,
    /// This node has said goodbye.
    pub(super) has_ended: bool,
    pub(crate) figures: PacketFigures,
}

/// A clock that stands while this node is paused, because it hears of no other node then.
#[derive(Debug, Default)]
pub(super) struct AwakeClock {
    last: Option<SteadyTime>,
    awake: SteadyTime,
}

impl PresenceFleet {
    pub(crate) fn new(node: PresenceNode) -> PresenceFleet {
        PresenceFleet {
            outbox: PacketOutbox::new(node.incarnation),
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

    pub(super) fn is_self(&self, source: PacketSource<'_>) -> bool {
        source.incarnation == self.incarnation && *source.name == *self.name
    }

    /// Requests to all nodes of which something is lacking.
    pub(super) fn ask(&mut self, now: SteadyTime, out: &mut Vec<Outgoing>) {
        let from = PacketSource {
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
            let of = PacketSource {
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

impl AwakeClock {
    pub(super) fn at(&mut self, now: SteadyTime) -> SteadyTime {
        let passed = now.since(self.last.unwrap_or(now));
        self.last = self.last.max(Some(now));
        self.awake = self.awake.after(passed.min(HEARTBEAT));
        self.awake
    }
}

/// A node says at least this often that it is there.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
