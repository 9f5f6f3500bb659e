//! One connection of the engine.

use crate::load::wire::http::Framing;
use crate::load::wire::transport::Wire;

/// One connection, through all its reconnects.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) socket: Option<Wire>,
    pub(super) state: State,
    /// Requests that are not yet written in full, and how much of them is.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    /// The beginning of an answer's head.
    pub(super) held: Vec<u8>,
    /// The body that is being read, and the status and keep-alive of its answer.
    pub(super) body: Option<(Framing, u16, bool)>,
    pub(super) in_flight: usize,
    /// When the wait for the oldest response last began.
    pub(super) waiting_since_ns: u64,
    /// When the connection went down.
    pub(super) down_since_ns: u64,
    pub(super) eager: bool,
    pub(super) exhausted: bool,
}

/// Where a connection stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Has not tried to connect yet.
    #[default]
    New,
    Down,
    Connecting,
    Open,
    /// Makes no more requests: it was given up, or its only request was answered.
    Ended,
}

impl Line {
    /// Whether this line will make no more requests.
    pub(super) fn has_ended(&self) -> bool {
        self.state == State::Ended || self.exhausted && self.in_flight == 0
    }
}
