//! `encke doctor`: what this machine allows, what so many connections need, and the lines that make up the difference.
//!
//! Exit codes: 0 so many connections fit; 5 they don't; 1 the report could not be made.

mod checks;
mod machine;
mod paper;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::{Code, Failed};
use checks::{Check, Line, Verdict, bytes};
use machine::{Machine, Syncs, measure_syncs};
use paper::Paper;

/// Says what this machine's limits allow, what so many connections need, and what is to be set.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// How many connections there are to be
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    connections: u64,

    /// Where the log is to be, to see how long its disk takes; nothing stays there
    #[arg(
        long,
        env = "ENCKE_DATA",
        value_name = "DIR",
        default_value = "./encke-data"
    )]
    data: PathBuf,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Looks at the machine and prints what it found.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failed> {
    let machine = Machine::read(Path::new("/"));
    let syncs = measure_syncs(&args.data);
    if let Err(error) = &syncs {
        eprintln!(
            "encke: the disk of {} can't be measured: {error}",
            args.data.display()
        );
    }
    let report = Report::new(&machine, args.connections, syncs.ok());
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
    /// Whether nothing is known that keeps so many connections from being made.
    fits: bool,
    /// How many things the machine does not say.
    unknown: usize,
    checks: Vec<Check>,
    memory: Paper,
    /// What the memory on paper comes to, when clients read what they are sent and when every bound is reached.
    memory_total_bytes: u64,
    memory_worst_bytes: u64,
    memory_usable_bytes: Option<u64>,
    /// All lines to set, in the order of their files.
    set: Vec<Line>,
}

impl Report {
    fn new(machine: &Machine, connections: u64, syncs: Option<Syncs>) -> Self {
        let memory = Paper::new(connections);
        let checks = checks::all(machine, connections, &memory, syncs);
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
            fits: count(Verdict::TooLow) == 0,
            unknown: count(Verdict::Unknown),
            memory_total_bytes: memory.total_bytes(),
            memory_worst_bytes: memory.worst_bytes(),
            memory_usable_bytes: machine.memory_usable(),
            set,
            memory,
            checks,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = encke_flood::units::count(self.connections);
        let width = |column: fn(&Check) -> &str| {
            let widths = self
                .checks
                .iter()
                .map(|check| column(check).chars().count());
            widths.max().unwrap_or(0)
        };
        let (names, values) = (width(|c| c.name), width(|c| &c.value));
        let head = ["", "", "here", "needed"];
        let rows = self.checks.iter().map(|check| {
            let word = check.verdict.word();
            [word, check.name, &check.value, &check.need]
        });
        for [verdict, name, value, need] in std::iter::once(head).chain(rows) {
            let row = format!("{verdict:7} {name:names$}  {value:values$}  {need}");
            writeln!(f, "{}", row.trim_end())?;
        }
        for check in &self.checks {
            if matches!(check.verdict, Verdict::TooLow | Verdict::Advice) {
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
                "with commands that wait (--mailbox-size)",
                paper.mailbox_bytes,
            ),
            (
                "with buffers for slow clients (--buffers-max)",
                paper.buffers_bytes,
            ),
            (
                "with one client in a hundred not reading (--send-buffer)",
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
        let verdict = if self.fits { "fit" } else { "do not fit" };
        writeln!(f, "\n{connections} connections {verdict}{unknown}.")
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Fits => "ok",
            Verdict::Advice => "advice",
            Verdict::TooLow => "TOO LOW",
            Verdict::Unknown => "unknown",
        }
    }
}
