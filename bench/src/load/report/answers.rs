//! The report of streamed answers.

use crate::load::answers::TokenFaults;
use crate::load::cost::Cost;
use crate::load::latency::Percentiles;
use crate::load::servers::letter;
use crate::report::Table;
use crate::units::{bytes, count, micros, per_second};
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

    /// The report as tables.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut table = Table::default();
        let t = &mut table;
        t.line(
            "answers",
            format!(
                "{} at a time, each {} tokens/s for {:.0} s, {} per token, {} per append, {}; {} connections of producers",
                count(self.answers.into()),
                self.tokens_per_second,
                self.seconds,
                bytes(self.token_bytes),
                self.batch,
                self.content_type,
                count(self.connections.into())
            ),
        );
        for (server, name) in self.servers.iter().enumerate() {
            t.line(format!("  {}", letter(server)), name);
        }
        let mut faults = Table::default();
        self.each_turn(|name, turn| turn.write_faults(name, &mut faults));
        vec![table, self.server_table(), self.own_table(), faults]
    }

    fn each_turn(&self, mut each: impl FnMut(&str, &AnswersTurn)) {
        for (round, turns) in (1..).zip(&self.rounds) {
            for (server, turn) in turns.iter().enumerate() {
                each(&format!("{round} {}", letter(server)), turn);
            }
        }
    }

    fn server_table(&self) -> Table {
        let columns = [
            "turn",
            "tokens appended",
            "delivered",
            "p50",
            "p99",
            "max",
            "ack p99",
            "first event p99",
            "cpu per token",
            "cores",
            "memory per answer, idle",
            "at most",
        ];
        let mut table = Table::new("", columns);
        self.each_turn(|name, turn| {
            let per_second = |number: u64| per_second(number as f64 / turn.seconds.max(1e-9));
            let memory = |of: &dyn Fn(&MemoryOfAnswers) -> u64| {
                let grown = |one: &MemoryOfAnswers| of(one).saturating_sub(one.before_bytes);
                let each = |one| bytes(grown(one) / u64::from(self.answers));
                turn.memory.as_ref().map_or_else(none, each)
            };
            let server = turn.cost.server.as_ref();
            let cores = server.map(|server| server.cpu_s / turn.cost.seconds.max(1e-9));
            table.row(
                name,
                [
                    per_second(turn.appended.tokens),
                    per_second(turn.delivered),
                    time(turn.latency.as_ref(), |p| p.p50_us),
                    time(turn.latency.as_ref(), |p| p.p99_us),
                    time(turn.latency.as_ref(), |p| p.max_us),
                    time(turn.appended.acknowledgement.as_ref(), |p| p.p99_us),
                    time(turn.later_first_events.as_ref(), |p| p.p99_us),
                    turn.server_cpu_us_per_token()
                        .map_or_else(none, |us| format!("{us:.2} µs")),
                    cores.map_or_else(none, |cores| format!("{cores:.2}")),
                    memory(&|one| one.open_bytes),
                    memory(&|_| server.map_or(0, |server| server.rss_anon_bytes_max)),
                ],
            );
        });
        table
    }

    fn own_table(&self) -> Table {
        let columns = [
            "the tool",
            "cores",
            "appends late p50",
            "p99",
            "batches p99",
            "max",
            "woke late p99",
            "max",
            "others",
            "stolen",
        ];
        let mut table = Table::new("", columns);
        self.each_turn(|name, turn| {
            let (own, cost) = (&turn.own, &turn.cost);
            let percent = |percent: f64| format!("{percent:.0} %");
            table.row(
                name,
                [
                    format!("{:.2}", cost.own_cpu_s / cost.seconds.max(1e-9)),
                    time(own.appends_late.as_ref(), |p| p.p50_us),
                    time(own.appends_late.as_ref(), |p| p.p99_us),
                    time(own.batches.as_ref(), |p| p.p99_us),
                    time(own.batches.as_ref(), |p| p.max_us),
                    time(cost.woke_late.as_ref(), |p| p.p99_us),
                    time(cost.woke_late.as_ref(), |p| p.max_us),
                    cost.others_percent.map_or_else(none, percent),
                    percent(cost.stolen_percent),
                ],
            );
        });
        table
    }
}

impl AnswersTurn {
    /// Writes what was not as it should be, or not as usual.
    fn write_faults(&self, name: &str, t: &mut Table) {
        let AppendFigures {
            tokens,
            tokens_wanted,
            refused,
            repeated,
            connections_lost,
            ..
        } = &self.appended;
        if !self.is_success() {
            let TokenFaults {
                missing,
                repeated,
                strangers,
                without_end,
            } = self.faults;
            t.line(
                format!("FAULT in {name}"),
                format!(
                    "{} of {} tokens appended; {} missing, {} repeated, {} of others; {} readers without an end",
                    count(*tokens),
                    count(*tokens_wanted),
                    count(missing),
                    count(repeated),
                    count(strangers),
                    count(without_end)
                ),
            );
        }
        if refused.len() as u64 + repeated + connections_lost > 0 {
            let statuses = refused.iter().map(|(status, n)| format!("{n} × {status}"));
            t.line(
                format!("appends of {name}"),
                format!(
                    "refused: {}; {} sent again; {} connections lost",
                    statuses.collect::<Vec<_>>().join(", "),
                    count(*repeated),
                    count(*connections_lost)
                ),
            );
        }
        if self.subscriptions_lost > 0 || !self.subscription_failures.is_empty() {
            let failures = self.subscription_failures.iter();
            let failures = failures.map(|(reason, n)| format!("{n} × {reason}"));
            t.line(
                format!("readers of {name}"),
                format!(
                    "{} subscriptions lost; {}",
                    count(self.subscriptions_lost),
                    failures.collect::<Vec<_>>().join(", ")
                ),
            );
        }
    }
}

fn time(percentiles: Option<&Percentiles>, pick: fn(&Percentiles) -> f64) -> String {
    percentiles.map_or_else(none, |percentiles| micros(pick(percentiles)))
}

/// In place of what is not known.
fn none() -> String {
    "-".into()
}
