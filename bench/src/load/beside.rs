//! Sprays two servers in turn, so that both are measured under the same conditions.

use crate::BenchError;
use crate::load::args::SprayArgs;
use crate::load::report::spray::SprayReport;
use crate::load::spray::spray;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sprays the server at [`SprayArgs::url`] and the one at [`SprayArgs::beside`] in turn, [`SprayArgs::rounds`] times, or until
/// SIGINT or SIGTERM arrives; rounds that both have gone through by then are in the report.
///
/// # Errors
///
/// [`BenchError::Option`] when there is no second server, no end to a run, or an acknowledgement log, which would not say
/// whose acknowledgements it holds. Otherwise as for [`spray`](crate::load::spray()).
pub fn spray_beside(args: &SprayArgs, stop: &AtomicBool) -> Result<BesideReport, BenchError> {
    let bad = |text: &str| Err(BenchError::Option(text.into()));
    let Some(beside) = &args.beside else {
        return bad("there is no second server: --beside says where it is");
    };
    if args.duration.is_none() && args.messages.is_none() {
        return bad("--beside takes turns, so it needs --duration or --messages");
    }
    if args.ack_log.is_some() {
        return bad("--ack-log is for one server, and --beside is a second one");
    }
    let other = SprayArgs {
        url: beside.clone(),
        server_pid: args.beside_pid,
        ..args.clone()
    };
    let mut report = BesideReport {
        urls: [args.url.clone(), beside.clone()],
        producers: args.producers,
        size: args.size,
        rounds: Vec::new(),
    };
    for number in 0..args.rounds {
        let again = SprayArgs {
            no_create: args.no_create || number > 0,
            ..args.clone()
        };
        let other = SprayArgs {
            no_create: again.no_create,
            ..other.clone()
        };
        let round = [spray(&again, stop)?, spray(&other, stop)?];
        // An interrupted round cannot be compared.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        report.rounds.push(round);
    }
    Ok(report)
}

/// The results of two servers in turn.
#[derive(Debug, Clone, Serialize)]
pub struct BesideReport {
    /// The two.
    pub urls: [String; 2],
    /// Producers, each with a connection.
    pub producers: u32,
    /// Bytes per message.
    pub size: usize,
    /// Each round: the first server's run, and the second's, made after it.
    pub rounds: Vec<[SprayReport; 2]>,
}

impl BesideReport {
    /// How many times the second's rate the first's was, in each round.
    pub fn ratios(&self) -> Vec<f64> {
        let rate = |report: &SprayReport| report.acknowledged_per_second;
        self.rounds
            .iter()
            .map(|[first, second]| rate(first) / rate(second).max(1e-9))
            .collect()
    }

    /// The exit code: 0 when both servers acknowledged everything in every round, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        let all = self.rounds.iter().flatten().all(SprayReport::is_success);
        u8::from(self.rounds.is_empty() || !all)
    }
}
