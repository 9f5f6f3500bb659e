//! `flood`: connections, messages to random ones, and clients that connect and leave.
//!
//! The report's two set-ups, each against its own server: 10,000 clients, then 1,000,000, or as many as the limit on open files
//! allows. `encke-bench flood` is the tool behind it, for hours and for servers on other machines.

use std::time::{Duration, Instant};

use crate::load::{FloodArgs, FloodReport, chart};
use crate::units::count;
use minijinja::context;
use serde::Serialize;

use crate::experiment::lab::Lab;
use crate::experiment::serving::{Disk, Level, Serving, connections_max, files_max, scrape};
use crate::{BenchError, Section};

/// The results of the experiment.
#[derive(Debug, Clone, Serialize)]
struct FloodFindings {
    /// The set-ups that were made.
    runs: Vec<Figures>,
    /// Why there were fewer connections or set-ups than the report had, if so.
    fewer: Vec<String>,
}

/// One set-up.
#[derive(Debug, Clone, Serialize)]
struct Figures {
    flood: FloodReport,
    /// Connections that the server still counted, a while after all clients had hung up.
    still_held: u64,
    /// How long it took until it counted none, or was given up, in seconds.
    noticed_seconds: f64,
    /// How long messages were published, in seconds.
    published_seconds: f64,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let files = files_max();
    let room = connections_max().max(CONNECTIONS_MIN);
    let time = lab.duration(DURATION);
    let mut found = FloodFindings {
        runs: Vec::new(),
        fewer: Vec::new(),
    };
    for full in CONNECTIONS {
        let asked = lab.scaled(full, CONNECTIONS_MIN);
        let connections = asked.min(room);
        let most = found.runs.last().map_or(0, |held| held.flood.opening.asked);
        if connections < asked {
            let instead = if connections <= u64::from(most) {
                "the second set-up would be no larger than the first, and was left out".to_owned()
            } else {
                format!("{} connections were made", count(connections))
            };
            found.fewer.push(format!(
                "A process may open {} files here: {instead} instead of {}.",
                count(files),
                count(asked)
            ));
        }
        if connections <= u64::from(most) {
            continue;
        }
        lab.say(&format!(
            "{} connections, {:.0} s",
            count(connections),
            time.as_secs_f64()
        ));
        found.runs.push(hold(lab, connections, time)?);
    }
    let runs = || found.runs.iter().map(|held| &held.flood);
    let left = |flood: &FloodReport| flood.endurance.sockets_left().unwrap_or(0);
    let derived = context! { sockets_left => runs().map(left).collect::<Vec<_>>() };
    let plot = chart::draw(runs().map(|flood| {
        let connections = count(flood.opening.opened);
        (format!("{connections}: "), &flood.samples[..])
    }));
    Ok(Section::from_template("flood", &found, derived, Some(plot)))
}

/// Makes one set-up.
fn hold(lab: &Lab<'_>, connections: u64, time: Duration) -> Result<Figures, BenchError> {
    let data = lab.scratch(&format!("flood-{connections}"))?;
    let server = Serving::start(lab, data.path(), Level::Synced, Disk::Own, &[])?;
    let args = FloodArgs {
        subscribers: u32::try_from(connections).unwrap_or(u32::MAX),
        publish: Some(lab.scaled(PUBLISHED_PER_SECOND, PUBLISHED_PER_SECOND_MIN) as f64),
        duration: Some(time),
        churn: CHURN_PER_SECOND,
        ..FloodArgs::default()
    };
    let flood = server.flood(lab, args)?;
    let hung_up = Instant::now();
    let still_held = loop {
        // The connection that asks is one of them.
        let held = scrape(server.address())?.value("encke_connections") - 1.0;
        if held <= 0.0 || hung_up.elapsed() > NOTICE_WAIT {
            break held.max(0.0) as u64;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let noticed_seconds = hung_up.elapsed().as_secs_f64();
    server.stop()?;
    Ok(Figures {
        flood,
        still_held,
        noticed_seconds,
        published_seconds: time.as_secs_f64(),
    })
}

/// The report's two sizes.
const CONNECTIONS: [u64; 2] = [10_000, 1_000_000];
const CONNECTIONS_MIN: u64 = 10;

/// The report's rate.
const PUBLISHED_PER_SECOND: u64 = 1_000;
const PUBLISHED_PER_SECOND_MIN: u64 = 50;

/// How many clients hang up each second, and come back.
const CHURN_PER_SECOND: f64 = 10.0;

/// How long messages are published at full size.
const DURATION: Duration = Duration::from_secs(15);

/// How long a hang-up may go unnoticed before it counts as not noticed.
const NOTICE_WAIT: Duration = Duration::from_secs(5);
