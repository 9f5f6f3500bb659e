//! Channels in a form in which another process takes them over.

use encke_access::{MovedCaller, OperationSet};
use serde::{Deserialize, Serialize};

/// A channel, by its protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MovedChannel {
    /// Messages of JSON (docs/websocket.md).
    Messages(MovedConversation),
    /// The Pusher protocol (docs/pusher.md).
    Pusher(MovedSocket),
}

/// A connection of the Pusher protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedSocket {
    /// The id of its app.
    pub(crate) app: Box<str>,
    pub(crate) socket: u64,
    pub(crate) channels: Vec<MovedSocketChannel>,
    /// The user as whom it has signed in, and the key of the feed of events for that one.
    #[serde(default)]
    pub(crate) user: Option<(Box<str>, u32)>,
    /// The member of presence channels that the user is by its sign-in: its id and its public data.
    #[serde(default)]
    pub(crate) user_member: Option<(Box<str>, Option<Box<str>>)>,
    /// Users whom it watches.
    #[serde(default)]
    pub(crate) watched: Box<[Box<str>]>,
}

/// A channel to which such a connection is subscribed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedSocketChannel {
    /// Of its feed.
    pub(crate) key: u32,
    pub(crate) name: Box<str>,
    /// Of a presence channel: the key of the feed of members, the id of the user and its public data.
    pub(crate) member: Option<(u32, Box<str>, Option<Box<str>>)>,
}

/// A channel of messages: its caller and its subscriptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedConversation {
    pub(crate) rights: MovedRights,
    /// The path at which it was opened, with access control.
    pub(crate) path: Option<Box<str>>,
    /// The message that stands for the subscription of its URL, if that was signed.
    pub(crate) first: Option<Box<str>>,
    pub(crate) subscriptions: Vec<MovedSubscription>,
}

/// A subscription of a channel, with the key of its feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedSubscription {
    pub(crate) key: u32,
    pub(crate) names: Box<[Box<str>]>,
    /// It is to one stream, and says so.
    pub(crate) is_single: bool,
}

/// What the caller of a channel may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MovedRights {
    Everything,
    EverythingButAdmin,
    Operator,
    Nobody,
    Unidentified,
    Caller {
        caller: MovedCaller,
        conceals: bool,
        signed: Option<MovedSignedRequest>,
    },
}

/// The request that a signed URL is good for. The fields that it signs were those of the request that has opened the channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedSignedRequest {
    pub(crate) leaves_parameters: bool,
    pub(crate) stream: Option<u64>,
    pub(crate) needs: Vec<MovedRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedRequirement {
    pub(crate) operations: OperationSet,
    pub(crate) path: Box<str>,
    pub(crate) is_prefix: bool,
}
