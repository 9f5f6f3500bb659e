//! What a delivery costs: `fanout`, one event to many subscribers, and `spread`, events to one of many.
//!
//! Both are floods, each against its own server with default settings; the runs of a table differ only in their
//! numbers. `encke-bench flood` is the tool behind them.

pub(crate) mod fanout;
pub(crate) mod spread;

use std::time::Duration;

use crate::load::{FloodArgs, FloodReport, Percentiles};
use crate::units::count;

use crate::experiment::lab::Lab;
use crate::experiment::past::NONE;
use crate::experiment::serving::{Disk, Level, Serving};
use crate::{BenchError, Goal};

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

/// The promise on any machine: all clients connected, and every message came once and in order.
fn kept(what: &str, report: &FloodReport) -> Goal {
    let faults = &report.faults;
    let wrong = faults.missing.count + faults.duplicates.count + faults.reordered.count;
    let refused = report.opening.failed + report.connections.given_up;
    let publishing = report.publishing.as_ref();
    let unacknowledged = publishing.map_or(0, |p| p.refused.unanswered);
    Goal::promise(
        format!(
            "{what}: messages missing, doubled or out of order; subscribers refused; appends unanswered"
        ),
        "0; 0; 0",
        [wrong, refused, unacknowledged].map(count).join("; "),
        wrong + refused + unacknowledged == 0,
    )
}

fn rate(report: &FloodReport) -> f64 {
    report.publishing.as_ref().map_or(0.0, |p| p.rate)
}

/// One of the percentiles, where there were any.
fn pick(percentiles: Option<Percentiles>, one: fn(&Percentiles) -> f64) -> String {
    percentiles.map_or(NONE.into(), |p| crate::units::micros(one(&p)))
}

/// A processor time so short that tenths of a microsecond are not enough.
fn cpu(us: Option<f64>) -> String {
    us.map_or(NONE.into(), |us| format!("{us:.2} µs"))
}

/// How long each run publishes at full size.
const DURATION: Duration = Duration::from_secs(10);
