//! `fsync`: pings and live deliveries while the log syncs without pause.
//!
//! In the report, one node appended and synced in a loop while another one pinged it; the pings took as long as the syncs
//! and longer. Here a server of its own process is pinged (a HEAD of a stream's tail over a kept connection), and
//! records are followed live from their append to their event (server-sent events), before and during a load of other
//! publishers.
//!
//! What a delivery may wait for depends on the server's level. At `synced` a record must be on the disk before readers
//! see it, so its delivery includes at least one fdatasync. At `accepted` it does not wait for the disk, however often the
//! log syncs.
//!
//! Each server is compared with one whose log is in memory, at the same level and rate. All servers run from beginning to
//! end, and many short trials of them take turns, so that noise of the machine reaches all of them. Each comparison has two
//! trials in memory in each round: the difference between the two is what the experiment cannot resolve. With each latency
//! the probes read how long the threads on its way waited for a processor.

mod probe;
mod run_queue;
mod trial;

use std::collections::BTreeMap;
use std::time::Duration;

use minijinja::context;
use serde::Serialize;

use crate::experiment::lab::{Lab, Scratch, no_memory_disk};
use crate::experiment::serving::{Disk, Level, SLOWER_US, Serving, no_slow_disk};
use crate::report::plot::{self, Axis, Curve, Panel, Scale};
use crate::units::micros;
use crate::{BenchError, Section};

use trial::{Load, Trial};

/// The results of the experiment.
#[derive(Debug, Clone, Serialize)]
struct FsyncReport {
    rounds: u32,
    /// The length of the loaded phase of a trial.
    phase_ms: u128,
    comparisons: Vec<Comparison>,
    /// Why there is no slow disk, if there is none.
    no_slow_disk: Option<String>,
    /// Why there is no log in memory, if there is none.
    no_memory_disk: Option<String>,
}

/// A disk and a level, beside a log in memory at the same level and rate.
#[derive(Debug, Clone, Serialize)]
struct Comparison {
    disk: Disk,
    level: Level,
    load: Load,
    /// On the disk, in memory, and in memory again; each with a trial for each round.
    sides: [Side; 3],
}

/// The trials of one side of a comparison.
#[derive(Debug, Clone, Serialize)]
struct Side {
    name: &'static str,
    trials: Vec<Trial>,
    /// Figures over all trials.
    figures: BTreeMap<&'static str, Spread>,
}

/// A figure over the rounds: its quartiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

/// A server, and the directory of its data.
struct Server {
    disk: Disk,
    level: Level,
    serving: Serving,
    /// How many trials it has had.
    trials: usize,
    _data: Scratch,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let phase = PHASE.mul_f64(lab.size.min(1.0)).max(PHASE_MIN);
    let (no_slow_disk, no_memory_disk) = (no_slow_disk(lab), no_memory_disk());
    let exists = |disk| match disk {
        Disk::Own => true,
        Disk::Memory => no_memory_disk.is_none(),
        Disk::Slow => no_slow_disk.is_none(),
    };
    let mut servers = Vec::new();
    for disk in [Disk::Own, Disk::Memory, Disk::Slow] {
        for level in [Level::Synced, Level::Accepted] {
            if exists(disk) {
                servers.push(Server::start(lab, disk, level)?);
            }
        }
    }
    let comparisons = COMPARISONS.into_iter().filter(|&(disk, _)| exists(disk));
    let mut comparisons: Vec<_> = comparisons.map(Comparison::new).collect();
    let rounds = lab.rounds(ROUNDS);
    for round in 1..=rounds {
        lab.say(&format!(
            "fsync: round {round} of {rounds}: {} comparisons, a load of {:.1} s in each of 3 trials",
            comparisons.len(),
            phase.as_secs_f64()
        ));
        // The first trial of a round appends as fast as it can. Its rate is that of the round's other trials, except for those of
        // the slow disk and beside it.
        let mut rate = None;
        for comparison in &mut comparisons {
            if comparison.disk == Disk::Own {
                comparison.load.rate = rate;
            }
            let backwards = round % 2 == 0 && rate.is_some();
            comparison.try_sides(lab, &mut servers, phase, backwards)?;
            rate = rate.or(comparison.load.rate);
        }
    }
    for server in servers {
        server.serving.stop()?;
    }
    for side in comparisons.iter_mut().flat_map(|c| &mut c.sides) {
        side.figures = figures(&side.trials);
    }
    let report = FsyncReport {
        rounds,
        phase_ms: phase.as_millis(),
        comparisons,
        no_slow_disk,
        no_memory_disk,
    };
    Ok(report.section())
}

