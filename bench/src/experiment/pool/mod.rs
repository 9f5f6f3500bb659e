//! `pool`: pick one of six workers.
//!
//! The report picked a worker from a pool of 6, 100,000 times by each strategy, then let N clients pick at once, 1,000
//! times each; with a dispatcher's state in the middle, the time of a pick grew with the clients.

mod picks;

use crate::report::plot::{self, Axis, Curve, Panel, Scale};
use crate::units::{count, nanos};
use encke_pool::Strategy;
use minijinja::context;
use minijinja::value::Serde;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::experiment::lab::Lab;
use crate::experiment::past::{POOL_ALONE_US, POOL_CLIENTS_US, REPORTS};
use crate::{BenchError, Section};

use picks::{Timed, Trial, WORKERS};

/// The results of the experiment, by strategy.
#[derive(Debug, Clone, Serialize)]
struct PoolReport {
    workers: usize,
    strategies: Vec<ByStrategy>,
}

/// The results for one strategy.
#[derive(Debug, Clone, Serialize)]
struct ByStrategy {
    strategy: &'static str,
    /// One client, in one thread.
    alone: Timed,
    /// Clients at once, in order of their number.
    together: Vec<Timed>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    Ok(measure(lab)?.section())
}

fn measure(lab: &Lab<'_>) -> Result<PoolReport, BenchError> {
    let picks = lab.scaled(PICKS, PICKS_MIN);
    let picks_each = lab.scaled(PICKS_EACH, PICKS_EACH_MIN);
    let clients_max = lab.scaled(1_000, 10);
    let client_counts = POOL_CLIENTS_US.iter().map(|&(clients, _)| clients);
    let client_counts: Vec<_> = client_counts
        .filter(|&clients| clients <= clients_max)
        .collect();
    lab.say(&format!(
        "pool: by each strategy, {} picks {} times, and up to {} clients at once {} times",
        count(picks),
        ROUNDS * RUNS_A_ROUND,
        count(client_counts.iter().copied().max().unwrap_or(0)),
        ROUNDS,
    ));
    let mut trials = Vec::new();
    for kind in Strategy::ALL {
        let together = client_counts.iter();
        let together = together.map(|&clients| Trial::together(kind, clients, picks_each));
        trials.push((
            kind,
            Trial::alone(kind, picks)?,
            together.collect::<Result<Vec<_>, _>>()?,
        ));
    }
    // All of them in turn, so that the machine's moods meet them alike.
    for round in 1..=ROUNDS {
        lab.check()?;
        lab.say(&format!("pool: round {round} of {ROUNDS}"));
        for (_, alone, together) in &mut trials {
            for trial in together {
                trial.run()?;
            }
            for _ in 0..RUNS_A_ROUND {
                alone.run()?;
            }
        }
    }
    let found = trials
        .into_iter()
        .map(|(kind, alone, together)| ByStrategy {
            strategy: kind.name(),
            alone: alone.end(),
            together: together.into_iter().map(Trial::end).collect(),
        });
    Ok(PoolReport {
        workers: WORKERS,
        strategies: found.collect(),
    })
}

impl ByStrategy {
    /// The time of a pick among the most clients that cost the most, against that of a client alone.
    fn growth(&self) -> f64 {
        let each = self.together.iter().map(|timed| timed.pick_ns);
        each.fold(0.0, f64::max) / self.alone.pick_ns
    }
}

impl PoolReport {
    fn section(&self) -> Section {
        let spreads = self.strategies.iter().map(|by| {
            context! {
                alone_percent => by.alone.uneven_percent(),
                most_percent => by.together.last().map(Timed::uneven_percent),
                growth => by.growth(),
                apart_alone => by.alone.picks_apart(),
                apart_together => by.together.iter().map(Timed::picks_apart).max(),
            }
        });
        let derived = context! {
            spreads => spreads.collect::<Vec<_>>(),
            past_alone_us => Serde(BTreeMap::from(POOL_ALONE_US)),
            past_clients_us => Serde(POOL_CLIENTS_US),
            runs_alone => ROUNDS * RUNS_A_ROUND,
            runs_together => ROUNDS,
            uneven_max => Strategy::UNEVEN_MAX,
        };
        let plot = plot::draw(&[self.panel()]);
        Section::from_template("pool", self, derived, Some(plot))
    }

    fn panel(&self) -> Panel {
        let own = self
            .strategies
            .iter()
            .zip(COLOURS)
            .map(|(by, colour)| Curve {
                name: by.strategy.to_owned(),
                colour,
                faint: false,
                points: by
                    .together
                    .iter()
                    .map(|timed| (timed.clients as f64, timed.pick_ns))
                    .collect(),
            });
        let past = Curve {
            name: format!("round_robin, {REPORTS}"),
            colour: 4,
            faint: true,
            points: POOL_CLIENTS_US
                .iter()
                .map(|&(clients, us)| (clients as f64, us * 1e3))
                .collect(),
        };
        Panel {
            title: "time of a pick per core, by clients at once (both axes logarithmic)".to_owned(),
            x: Axis {
                scale: Scale::Logarithmic,
                label: |clients, _| count(clients as u64),
            },
            y: Axis {
                scale: Scale::Logarithmic,
                label: |ns, _| nanos(ns),
            },
            curves: own.chain([past]).collect(),
            marks: Vec::new(),
        }
    }
}

/// In the order of [`Strategy::ALL`].
const COLOURS: [usize; 5] = [0, 2, 1, 3, 5];

/// Picks by one client, as in the report, and how often.
const PICKS: u64 = 100_000;
const PICKS_MIN: u64 = 600;
const RUNS_A_ROUND: u32 = 5;

/// Picks of each of several clients, once a round. The report's clients picked 1,000 times, which now takes less time
/// than it takes to wake them all.
const PICKS_EACH: u64 = 10_000;
const PICKS_EACH_MIN: u64 = 1_000;

/// How often it is every strategy's turn.
const ROUNDS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::lab::tests::lab;

    #[test]
    fn a_tiny_run_times_every_strategy() {
        let data = tempfile::tempdir().unwrap();
        let report = measure(&lab(0.001, data.path())).unwrap();
        assert_eq!(report.strategies.len(), 5);
        for by in &report.strategies {
            let clients: Vec<_> = by.together.iter().map(|timed| timed.clients).collect();
            assert_eq!(clients, [1, 10], "{}", by.strategy);
            assert_eq!(
                by.alone.spread.iter().sum::<u64>(),
                PICKS_MIN * u64::from(ROUNDS * RUNS_A_ROUND)
            );
            assert!(by.growth() > 0.0 && by.growth().is_finite());
        }
        let section = report.section();
        assert!(
            section.targets.iter().all(|t| t.met || !t.promise),
            "{section}"
        );
        assert_eq!(section.tables[1].rows[0].len(), 7);
        // This run has no thousand clients.
        assert_eq!(section.tables[1].rows[3][2], "–");
        assert_eq!(plot::legends(&section.plot.unwrap()), 6);
    }

    #[test]
    fn short_times_have_their_unit() {
        assert_eq!(
            [
                nanos(4.56),
                nanos(37.4),
                nanos(1_630.0),
                nanos(18_813_000.0)
            ]
            .join(" "),
            "4.6 ns 37 ns 1,630 ns 18.81 ms"
        );
    }
}
