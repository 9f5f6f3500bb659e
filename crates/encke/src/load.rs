//! `encke flood`, `encke storm`, `encke spray`, `encke verify`: reports to standard output, progress to standard error.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Context;
use encke_flood::{FloodArgs, FloodError, SprayArgs, StormArgs, VerifyArgs};
use serde::Serialize;

use crate::{Code, Failed};

pub(crate) fn flood(args: &FloodArgs) -> Result<ExitCode, Failed> {
    let report = encke_flood::flood(args).map_err(failed)?;
    print(&report, args.json, report.exit_code())
}

pub(crate) fn storm(args: &StormArgs) -> Result<ExitCode, Failed> {
    let report = encke_flood::storm(args).map_err(failed)?;
    print(&report, args.json, report.exit_code())
}

pub(crate) fn spray(args: &SprayArgs) -> Result<ExitCode, Failed> {
    if args.beside.is_some() {
        let report = encke_flood::spray_beside(args).map_err(failed)?;
        return print(&report, args.json, report.exit_code());
    }
    let report = encke_flood::spray(args).map_err(failed)?;
    print(&report, args.json, report.exit_code())
}

pub(crate) fn verify(args: &VerifyArgs) -> Result<ExitCode, Failed> {
    let report = encke_flood::verify(args).map_err(failed)?;
    print(&report, args.json, report.exit_code())
}

fn print(report: &(impl Display + Serialize), json: bool, code: u8) -> Result<ExitCode, Failed> {
    if json {
        let json = serde_json::to_string_pretty(report).context("the report can't be written")?;
        println!("{json}");
    } else {
        print!("{report}");
    }
    Ok(ExitCode::from(code))
}

fn failed(error: FloodError) -> Failed {
    Code::Running.with(error)
}
