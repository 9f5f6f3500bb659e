//! The report of streamed answers.

use crate::load::answers::TokenFaults;
use crate::load::cost::Cost;
use crate::load::latency::Percentiles;
use serde::Serialize;
use std::collections::BTreeMap;

/// What streamed answers have shown.
#[derive(Debug, Clone, Serialize)]
pub struct AnswersReport {
    /// The servers: URLs, or the commands that started them.
    pub servers: Vec<String>,
    /// Answers at a time.
    pub answers: u32,
    /// Tokens per second of each.
    pub tokens_per_second: f64,
    /// How long each should be, in seconds.
    pub seconds: f64,
    /// Tokens per append.
    pub batch: u32,
    /// Bytes per token.
    pub token_bytes: u64,
    /// The content type of the streams.
    pub content_type: String,
    /// Connections that the producers shared.
    pub connections: u32,
    /// Each round: a turn of each server.
    pub rounds: Vec<Vec<AnswersTurn>>,
}

/// One turn of a server.
#[derive(Debug, Clone, Serialize)]
pub struct AnswersTurn {
    /// From the first append to the last acknowledgement of tokens.
    pub seconds: f64,
    /// What the producers appended.
    pub appended: AppendFigures,
    /// Tokens that readers got.
    pub delivered: u64,
    /// Of these, the ones that had been sent before their reader was there: it was cut, or joined late.
    pub caught_up: u64,
    /// Of all others, from the sending of the append to the receipt.
    pub latency: Option<Percentiles>,
    /// From the attempt of a reader to connect to its first event, at the beginning.
    pub first_events: Option<Percentiles>,
    /// The same of readers that returned, or joined late, during the run.
    pub later_first_events: Option<Percentiles>,
    /// Readers that were cut.
    pub cuts: u64,
    /// Subscriptions that the server ended before the end of the answer, or that broke.
    pub subscriptions_lost: u64,
    /// Why connections did not come about or broke, and how often.
    pub subscription_failures: BTreeMap<String, u64>,
    /// What was not as it should be.
    pub faults: TokenFaults,
    /// The server's memory, if its process is known.
    pub memory: Option<MemoryOfAnswers>,
    /// Processor time and memory from the first append to the end.
    pub cost: Cost,
    /// How far this tool itself can be trusted.
    pub own: OwnFigures,
}

/// What the producers appended.
#[derive(Debug, Clone, Serialize)]
pub struct AppendFigures {
    /// Tokens that were acknowledged.
    pub tokens: u64,
    /// Tokens that there should be.
    pub tokens_wanted: u64,
    /// The rate of all answers together.
    pub tokens_per_second: f64,
    /// Appends that were acknowledged.
    pub appends: u64,
    /// From the sending of an append to its acknowledgement.
    pub acknowledgement: Option<Percentiles>,
    /// Responses that were no acknowledgements, by status.
    pub refused: BTreeMap<u16, u64>,
    /// Appends that were sent again.
    pub repeated: u64,
    /// Connections of producers that broke.
    pub connections_lost: u64,
}

/// The server's resident anonymous memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryOfAnswers {
    /// Before the streams were created.
    pub before_bytes: u64,
    /// When they were, and two readers of each were connected.
    pub open_bytes: u64,
}

/// What a reader of the report needs to judge the tool.
#[derive(Debug, Clone, Serialize)]
pub struct OwnFigures {
    /// From when an append was due to when it was sent.
    pub appends_late: Option<Percentiles>,
    /// How long the readers' loop took for each batch of events: as long as that a token may have waited in it.
    pub batches: Option<Percentiles>,
}

impl AnswersTurn {
    /// The server's processor time per token that was delivered, in microseconds, if its process is known.
    pub fn server_cpu_us_per_token(&self) -> Option<f64> {
        let server = self.cost.server.as_ref()?;
        Some(server.cpu_s * 1e6 / self.delivered.max(1) as f64)
    }

    /// Whether every token was appended, and came to each reader once and in order, with the end.
    pub fn is_success(&self) -> bool {
        let AppendFigures {
            tokens,
            tokens_wanted,
            ..
        } = self.appended;
        tokens == tokens_wanted && self.faults == TokenFaults::default()
    }
}

impl AnswersReport {
    /// 0 when every reader got every token once and in order in all turns, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        let all = self.rounds.iter().flatten().all(AnswersTurn::is_success);
        u8::from(!all)
    }
}
