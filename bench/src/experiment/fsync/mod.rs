//! `fsync`: pings and live deliveries while the log syncs without pause.
//!
//! In the report, one node appended and synced in a loop while another one pinged it; the pings took as long as the syncs
//! and longer. Here a server of its own process is pinged (a HEAD of a stream's tail over a kept connection), and
//! records are followed live from their append to their event (server-sent events), before, during and after a load of
//! other publishers.
//!
//! What a delivery may wait for depends on the server's level. At `synced` a record must be on the disk before readers
//! see it, so its delivery includes at least one fdatasync. At `accepted` it does not wait for the disk, however often the
//! log syncs. Both are measured with the same load, and each beside a server whose log is in memory: the difference is the
//! cost of the disk.

mod probe;
mod trial;

use std::time::Duration;

use crate::load::{Latencies, Percentiles};
use crate::report::plot::{self, Axis, Curve, Panel, Scale};
use crate::units::{count, micros, per_second};
use serde::Serialize;

use crate::experiment::lab::{Lab, middle_by, no_memory_disk};
use crate::experiment::past::{NONE, NOW, REPORTS};
use crate::experiment::serving::{Disk, Level, no_slow_disk};
use crate::report::figures;
use crate::{BenchError, Goal, Section, Table};

use probe::Reading;
use trial::{Load, Phase, Plan, Trial, plan_ns};

/// The results of the experiment.
#[derive(Debug, Clone, Serialize)]
struct FsyncReport {
    plan: Plan,
    /// All of all rounds.
    trials: Vec<Trial>,
    /// Why there is no slow disk, if there is none.
    no_slow_disk: Option<String>,
    /// Why nothing can be beside a log in memory, if nothing can.
    no_memory_disk: Option<String>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let plan = Plan {
        phase: Duration::from_secs_f64(PHASE_S * lab.size.min(1.0)).max(PHASE_MIN),
    };
    let (no_slow_disk, no_memory_disk) = (no_slow_disk(), no_memory_disk());
    let rounds = lab.rounds(ROUNDS);
    let mut trials = Vec::new();
    for round in 1..=rounds {
        let (mut own, mut slow) = (LOAD, LOAD_SLOW);
        for (disk, level) in TRIALS {
            let no_tracer = disk.is_traced() && no_slow_disk.is_some();
            if no_tracer || (disk.is_memory() && no_memory_disk.is_some()) {
                continue;
            }
            lab.check()?;
            lab.say(&format!(
                "fsync: round {round} of {rounds}, {}, level {}: three phases of {:.1} s, load in the second",
                disk.name(),
                level.name(),
                plan.phase.as_secs_f64()
            ));
            let load = match disk {
                Disk::Own | Disk::Memory => &mut own,
                Disk::Slow | Disk::MemoryTraced => &mut slow,
            };
            let trial = Trial::serve(lab, plan, disk, level, *load)?;
            // In the next trials the same is sent.
            load.rate = Some(trial.load_per_second.max(1.0));
            trials.push(trial);
        }
    }
    if let Some(why) = &no_slow_disk {
        lab.say(&format!("fsync: no slow disk: {why}"));
    }
    if let Some(why) = &no_memory_disk {
        lab.say(&format!("fsync: no log in memory: {why}"));
    }
    let report = FsyncReport {
        plan,
        trials,
        no_slow_disk,
        no_memory_disk,
    };
    Ok(report.section())
}

impl Disk {
    fn name(self) -> &'static str {
        match self {
            Self::Own => "this disk",
            Self::Memory => "no disk",
            Self::Slow => "a disk 15 ms slower",
            Self::MemoryTraced => "no disk, traced",
        }
    }
}

impl Trial {
    fn name(&self) -> String {
        format!("{}, level {}", self.disk.name(), self.level.name())
    }
}

impl FsyncReport {
    /// The trials of one kind, in their order.
    fn trials(&self, disk: Disk, level: Level) -> impl Iterator<Item = &Trial> {
        let trials = self.trials.iter();
        trials.filter(move |trial| trial.disk == disk && trial.level == level)
    }

