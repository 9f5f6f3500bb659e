//! `encke fleet`: asks the nodes and the brokers of a fleet.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use encke_fleet::{BrokerAccess, BrokerUrls, FleetError, FleetName, FleetReport};

use crate::failure::{Code, Failed};

/// Asks the nodes and brokers of a fleet. Exit codes: 0 all is well; 5 something is wrong; 1 no broker answers.
#[derive(Args, Debug)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Show the order at the brokers, and how far each node is
    Status(ReportArgs),
    /// Compare what all nodes have applied with each other and with the brokers
    Verify(ReportArgs),
}

#[derive(Args, Debug)]
struct ReportArgs {
    /// The brokers of the fleet, such as nats://10.0.0.1:4222,nats://10.0.0.2:4222
    #[arg(long, value_name = "URLS", env = "ENCKE_FLEET")]
    fleet: BrokerUrls,

    /// The name of the fleet
    #[arg(long, value_name = "NAME", default_value_t)]
    fleet_name: FleetName,

    /// File of the credentials for the brokers
    #[arg(long, value_name = "FILE")]
    fleet_credentials: Option<PathBuf>,

    /// Certificate authority of the brokers in PEM format
    #[arg(long, value_name = "FILE")]
    fleet_ca: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Asks, and prints the report.
pub(crate) fn fleet(args: &FleetArgs) -> Result<ExitCode, Failed> {
    let (args, compare) = match &args.command {
        FleetCommand::Status(args) => (args, false),
        FleetCommand::Verify(args) => (args, true),
    };
    let access = BrokerAccess {
        brokers: args.fleet.clone(),
        credentials: args.fleet_credentials.clone(),
        ca: args.fleet_ca.clone(),
    };
    let report = encke_fleet::report(&access, &args.fleet_name, compare);
    let report = report.map_err(|error| {
        let code = match error {
            FleetError::Credentials { .. } => Code::Usage,
            _ => Code::Running,
        };
        code.with(error)
    })?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).context("the report can't be written")?;
        println!("{json}");
    } else {
        print!("{}", text(&report));
    }
    Ok(match report.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => Code::Unfit.into(),
    })
}

/// The report for people.
fn text(report: &FleetReport) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    for (log, order) in report.logs.iter().enumerate() {
        let leader = order.leader.as_ref();
        let leader = leader.map_or_else(String::new, |leader| format!(", led by {leader}"));
        let _ = writeln!(
            text,
            "log {log}: positions {} to {}, {}, replicas {}{leader}",
            order.first,
            order.last,
            ByteSize(order.bytes),
            order.replicas,
        );
    }
    let _ = writeln!(
        text,
        "\n{:<20} {:>4} {:>14} {:>10}  state",
        "node", "log", "applied", "lag (ms)"
    );
    for node in &report.nodes {
        for (log, at) in node.logs.iter().enumerate() {
            let state = if node.unready.is_none() {
                "ready"
            } else {
                "not ready"
            };
            let _ = writeln!(
                text,
                "{:<20} {log:>4} {:>14} {:>10}  {state}",
                node.node, at.applied, at.lag_ms
            );
        }
    }
    if report.problems.is_empty() {
        for (log, position) in report.compared.iter().enumerate() {
            let _ = writeln!(
                text,
                "\nlog {log}: all {} nodes and the brokers have the same order up to position {position}",
                report.nodes.len()
            );
        }
    } else {
        text.push('\n');
    }
    for problem in &report.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    text
}
