//! The load generator as a program of its own: `load flood`, `load spray`, `load verify`.

use clap::Parser;
use encke_flood::{FloodArgs, FloodError, SprayArgs, VerifyArgs};
use std::fmt::Display;
use std::process::ExitCode;

/// Loads a Durable Streams server and measures it.
#[derive(Parser)]
enum Load {
    /// Open many subscribers, publish to them, and report what arrived
    Flood(FloodArgs),
    /// Append over many connections, and report how long acknowledgements took
    Spray(SprayArgs),
    /// Check that everything acknowledged is there, in order, once
    Verify(VerifyArgs),
}

fn main() -> ExitCode {
    encke_flood::become_worker_if_asked();
    let result = match Load::parse() {
        Load::Flood(args) => encke_flood::flood(&args)
            .and_then(|report| print(&report, args.json, report.exit_code())),
        Load::Spray(args) => encke_flood::spray(&args)
            .and_then(|report| print(&report, args.json, report.exit_code())),
        Load::Verify(args) => encke_flood::verify(&args)
            .and_then(|report| print(&report, args.json, report.exit_code())),
    };
    result.unwrap_or_else(|error| {
        eprint!("load: {error}");
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            eprint!(": {error}");
            cause = error.source();
        }
        eprintln!();
        ExitCode::from(2)
    })
}

fn print<R>(report: &R, json: bool, code: u8) -> Result<ExitCode, FloodError>
where
    R: Display + serde::Serialize,
{
    if json {
        println!(
            "{}",
            serde_json::to_string_pretty(report).expect("a report has no odd keys")
        );
    } else {
        print!("{report}");
    }
    Ok(ExitCode::from(code))
}