    /// Of these trials the one that is shown: the middle one by the p99 of its pings during the load.
    fn trial(&self, disk: Disk, level: Level) -> Option<&Trial> {
        middle_by(self.trials(disk, level), |trial| trial.during().ping.p99_us)
    }

    /// Those that are shown.
    fn shown(&self) -> Vec<&Trial> {
        let kinds = TRIALS.iter();
        kinds
            .filter_map(|&(disk, level)| self.trial(disk, level))
            .collect()
    }

    /// The middle one of a figure of all trials of one kind.
    fn middle(&self, disk: Disk, level: Level, figure: fn(&Trial) -> f64) -> Option<f64> {
        middle_by(self.trials(disk, level).map(figure), |figure| *figure)
    }

    fn section(&self) -> Section {
        let mut tables = vec![self.beside_the_report()];
        tables.extend(self.shown().into_iter().map(of_trial));
        tables.push(self.of_batches());
        Section {
            name: "fsync",
            title: "pings and deliveries while the log syncs".into(),
            story: format!(
                "The report: one node appends and syncs in a loop, another one pings it; the pings waited for the disk. Now: pings of a server over a kept connection, and live deliveries from append to event, before, during and after a load. At level synced the load keeps the log syncing without pause; at level accepted the same load waits for no sync. Each trial is repeated with the log in memory, and all trials with each fdatasync 15 ms longer. The load: {} publishers as fast as they are acknowledged, or, on the slow disk, {} records a second.",
                LOAD.publishers,
                count(LOAD_SLOW.rate.unwrap_or(0.0) as u64)
            ),
            in_short: self.in_short(),
            tables,
            targets: self.targets(),
            notes: self.notes(),
            plot: Some(plot::draw(&self.panels())),
            figures: figures(self),
        }
    }

    fn in_short(&self) -> Vec<[String; 3]> {
        let slow = self.trial(Disk::Slow, Level::Synced);
        let ping = slow.map_or(NONE.to_owned(), |trial| {
            format!("p50, p99: {}", pair(&trial.during().ping))
        });
        vec![[
            "a ping while the log syncs, 15 ms for each".into(),
            "110 to 410 ms".into(),
            ping,
        ]]
    }

    fn beside_the_report(&self) -> Table {
        let mut table = Table::new(
            "A ping, p50 and p99 (15 ms for each fsync)",
            ["", REPORTS, NOW],
        );
        let slow = self.trial(Disk::Slow, Level::Synced);
        let figure = |phase: fn(&Trial) -> &Phase| {
            slow.map_or(NONE.to_owned(), |trial| pair(&phase(trial).ping))
        };
        table.row("before", ["0.14 ms", &figure(Trial::before)]);
        table.row("while syncing", ["110 to 410 ms", &figure(Trial::during)]);
        table
    }

    fn of_batches(&self) -> Table {
        let mut columns = vec!["during the load".to_owned()];
        let shown = self.shown();
        columns.extend(shown.iter().map(|trial| trial.name()));
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new("The log, from /metrics", columns);
        let mut row = |name: &str, figure: fn(&Phase) -> String| {
            let cells: Vec<_> = shown.iter().map(|t| figure(t.during())).collect();
            table.row(name, cells);
        };
        row("records", |phase| per_second(phase.records_per_second));
        row("records per batch", |phase| {
            phase
                .records_per_batch
                .map_or(NONE.to_owned(), |n| format!("{n:.1}"))
        });
        row("fdatasyncs", |phase| per_second(phase.syncs_per_second));
        row("each takes, on average", |phase| {
            phase.sync_us.map_or(NONE.to_owned(), micros)
        });
        row("share of time in fdatasync", |phase| {
            format!("{:.0} %", phase.syncing_percent)
        });
        table
    }