impl Server {
    fn start(lab: &Lab<'_>, disk: Disk, level: Level) -> Result<Self, BenchError> {
        let name = format!("{disk:?}-{}", level.name());
        let data = match disk {
            Disk::Memory => lab.scratch_in_memory(&name)?,
            Disk::Own | Disk::Slow => lab.scratch(&name)?,
        };
        let serving = Serving::start(lab, data.path(), level, disk, &trial::SYNC_EVERY)?;
        trial::create_streams(&serving, LOAD_SLOW.publishers)?;
        Ok(Self {
            disk,
            level,
            serving,
            trials: 0,
            _data: data,
        })
    }
}

impl Comparison {
    fn new((disk, level): (Disk, Level)) -> Self {
        let (load, name) = match disk {
            Disk::Slow => (LOAD_SLOW, "a disk 15 ms slower"),
            Disk::Own | Disk::Memory => (LOAD, "this disk"),
        };
        let side = |name| Side {
            name,
            trials: Vec::new(),
            figures: BTreeMap::new(),
        };
        Self {
            disk,
            level,
            load,
            sides: [name, "no disk", "no disk, again"].map(side),
        }
    }

    /// Runs a trial of each side, in the opposite order if `backwards`. A load without a rate takes the measured rate of the
    /// first trial.
    fn try_sides(
        &mut self,
        lab: &Lab<'_>,
        servers: &mut [Server],
        phase: Duration,
        backwards: bool,
    ) -> Result<(), BenchError> {
        let mut sides = [0, 1, 2];
        if backwards {
            sides.reverse();
        }
        for side in sides {
            let disk = [self.disk, Disk::Memory, Disk::Memory][side];
            let mut servers = servers.iter_mut();
            let server = servers.find(|s| s.disk == disk && s.level == self.level);
            let Some(server) = server else { continue };
            lab.check()?;
            server.trials += 1;
            let trial = Trial::of(lab, &server.serving, phase, self.load, server.trials)?;
            let rate = trial.load_per_second.max(1.0);
            self.load.rate.get_or_insert(rate);
            self.sides[side].trials.push(trial);
        }
        Ok(())
    }
}

impl FsyncReport {
    fn section(&self) -> Section {
        let trials = self.comparisons.iter().flat_map(|c| &c.sides);
        let lost = trials
            .flat_map(|side| &side.trials)
            .map(|trial| trial.published.abs_diff(trial.delivered))
            .sum::<u64>();
        let derived = context! {
            lost => lost,
            publishers => LOAD.publishers,
            slow_rate => LOAD_SLOW.rate,
            slower_us => SLOWER_US,
            more_us_max => MORE_US_MAX,
            ratio_max => RATIO_MAX,
        };
        let plot = plot::draw(&self.panels());
        Section::from_template("fsync", self, derived, Some(plot))
    }

    /// The p99 of each round, with a panel for each comparison.
    fn panels(&self) -> Vec<Panel> {
        let panel = |comparison: &Comparison| {
            let (what, p99): (_, Figure) = match comparison.level {
                Level::Synced => ("pings", |t| t.during.ping.all.p99_us),
                Level::Accepted => ("deliveries", |t| t.during.delivery.all.p99_us),
            };
            let curve = |(n, side): (usize, &Side)| Curve {
                name: side.name.to_owned(),
                colour: 1 - n.min(1),
                faint: n == 2,
                points: (1..)
                    .zip(&side.trials)
                    .map(|(round, trial)| (f64::from(round), p99(trial)))
                    .collect(),
            };
            Panel {
                title: format!(
                    "{}, level {}: p99 of {what} in each round (logarithmic)",
                    comparison.sides[0].name,
                    comparison.level.name()
                ),
                x: Axis {
                    scale: Scale::FromZero,
                    label: |round, _| format!("{round:.0}"),
                },
                y: Axis {
                    scale: Scale::Logarithmic,
                    label: |us, _| micros(us),
                },
                curves: comparison.sides.iter().enumerate().map(curve).collect(),
                marks: Vec::new(),
            }
        };
        self.comparisons.iter().map(panel).collect()
    }
}

