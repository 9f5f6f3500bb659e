//! The `encke-bench` binary: load tools and experiments. Reports go to standard output, progress to standard error.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use encke_bench::experiment::{ExperimentArgs, ReportArgs};
use encke_bench::load::{AnswersArgs, FloodArgs, ReadArgs, SprayArgs, StormArgs, VerifyArgs};
use encke_bench::million::{MillionArgs, MillionClientsArgs};
use encke_bench::{BenchError, experiment, load, million};
use serde::Serialize;

/// The server's allocator, because some experiments run parts of the server in this process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Load tools and experiments for Encke and other Durable Streams servers.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 success; 1 the run failed or found a fault; 2 the command line is wrong."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Open many subscribers, publish to them, and measure deliveries, order, memory and CPU
    Flood(Box<FloodArgs>),
    /// Connect many subscribers at once, several times, and measure how soon each is served
    Storm(StormArgs),
    /// Append over many connections and measure acknowledgements
    Spray(Box<SprayArgs>),
    /// Read a stream whole from its beginning, with many readers at a time, and measure rate, CPU and memory
    Read(Box<ReadArgs>),
    /// Stream answers of language models token by token, and measure how soon readers have each token
    Answers(Box<AnswersArgs>),
    /// Check that a server still holds what it acknowledged to spray
    Verify(VerifyArgs),
    /// Hold a million connections to the nodes of a fleet, and send messages to one and to all of them
    Million(Box<MillionArgs>),
    /// Be the clients of one node in a run of `million`
    #[command(hide = true)]
    MillionClients(MillionClientsArgs),
    /// Repeat one experiment
    Experiment(ExperimentArgs),
    /// Repeat the five experiments of the field reports and write one report
    Report(ReportArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("encke-bench: {error:#}");
            let usage = matches!(error.downcast_ref(), Some(BenchError::Option(_)));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn run(command: Command) -> Result<u8> {
    let stop = encke_bench::stop_flag()?;
    match command {
        Command::Flood(args) => {
            let report = load::flood(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::Storm(args) => {
            let report = load::storm(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::Spray(args) if args.beside.is_some() => {
            let report = load::spray_beside(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::Spray(args) => {
            let report = load::spray(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::Read(args) => {
            let report = load::read(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::Answers(args) => {
            let report = load::answers(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::Verify(args) => {
            let report = load::verify(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::Million(args) => {
            let report = million::million(&args, &stop)?;
            print(&report, args.json, report.exit_code())
        }
        Command::MillionClients(args) => {
            million::clients(&args)?;
            Ok(0)
        }
        Command::Experiment(args) => {
            let report = experiment::run(&[args.name], &args.setup, &stop)?;
            if let Some(folder) = &args.out {
                report.write_page(folder, args.name.word())?;
            }
            print(&report, args.json, report.exit_code())
        }
        Command::Report(args) => {
            let report = experiment::run(&experiment::Experiment::REPORTED, &args.setup, &stop)?;
            report.write_page(&args.out, "index")?;
            report.write_markdown(&args.out, args.insert.as_deref())?;
            print(&report, args.json, report.exit_code())
        }
    }
}

fn print(report: &(impl Display + Serialize), json: bool, code: u8) -> Result<u8> {
    if json {
        let json = serde_json::to_string_pretty(report).context("cannot write the report")?;
        println!("{json}");
    } else {
        print!("{report}");
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_command_and_option_has_help() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        for sub in cli.get_subcommands() {
            assert!(sub.get_about().is_some(), "{}", sub.get_name());
            for arg in sub.get_arguments() {
                let name = format!("{} {}", sub.get_name(), arg.get_id());
                assert!(arg.get_help().is_some(), "{name}");
                for value in arg.get_possible_values() {
                    let flag = matches!(value.get_name(), "true" | "false");
                    assert!(
                        flag || value.get_help().is_some(),
                        "{name} {}",
                        value.get_name()
                    );
                }
            }
        }
    }
}
