//! Connections at rest: plain data, for which a slot has room.

use super::exchange::ConnectionFacts;

/// What there is to know of a connection that does nothing but wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) facts: ConnectionFacts,
    /// Requests so far, as far as they can be counted.
    pub(crate) requests: u16,
    pub(crate) doing: Resting,
}

/// What a connection at rest waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resting {
    /// The next request.
    Idle,
    /// The records of its feed; `http_1_0`: the client speaks HTTP/1.0.
    Subscribed { http_1_0: bool },
}
