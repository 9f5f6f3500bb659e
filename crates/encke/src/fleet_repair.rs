//! `encke fleet repair`: lets the nodes continue when the brokers have lost the order.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use encke_fleet::{FleetName, FleetRepairReport, Repair, Replicas, StoppedNode};
use encke_stream::OrderKind;

use crate::config;
use crate::failure::{Code, Failed};
use crate::fleet_brokers::{BrokerArgs, failed};
use crate::standard_output::{print, print_json};

#[derive(Args, Debug)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    brokers: BrokerArgs,

    /// A node that does not run, and its directory on this machine; may be repeated
    #[arg(long, value_name = "NODE=DIR")]
    stopped: Vec<StoppedArg>,

    /// A node that will not return, or whose data may be replaced: what only it has is lost; may be repeated
    #[arg(long, value_name = "NODE")]
    without: Vec<FleetName>,

    /// Brokers that store an order whose settings are lost: 1, 3 or 5
    #[arg(long, value_name = "NUMBER", default_value_t)]
    replicas: Replicas,

    /// Time for which the brokers keep an order whose settings are lost
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = config::duration)]
    keep: Duration,

    /// Drop messages of the brokers that none of the nodes has applied
    #[arg(long)]
    drop_order: bool,

    /// Make the order anew; otherwise nothing is changed
    #[arg(long)]
    accept: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The argument of `--stopped`.
#[derive(Clone, Debug)]
struct StoppedArg {
    node: FleetName,
    directory: PathBuf,
}

impl FromStr for StoppedArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (node, directory) = text
            .split_once('=')
            .context("give the name of a node and its directory, such as a=/var/lib/encke")?;
        Ok(StoppedArg {
            node: node.parse()?,
            directory: directory.into(),
        })
    }
}

/// Makes the orders anew, or says what that would do.
pub(crate) fn repair(args: &RepairArgs) -> Result<ExitCode, Failed> {
    check_directories(&args.stopped)?;
    let stopped: Result<Vec<_>, Failed> = args.stopped.iter().map(stopped_node).collect();
    let repair = Repair {
        access: args.brokers.access()?,
        fleet: args.brokers.fleet_name.clone(),
        stopped: stopped?,
        without: args.without.iter().map(ToString::to_string).collect(),
        replicas: args.replicas,
        keep: args.keep,
        drop_order: args.drop_order,
        accept: args.accept,
    };
    let report = repair.run().map_err(failed)?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&repair_text(&report))?;
    }
    let needed = report.logs.iter().any(|log| log.needed);
    let is_well = report.problems.is_empty() && (report.done || !needed);
    Ok(match is_well {
        true => ExitCode::SUCCESS,
        false => Code::Unfit.into(),
    })
}

/// Refuses a directory that is given for two nodes: the data of one of them would not be looked at.
fn check_directories(stopped: &[StoppedArg]) -> Result<(), Failed> {
    let mut nodes = BTreeMap::new();
    for one in stopped {
        // One that is not there is refused when it is opened.
        let Ok(path) = one.directory.canonicalize() else {
            continue;
        };
        if let Some(other) = nodes.insert(path, one) {
            let error = anyhow::anyhow!(
                "--stopped gives {} for the nodes {} and {}: each node has a directory of its own",
                one.directory.display(),
                other.node,
                one.node
            );
            return Err(Code::Usage.with(error));
        }
    }
    Ok(())
}

/// Opens the data of a node that does not run, as its start would, to see where it continues.
fn stopped_node(argument: &StoppedArg) -> Result<StoppedNode, Failed> {
    let open = || -> anyhow::Result<StoppedNode> {
        let directories = encke_log::logs_in(&argument.directory)?;
        for directory in &directories {
            encke_log::finish_copy(directory)?;
            // A directory without a log would get one.
            anyhow::ensure!(
                encke_log::holds_files_of_log(directory)?,
                "{} holds no log",
                directory.display()
            );
        }
        let options = encke_log::Options::default();
        let limits = encke_stream::Limits::default();
        let now = encke_net::now().steady;
        let order = OrderKind::Replicated;
        let logs = encke_stream::restore_all(&directories, order, &options, limits, now)?;
        let mut node = StoppedNode {
            name: argument.node.to_string(),
            tips: Vec::new(),
            nodes: Vec::new(),
        };
        for (machine, log) in logs.logs {
            let chain = machine.chain().cloned().unwrap_or_default();
            node.tips.push(chain.tip);
            node.nodes
                .extend(chain.nodes.keys().map(ToString::to_string));
            log.close()?;
        }
        Ok(node)
    };
    let directory = argument.directory.display();
    let opened = open().with_context(|| format!("the data in {directory} can't be used"));
    opened.map_err(|error| Code::Data.with(error))
}

/// The report of a repair for people.
fn repair_text(report: &FleetRepairReport) -> String {
    let mut text = String::new();
    for log in &report.logs {
        let (number, order) = (log.log, &log.order);
        // Writing to a string does not fail.
        let _ = match log.needed {
            false => writeln!(text, "log {number}: {order}; it needs no repair"),
            true => writeln!(
                text,
                "log {number}: {order}; the longest history is that of {}, up to position {}",
                log.longest.join(", "),
                log.mark.position
            ),
        };
        if log.needed && !log.behind.is_empty() {
            let behind = log.behind.join(", ");
            let _ = writeln!(text, "log {number}: {behind} will copy it");
        }
    }
    for problem in &report.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    let needed = report.logs.iter().any(|log| log.needed);
    text.push_str(match (needed, report.done) {
        (true, true) => "The order continues behind the longest history. Start all nodes again, first those that have it.\n",
        (true, false) if report.problems.is_empty() => "Nothing was changed: give --accept to let the order continue there.\n",
        (true, false) => "Nothing was changed.\n",
        (false, _) => "",
    });
    text
}
