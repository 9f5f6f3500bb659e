//! `encke doctor`: what this machine allows, what so many connections and their data need, and the lines that make up the
//! difference.
//!
//! Exit codes: 0 so many connections fit and the data can be where it is to be; 5 not; 1 the report could not be made.

mod checks;
mod data;
mod machine;
mod paper;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;

use crate::{Code, Failed};
use checks::{Check, Line, Verdict, bytes, count};
use data::{Ahead, Data};
use machine::Machine;
use paper::Paper;

/// Says what this machine's limits allow, what so many connections and their data need, and what is to be set.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// How many connections there are to be
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    connections: u64,

    /// Where the data is to be: whether it can be there, how much room there is, what kind of disk it is, and how long that
    /// takes to sync; nothing stays there
    #[arg(
        long,
        env = "ENCKE_DATA",
        value_name = "DIR",
        default_value = "./encke-data"
    )]
    data: PathBuf,

    /// Logs that there are to be in it, each looked at [default: as many as there are, else 1]
    #[arg(long, env = "ENCKE_LOGS", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LOGS_MAX))]
    logs: Option<u64>,

    /// Size of a segment of the log, which is reserved before anything is written [default: 64MiB]
    #[arg(long, env = "ENCKE_SEGMENT", value_name = "SIZE")]
    segment: Option<ByteSize>,

    /// Sealed segments that may wait to go into history [default: 3]
    #[arg(long, value_name = "N")]
    waiting_segments_max: Option<u64>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Looks at the machine and prints what it found.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failed> {
    let machine = Machine::read(Path::new("/"));
    let defaults = encke_log::Options::default();
    let waiting = args.waiting_segments_max;
    let ahead = Ahead {
        segment_bytes: args.segment.map_or(defaults.segment_bytes, |size| size.0),
        waiting: waiting.unwrap_or(defaults.waiting_segments_max as u64),
    };
    let logs = args.logs.map(|logs| logs as usize);
    let data = Data::look(&args.data, logs, ahead);
    let report = Report::new(&machine, args.connections, data);
    if args.json {
        let json = serde_json::to_string_pretty(&report).context("the report can't be written")?;
        println!("{json}");
    } else {
        print!("{report}");
    }
    Ok(if report.fits {
        ExitCode::SUCCESS
    } else {
        Code::Unfit.into()
    })
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    connections: u64,
    /// Whether nothing is known that keeps so many connections from being made, or the server from starting on the data.
    fits: bool,
    /// How many things the machine does not say.
    unknown: usize,
    checks: Vec<Check>,
    data: Data,
    memory: Paper,
    /// What the memory on paper comes to, when clients read what they are sent and when every bound is reached.
    memory_total_bytes: u64,
    memory_worst_bytes: u64,
    memory_usable_bytes: Option<u64>,
    /// All lines to set, in the order of their files.
    set: Vec<Line>,
}

impl Report {
    fn new(machine: &Machine, connections: u64, data: Data) -> Self {
        let memory = Paper::new(connections, data.logs());
        let checks = checks::all(machine, connections, &memory, &data);
        let count = |verdict| {
            checks
                .iter()
                .filter(|check| check.verdict == verdict)
                .count()
        };
        let mut set: Vec<_> = checks.iter().flat_map(|check| check.set.clone()).collect();
        set.sort_by_key(|line| line.file);
        Report {
            connections,
            fits: count(Verdict::TooLow) + count(Verdict::Fails) == 0,
            unknown: count(Verdict::Unknown),
            memory_total_bytes: memory.total_bytes(),
            memory_worst_bytes: memory.worst_bytes(),
            memory_usable_bytes: machine.memory_usable(),
            set,
            memory,
            checks,
            data,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = count(self.connections);
        let width = |column: fn(&Check) -> &str| {
            let widths = self
                .checks
                .iter()
                .map(|check| column(check).chars().count());
            widths.max().unwrap_or(0)
        };
        let (names, values) = (width(|c| &c.name), width(|c| &c.value));
        let head = ["", "", "here", "needed"];
        let rows = self.checks.iter().map(|check| {
            let word = check.verdict.word();
            [word, &*check.name, &check.value, &check.need]
        });
        for [verdict, name, value, need] in std::iter::once(head).chain(rows) {
            let row = format!("{verdict:7} {name:names$}  {value:values$}  {need}");
            writeln!(f, "{}", row.trim_end())?;
        }
        for check in &self.checks {
            if matches!(
                check.verdict,
                Verdict::TooLow | Verdict::Fails | Verdict::Advice
            ) {
                writeln!(
                    f,
                    "\n{} ({}): {}.",
                    check.name,
                    check.verdict.word(),
                    check.why
                )?;
            }
        }
        let paper = &self.memory;
        writeln!(f, "\nMemory on paper for {connections} connections:")?;
        for (what, number) in [
            ("the server without any", paper.base_bytes),
            (
                "subscribers, each with a stream of its own",
                paper.user_bytes,
            ),
            ("their sockets, in the kernel", paper.kernel_bytes),
            ("recent records (--ring)", paper.ring_bytes),
            ("history's cache", paper.history_bytes),
            ("together", self.memory_total_bytes),
            (
                "with commands that wait (tuning.mailbox-size)",
                paper.mailbox_bytes,
            ),
            (
                "with buffers for slow clients (--buffers-max)",
                paper.buffers_bytes,
            ),
            (
                "with one client in a hundred not reading (tuning.send-buffer)",
                paper.unread_bytes,
            ),
            ("at most", self.memory_worst_bytes),
        ] {
            writeln!(f, "  {what:57} {:>12}", bytes(number))?;
        }
        let usable = self.memory_usable_bytes.map_or("unknown".into(), bytes);
        writeln!(f, "  {:57} {usable:>12}", "available now")?;
        let mut file = "";
        for line in &self.set {
            if line.file != file {
                file = line.file;
                writeln!(f, "\nIn {file}:")?;
            }
            writeln!(f, "  {}", line.line)?;
        }
        let unknown = match self.unknown {
            0 => String::new(),
            count => format!(" ({count} things are unknown here)"),
        };
        let has = |verdict| self.checks.iter().any(|check| check.verdict == verdict);
        if has(Verdict::Fails) {
            writeln!(f, "\nThe server would not start on this data.")?;
        }
        let verdict = match has(Verdict::TooLow) {
            false => "fit",
            true => "do not fit",
        };
        writeln!(f, "\n{connections} connections {verdict}{unknown}.")
    }
}

/// As many as a server can have.
const LOGS_MAX: u64 = encke_stream::LOGS_MAX as u64;

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Fits => "ok",
            Verdict::Advice => "advice",
            Verdict::TooLow => "TOO LOW",
            Verdict::Fails => "FAILS",
            Verdict::Unknown => "unknown",
        }
    }
}
