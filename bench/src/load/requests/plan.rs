//! What a caller gives to the engine, and what it gets back.

use crate::BenchError;
use crate::load::socket::Sources;
use crate::load::wire::http::Head;
use crate::load::wire::transport::Wire;
use std::net::SocketAddr;

/// What is asked of the server, and what becomes of the answers. Answers come in the order of the
/// requests of a line.
pub(crate) trait Traffic {
    /// `line` begins to connect.
    fn connecting(&mut self, _line: usize) {}

    /// Appends the next request of `line` to `out`; `due_ns` is when the plan's pace wanted it.
    /// False when this line has nothing more to ask for now; it is asked again after its next
    /// answer, and has ended once nothing of it is in flight.
    fn next(&mut self, line: usize, due_ns: u64, out: &mut Vec<u8>) -> bool;

    /// The head of the answer to the oldest request of `line`.
    fn head(&mut self, _line: usize, _head: &Head<'_>) {}

    /// A piece of its body.
    fn body(&mut self, _line: usize, _piece: &[u8]) {}

    /// The end of the answer: of its body, or of its head in [`Mode::OneRequest`].
    fn done(&mut self, line: usize, status: u16, now_ns: u64);

    /// The connection of `line` is gone; what was in flight on it will never be answered.
    fn lost(&mut self, line: usize);

    /// `line` is not connected, and does not connect again.
    fn given_up(&mut self, _line: usize, _reason: &str) {}

    /// Called once after each batch of answers.
    fn turn(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
}

/// How requests are made.
#[derive(Debug, Clone)]
pub(crate) struct RequestPlan {
    /// Where to: the lines take turns.
    pub(crate) servers: Vec<SocketAddr>,
    /// From where.
    pub(crate) sources: Sources,
    /// Over how many connections.
    pub(crate) lines: usize,
    /// How many requests may be in flight on each.
    pub(crate) depth: usize,
    /// How many requests a second in all; `None` for as fast as answers come.
    pub(crate) rate: Option<f64>,
    /// When to stop, counted from the first request.
    pub(crate) duration_ns: u64,
    /// What each connection is for.
    pub(crate) mode: Mode,
    /// How long to wait for the last answers.
    pub(crate) grace_ns: u64,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Any number of requests. The first one is sent when all lines have connected or failed to. A line
    /// whose connection is lost or fails connects again, and is given up after `reconnect_timeout_ns` without one.
    KeepAlive { reconnect_timeout_ns: u64 },
    /// One request, sent as soon as the line is connected, such as for an event stream: its body has no
    /// end, so the head is the answer, and may take until the plan's end. Lines do not connect again.
    OneRequest,
}

/// What became of the connections.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Connections that were open and broke, or whose answers were no HTTP.
    pub(crate) lost: u64,
    /// Lines that were given up.
    pub(crate) given_up: u64,
    /// Why the last connection broke or did not come about.
    pub(crate) last_error: Option<String>,
    /// When the first request was sent, in nanoseconds of the monotonic clock.
    pub(crate) started_ns: u64,
    /// When the last answer was awaited.
    pub(crate) ended_ns: u64,
    /// In [`Mode::OneRequest`], the connections whose request was answered: open, and read no further.
    pub(crate) answered: Vec<Wire>,
}
