//! What a caller gives to the engine, and what it gets back.

use crate::BenchError;
use crate::load::socket::Sources;
use crate::load::wire::http::Head;
use std::net::SocketAddr;

/// What is asked of the server, and what becomes of the answers. Answers come in the order of the
/// requests of a line.
pub(crate) trait Traffic {
    /// Appends the next request of `line` to `out`; `due_ns` is when the plan's pace wanted it.
    /// False when this line has nothing more to ask for now; it is asked again after its next
    /// answer, and has ended once nothing of it is in flight.
    fn next(&mut self, line: usize, due_ns: u64, out: &mut Vec<u8>) -> bool;

    /// The head of the answer to the oldest request of `line`.
    fn head(&mut self, _line: usize, _head: &Head<'_>) {}

    /// A piece of its body.
    fn body(&mut self, _line: usize, _piece: &[u8]) {}

    /// The end of the answer.
    fn done(&mut self, line: usize, status: u16, now_ns: u64);

    /// The connection of `line` is gone; what was in flight on it will never be answered.
    fn lost(&mut self, line: usize);

    /// Called once after each batch of answers.
    fn turn(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
}

/// How requests are made.
#[derive(Debug, Clone)]
pub(crate) struct RequestPlan {
    /// Where to.
    pub(crate) server: SocketAddr,
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
    /// How long a line tries to connect again before it is given up.
    pub(crate) patience_ns: u64,
    /// How long to wait for the last answers.
    pub(crate) grace_ns: u64,
}

/// What became of the connections.
#[derive(Debug, Clone, Default)]
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
}
