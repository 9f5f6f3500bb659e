//! The options of `encke-bench experiment` and `encke-bench report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::load::args::duration;

/// Repeats one experiment and prints its figures.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct ExperimentArgs {
    /// The experiment
    #[arg(value_enum, value_name = "NAME")]
    pub name: Experiment,

    /// Options of the run
    #[command(flatten)]
    pub setup: Setup,

    /// Write NAME.html, and NAME.svg if there is a plot, into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Repeats the five experiments that have a field report, and writes one report.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct ReportArgs {
    /// Options of the run
    #[command(flatten)]
    pub setup: Setup,

    /// Directory for index.html, README.md and the plots (SVG)
    #[arg(long, value_name = "DIR", default_value = "encke-bench-report")]
    pub out: PathBuf,

    /// Replace the summary in this Markdown file, between its two `<!-- bench: -->` comments
    #[arg(long, value_name = "FILE")]
    pub insert: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// How experiments run.
#[derive(Args, Debug, Clone)]
pub struct Setup {
    /// Size of the run: 1 is the size of the field report, 0.01 a hundredth of it
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = size)]
    pub size: f64,

    /// Directory on the disk to measure; the run makes a directory in it and removes it
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,

    /// The server's program [default: `encke` beside this program]
    #[arg(long, value_name = "FILE", env = "ENCKE_BIN")]
    pub encke: Option<PathBuf>,

    /// The program of the brokers of a fleet
    #[arg(
        long,
        value_name = "FILE",
        env = "NATS_SERVER",
        default_value = "nats-server"
    )]
    pub broker: PathBuf,

    /// How long flood, fanout and spread publish in each run [default: 15s for flood, else 10s; less below size 1]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
}

/// The experiments.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Experiment {
    /// 1,000 producers append 1,000,000 records to one log, synced or not
    Log,
    /// Pings and deliveries while the log syncs, also with each sync 15 ms longer
    Fsync,
    /// 10,000 and 1,000,000 connections (or the machine's limit), 1,000 messages/s, clients that come and go
    Flood,
    /// Up to 10,000,000 waiting messages, each handled with a reply that arrives behind the rest
    Backlog,
    /// Picks of one of 6 workers, by each strategy, by 1 to 1,000 clients
    Pool,
    /// One event to 5,000 subscribers, beside a bare loop of send(2)
    Fanout,
    /// Messages to random ones of 1,000, 10,000 and 19,000 subscribers
    Spread,
    /// Three nodes and three brokers beside a single server: appends, deliveries, and 6,000 subscribers of a node that is killed
    Fleet,
    /// 10,000,000 records in 1,000,000 streams: recovery after kill -9, memory, cold and warm reads
    Streams,
}

impl Experiment {
    /// The experiments that repeat a field report.
    pub const REPORTED: [Self; 5] = [
        Self::Log,
        Self::Fsync,
        Self::Flood,
        Self::Backlog,
        Self::Pool,
    ];

    /// The name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Fsync => "fsync",
            Self::Flood => "flood",
            Self::Backlog => "backlog",
            Self::Pool => "pool",
            Self::Fanout => "fanout",
            Self::Spread => "spread",
            Self::Fleet => "fleet",
            Self::Streams => "streams",
        }
    }
}

const AFTER_HELP: &str = "\
Each experiment prints its figures beside those of the field report (2005-2013) and of the same work in today's Erlang, then \
its targets. For figures to publish, run a release build on a quiet machine, with --data on the server's disk. fsync needs \
a C compiler (cc) for its slow disk.

Exit codes: 0 the run was made, whatever its speed; 1 it could not be made, or a promise was broken (a record lost, a bound \
exceeded); 2 the command line is wrong.";

/// The largest factor.
const SIZE_MAX: f64 = 100.0;

fn size(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(size) if size > 0.0 && size <= SIZE_MAX => Ok(size),
        _ => Err(format!("a size is a number above 0 and up to {SIZE_MAX}")),
    }
}
