//! `spread`: messages to one of 1,000, 10,000 and 19,000 subscribers, each on a stream of its own.

use crate::load::{FloodArgs, FloodReport};
use crate::units::{count, micros, per_second};
use serde::Serialize;

use super::{DURATION, cpu, kept, pick, rate, run_one};
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Level, connections_max};
use crate::report::figures;
use crate::{BenchError, Goal, Section, Table};

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
    Ok(SpreadFindings { runs, fewer }.section())
}

impl SpreadFindings {
    fn section(&self) -> Section {
        Section {
            name: "spread",
            title: "messages to one of many",
            story: "Subscribers, each on a stream of its own, and messages to random ones at level accepted. The cost of a message must not depend on the number of connections."
                .to_owned(),
            in_short: Vec::new(),
            tables: vec![self.table()],
            targets: self.targets(),
            notes: [
                "The server's processor time is all that it used, user and system, while messages were published: publishing \
                 over HTTP, the log, and the delivery."
                    .to_owned(),
            ]
            .into_iter()
            .chain(self.fewer.clone())
            .collect(),
            figures: figures(self),
            plot: None,
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new(
            "",
            [
                "",
                "published",
                "server processor time of a message",
                "delivered after, p50",
                "p99",
                "acknowledged after, p50",
                "p99",
            ],
        );
        for run in &self.runs {
            let live = run.flood.latency.live;
            let publishing = run.flood.publishing.as_ref();
            let acknowledged = publishing.and_then(|p| p.acknowledgement);
            let figures = [
                per_second(rate(&run.flood)),
                cpu(run.message_us()),
                pick(live, |p| p.p50_us),
                pick(live, |p| p.p99_us),
                pick(acknowledged, |p| p.p50_us),
                pick(acknowledged, |p| p.p99_us),
            ];
            table.row(title(run.publish, run.connections), figures);
        }
        table
    }

    fn targets(&self) -> Vec<Goal> {
        let mut targets = Vec::new();
        for run in &self.runs {
            targets.push(kept(&title(run.publish, run.connections), &run.flood));
        }
        for publish in RATES {
            let of_rate = || self.runs.iter().filter(move |run| run.publish == publish);
            let costs: Vec<f64> = of_rate().filter_map(Spread::message_us).collect();
            if let (Some(least), Some(most)) = (
                costs.iter().copied().reduce(f64::min),
                costs.iter().copied().reduce(f64::max),
            ) && least > 0.0
            {
                targets.push(Goal::speed(
                    format!(
                        "{}: processor time of a message, the most by the least",
                        per_second(publish)
                    ),
                    format!("at most {COST_RATIO_MAX}"),
                    format!("{:.2}", most / least),
                    most / least <= COST_RATIO_MAX,
                ));
            }
            for run in of_rate().filter(|run| run.connections == CONNECTIONS[1]) {
                let Some(live) = run.flood.latency.live else {
                    continue;
                };
                targets.push(Goal::speed(
                    format!("{}: p50; p99", title(publish, run.connections)),
                    format!("within {}; {}", micros(P50_US_MAX), micros(P99_US_MAX)),
                    format!("{}; {}", micros(live.p50_us), micros(live.p99_us)),
                    live.p50_us <= P50_US_MAX && live.p99_us <= P99_US_MAX,
                ));
            }
        }
        targets
    }
}

impl Spread {
    fn message_us(&self) -> Option<f64> {
        self.flood.server.as_ref()?.cpu_per_message_us
    }
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

/// How much more a message may cost with other numbers of connections.
const COST_RATIO_MAX: f64 = 1.2;

/// How soon messages arrive with the second of these numbers, on a quiet machine.
const P50_US_MAX: f64 = 80.0;
const P99_US_MAX: f64 = 250.0;
