//! Standard output of commands. A reader that closes it early, as `head` does, changes nothing: the command ends as it would otherwise. A full
//! disk is an error.

use std::io::{self, ErrorKind, Write};

use anyhow::Context;
use serde::Serialize;

/// Prints text.
///
/// # Errors
/// Standard output does not take it.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints a report for programs.
///
/// # Errors
/// Standard output does not take it.
pub(crate) fn print_json(report: &impl Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report).context("the report can't be written")?;
    print(&format!("{json}\n"))
}

/// The result of a command that has printed.
///
/// # Errors
/// Standard output has not taken all of it, although its reader has not closed it.
pub(crate) fn printed(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output can't be written"),
    }
}
