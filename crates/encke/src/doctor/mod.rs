//! `encke doctor`: checks whether this machine and the data directory suit a number of connections, and prints the settings to
//! change.
//!
//! Exit codes: 0 the connections fit and the directory is suitable; 5 otherwise; 1 the report could not be made.

mod check;
mod checks;
mod data;
mod fleet;
mod machine;
mod memory_estimate;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::config::{Config, SettingsArgs, whole_number};
use crate::failure::{Code, Failed};
use crate::fleet_brokers;
use crate::log_locations::Ahead;
use crate::standard_output::{print, print_json};
use check::{Check, Line, Verdict, bytes, count};
use data::Data;
use machine::Machine;
use memory_estimate::MemoryEstimate;

/// Checks this machine's limits, and the data directory and the address of a server with these settings, and with --fleet the brokers;
/// prints the settings to change. It takes the settings of `encke serve`, and leaves no files.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Number of connections to check for
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10_000, value_parser = connections)]
    connections: u64,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: SettingsArgs,
}

/// More than one machine can hold.
const CONNECTIONS_MAX: u64 = 100_000_000;

fn connections(text: &str) -> anyhow::Result<u64> {
    whole_number(text)
        .ok()
        .filter(|connections| (1..=CONNECTIONS_MAX).contains(connections))
        .with_context(|| {
            format!("must be a whole number from 1 to {CONNECTIONS_MAX}, such as 1000000")
        })
}

/// Checks the machine and prints the report.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failed> {
    let resolved = args.settings.resolve();
    let (config, _) = resolved.map_err(|error| Code::Usage.with(error))?;
    let machine = Machine::read(Path::new("/"));
    let data = Data::look(&config.data, config.logs, Ahead::of(&config));
    let mut report = Report::new(&machine, args.connections, &config, data);
    if let Some(tls) = &config.net.tls {
        report.add(checks::tls(tls));
    }
    if let Some(settings) = config.fleet.settings(&config.log_options) {
        let findings = encke_fleet::examine_brokers(&settings);
        let findings = findings.map_err(fleet_brokers::failed)?;
        for check in fleet::checks(&findings, &settings, config.logs) {
            report.add(check);
        }
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.to_string())?;
    }
    Ok(if report.fits {
        ExitCode::SUCCESS
    } else {
        Code::Unfit.into()
    })
}

/// The report about the machine and the data directory of a server that runs, as JSON: whether they suit it for as many connections as it
/// allows. What only a start needs, such as a free address, is not looked at.
///
/// # Errors
/// The report can't be written.
pub(crate) fn of_running_server(config: &Config) -> serde_json::Result<serde_json::Value> {
    let machine = Machine::read(Path::new("/"));
    let mut data = Data::look(&config.data, config.logs, Ahead::of(config));
    data.is_in_use();
    let connections = config.net.connections_max as u64;
    let mut report = Report::of(&machine, connections, config, data, Vec::new());
    if let Some(tls) = &config.net.tls {
        report.add(checks::tls(tls));
    }
    serde_json::to_value(&report)
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
    memory: MemoryEstimate,
    /// The sum of the expected memory, first while clients read their output, then with every bound reached.
    memory_total_bytes: u64,
    memory_worst_bytes: u64,
    memory_usable_bytes: Option<u64>,
    /// All lines to set, in the order of their files.
    set: Vec<Line>,
}

impl Report {
    fn new(machine: &Machine, connections: u64, config: &Config, data: Data) -> Self {
        let start = checks::start(config);
        Report::of(machine, connections, config, data, start)
    }

    /// The checks of the machine and of the data, and `more`.
    fn of(
        machine: &Machine,
        connections: u64,
        config: &Config,
        data: Data,
        more: Vec<Check>,
    ) -> Self {
        let memory = MemoryEstimate::new(connections, config, data.logs());
        let mut checks = checks::all(machine, connections, &memory, &data);
        checks.extend(more);
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
    /// Adds a check that only some servers need.
    fn add(&mut self, check: Check) {
        self.fits &= !matches!(check.verdict, Verdict::TooLow | Verdict::Fails);
        self.unknown += usize::from(check.verdict == Verdict::Unknown);
        self.set.extend(check.set.clone());
        self.set.sort_by_key(|line| line.file);
        self.checks.push(check);
    }
}

/// The widest name, and the widest value, that a column is made for.
const NAME_WIDTH_MAX: usize = 40;
const VALUE_WIDTH_MAX: usize = 28;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = count(self.connections);
        let width = |column: fn(&Check) -> &str, most: usize| {
            let widths = self
                .checks
                .iter()
                .map(|check| column(check).chars().count());
            widths.filter(|width| *width <= most).max().unwrap_or(0)
        };
        let names = width(|check| &check.name, NAME_WIDTH_MAX);
        let values = width(|check| &check.value, VALUE_WIDTH_MAX);
        let head = ["", "", "here", "needed"];
        let rows = self.checks.iter().map(|check| {
            let word = check.verdict.word();
            [word, &*check.name, &check.value, &check.need]
        });
        for [verdict, name, value, need] in std::iter::once(head).chain(rows) {
            // What has no room in its column has a line of its own, so that one long path does not push all values off a terminal.
            let (mut begin, mut name) = (format!("{verdict:7} "), name);
            if name.chars().count() > names {
                writeln!(f, "{begin}{name}")?;
                (begin, name) = (" ".repeat(8), "");
            }
            let mut row = format!("{begin}{name:names$}  {value:values$}");
            if value.chars().count() > values && !need.is_empty() {
                writeln!(f, "{row}")?;
                row = " ".repeat(8 + names + 2 + values);
            }
            writeln!(f, "{}", format!("{row}  {need}").trim_end())?;
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
        let estimate = &self.memory;
        writeln!(f, "\nExpected memory for {connections} connections:")?;
        for (what, number) in [
            ("server without connections", estimate.base_bytes),
            ("subscribers, each with its own stream", estimate.user_bytes),
            ("sockets, in the kernel", estimate.kernel_bytes),
            ("recent records (--ring)", estimate.ring_bytes),
            ("history's cache", estimate.history_bytes),
            ("total", self.memory_total_bytes),
            (
                "plus recent records, if no shards share them",
                estimate.further_rings_bytes(),
            ),
            (
                "plus waiting commands (tuning.mailbox-size)",
                estimate.mailbox_bytes,
            ),
            (
                "plus buffers for slow clients (--buffers-max)",
                estimate.buffers_bytes,
            ),
            (
                "plus 1 % of clients not reading (tuning.send-buffer)",
                estimate.unread_bytes,
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
