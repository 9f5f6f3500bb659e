//! Who is subscribed to what: the members of streams, over the nodes of a fleet.
//!
//! A connection that subscribes to a stream *enters* it, as a member or anonymously, and has left when its [`PresenceHold`] is dropped.
//! Connections with the same key are one member, on whichever nodes they are. A member whose last connection is gone may stay for a
//! *grace*, so that a reload of a page is no event.
//!
//! This crate does no I/O, has no thread and reads no clock. The caller passes the time to [`Presence::turn`], takes events, and carries
//! packets between nodes.
//!
//! # The invariant
//!
//! **A snapshot of a stream and all events of the stream with a larger sequence are exactly the state.** A member joins once and leaves
//! once, however many connections and nodes hold it.
//!
//! ```
//! use std::time::Duration;
//!
//! use encke_clock::SteadyTime;
//! use encke_presence::{NewMember, Presence, PresenceLimits, PresencePlace, PresenceRules};
//!
//! let limits = PresenceLimits { members_max: 1_000_000, bytes_max: 1 << 30, remote_members_max: 1_000_000 };
//! let presence = Presence::new(limits);
//! let rules = PresenceRules { grace: Duration::ZERO, members_max: 1_000, bytes_max: 1 << 20 };
//! let place = PresencePlace { stream: "room", rules };
//! let ada = NewMember { key: "ada".into(), id: "ada".into(), data: None };
//! let now = SteadyTime::from_ms(1_000);
//!
//! let phone = presence.enter(&place, ada.clone(), now).unwrap();
//! let laptop = presence.enter(&place, ada, now).unwrap();
//! let counts = presence.counts("room");
//! assert_eq!((counts.members, counts.connections), (1, 2));
//!
//! drop((phone, laptop));
//! let mut events = Vec::new();
//! presence.take_events(&mut events);
//! // Occupied, joined, left, vacated.
//! assert_eq!(events.len(), 4);
//! assert_eq!(presence.entries(), 0);
//! ```
//!
//! # How nodes agree
//!
//! Each node says what *it* holds, in deltas with a sequence, and repeats the digest of all that it holds in heartbeats. A node that has
//! missed something asks for it. So a node has of each other one what that one held a moment ago, and what it shows is the sum. No node
//! decides for another one: after a partition, a loss or a restart each has again what the others say. Of several data of a member the
//! one with the largest stamp is shown. A stamp is larger than all that its node knew, so a change follows those that it has seen.
//!
//! # Where to start reading
//!
//! `presence.rs` is the interface. `roster.rs` has streams, members and the events; `holding.rs` and `local.rs` have the connections of this node and the
//! graces. In `fleet/`, `packet.rs` is the format, `outbox.rs` what this node says, `receive.rs` and `apply.rs` what it does with what
//! others say, `peer.rs` and `peers.rs` what it knows of them, and `answer.rs` how it helps a node that has missed something.

mod event;
mod figures;
mod fleet;
mod holding;
mod local;
mod member;
mod presence;
mod roster;
mod rules;
mod slots;
mod state;

pub use event::{PresenceChange, PresenceCounts, PresenceEvent, PresenceSnapshot};
pub use figures::{PacketFigures, PresenceFigures};
pub use fleet::{
    HEARTBEAT, NODE_NAME_BYTES_MAX, NODES_MAX, Outgoing, PACKET_BYTES_MAX, PacketRefused,
    PresenceNode, Recipient, SILENCE,
};
pub use member::{Member, NewMember};
pub use presence::{Presence, PresenceFollower, PresenceHold};
pub use rules::{
    DATA_BYTES_MAX, GRACE_MAX, ID_BYTES_MAX, KEY_BYTES_MAX, PresenceField, PresenceLimits,
    PresencePlace, PresenceRefusal, PresenceRules, STREAM_BYTES_MAX,
};
