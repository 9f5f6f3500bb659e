//! `encke upgrade`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::control::{UpgradeAnswer, UpgradeReport, UpgradeRequest, ask};
use crate::failure::{Code, Failed};
use crate::standard_output::{print, print_json};

/// The arguments of `encke upgrade`.
#[derive(Args, Debug)]
pub(crate) struct UpgradeArgs {
    /// Directory of the data, as given to `encke serve --data`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Say whether the server can be upgraded and what would be closed, and change nothing
    #[arg(long)]
    check: bool,

    /// The program of the new version; without it, that with which the server was started
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    /// Upgrade also to a version that writes data which the present one can't read, so that the server can't go on if that fails
    #[arg(long)]
    one_way: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Asks the running server to upgrade.
pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<ExitCode, Failed> {
    let program = match &args.program {
        None => None,
        Some(program) => Some(std::path::absolute(program).context("the program")?),
    };
    let request = UpgradeRequest {
        check: args.check,
        program,
        one_way: args.one_way,
    };
    let answer = ask(&args.directory, &request);
    let answer = answer.with_context(|| {
        let directory = args.directory.display();
        format!("no server answers for the data in {directory}")
    })?;
    match answer {
        UpgradeAnswer::Kept { why } => Err(Code::Running.with(anyhow::anyhow!(
            "the server was not upgraded and goes on: {why}"
        ))),
        UpgradeAnswer::Done(report) => {
            match args.json {
                true => print_json(&json!(report))?,
                false => print(&text(&report))?,
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn text(report: &UpgradeReport) -> String {
    let UpgradeReport {
        version,
        process,
        moved,
        closed,
        reasons,
        paused_ms,
    } = report;
    let mut text = match (process, paused_ms) {
        (Some(process), Some(paused_ms)) => format!(
            "upgraded to {version}: process {process} serves\n{moved} connections moved, {closed} closed; {paused_ms} ms without deliveries\n"
        ),
        _ => format!(
            "can be upgraded to {version}\n{moved} connections would move, {closed} would be closed\n"
        ),
    };
    for (reason, count) in reasons {
        text += &format!("  {count}: {reason}\n");
    }
    text
}