    fn targets(&self) -> Vec<Goal> {
        let mut targets = Vec::new();
        for (disk, without) in [(Disk::Own, Disk::Memory), (Disk::Slow, Disk::MemoryTraced)] {
            let mut beside = |what: &str, level, us| {
                let with = self.middle(disk, level, us);
                let Some((with, without)) = with.zip(self.middle(without, level, us)) else {
                    return;
                };
                let disk = disk.name();
                let what =
                    format!("{disk}: {what} while syncing, against the same load without a disk");
                targets.push(within(what, with, without));
            };
            beside("ping p99", Level::Synced, |trial| {
                trial.during().ping.p99_us
            });
            beside("delivery p99 at accepted", Level::Accepted, |trial| {
                trial.during().delivery.p99_us
            });
        }
        let batch = |disk| {
            let trial = self.trial(disk, Level::Synced)?;
            trial.during().records_per_batch
        };
        if let Some((slow, own)) = batch(Disk::Slow).zip(batch(Disk::Own)) {
            targets.push(Goal::speed(
                "batches grow when syncs are slow",
                "larger than on this disk",
                format!("{slow:.1} records, {own:.1} on this disk"),
                slow > own,
            ));
        }
        let lost: u64 = self
            .trials
            .iter()
            .map(|trial| trial.published.abs_diff(trial.delivered))
            .sum();
        targets.push(Goal::none(
            "acknowledged records that were not delivered, or twice",
            lost,
        ));
        targets
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "Each trial is repeated in several rounds, all kinds in turn. A table shows the median trial of its kind by the p99 of its pings during the load; targets compare the medians of the p99. A single p99 shows what the scheduler did in those seconds."
                .to_owned(),
            "At level synced a delivery includes the fdatasync that makes its record durable, and the rest of a sync in progress. At level accepted it does not wait for the disk; the log syncs every few milliseconds (--sync-every 1ms)."
                .to_owned(),
            "A ping that is sent late because the previous one was late counts from its due time. Probes, load and server share the machine's cores: the cost of the load itself shows with and without a disk. The load's threads run at nice 19."
                .to_owned(),
            "strace slows the disk: it stops only fdatasync, but the kernel checks all other system calls of the server, too; therefore one trial has the tracer and no disk. On the slow disk all replies of a sync come at the same moment, and a ping in that moment waits for them."
                .to_owned(),
        ];
        if let Some(why) = &self.no_slow_disk {
            notes.push(format!("There was no slow disk: {why}."));
        }
        if let Some(why) = &self.no_memory_disk {
            notes.push(format!("There was no log in memory: {why}."));
        }
        notes
    }

    /// For each disk, pings and deliveries.
    fn panels(&self) -> Vec<Panel> {
        let disks = [Disk::Own, Disk::Slow].into_iter();
        disks
            .filter(|&disk| self.trial(disk, Level::Synced).is_some())
            .flat_map(|disk| {
                [
                    self.panel(disk, "pings", Trial::pings),
                    self.panel(disk, "deliveries", Trial::deliveries),
                ]
            })
            .collect()
    }

    fn panel(&self, disk: Disk, what: &str, of: fn(&Trial) -> &[Reading]) -> Panel {
        let mut curves = Vec::new();
        for (level, colour) in [(Level::Synced, 1), (Level::Accepted, 0)] {
            let Some(trial) = self.trial(disk, level) else {
                continue;
            };
            let mut curve = |percentile: &str, value: fn(&Percentiles) -> f64| {
                curves.push(Curve {
                    name: format!("{} {percentile}", level.name()),
                    colour,
                    faint: percentile == "p50",
                    points: self.over_time(of(trial), value),
                });
            };
            curve("p99", |p| p.p99_us);
            curve("p50", |p| p.p50_us);
        }
        let second = plan_ns(self.plan) as f64 / 1e9;
        Panel {
            title: format!("{}: {what} over time (logarithmic)", disk.name()),
            x: Axis {
                scale: Scale::FromZero,
                label: |seconds, _| format!("{seconds:.1} s"),
            },
            y: Axis {
                scale: Scale::Logarithmic,
                label: |us, _| micros(us),
            },
            curves,
            marks: ["before", "during the load", "after"]
                .iter()
                .enumerate()
                .map(|(n, &name)| (n as f64 * second, name.to_owned()))
                .collect(),
        }
    }

    /// A percentile of each stretch of time.
    fn over_time(&self, readings: &[Reading], value: fn(&Percentiles) -> f64) -> Vec<(f64, f64)> {
        let stretch_ns = (plan_ns(self.plan) / STRETCHES).max(1);
        let mut stretches: Vec<Latencies> = Vec::new();
        for reading in readings {
            let at = (reading.at_ns / stretch_ns).min(3 * STRETCHES) as usize;
            if stretches.len() <= at {
                stretches.resize_with(at + 1, Latencies::new);
            }
            stretches[at].record(reading.took_ns);
        }
        let point = |(n, latencies): (usize, &Latencies)| {
            let middle_ns = (n as u64 * stretch_ns + stretch_ns / 2) as f64;
            Some((middle_ns / 1e9, value(&latencies.percentiles()?)))
        };
        stretches.iter().enumerate().filter_map(point).collect()
    }
}

