//! The plan of a turn: how many answers, of how many tokens, over which connections.

use super::args::AnswersArgs;
use crate::BenchError;
use crate::load::clock::{SECOND_NS, duration_ns};
use crate::load::requests::{Mode, RequestPlan};
use crate::load::socket::Sources;
use crate::load::wire::payload::Format;
use crate::load::wire::target::{Requests, ServerUrl, Streams};

/// Readers of each answer: one that is always there, one that is cut, and one that joins late.
pub(super) const READERS: u32 = 3;

/// The answers of a turn.
#[derive(Debug, Clone)]
pub(super) struct AnswersPlan {
    pub(super) requests: Requests,
    pub(super) answers: u32,
    /// Tokens of each answer.
    pub(super) tokens: u32,
    /// Tokens of each append but the last.
    pub(super) batch: u32,
    pub(super) format: Format,
    /// Bytes per token.
    pub(super) size: usize,
    pub(super) connections: u32,
    /// Appends per second, of all answers.
    pub(super) appends_per_second: f64,
    pub(super) duration_ns: u64,
    pub(super) drain_ns: u64,
}

impl AnswersPlan {
    /// The plan for a server, with streams whose names begin with `prefix`.
    pub(super) fn new(
        args: &AnswersArgs,
        server: &ServerUrl,
        prefix: &str,
    ) -> Result<Self, BenchError> {
        let streams = Streams::numbered(prefix, args.answers);
        let requests = Requests::new(server, &streams, &args.content_type)?;
        let timeout_s = args.producer_timeout.as_secs();
        let requests = match timeout_s {
            0 => requests,
            _ => requests.creating_with(&format!("Encke-Producer-Timeout: {timeout_s}\r\n")),
        };
        let tokens = (args.rate * args.duration.as_secs_f64()).ceil();
        if tokens > TOKENS_MAX {
            return Err(BenchError::Option(format!(
                "an answer of {tokens} tokens is too long: a tenth of 2^32 is possible"
            )));
        }
        Ok(Self {
            requests,
            answers: args.answers,
            tokens: (tokens as u32).max(1),
            batch: args.batch,
            format: Format::of(&args.content_type),
            size: args.size,
            connections: connections(args),
            appends_per_second: args.rate * f64::from(args.answers) / f64::from(args.batch),
            duration_ns: duration_ns(args.duration),
            drain_ns: duration_ns(args.drain),
        })
    }

    /// The requests of the producers. They end by themselves; if a server is too slow, they end unfinished.
    pub(super) fn requests_plan(&self, server: &ServerUrl) -> RequestPlan {
        let each = self.answers.div_ceil(self.connections);
        RequestPlan {
            servers: vec![server.address],
            sources: Sources::new(server.address, self.connections),
            lines: self.connections as usize,
            depth: each as usize,
            rate: Some(self.appends_per_second),
            duration_ns: self.duration_ns.saturating_mul(SLOWER_MAX) + GRACE_NS,
            mode: Mode::KeepAlive {
                reconnect_timeout_ns: RECONNECT_TIMEOUT_NS,
            },
            grace_ns: GRACE_NS,
        }
    }
}

/// Connections that the producers share.
pub(super) fn connections(args: &AnswersArgs) -> u32 {
    let most = args.connections.unwrap_or(CONNECTIONS_MAX);
    most.min(args.answers)
}

const TOKENS_MAX: f64 = u32::MAX as f64 / 10.0;

/// Connections of the producers, if the command line does not say how many.
const CONNECTIONS_MAX: u32 = 2_000;

/// How many times longer than it should an answer may take.
const SLOWER_MAX: u64 = 3;

/// How long to wait for the last acknowledgements, and for a connection.
const GRACE_NS: u64 = 5 * SECOND_NS;
const RECONNECT_TIMEOUT_NS: u64 = 5 * SECOND_NS;
