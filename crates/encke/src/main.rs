//! The `encke` binary: command line, configuration, wiring.
//!
//! Exit codes: 0 success; 1 a failure while running; 2 the command line or the configuration is wrong; 3 the data directory
//! can't be used; 4 the address can't be listened on; 5 the machine or the data directory is unsuitable (`doctor`).

// A macro that prints panics where standard output is full or closed.
#![warn(clippy::print_stdout)]

#[cfg(feature = "jemalloc")]
mod allocator;
mod asks;
mod backup_commands;
mod banner;
mod client_args;
mod command_texts;
mod config;
mod control_groups;
mod credential_commands;
mod descriptors;
mod doctor;
mod explanation;
mod exposure;
mod failure;
mod fleet_brokers;
mod fleet_commands;
mod fleet_repair;
mod health;
mod import_command;
mod import_report;
mod keys;
mod log;
mod log_copies;
mod log_filter;
mod log_locations;
mod log_output;
mod node;
mod obstacles;
mod program_log;
mod progress_line;
mod reload;
mod resource_limits;
mod running;
mod serve;
mod serve_check;
mod service_manager;
mod serving;
mod shell_words;
mod standard_output;
mod stderr_queue;
mod terminal;
mod traces;
mod upgrade;
mod zone;

use std::process::ExitCode;
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use rustix::fs::Mode;
use rustix::process::umask;

use crate::failure::{Code, Failed, say, with_causes};

/// A real-time push server: stores records appended over HTTP and pushes them to subscribers.
#[derive(Debug, Parser)]
#[command(
    version = env!("BUILD_OF_ENCKE"),
    propagate_version = true,
    after_help = "Exit codes: 0 success; 1 a failure while running; 2 the command line or \
                  the configuration is wrong; 3 the data directory can't be used; 4 the address \
                  can't be listened on; 5 the machine or the data directory is unsuitable (doctor)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve streams
    Serve(Box<serve::ServeArgs>),
    /// Check, print, repair, back up or restore the data of a server
    Log(log::LogArgs),
    /// Check whether the machine and the data directory suit a server, and print the settings to change
    Doctor(Box<doctor::DoctorArgs>),
    /// Ask the nodes and brokers of a fleet how they are, compare what they have, add or remove a node, or repair the order
    Fleet(fleet_commands::FleetArgs),
    /// Copy streams from any server of the protocol to a running Encke, and follow them until clients have moved
    Import(import_command::ImportArgs),
    /// Make a token for a client, explain a token, or make an API key
    Token(credential_commands::TokenArgs),
    /// Sign a URL, which then needs no token
    Sign(credential_commands::SignArgs),
    /// Say whether a server is ready, by its exit code
    Health(health::HealthArgs),
    /// Have a running server replaced by another version, which takes its connections over
    Upgrade(upgrade::UpgradeArgs),
    /// Print the completions of a shell
    Completions(command_texts::CompletionsArgs),
    /// Write the manual pages of all commands
    Man(command_texts::ManArgs),
}

fn main() -> ExitCode {
    // All that is made, by this program and by its libraries, holds records, names of streams or addresses of clients: directories
    // get 0700 and files 0600.
    umask(Mode::RWXG | Mode::RWXO);
    // A write beyond the limit on the size of files is then an error, and not the end of the process. Where there can be no handler, it ends.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    if upgrade::is_starter() {
        return upgrade::start_for_server();
    }
    let ended = match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(error) => print_usage(&with_tip(error)),
    };
    let code = ended.unwrap_or_else(|error| {
        say(format_args!("encke: {}\n", with_causes(&error.error)));
        error.code.into()
    });
    stderr_queue::flush();
    code
}

fn run(command: Command) -> Result<ExitCode, Failed> {
    // Those that read settings check the variables themselves: a successor says to its server what is wrong.
    if !matches!(command, Command::Serve(_) | Command::Doctor(_)) {
        config::check_variables().map_err(|error| Code::Usage.with(error))?;
    }
    match command {
        Command::Serve(args) => serve::serve(*args),
        Command::Log(args) => log::log(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Fleet(args) => fleet_commands::fleet(&args),
        Command::Import(args) => import_command::import(&args),
        Command::Token(args) => credential_commands::token(&args),
        Command::Sign(args) => credential_commands::sign(&args),
        Command::Health(args) => health::health(&args),
        Command::Upgrade(args) => upgrade::upgrade(&args),
        Command::Completions(args) => command_texts::completions(Cli::command(), &args),
        Command::Man(args) => command_texts::man(Cli::command(), &args),
    }
}

/// Prints help, the version, or what is wrong with a command line.
fn print_usage(error: &clap::Error) -> Result<ExitCode, Failed> {
    let result = error.print();
    if !error.use_stderr() {
        standard_output::printed(result)?;
    }
    Ok(ExitCode::from(error.exit_code() as u8))
}

/// The error of a command line. For an unknown flag that other servers have, or that names a key of the table `[tuning]`, it says how
/// to set what is meant.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let takes_settings = std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "serve" || word == "doctor");
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag))
            if takes_settings && error.kind() == ErrorKind::UnknownArgument =>
        {
            flag.strip_prefix("--").unwrap_or_default().to_owned()
        }
        _ => return error,
    };
    let suggested = [ContextKind::Suggested, ContextKind::SuggestedArg];
    let has_tip = suggested.iter().any(|kind| error.get(*kind).is_some());
    let tip = match (config::flag_called(&flag), config::tuning_key(&flag)) {
        (Some("listen"), _) => {
            "an address and a port, or a port alone, are set with '--listen', such as '--listen 5238'".into()
        }
        (Some(meant), _) => format!("'--{meant}' sets this"),
        // A flag of that or a similar name goes first.
        (None, Some(key)) if !has_tip => {
            format!("a key of the table [tuning] is set with '--tuning {key}=VALUE'")
        }
        _ => return error,
    };
    for kind in suggested {
        error.remove(kind);
    }
    let tip = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tip);
    error
}
