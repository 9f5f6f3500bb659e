//! What a command line can ask for.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// What `encke bench` is told.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct BenchArgs {
    /// Which experiment
    #[arg(value_enum, value_name = "NAME")]
    pub name: Name,

    /// How large a run: 1 is the report's own size, 0.01 a hundredth of it, for a quick look. What still does not fit the
    /// machine (memory, disk, open files) is made smaller, and the report says so
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = size)]
    pub size: f64,

    /// Write the report into this directory: a page (HTML) with tables and plots, the same as JSON, the plots as SVG, and
    /// for `all` the same as Markdown [default for `all`: ./encke-bench]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Draw the experiment's plot into this SVG file; not for `all`, which has several: use --out
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// For `all`: put the figures in short into this Markdown file, between two comments that mark their place
    #[arg(long, value_name = "FILE")]
    pub insert: Option<PathBuf>,

    /// Directory on the disk to measure; a directory for the run is made in it and removed afterwards
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,

    /// For `flood`, `fanout` and `spread`: how many seconds messages are published in each run [default: 15; 10 for the others;
    /// times the size up to 1]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,

    /// The same in hours
    #[arg(long, value_name = "H", value_parser = hours, conflicts_with = "seconds")]
    pub hours: Option<f64>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// The experiments.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// 1,000 producers send 1,000,000 records to one log, waiting for each to be synced, or not waiting
    Log,
    /// Ping the server and follow a stream while its log syncs without pause, also with every sync 15 ms longer
    Fsync,
    /// 10,000 connections, then 1,000,000 or as many as the machine allows; 1,000 messages a second to random ones, and clients
    /// that come and go; `encke flood` is the tool behind it
    Flood,
    /// Up to 10,000,000 messages wait, each handled with a reply that arrives behind the rest
    Backlog,
    /// Pick one of 6 workers, by each strategy, alone and with up to 1,000 clients at once
    Pool,
    /// One event to 5,000 subscribers, 20 and 1,000 a second and as fast as they are acknowledged, beside a bare loop of send(2)
    Fanout,
    /// 1,000 and 10,000 messages a second to random ones of 1,000, 10,000 and 19,000 subscribers
    Spread,
    /// 10,000,000 records in 1,000,000 streams: how soon the server is back after kill -9, its memory, and reads of any stream, cold
    /// and warm; then with twice the records
    Streams,
    /// The five experiments that have reports (log, fsync, flood, backlog, pool), one after the other, in one report
    All,
}

impl BenchArgs {
    /// How long messages are published, if it was said.
    pub(crate) fn published(&self) -> Option<Duration> {
        let seconds = self.seconds.or(self.hours.map(|hours| hours * 3_600.0));
        seconds.map(Duration::from_secs_f64)
    }
}

impl Name {
    /// The experiments that the name stands for.
    pub fn each(self) -> Vec<Name> {
        match self {
            Self::All => vec![
                Self::Log,
                Self::Fsync,
                Self::Flood,
                Self::Backlog,
                Self::Pool,
            ],
            one => vec![one],
        }
    }

    /// The name as it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Fsync => "fsync",
            Self::Flood => "flood",
            Self::Backlog => "backlog",
            Self::Pool => "pool",
            Self::Fanout => "fanout",
            Self::Spread => "spread",
            Self::Streams => "streams",
            Self::All => "all",
        }
    }

    /// What is done, in a few words, for the progress.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Log => "1,000 producers, one log",
            Self::Fsync => "pings and deliveries while the log syncs",
            Self::Flood => "connections, and what each costs",
            Self::Backlog => "messages that wait, and replies behind them",
            Self::Pool => "picks of a worker",
            Self::Fanout => "one event to many",
            Self::Spread => "messages to one of many",
            Self::Streams => "many streams, killed and opened again",
            Self::All => "everything",
        }
    }
}

/// What the options don't say.
const AFTER_HELP: &str = "\
Each experiment prints tables with the figures of its report (2005-2013), of the same work in today's Erlang, and of this run, \
then what must hold, and whether it did. Times depend on the machine: what counts are the ratios within one run. For figures \
to publish, run the release build on a quiet machine, with --data on the disk that the server will use; all at size 1 takes \
about five minutes. Every fdatasync is made 15 ms slower with strace, if that is installed.

Exit codes: 0 the run was made, whatever its speed; 1 it could not be made, or a promise was broken (a record lost, a bound \
passed); 2 the command line is wrong.

Examples:
  encke bench log --size 0.1
  encke bench backlog --plot backlog.svg
  encke bench all --out report --data /var/lib/encke";

/// The largest factor that can be asked for.
const SIZE_MAX: f64 = 100.0;

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=SECONDS_MAX).contains(&seconds) => Ok(seconds),
        _ => Err("a run takes from 0.1 seconds to a year".into()),
    }
}

fn hours(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(hours) if (0.001..=SECONDS_MAX / 3_600.0).contains(&hours) => Ok(hours),
        _ => Err("a run takes from 0.001 hours to a year".into()),
    }
}

/// A year.
const SECONDS_MAX: f64 = 365.0 * 86_400.0;

fn size(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(size) if size > 0.0 && size <= SIZE_MAX => Ok(size),
        _ => Err(format!("a size is a number above 0 and up to {SIZE_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    #[test]
    fn every_experiment_and_option_is_explained() {
        Line::command().debug_assert();
        for arg in Line::command().get_arguments() {
            assert!(arg.get_help().is_some(), "{}", arg.get_id());
        }
        for name in Name::value_variants() {
            let value = name.to_possible_value().unwrap();
            assert_eq!(value.get_name(), name.word());
            assert!(value.get_help().is_some(), "{name:?}");
        }
    }

    #[test]
    fn sizes_have_bounds_and_all_is_five() {
        let parse = |line: &str| Line::try_parse_from(line.split(' ')).map(|line| line.args);
        assert_eq!(parse("x log --size 0.01").unwrap().size, 0.01);
        assert_eq!(parse("x all").unwrap().name.each().len(), 5);
        for wrong in [
            "x log --size 0",
            "x log --size -1",
            "x log --size nan",
            "x",
            "x nothing",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
