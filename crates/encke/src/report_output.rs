//! Reports on standard output.

use std::io::Write;

use anyhow::Context;
use serde_json::Value;

pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("the report can't be written")
}

pub(crate) fn print_json(report: &Value) -> anyhow::Result<()> {
    print(&format!("{report:#}\n"))
}