fn figures(trials: &[Trial]) -> BTreeMap<&'static str, Spread> {
    let spread = |&(name, figure): &(_, Figure)| {
        Some((name, Spread::of(trials.iter().map(figure).collect())?))
    };
    FIGURES.iter().filter_map(spread).collect()
}

impl Spread {
    /// `None` of no values. The greater one where two are in the middle.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |part: usize| values.get(values.len() * part / 4).copied();
        Some(Self {
            low: at(1)?,
            median: at(2)?,
            high: at(3)?,
        })
    }
}

/// A figure of a trial.
type Figure = fn(&Trial) -> f64;

/// The figures of a side, in microseconds unless their names say otherwise.
const FIGURES: [(&str, Figure); 20] = [
    ("quiet_ping_p50", |t| t.before.ping.all.p50_us),
    ("quiet_ping_p99", |t| t.before.ping.all.p99_us),
    ("ping_p50", |t| t.during.ping.all.p50_us),
    ("ping_p99", |t| t.during.ping.all.p99_us),
    ("ping_on_processor_p99", |t| {
        t.during.ping.on_processor.p99_us
    }),
    ("ping_wait", |t| t.during.ping.slow.wait_us),
    ("ping_run", |t| t.during.ping.slow.run_us),
    ("ping_rest", |t| t.during.ping.slow.rest_us),
    ("delivery_p50", |t| t.during.delivery.all.p50_us),
    ("delivery_p99", |t| t.during.delivery.all.p99_us),
    ("delivery_on_processor_p99", |t| {
        t.during.delivery.on_processor.p99_us
    }),
    ("delivery_wait", |t| t.during.delivery.slow.wait_us),
    ("delivery_run", |t| t.during.delivery.slow.run_us),
    ("delivery_rest", |t| t.during.delivery.slow.rest_us),
    ("shards_run_percent", |t| t.during.shards.run_percent),
    ("shards_wait_percent", |t| t.during.shards.wait_percent),
    ("sequencer_run_percent", |t| t.during.sequencer.run_percent),
    ("sequencer_wait_percent", |t| {
        t.during.sequencer.wait_percent
    }),
    ("records_per_second", |t| t.during.records_per_second),
    ("records_per_batch", |t| {
        t.during.records_per_batch.unwrap_or(0.0)
    }),
];

/// In their order. Pings are judged at level synced, deliveries at level accepted.
const COMPARISONS: [(Disk, Level); 4] = [
    (Disk::Own, Level::Synced),
    (Disk::Own, Level::Accepted),
    (Disk::Slow, Level::Synced),
    (Disk::Slow, Level::Accepted),
];

/// The load on this disk: as few publishers as keep the log syncing without pause. More would only keep the processors busy.
/// In the first trial of a round each appends again as soon as it has its acknowledgement; that sets the rate of the others.
const LOAD: Load = Load {
    publishers: 8,
    rate: None,
};

/// The load on the slow disk: a steady rate, above the 65 syncs a second that there can be, so that the log has always
/// something to sync.
const LOAD_SLOW: Load = Load {
    publishers: 32,
    rate: Some(200.0),
};

/// Trials of each side.
const ROUNDS: u32 = 16;

/// How long the load of a trial is measured at the report's size, and at least.
const PHASE: Duration = Duration::from_millis(600);
const PHASE_MIN: Duration = Duration::from_millis(200);

/// The allowed growth of a latency.
const RATIO_MAX: f64 = 1.2;
const MORE_US_MAX: f64 = 50.0;

#[cfg(test)]
mod tests;
