//! `encke doctor`: checks whether this machine and the data directory suit a number of connections, and prints the settings to
//! change.
//!
//! Exit codes: 0 the connections fit and the directory is suitable; 5 otherwise; 1 the report could not be made.

mod checks;
mod data;
mod machine;
mod paper;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use bytesize::ByteSize;
use clap::Args;
use encke_net::TlsSettings;
use serde::Serialize;

use crate::{Code, Failed};
use checks::{Check, Line, Verdict, bytes, count};
use data::{Ahead, Data};
use machine::Machine;
use paper::Paper;

/// Checks this machine's limits and the data directory, and prints the settings to change.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Number of connections to check for
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10_000, value_parser = connections)]
    connections: u64,

    /// Data directory: checks whether it can be created and written, its free space, its file system, and how long a sync
    /// takes; leaves no files
    #[arg(
        long,
        env = "ENCKE_DATA",
        value_name = "DIR",
        default_value = "./encke-data"
    )]
    data: PathBuf,

    /// Number of logs in the data directory; each is checked [default: those that exist, else 1]
    #[arg(long, env = "ENCKE_LOGS", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LOGS_MAX))]
    logs: Option<u64>,

    /// Size of a segment of the log, which is reserved in advance [default: 64MiB]
    #[arg(long, env = "ENCKE_SEGMENT", value_name = "SIZE")]
    segment: Option<ByteSize>,

    /// Sealed segments that may wait to go into history (tuning.waiting-segments-max) [default: 3]
    #[arg(long, value_name = "N")]
    waiting_segments_max: Option<u64>,

    /// Address that the server is to listen on
    #[arg(long, env = "ENCKE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:4437", value_parser = crate::config::address)]
    listen: SocketAddr,

    /// Certificates that the server is to use, as for encke serve
    #[arg(
        long,
        env = "ENCKE_TLS_CERT",
        value_name = "FILES",
        value_delimiter = ','
    )]
    tls_cert: Vec<PathBuf>,

    /// Their keys, in the same order
    #[arg(
        long,
        env = "ENCKE_TLS_KEY",
        value_name = "FILES",
        value_delimiter = ','
    )]
    tls_key: Vec<PathBuf>,

    /// Certificates of the authorities for client certificates
    #[arg(long, env = "ENCKE_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// More than one machine can hold.
const CONNECTIONS_MAX: u64 = 100_000_000;

fn connections(text: &str) -> anyhow::Result<u64> {
    crate::whole_number(text)
        .ok()
        .filter(|connections| (1..=CONNECTIONS_MAX).contains(connections))
        .with_context(|| {
            format!("must be a whole number from 1 to {CONNECTIONS_MAX}, such as 1000000")
        })
}

/// Checks the machine and prints the report.
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
    let mut report = Report::new(&machine, args.connections, args.listen, data);
    let tls = TlsSettings {
        certificates: args.tls_cert.clone(),
        keys: args.tls_key.clone(),
        client_ca: args.tls_client_ca.clone(),
        ..TlsSettings::default()
    };
    if tls != TlsSettings::default() {
        report.add(checks::tls(&tls));
    }
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

/// The results.
#[derive(Debug, Serialize)]
struct Report {
    connections: u64,
    /// Whether no check found a reason that prevents the connections, or a start on the data.
    fits: bool,
    /// How many values the machine does not provide.
    unknown: usize,
    checks: Vec<Check>,
    data: Data,
    memory: Paper,
    /// The sum of the expected memory, first while clients read their output, then with every bound reached.
    memory_total_bytes: u64,
    memory_worst_bytes: u64,
    memory_usable_bytes: Option<u64>,
    /// All lines to set, in the order of their files.
    set: Vec<Line>,
}

impl Report {
    fn new(machine: &Machine, connections: u64, listen: SocketAddr, data: Data) -> Self {
        let memory = Paper::new(connections, data.logs());
        let mut checks = checks::all(machine, connections, &memory, &data);
        checks.push(checks::address(listen));
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

impl Report {
    /// Adds a check that only some servers need, and that sets nothing.
    fn add(&mut self, check: Check) {
        self.fits &= !matches!(check.verdict, Verdict::TooLow | Verdict::Fails);
        self.checks.push(check);
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
        writeln!(f, "\nExpected memory for {connections} connections:")?;
        for (what, number) in [
            ("server without connections", paper.base_bytes),
            ("subscribers, each with its own stream", paper.user_bytes),
            ("sockets, in the kernel", paper.kernel_bytes),
            ("recent records (--ring)", paper.ring_bytes),
            ("history's cache", paper.history_bytes),
            ("total", self.memory_total_bytes),
            (
                "plus waiting commands (tuning.mailbox-size)",
                paper.mailbox_bytes,
            ),
            (
                "plus buffers for slow clients (--buffers-max)",
                paper.buffers_bytes,
            ),
            (
                "plus 1 % of clients not reading (tuning.send-buffer)",
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
            count => format!(" ({count} values are unknown here)"),
        };
        let has = |verdict| self.checks.iter().any(|check| check.verdict == verdict);
        if has(Verdict::Fails) {
            return writeln!(f, "\nThe server would not start.");
        }
        let verdict = match has(Verdict::TooLow) {
            false => "fit",
            true => "do not fit",
        };
        writeln!(f, "\n{connections} connections {verdict}{unknown}.")
    }
}

/// The server's limit.
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
