//! What nodes send each other: packets, and messages in the parts of a session.

use serde::{Deserialize, Serialize};

use crate::request::{DispatchClient, DispatchRequest};
use crate::response::DispatchResponse;

/// A packet. Packets may be lost and do not come twice; those of one node to another keep their order.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Packet<'a> {
    /// The dispatcher is there. To all nodes.
    Heartbeat {
        node: Box<str>,
        term: u64,
        state: DispatcherState,
    },
    /// A part of a node's messages to the dispatcher.
    ToDispatcher {
        node: Box<str>,
        term: u64,
        session: u64,
        #[serde(borrow)]
        part: Part<'a>,
    },
    /// A part of the dispatcher's messages to a node.
    ToNode {
        term: u64,
        session: u64,
        #[serde(borrow)]
        part: Part<'a>,
    },
    /// The dispatcher does not know the session, or lacks a part of it.
    Reset { term: u64, session: u64 },
}

/// How far a dispatcher is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DispatcherState {
    /// It restores the pools, and takes no requests yet.
    Restoring,
    Running,
    /// It has ended: another node may ask for the next term at once. Nodes with a session learn it there.
    Released,
    /// It has given up, and what was sent to it may have been carried out or not.
    Failed,
}

/// A part of a session's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part<'a> {
    /// Counts the parts of one direction, from 0.
    pub(super) number: u32,
    /// The message goes on in the next part.
    pub(super) more: bool,
    #[serde(borrow)]
    pub(super) bytes: &'a [u8],
}

/// A message of a node to the dispatcher.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum NodeMessage {
    Request(DispatchClient, DispatchRequest),
    Disconnected(DispatchClient),
    /// The node is there.
    Alive,
    /// The credentials of a client have ended.
    CallerEnded(DispatchClient),
}

/// A message of the dispatcher to a node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum DispatcherReply {
    Response(DispatchClient, DispatchResponse),
    /// The dispatcher has the session.
    Alive,
    /// It has ended, and has taken no request that it has not answered.
    Ended,
}

pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("growing a vector is the only thing that writes here")
}

/// None if another version of Encke has sent it, or something else.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}
