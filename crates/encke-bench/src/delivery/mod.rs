//! What a delivery costs: `fanout`, one event to many subscribers, and `spread`, events to one of many.
//!
//! Both are floods against servers of their own with default settings, and nothing but the numbers differs between the runs
//! of one table. `encke flood` is the tool behind them.

pub(crate) mod fanout;
pub(crate) mod spread;

use std::time::Duration;

use encke_flood::units::count;
use encke_flood::{FloodArgs, FloodReport, Percentiles};

use crate::lab::Lab;
use crate::past::NONE;
use crate::serving::{Disk, Level, Serving};
use crate::{BenchArgs, BenchError, Target};

/// Makes one flood against a server of its own.
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

/// How long each run publishes.
fn time(lab: &Lab<'_>, args: &BenchArgs) -> Duration {
    args.published()
        .unwrap_or(Duration::from_secs_f64(SECONDS * lab.size.min(1.0)).max(DURATION_MIN))
}

/// What holds on any machine: all had their place, and every message came once and in order.
fn kept(what: &str, report: &FloodReport) -> Target {
    let faults = &report.faults;
    let wrong = faults.missing.count + faults.duplicates.count + faults.reordered.count;
    let refused = report.opening.failed + report.connections.given_up;
    let publishing = report.publishing.as_ref();
    let unacknowledged = publishing.map_or(0, |p| p.refused.unanswered);
    Target::promise(
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
    percentiles.map_or(NONE.into(), |p| encke_flood::units::micros(one(&p)))
}

/// A processor time so short that tenths of a microsecond are not enough.
fn cpu(us: Option<f64>) -> String {
    us.map_or(NONE.into(), |us| format!("{us:.2} µs"))
}

/// How long messages are published, at the full size and at least.
const SECONDS: f64 = 10.0;
const DURATION_MIN: Duration = Duration::from_millis(500);
