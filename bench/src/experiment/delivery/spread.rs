//! `spread`: messages to one of 1,000, 10,000 and 19,000 subscribers, each on a stream of its own.

use crate::load::{FloodArgs, FloodReport};
use crate::units::{count, per_second};
use minijinja::context;
use serde::Serialize;

use super::{DURATION, run_one};
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Level, connections_max};
use crate::{BenchError, Section};

/// The results of the experiment.
#[derive(Debug, Serialize)]
struct SpreadFindings {
    runs: Vec<Spread>,
    /// Why there were fewer subscribers than planned.
    fewer: Option<String>,
}

/// One run.
#[derive(Debug, Serialize)]
struct Spread {
    connections: u64,
    publish: f64,
    flood: FloodReport,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let room = connections_max();
    let mut sizes: Vec<u64> = CONNECTIONS
        .iter()
        .map(|&full| lab.scaled(full, CONNECTIONS_MIN).min(room))
        .collect();
    sizes.dedup();
    let wanted = lab.scaled(CONNECTIONS[CONNECTIONS.len() - 1], CONNECTIONS_MIN);
    let fewer = (room < wanted).then(|| {
        format!(
            "A process may hold {} connections here instead of {}.",
            count(room),
            count(wanted)
        )
    });
    let mut runs = Vec::new();
    for publish in RATES {
        for &connections in &sizes {
            lab.say(&title(publish, connections));
            let flood = FloodArgs {
                subscribers: u32::try_from(connections).unwrap_or(u32::MAX),
                publish: Some(publish),
                duration: Some(lab.duration(DURATION)),
                ..FloodArgs::default()
            };
            let name = format!("spread-{}", runs.len());
            runs.push(Spread {
                connections,
                publish,
                flood: run_one(lab, &name, Level::Accepted, flood)?,
            });
        }
    }
    let found = SpreadFindings { runs, fewer };
    Ok(Section::from_template("spread", &found, context!(), None))
}

fn title(publish: f64, connections: u64) -> String {
    format!(
        "{} to {} subscribers",
        per_second(publish),
        count(connections)
    )
}

/// Subscribers; the last are what a process with 20,000 files can hold beside its own.
const CONNECTIONS: [u64; 3] = [1_000, 10_000, 19_000];
const CONNECTIONS_MIN: u64 = 10;

/// Messages per second.
const RATES: [f64; 2] = [1_000.0, 10_000.0];
