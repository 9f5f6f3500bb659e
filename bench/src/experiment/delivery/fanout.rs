//! `fanout`: one event to 5,000 subscribers, beside a bare loop of send(2) over as many sockets.

use crate::load::{FloodArgs, FloodReport};
use crate::units::{count, per_second};
use minijinja::context;
use serde::Serialize;

use super::{DURATION, run_one};
use crate::experiment::lab::Lab;
use crate::experiment::serving::Level;
use crate::{BenchError, Section};

/// The results of the experiment.
#[derive(Debug, Serialize)]
struct FanoutFindings {
    subscribers: u64,
    /// One run for each of [`RATES`].
    runs: Vec<FloodReport>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let subscribers = lab.scaled(SUBSCRIBERS, SUBSCRIBERS_MIN);
    let mut runs = Vec::new();
    for publish in RATES {
        lab.say(&format!(
            "{} to {} subscribers",
            pace(publish),
            count(subscribers)
        ));
        let flood = FloodArgs {
            subscribers: u32::try_from(subscribers).unwrap_or(u32::MAX),
            one: Some("fanout".into()),
            publish: Some(publish),
            // Few events leave no work for many connections.
            publishers: if publish < 100.0 { 1 } else { PUBLISHERS },
            duration: Some(lab.duration(DURATION)),
            floor: publish.is_finite().then(|| lab.duration(DURATION)),
            receive_buffer: publish.is_infinite().then_some(RECEIVE_BUFFER),
            ..FloodArgs::default()
        };
        let name = format!("fanout-{}", runs.len());
        runs.push(run_one(lab, &name, Level::Synced, flood)?);
    }
    let found = FanoutFindings { subscribers, runs };
    let derived = context! {
        paces => RATES.map(pace),
        publishers => PUBLISHERS,
        receive_buffer => RECEIVE_BUFFER,
    };
    Ok(Section::from_template("fanout", &found, derived, None))
}

fn pace(publish: f64) -> String {
    match publish.is_finite() {
        true => per_second(publish),
        false => "saturated".to_owned(),
    }
}

const SUBSCRIBERS: u64 = 5_000;
const SUBSCRIBERS_MIN: u64 = 10;

/// Connections to publish over.
const PUBLISHERS: u32 = 64;

/// The subscribers' receive buffers while publishers are not limited, in bytes.
const RECEIVE_BUFFER: u32 = 32 << 10;

/// Events per second: those of a news ticker, those of a busy market, and as many as are acknowledged.
const RATES: [f64; 3] = [20.0, 1_000.0, f64::INFINITY];
