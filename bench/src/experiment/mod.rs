//! The experiments: five repeat the field reports of 2005 to 2013, four more have no report.
//!
//! Each experiment is a module with its name; its `run` measures and returns a [`Section`](crate::Section) with tables and targets.
//! Experiments use the real mailbox, sequencer, log, pool and server program. Quoted figures
//! are in `past.rs` only. `lab.rs` is the environment of a run, `serving.rs` the server process.

mod args;
mod backlog;
pub(crate) mod brokers;
mod delivery;
mod fleet;
mod flood;
mod fsync;
pub(crate) mod lab;
mod log;
pub(crate) mod past;
mod pool;
pub(crate) mod serving;
mod streams;

use std::sync::atomic::AtomicBool;

pub use args::{Experiment, ExperimentArgs, ReportArgs, Setup};

use crate::error::BenchError;
use crate::load::Stolen;
use crate::report::Report;
use lab::Lab;

/// Runs experiments one after the other. `stop` ends the run early with [`BenchError::Interrupted`].
///
/// # Errors
/// An experiment could not be run. Its results are never an error: see [`Report::exit_code`].
pub fn run(names: &[Experiment], setup: &Setup, stop: &AtomicBool) -> Result<Report, BenchError> {
    let lab = Lab::new(setup, stop)?;
    let mut report = Report::begin(&lab)?;
    for name in names {
        lab.say(&format!("experiment {}", name.word()));
        let stolen = Stolen::begin();
        let section = match name {
            Experiment::Log => log::run(&lab),
            Experiment::Fsync => fsync::run(&lab),
            Experiment::Flood => flood::run(&lab),
            Experiment::Backlog => backlog::run(&lab),
            Experiment::Pool => pool::run(&lab),
            Experiment::Fanout => delivery::fanout::run(&lab),
            Experiment::Spread => delivery::spread::run(&lab),
            Experiment::Fleet => fleet::run(&lab),
            Experiment::Streams => streams::run(&lab),
        };
        let stolen_percent = stolen.percent();
        if stolen_percent > STOLEN_PERCENT_MAX {
            report.warnings.push(format!(
                "{}: the host of this virtual machine took {stolen_percent:.0} % of the processors' time",
                name.word()
            ));
        }
        // A signal from the terminal also ends the servers, so other errors can precede the check of the flag.
        let section = section.map_err(|error| lab.check().err().unwrap_or(error))?;
        report.experiments.push(section);
    }
    report.seconds = lab.seconds();
    Ok(report)
}

/// Above this share, times say more about the host than about the server.
const STOLEN_PERCENT_MAX: f64 = 2.0;
