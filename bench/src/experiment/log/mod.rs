//! `log`: 1,000 producers send 1,000,000 records to one log.
//!
//! The report sent messages to one process that wrote them to a file, with replies (sync) or without (async), and found
//! that only waiting bounds the queue. Here the records go through the server's own mailbox, sequencer and log; sync
//! means that the reply comes after fdatasync, async that only a full mailbox makes the sender wait. The empty queue of
//! the same run, which only replies, shows the cost of the producers and their wake-ups.

mod alone;
mod producers;
mod run;
mod tasks;
mod watch;

use crate::report::plot::{self, Curve, Label, Panel};
use crate::units::{bytes_beside, count};
use minijinja::context;
use minijinja::value::Serde;
use serde::Serialize;

use crate::experiment::lab::{Lab, middle_by};
use crate::machine::free_disk_bytes;
use crate::{BenchError, Section};

use alone::Alone;
use run::{Mode, Plan, Run};

/// The results of the experiment.
#[derive(Debug, Clone, Serialize)]
struct LogReport {
    plan: Plan,
    /// Every run, in order.
    runs: Vec<Run>,
    alone: Alone,
    notes: Vec<String>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    Ok(measure(lab)?.section())
}

fn measure(lab: &Lab<'_>) -> Result<LogReport, BenchError> {
    let mut notes = Vec::new();
    let mut records = lab.scaled(RECORDS, RECORDS_MIN);
    let room = free_disk_bytes(lab.folder())? / DISK_BYTES_PER_RECORD;
    if records > room {
        notes.push(format!(
            "The disk has room for {} records only; the report's number is {}.",
            count(room),
            count(records)
        ));
        records = room;
    }
    let plan = Plan {
        producers: PRODUCERS.min(records),
        records,
        record_bytes: RECORD_BYTES,
        queue_records_max: PRODUCERS.min(records) as usize,
    };
    let rounds = lab.rounds(ROUNDS);
    let mut runs = Vec::new();
    for round in 1..=rounds {
        for mode in Mode::ALL {
            lab.check()?;
            lab.say(&format!(
                "log: round {round} of {rounds}, {}: {} records from {} producers",
                mode.name(),
                count(plan.records),
                count(plan.producers)
            ));
            runs.push(Run::make(lab, plan, mode)?);
        }
    }
    lab.check()?;
    lab.say("log: lone records beside bare syncs, then full batches");
    let lone = lab.scaled(LONE.into(), 50) as u32;
    let alone = Alone::measure(lab, RECORD_BYTES, lone, plan.records)?;
    Ok(LogReport {
        plan,
        runs,
        alone,
        notes,
    })
}

impl LogReport {
    /// The run of that mode whose rate is in the middle.
    fn median(&self, mode: Mode) -> &Run {
        let runs = self.runs.iter().filter(|run| run.mode == mode);
        middle_by(runs, |run| run.records_per_second).expect("each mode is run in each round")
    }

    fn section(&self) -> Section {
        let shown = Mode::ALL.map(|mode| self.median(mode));
        let [_, sync, not, ..] = shown;
        let is_bounded = self.runs.iter().all(|run| {
            run.queue_records_longest <= run.queue_records_bound
                && run.queue_bytes_most <= run.queue_bytes_bound
        });
        let derived = context! {
            shown => Serde(shown),
            names => Mode::ALL.map(Mode::name),
            beside_sync_ns => shown.map(Run::beside_sync_ns),
            is_bounded,
            lost => self.runs.iter().map(|run| run.lost(self.plan)).sum::<u64>(),
        };
        let plot = plot::draw(&[
            panel(
                "records that wait or are in work",
                |n, _| count(n as u64),
                &[sync, not],
                |sample| sample.queue_records as f64,
                |run| run.queue_records_longest as f64,
            ),
            panel(
                "memory of the whole process",
                |n, most| bytes_beside(n as u64, most as u64),
                &[sync, not],
                |sample| sample.process_bytes as f64,
                |run| run.process_bytes_most as f64,
            ),
        ]);
        Section::from_template("log", self, derived, Some(plot))
    }
}

