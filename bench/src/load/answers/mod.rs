//! Answers of language models: many streams at a time, each appended to token by token by its own idempotent producer and
//! followed by three readers.
//!
//! Two threads do it: one epoll loop has the connections of all producers, another one those of all readers.

mod appends;
mod args;
mod plan;
mod tokens;
mod turn;

pub use args::AnswersArgs;
pub use tokens::TokenFaults;

use crate::BenchError;
use crate::load::produce::new_run;
use crate::load::progress::Progress;
use crate::load::report::answers::AnswersReport;
use crate::load::servers::letter;
use crate::load::socket::{check_descriptors, raise_descriptor_limit};
use plan::{AnswersPlan, READERS, connections};
use std::sync::atomic::AtomicBool;

/// Streams answers through each server in turn, until all rounds are over. Servers that the run starts are new in each round.
///
/// Progress goes to standard error.
///
/// # Errors
///
/// When the run can't be made, or is interrupted. Tokens that were lost or repeated are in the report;
/// [`AnswersReport::exit_code`] sums it up.
pub fn answers(args: &AnswersArgs, stop: &AtomicBool) -> Result<AnswersReport, BenchError> {
    let sockets = u64::from(args.answers) * u64::from(READERS) + u64::from(connections(args));
    check_descriptors(raise_descriptor_limit(), sockets)?;
    let mut progress = Progress::new(None);
    let mut report = AnswersReport {
        servers: Vec::new(),
        answers: args.answers,
        tokens_per_second: args.rate,
        seconds: args.duration.as_secs_f64(),
        batch: args.batch,
        token_bytes: args.size as u64,
        content_type: args.content_type.clone(),
        connections: connections(args),
        rounds: Vec::new(),
    };
    for round in 1..=args.servers.rounds {
        let servers = args.servers.open()?;
        let mut turns = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            progress.say(&format!("round {round} of {}", letter(number)));
            let prefix = format!("answer/{:08x}/", new_run());
            let plan = AnswersPlan::new(args, &server.url, &prefix)?;
            turns.push(turn::run_turn(&plan, server, &mut progress, stop)?);
        }
        report.servers = servers.iter().map(|server| server.name.clone()).collect();
        report.rounds.push(turns);
    }
    Ok(report)
}
