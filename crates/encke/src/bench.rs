//! `encke bench`: the report to standard output, progress to standard error.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use encke_bench::{BenchArgs, BenchError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::{Code, Failed};

pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Failed> {
    // The first signal ends the run in good order, with its servers and files; a second one ends the program.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("signals can't be caught")?;
    }
    let report = encke_bench::bench(args, &program(), &stop).map_err(|error| match error {
        BenchError::Option(_) => Code::Usage.with(error),
        error => Code::Running.with(error),
    })?;
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// This very program, for other processes to start: not `current_exe`, which names a file that may have been replaced
/// since.
fn program() -> PathBuf {
    format!("/proc/{}/exe", std::process::id()).into()
}
