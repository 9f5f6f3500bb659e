//! What a delivery costs: `fanout`, one event to many subscribers, and `spread`, events to one of many.
//!
//! Both are floods, each against its own server with default settings; the runs of a table differ only in their
//! numbers. `encke-bench flood` is the tool behind them.

pub(crate) mod fanout;
pub(crate) mod spread;

use std::time::Duration;

use crate::load::{FloodArgs, FloodReport};

use crate::BenchError;
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Disk, Level, Serving};

/// Runs one flood against its own server.
fn run_one(
    lab: &Lab<'_>,
    name: &str,
    level: Level,
    args: FloodArgs,
) -> Result<FloodReport, BenchError> {
    let data = lab.scratch(name)?;
    let server = Serving::start(lab, data.path(), level, Disk::Own, &[])?;
    let report = server.flood(lab, args)?;
    server.stop()?;
    Ok(report)
}

/// How long each run publishes at full size.
const DURATION: Duration = Duration::from_secs(10);
