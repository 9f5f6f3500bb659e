//! `encke fleet`: asks the nodes and the brokers of a fleet, and copies the data of a node.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Subcommand};
use encke_fleet::{FleetName, FleetReport, Left, LogCopier};
use encke_log::{LayoutError, MayHold, UnfinishedDirectory};

use crate::failure::{Code, Failed};
use crate::fleet_brokers::{BrokerArgs, failed};
use crate::fleet_repair::{RepairArgs, repair};
use crate::log_copies;
use crate::shell_words::quoted;
use crate::standard_output::{print, print_json};

/// Asks the nodes and brokers of a fleet, or copies the data of a node. Exit codes of status and verify: 0 all is well; 5
/// something is wrong; 1 no broker answers.
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
    /// Copy the data of a running node into an empty directory, for a new node
    #[command(
        long_about = "Copy the data of a running node into an empty directory, for a new node.\n\n\
            The node goes on meanwhile. Start the new node on the directory with a name of its own, within fleet-keep of the \
            copy. `encke serve` does the same by itself when the brokers no longer keep what a node lacks.",
        after_help = "Exit codes: 0 the data is copied; 1 no broker answers, or no node gives a copy; 2 the command line is \
            wrong; 3 the directory can't be used."
    )]
    Join(JoinArgs),
    /// Forget the name of a node that does not return
    #[command(
        long_about = "Forget the name of a node that does not return.\n\n\
            A fleet remembers the name of every node that has taken part, 1,000 at most, and a repair asks for each of them. The node \
            must not run. A node that takes part again under the name begins anew, with an empty directory.",
        after_help = "Exit codes: 0 the fleet has forgotten it; 5 it has not, and the output says why; 1 no broker answers; 2 the \
            command line is wrong."
    )]
    Leave(LeaveArgs),
    /// Let the nodes continue with what they have when the brokers have lost the order
    #[command(
        long_about = "Let the nodes continue with what they have when the brokers have lost the order.\n\n\
            Finds the node with the longest history, and makes the order anew behind it. All nodes must have stopped to follow the \
            order, which they do by themselves when it is lost, or not run. Without --accept, prints what would be done and changes \
            nothing. With --accept, does it, unless a node that has taken part cannot be asked, or two have different histories. Then \
            start all nodes again: those that have less copy the data of one that has the most.",
        after_help = "Exit codes: 0 the order needs no repair, or is repaired; 5 it needs one, and nothing was changed; 1 no broker \
            answers; 2 the command line is wrong; 3 a directory can't be used."
    )]
    Repair(RepairArgs),
}

#[derive(Args, Debug)]
struct ReportArgs {
    #[command(flatten)]
    brokers: BrokerArgs,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct JoinArgs {
    #[command(flatten)]
    brokers: BrokerArgs,

    /// Directory for the data of the new node, as given to `encke serve --data`
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// The node to copy; by default the one that has applied the most
    #[arg(long, value_name = "NODE")]
    from: Option<FleetName>,
}

#[derive(Args, Debug)]
struct LeaveArgs {
    #[command(flatten)]
    brokers: BrokerArgs,

