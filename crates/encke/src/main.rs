//! The `encke` binary: command line, configuration, wiring.
//!
//! Exit codes: 0 all went well; 1 something failed while running; 2 the command line or the
//! configuration is wrong; 3 the data directory can't be used; 4 the address can't be listened on; 5 the machine does not
//! allow what was asked about.

mod allocator;
mod config;
mod descriptors;
mod doctor;
mod log;
mod serve;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A real-time push server: publish over plain HTTP, push to every subscriber, keep it all.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 all went well; 1 something failed while running; 2 the command line or \
                  the configuration is wrong; 3 the data directory can't be used; 4 the address \
                  can't be listened on; 5 the machine does not allow what was asked about."
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
    /// Say what this machine allows, what so many connections need, and what is to be set
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::serve(*args),
        Command::Log(args) => log::log(&args),
        Command::Doctor(args) => doctor::doctor(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("encke: {:#}\n", error.error));
            error.code.into()
        }
    }
}

/// Writes to standard error. That it can't be written to, as when its disk is full, changes nothing of what the program
/// does and how it exits; `eprintln!` would panic.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

/// An error and the exit code that tells a script what kind it is.
pub(crate) struct Failed {
    code: Code,
    error: anyhow::Error,
}

/// The documented exit codes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    /// Something failed while running.
    Running = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The data directory can't be used.
    Data = 3,
    /// The address can't be listened on.
    Listen = 4,
    /// The machine does not allow what was asked about.
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
