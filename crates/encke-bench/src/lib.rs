//! The five experiments that Encke answers, repeated on this machine and set beside the figures of their reports.
//!
//! Encke grew out of five field reports, 2005 to 2013, in which real-time servers fell over. Each experiment repeats
//! one of them and shows the figure that the report could not reach:
//!
//! - `log`: 1,000 producers and one log, each waiting for its synced record or not; the queue stays within its bound.
//! - `fsync`: pings and live deliveries while the log syncs without pause, on this disk and on a slow one.
//! - `flood`: idle connections, messages to random ones, hang-ups; what a connection costs.
//! - `backlog`: messages that wait, each handled with a reply that arrives behind the rest.
//! - `pool`: picks of a worker by each strategy, alone and with 1,000 clients at once.
//!
//! Two more have no report, and show what a delivery costs: `fanout`, one event to many; `spread`, messages to one of many.
//! And one shows what streams and records cost that nobody uses: `streams`.
//!
//! [`bench()`] runs one or all and returns a [`Report`]: text for people (`Display`), JSON for programs (`Serialize`), a
//! page with tables and plots ([`BenchArgs::out`]). Progress goes to standard error.
//!
//! # The invariant
//!
//! **Every figure is measured on what the server itself runs.** The experiments use the real mailbox, sequencer, log,
//! pool and binary, and count what went in and what came out; a run that loses a record, or whose queue passes its bound,
//! says so in its [`Target`]s and in [`Report::exit_code`]. What is not measured but quoted (the reports, and the same
//! work in today's Erlang) stands in `past.rs` alone.
//!
//! # Where to start reading
//!
//! `args.rs` says what can be asked for; each experiment is a module with its name whose `run` leads it from beginning to
//! end and whose `section` says how it is shown. `report/` turns that into text and pages; `lab.rs` is what experiments
//! run in, `serving.rs` the server they run against.

mod args;
mod backlog;
mod client;
mod delivery;
mod error;
mod flood;
mod fsync;
mod lab;
mod log;
mod machine;
mod past;
mod pool;
mod report;
mod scrape;
mod serving;
mod streams;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use encke_flood::Stolen;

pub use args::{BenchArgs, Name};
pub use error::BenchError;
pub use machine::Machine;
pub use report::{Report, Section, Table, Target};

use lab::Lab;

/// Runs the experiment that `args` names, or all, and writes the files that it asks for.
///
/// `program` is the `encke` binary, which is started as the server of some experiments. Setting `stop` ends the run
/// early with [`BenchError::Interrupted`].
///
/// # Errors
/// An experiment could not be made. What it found is never an error: see [`Report::exit_code`].
pub fn bench(args: &BenchArgs, program: &Path, stop: &AtomicBool) -> Result<Report, BenchError> {
    if args.plot.is_some() && args.name == Name::All {
        return Err(BenchError::Option(
            "--plot is for one experiment; --out writes the plots of all",
        ));
    }
    if args.plot.is_some() && matches!(args.name, Name::Fanout | Name::Spread | Name::Streams) {
        return Err(BenchError::Option(
            "fanout, spread and streams have no plot",
        ));
    }
    if args.insert.is_some() && args.name != Name::All {
        return Err(BenchError::Option(
            "--insert is for all, whose figures in short it writes",
        ));
    }
    let lab = Lab::new(args.size, &args.data, program, stop)?;
    let mut report = Report::begin(&lab)?;
    for name in args.name.each() {
        lab.say(&format!("{}: {}", name.word(), name.about()));
        let stolen = Stolen::begin();
        let section = match name {
            Name::Log => log::run(&lab),
            Name::Fsync => fsync::run(&lab),
            Name::Flood => flood::run(&lab, args),
            Name::Backlog => backlog::run(&lab),
            Name::Fanout => delivery::fanout::run(&lab, args),
            Name::Spread => delivery::spread::run(&lab, args),
            Name::Streams => streams::run(&lab),
            Name::Pool | Name::All => pool::run(&lab),
        };
        let stolen_percent = stolen.percent();
        if stolen_percent > STOLEN_PERCENT_MAX {
            report.warnings.push(format!(
                "{}: the host of this virtual machine took {stolen_percent:.0} % of the processors' time: it is in all times",
                name.word()
            ));
        }
        // A signal from the terminal ends the servers too, and then more than one thing fails.
        let section = section.map_err(|error| lab.check().err().unwrap_or(error))?;
        report.experiments.push(section);
    }
    report.seconds = lab.seconds();
    report.write_files(args)?;
    Ok(report)
}

/// With more than this, times say more about the host than about the server.
const STOLEN_PERCENT_MAX: f64 = 2.0;
