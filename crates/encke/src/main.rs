//! The `encke` binary: command line, configuration, wiring.
//!
//! Exit codes: 0 success; 1 a failure while running; 2 the command line or the configuration is wrong; 3 the data directory
//! can't be used; 4 the address can't be listened on; 5 the machine or the data directory is unsuitable (`doctor`).

mod access_log_output;
mod allocator;
mod config;
mod credential_commands;
mod descriptors;
mod doctor;
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the server starts the thread when it enforces access"
    )
)]
mod keys;
mod log;
mod log_filter;
mod obstacles;
mod serve;
mod terminal;

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

/// A real-time push server: stores records appended over HTTP and pushes them to subscribers.
#[derive(Debug, Parser)]
#[command(
    version,
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
    Serve(Box<config::ServeArgs>),
    /// Check, print or repair a log that no server has open
    Log(log::LogArgs),
    /// Check whether the machine and the data directory suit a server, and print the settings to change
    Doctor(doctor::DoctorArgs),
    /// Make a token for a client, explain a token, or make an API key
    Token(credential_commands::TokenArgs),
    /// Sign a URL, which then needs no token
    Sign(credential_commands::SignArgs),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| with_tuning_key(error).exit());
    let result = match cli.command {
        Command::Serve(args) => serve::serve(*args),
        Command::Log(args) => log::log(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Token(args) => credential_commands::token(&args),
        Command::Sign(args) => credential_commands::sign(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("encke: {}\n", with_causes(&error.error)));
            error.code.into()
        }
    }
}

/// The error of a command line. For an unknown flag that names a key of the table `[tuning]`, it says how to set the key.
fn with_tuning_key(mut error: clap::Error) -> clap::Error {
    let serves = std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "serve");
    let key = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag))
            if serves && error.kind() == ErrorKind::UnknownArgument =>
        {
            flag.strip_prefix("--").and_then(config::tuning_key)
        }
        _ => None,
    };
    // A flag of that or a similar name goes first.
    let has_tip = [ContextKind::Suggested, ContextKind::SuggestedArg]
        .iter()
        .any(|kind| error.get(*kind).is_some());
    if let Some(key) = key.filter(|_| !has_tip) {
        let tip = format!("a key of the table [tuning] is set with '--tuning {key}=VALUE'");
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

/// Reads a whole number from the command line.
pub(crate) fn whole_number(text: &str) -> anyhow::Result<u64> {
    text.parse()
        .map_err(|_| anyhow::anyhow!("must be a whole number, such as 1000"))
}

/// An error and its causes. A cause that the text before it contains already is left out.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Writes to standard error and ignores failures, such as a full disk; `eprintln!` would panic.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

/// An error and its exit code.
pub(crate) struct Failed {
    code: Code,
    error: anyhow::Error,
}

/// The documented exit codes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    /// A failure while running.
    Running = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The data directory can't be used.
    Data = 3,
    /// The address can't be listened on.
    Listen = 4,
    /// The machine or the data directory is unsuitable.
    Unfit = 5,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

impl Code {
    pub(crate) fn with(self, error: impl Into<anyhow::Error>) -> Failed {
        Failed {
            code: self,
            error: error.into(),
        }
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Code::Running.with(error)
    }
}