fn of_trial(trial: &Trial) -> Table {
    let title = format!(
        "{}: a load of {}, {}",
        trial.name(),
        per_second(trial.load_per_second),
        match trial.load.rate {
            None => "as fast as it was acknowledged",
            Some(_) => "at a steady pace",
        }
    );
    let mut table = Table::new(&title, ["", "before", "during", "after", "during / before"]);
    let mut row = |name: &str, value: fn(&Phase) -> f64| {
        let [before, during, after] = [0, 1, 2].map(|n: usize| value(&trial.phases[n]));
        table.row(
            name,
            [
                micros(before),
                micros(during),
                micros(after),
                format!("{:.2}", during / before),
            ],
        );
    };
    row("ping p50", |phase| phase.ping.p50_us);
    row("ping p99", |phase| phase.ping.p99_us);
    row("delivery p50", |phase| phase.delivery.p50_us);
    row("delivery p99", |phase| phase.delivery.p99_us);
    table
}

/// A latency that may not be longer than another one by more than a fifth, or 50 µs.
fn within(what: String, us: f64, than_us: f64) -> Goal {
    let ratio = us / than_us;
    Goal::speed(
        what,
        "at most 1.2 times or 50 µs more",
        format!("{ratio:.2} times ({} to {})", micros(us), micros(than_us)),
        ratio <= RATIO_MAX || us - than_us <= MORE_US_MAX,
    )
}

fn pair(p: &Percentiles) -> String {
    format!("{}, {}", micros(p.p50_us), micros(p.p99_us))
}

/// So often each trial is made.
const ROUNDS: u32 = 5;

/// How long each phase is at the report's size, and at least.
const PHASE_S: f64 = 2.0;
const PHASE_MIN: Duration = Duration::from_millis(200);

/// The load on this disk: as few publishers as keep the log syncing without pause, each as fast as it is acknowledged. More
/// would only keep the processors busy.
const LOAD: Load = Load {
    publishers: 8,
    rate: None,
};

/// The load on the slow disk: a steady rate, above the 65 syncs a second that there can be, so that the log has always
/// something to sync, and no higher, because all that a sync makes durable is answered in one moment. Publishers that wait
/// for each sync together would all be served, and ask again, in that moment.
const LOAD_SLOW: Load = Load {
    publishers: 32,
    rate: Some(200.0),
};

/// In their order. Each load's rate is set by its first trial.
const TRIALS: [(Disk, Level); 8] = [
    (Disk::Own, Level::Synced),
    (Disk::Memory, Level::Synced),
    (Disk::Own, Level::Accepted),
    (Disk::Memory, Level::Accepted),
    (Disk::Slow, Level::Synced),
    (Disk::MemoryTraced, Level::Synced),
    (Disk::Slow, Level::Accepted),
    (Disk::MemoryTraced, Level::Accepted),
];

/// The allowed growth of a latency.
const RATIO_MAX: f64 = 1.2;
const MORE_US_MAX: f64 = 50.0;

/// Points of a curve in each phase.
const STRETCHES: u64 = 20;

#[cfg(test)]
mod tests;