impl Run {
    /// The time of a record without its share of the syncs.
    fn beside_sync_ns(&self) -> Option<f64> {
        let sync_us = self.syncs?.mean_us * self.batches as f64 / self.stored as f64;
        Some(1e9 / self.records_per_second - sync_us * 1e3)
    }

    /// Records that were sent and not acknowledged, or acknowledged and not stored.
    fn lost(&self, plan: Plan) -> u64 {
        let stored = match self.mode.is_empty() {
            true => plan.records,
            false => self.stored,
        };
        plan.records.abs_diff(self.acknowledged) + plan.records.abs_diff(stored)
    }
}

/// A figure of the runs over time, with the most of it in the legend.
fn panel(
    title: &str,
    label: Label,
    runs: &[&Run],
    value: fn(&watch::Sample) -> f64,
    most: fn(&Run) -> f64,
) -> Panel {
    let curves = runs.iter().enumerate();
    let curves = curves.map(|(colour, run)| Curve {
        name: format!(
            "{}: {} at most",
            run.mode.name(),
            label(most(run), most(run))
        ),
        colour,
        faint: false,
        points: run.samples.iter().map(|s| (s.seconds, value(s))).collect(),
    });
    Panel::over_time(title.to_owned(), label, curves.collect())
}

/// The report's sizes.
const PRODUCERS: u64 = 1_000;
const RECORDS: u64 = 1_000_000;
const RECORD_BYTES: usize = 128;

/// Fewer show nothing.
const RECORDS_MIN: u64 = 100;

/// Each kind of run is made so often; the middle one is shown.
const ROUNDS: u32 = 3;

/// Lone records.
const LONE: u32 = 2_000;

/// The maximum disk space of a record during a run: in a segment, in history, and during the transfer to history.
const DISK_BYTES_PER_RECORD: u64 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::lab::tests::lab;

    #[test]
    fn a_tiny_run_loses_nothing_and_keeps_its_bounds() {
        let data = tempfile::tempdir().unwrap();
        let report = measure(&lab(0.005, data.path())).unwrap();
        assert_eq!(report.plan.records, 5_000);
        assert_eq!(report.plan.producers, 1_000);
        let modes: Vec<_> = report.runs.iter().map(|run| run.mode).collect();
        assert_eq!(modes, Mode::ALL);
        for run in &report.runs {
            assert_eq!(run.acknowledged, 5_000, "{:?}", run.mode);
            assert!(run.queue_records_longest <= run.queue_records_bound);
            assert!(run.queue_records_longest > 0 && run.seconds > 0.0);
            assert!(run.samples.len() >= 2);
            assert_eq!(
                run.samples.last().unwrap().queue_records,
                0,
                "{:?}",
                run.mode
            );
            assert!(run.samples.iter().all(|s| s.process_bytes > 0));
        }
        let stored: Vec<_> = report.runs.iter().map(|run| run.stored).collect();
        assert_eq!(stored, [0, 5_000, 5_000, 0, 5_000]);
        let [empty, sync, not] = [0, 1, 2].map(|n: usize| &report.runs[n]);
        assert!(empty.syncs.is_none() && not.syncs.is_none());
        // A sync for each batch, that with the making of the stream included.
        assert_eq!(sync.syncs.unwrap().count, sync.batches + 1);
        assert!(sync.batches >= 5, "1,000 at a time: {}", sync.batches);
        assert!(report.alone.lone.batch_bytes > RECORD_BYTES);
        let section = report.section();
        assert!(section.targets.iter().all(|t| t.met || !t.promise));
        assert_eq!(plot::legends(&section.plot.unwrap()), 4);
        assert_eq!(section.figures["runs"][1]["stored"], 5_000);
    }

    #[test]
    fn lost_records_are_reported() {
        let data = tempfile::tempdir().unwrap();
        let mut report = measure(&lab(0.0001, data.path())).unwrap();
        report.runs[1].stored -= 1;
        report.runs[2].queue_records_longest = report.runs[2].queue_records_bound + 1;
        let broken: Vec<_> = report
            .section()
            .targets
            .into_iter()
            .filter(|target| target.promise && !target.met)
            .map(|target| target.measured)
            .collect();
        assert_eq!(broken, ["1", "101"]);
    }
}