    /// The node that does not return
    #[arg(long, value_name = "NODE")]
    node: FleetName,
}

pub(crate) fn fleet(args: &FleetArgs) -> Result<ExitCode, Failed> {
    match &args.command {
        FleetCommand::Status(args) => report(args, false),
        FleetCommand::Verify(args) => report(args, true),
        FleetCommand::Join(args) => join(args),
        FleetCommand::Leave(args) => leave(args),
        FleetCommand::Repair(args) => repair(args),
    }
}

/// Copies all logs of a node.
fn join(args: &JoinArgs) -> Result<ExitCode, Failed> {
    let access = args.brokers.access()?;
    // Processes in containers have the same numbers.
    let name = format!(
        "join-{}-{}",
        std::process::id(),
        encke_net::wall_time().as_ms()
    );
    let copier = LogCopier::connect(&access, &args.brokers.fleet_name, &name, CONNECT_WITHIN);
    let copier = copier.map_err(failed)?;
    let logs = copier.logs(&access).map_err(failed)?;
    let of_data = |error: anyhow::Error| {
        let data = args.data.display();
        Code::Data.with(error.context(format!("the data in {data} can't be used")))
    };
    let unfinished = UnfinishedDirectory::begin(&args.data, "fleet join", MayHold::NoLog);
    let mut unfinished = unfinished.map_err(|error| match error {
        LayoutError::NotEmpty { .. } => of_data(anyhow::Error::new(error).context(
            "it holds a log, and a node with data copies by itself what it lacks, when it starts",
        )),
        error => of_data(error.into()),
    })?;
    let directories = unfinished.make_logs(logs);
    let directories = directories.map_err(|error| of_data(error.into()))?;
    log_copies::copy_all(&copier, args.from.as_ref(), &directories)?;
    let finished = unfinished.finish();
    finished.map_err(|error| of_data(error.into()))?;
    let several = match logs {
        1 => String::new(),
        logs => format!(" --logs {logs}"),
    };
    print(&format!(
        "{} holds a copy. Start the new node on it with a name of its own: encke serve --data {}{several} {} --node NAME\n",
        args.data.display(),
        quoted(&args.data),
        args.brokers
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Lets a node leave.
fn leave(args: &LeaveArgs) -> Result<ExitCode, Failed> {
    let (brokers, node) = (&args.brokers, &args.node);
    let left = encke_fleet::leave(&brokers.access()?, &brokers.fleet_name, node);
    let (text, code) = match left.map_err(failed)? {
        Left::Forgotten => ("the fleet has forgotten it".into(), ExitCode::SUCCESS),
        Left::Answers => ("it runs; stop it before".into(), Code::Unfit.into()),
        Left::Unknown => ("no node knows it".into(), Code::Unfit.into()),
        Left::NoneReady => (
            "no node is ready to send the command".into(),
            Code::Unfit.into(),
        ),
        Left::Pending(nodes) => (
            format!(
                "these nodes have not forgotten it yet: {}",
                nodes.join(", ")
            ),
            Code::Unfit.into(),
        ),
    };
    print(&format!("node {node}: {text}\n"))?;
    Ok(code)
}

/// Asks, and prints the report.
fn report(args: &ReportArgs, compare: bool) -> Result<ExitCode, Failed> {
    let brokers = &args.brokers;
    let report = encke_fleet::report(&brokers.access()?, &brokers.fleet_name, compare);
    let report = report.map_err(failed)?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&text(&report))?;
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
    text += &activities(report);
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

/// What the nodes do, and all of them together.
fn activities(report: &FleetReport) -> String {
    let mut text = format!(
        "\n{:<20} {:>11} {:>11} {:>10} {:>9}\n",
        "node", "connections", "subscribers", "dispatches", "takeovers"
    );
    let mut all = [0_u64; 3];
    for node in &report.nodes {
        let Some(now) = node.activity else {
            let _ = writeln!(text, "{:<20} {:>11}", node.node, "starts");
            continue;
        };
        let counts = [now.connections, now.subscribers, now.takeovers];
        for (sum, count) in all.iter_mut().zip(counts) {
            *sum = sum.saturating_add(count);
        }
        let dispatches = if now.dispatches { "yes" } else { "no" };
        let _ = writeln!(
            text,
            "{:<20} {:>11} {:>11} {dispatches:>10} {:>9}",
            node.node, now.connections, now.subscribers, now.takeovers
        );
    }
    let [connections, subscribers, takeovers] = all;
    let _ = writeln!(
        text,
        "{:<20} {connections:>11} {subscribers:>11} {:>10} {takeovers:>9}",
        "all", ""
    );
    text
}

/// A broker answers within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
