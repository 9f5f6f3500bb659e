//! `pool`: pick one of six workers.
//!
//! The report picked a worker from a pool of 6, 100,000 times by each strategy, then let N clients pick at once, 1,000
//! times each; with a dispatcher's state in the middle, the time of a pick grew with the clients.

mod picks;

use crate::report::plot::{self, Axis, Curve, Panel, Scale};
use crate::units::count;
use encke_pool::Strategy;
use serde::Serialize;

use crate::experiment::lab::Lab;
use crate::experiment::past::{NONE, NOW, POOL_ALONE_US, POOL_CLIENTS_US, REPORTS};
use crate::report::figures;
use crate::{BenchError, Goal, Section, Table};

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
    #[serde(skip)]
    kind: Strategy,
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
            kind,
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
        Section {
            name: "pool",
            title: "picks of a worker".into(),
            story: format!(
                "The report: pick a worker from a pool of 6, 100,000 times by each strategy; then N clients at once, 1,000 \
                 picks each. Now the same with {} workers, each client a thread, and ten times as many picks of each, or the wake-up of the threads would dominate. Times with several clients are per core: \
                 the time of the run, divided by its picks, times the cores that could work on it.",
                self.workers
            ),
            in_short: self.in_short(),
            tables: vec![self.of_picks_alone(), self.of_clients("Time of a pick, per core", |timed| timed.pick_ns),
                self.of_clients(
                    "Processor time of a pick, without what other processes take",
                    |timed| timed.cpu_pick_ns,
                ),
                self.of_spreads()],
            targets: self.targets(),
            notes: vec![
                format!(
                    "Each figure is the median of {} runs alone, of {ROUNDS} with clients, all strategies in turn. A claim includes its release; a client that finds all six claimed waits.",
                    ROUNDS * RUNS_A_ROUND
                ),
                "Claim takes the first that is free, so a client alone always gets the same one: its spread says nothing."
                    .to_owned(),
            ],
            plot: Some(plot::draw(&[self.panel()])),
            figures: figures(self),
        }
    }

    fn in_short(&self) -> Vec<[String; 3]> {
        let row = |by: &ByStrategy| {
            let past = |name: &str| POOL_ALONE_US.iter().find(|(of, _)| *of == name);
            let alone = past(by.strategy).map_or(NONE.to_owned(), |(_, us)| format!("{us} µs"));
            let most = by.together.last();
            let among = most
                .filter(|_| by.kind == Strategy::RoundRobin)
                .and_then(|most| {
                    let past = POOL_CLIENTS_US
                        .iter()
                        .find(|(clients, _)| *clients == most.clients);
                    past.map(|(_, us)| format!("; {} µs", count(*us as u64)))
                });
            [
                format!(
                    "a pick by {}, alone; among {} clients, per core",
                    by.strategy,
                    most.map_or(0, |most| most.clients)
                ),
                alone + &among.unwrap_or_default(),
                format!(
                    "{}; {}",
                    nanos(by.alone.pick_ns),
                    most.map_or(NONE.to_owned(), |most| nanos(most.pick_ns))
                ),
            ]
        };
        self.strategies.iter().map(row).collect()
    }

    fn of_picks_alone(&self) -> Table {
        let mut table = Table::new(
            "Time of a pick by one client",
            ["", REPORTS, NOW, "the fastest run"],
        );
        for by in &self.strategies {
            let past = POOL_ALONE_US.iter().find(|(name, _)| *name == by.strategy);
            table.row(
                by.strategy,
                [
                    past.map_or(NONE.to_owned(), |(_, us)| format!("{us} µs")),
                    nanos(by.alone.pick_ns),
                    nanos(by.alone.pick_ns_least),
                ],
            );
        }
        table
    }

    fn of_clients(&self, title: &str, figure: fn(&Timed) -> f64) -> Table {
        let past = format!("round_robin, {REPORTS}");
        let names = self.strategies.iter().map(|by| by.strategy);
        let columns: Vec<_> = ["clients at once", &past]
            .into_iter()
            .chain(names)
            .collect();
        let mut table = Table::new(title, columns);
        for (clients, us) in POOL_CLIENTS_US {
            let now = self.strategies.iter().map(|by| {
                let timed = by.together.iter().find(|timed| timed.clients == clients);
                timed.map_or(NONE.to_owned(), |timed| nanos(figure(timed)))
            });
            let past = format!("{} µs", count(us as u64));
            let cells: Vec<_> = std::iter::once(past).chain(now).collect();
            table.row(count(clients), cells);
        }
        table
    }

    fn of_spreads(&self) -> Table {
        let mut table = Table::new(
            "The largest deviation of a worker from an even share",
            [
                "",
                "one client",
                "the most clients",
                "picks of each worker, one client",
            ],
        );
        for by in &self.strategies {
            let percent = |timed: &Timed| format!("{:.2} %", timed.uneven_percent());
            let most = by.together.last().map_or(NONE.to_owned(), percent);
            let each: Vec<_> = by.alone.spread.iter().map(|&picks| count(picks)).collect();
            table.row(
                by.strategy,
                [percent(&by.alone).as_str(), &most, &each.join("  ")],
            );
        }
        table
    }

    fn targets(&self) -> Vec<Goal> {
        let mut targets = Vec::new();
        for by in &self.strategies {
            let ns = by.alone.pick_ns;
            targets.push(Goal::speed(
                format!("{}: a pick alone", by.strategy),
                "under 0.1 µs",
                nanos(ns),
                ns < 100.0,
            ));
        }
        for by in &self.strategies {
            let growth = by.growth();
            targets.push(Goal::speed(
                format!(
                    "{}: a pick among clients, per core, against alone",
                    by.strategy
                ),
                "at most 3 times",
                format!("{growth:.2} times"),
                growth <= 3.0,
            ));
        }
        for by in &self.strategies {
            let what = format!("{}: spread over the workers", by.strategy);
            let percent = by.alone.uneven_percent();
            match by.kind {
                Strategy::RoundRobin | Strategy::Direct => {
                    let all = by.together.iter().chain([&by.alone]);
                    let exact = all.into_iter().all(Timed::is_exact);
                    let measured = if exact { "exact" } else { "not exact" };
                    targets.push(Goal::promise(what, "exact", measured, exact));
                }
                Strategy::Random | Strategy::Hash => targets.push(Goal::speed(
                    what,
                    "within 2 %",
                    format!("{percent:.2} %"),
                    percent <= 2.0,
                )),
                Strategy::Claim => {}
            }
        }
        targets
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

/// A short time: nanoseconds as long as there are few of them.
fn nanos(ns: f64) -> String {
    match ns {
        ns if ns < 10.0 => format!("{ns:.1} ns"),
        ns if ns < 10_000.0 => format!("{} ns", count(ns.round() as u64)),
        ns => crate::units::micros(ns / 1e3),
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
        assert_eq!(section.tables[1].rows[3][2], NONE);
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
