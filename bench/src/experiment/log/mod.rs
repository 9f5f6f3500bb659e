//! `log`: 1,000 producers send 1,000,000 records to one log.
//!
//! The report sent messages to one process that wrote them to a file, with replies (sync) or without (async), and found
//! that only waiting bounds the queue. Here the records go through the server's own mailbox, sequencer and log; sync
//! means that the reply comes after fdatasync, async that only a full mailbox makes the sender wait. The empty queue of
//! the same run, which only replies, shows the cost of everything else.

mod alone;
mod producers;
mod run;
mod tasks;
mod watch;

use crate::report::plot::{self, Curve, Label, Panel};
use crate::units::{bytes, bytes_beside, count, micros, per_second};
use serde::Serialize;

use crate::experiment::lab::{Lab, middle_by};
use crate::experiment::past::{NONE, NOW, REPORTS, TODAY};
use crate::machine::free_disk_bytes;
use crate::report::figures;
use crate::{BenchError, Goal, Section, Table};

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
        let [empty, sync, not] = [Mode::Empty, Mode::Sync, Mode::Async].map(|m| self.median(m));
        Section {
            name: "log",
            title: "many producers, one log",
            story: format!(
                "The report: 1,000 producers send 1,000,000 messages to one logger process, waiting for each reply (sync) or not (async); async grew a queue of 68,487 messages and took longer. Now: {} producers send {} records of {} bytes through the server's mailbox, sequencer and log. Sync waits for fdatasync, which no earlier figure did; async waits only for room in the mailbox. 'no log' is the same mailbox with a loop that only replies.",
                count(self.plan.producers),
                count(self.plan.records),
                self.plan.record_bytes
            ),
            in_short: self.in_short(sync, not),
            tables: vec![
                self.beside_the_report(sync, not),
                self.of_runs(Mode::ALL.map(|mode| self.median(mode))),
                self.of_log_alone(),
            ],
            targets: self.targets(empty, sync, not),
            notes: self.notes(),
            plot: Some(plot::draw(&[
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
            ])),
            figures: figures(self),
        }
    }

    fn in_short(&self, sync: &Run, not: &Run) -> Vec<[String; 3]> {
        let seconds = |run: &Run| format!("{:.2} s", run.seconds * 1e6 / self.plan.records as f64);
        let longest = |run: &Run| count(run.queue_records_longest as u64);
        vec![
            [
                "a million records from 1,000 producers that wait (now for fdatasync); longest queue".into(),
                "861 s; 999".into(),
                format!("{}; {}", seconds(sync), longest(sync)),
            ],
            [
                "the same without waiting; longest queue".into(),
                "2,156 s; 68,487".into(),
                format!("{}; {}", seconds(not), longest(not)),
            ],
        ]
    }

    fn beside_the_report(&self, sync: &Run, not: &Run) -> Table {
        let mut table = Table::new(
            "The report's figures (1,000,000 messages; neither report nor Erlang waits for the disk)",
            ["", REPORTS, TODAY, NOW],
        );
        let seconds = |run: &Run| format!("{:.2} s", run.seconds * 1e6 / self.plan.records as f64);
        table.row(
            "sync: time for a million",
            ["861 s", "3.1 s", &seconds(sync)],
        );
        let longest = |run: &Run| count(run.queue_records_longest as u64);
        table.row(
            "sync: longest queue (now with the batch in work)",
            ["999", "998", &longest(sync)],
        );
        let memory = |run: &Run| bytes(run.queue_bytes_most as u64);
        table.row(
            "sync: memory of the queue",
            ["0.69 MB", "2.4 MB", &memory(sync)],
        );
        table.row(
            "async: time for a million",
            ["2,156 s", "5.9 s", &seconds(not)],
        );
        table.row("async: longest queue", ["68,487", "988,512", &longest(not)]);
        table.row(
            "async: memory of the queue",
            ["75.8 MB", "266 MB", &memory(not)],
        );
        table.row("waits for the disk", ["no", "no", "sync: yes"]);
        table
    }

    fn of_runs(&self, runs: [&Run; Mode::ALL.len()]) -> Table {
        let names = runs.iter().map(|run| run.mode.name());
        let columns: Vec<_> = std::iter::once("").chain(names).collect();
        let mut table = Table::new(
            "This run (the middle one of each kind by its rate)",
            columns,
        );
        let mut row = |name: &str, figure: &dyn Fn(&Run) -> String| {
            let cells = runs.map(figure);
            table.row(name, cells);
        };
        row("rate", &|run| per_second(run.records_per_second));
        row("processor time per million", &|run| {
            format!("{:.2} s", run.cpu_seconds_per_million)
        });
        row("longest queue", &|run| {
            count(run.queue_records_longest as u64)
        });
        row("bound of the queue", &|run| {
            count(run.queue_records_bound as u64)
        });
        row("memory of the queue, most", &|run| {
            bytes(run.queue_bytes_most as u64)
        });
        row("memory of the process, most", &|run| {
            bytes(run.process_bytes_most)
        });
        row("records per batch", &|run| match run.batches {
            0 => NONE.to_owned(),
            batches => format!("{:.0}", run.stored as f64 / batches as f64),
        });
        row("fdatasync p50, p99", &|run| {
            run.syncs.map_or(NONE.to_owned(), |syncs| {
                format!("{}, {}", micros(syncs.p50_us), micros(syncs.p99_us))
            })
        });
        row("until closed, all in history", &|run| match run.mode {
            mode if mode.is_empty() => NONE.to_owned(),
            _ => format!(
                "{:.2} s, {:.2} s cpu per million",
                run.closed_seconds, run.closed_cpu_seconds_per_million
            ),
        });
        table
    }

    fn of_log_alone(&self) -> Table {
        let alone = &self.alone;
        let mut table = Table::new(
            &format!(
                "The log by itself (a record takes {} bytes in the file)",
                alone.frame_bytes
            ),
            ["", "p50", "p99", "records a second"],
        );
        let batch = count(alone.batch_records);
        let bare_batch = format!("a bare write and fdatasync of {batch} records' bytes");
        let (disk, batched) = (
            per_second(alone.disk_per_second()),
            per_second(alone.batched_per_second),
        );
        for (name, p, most) in [
            ("a bare write and fdatasync", &alone.bare, NONE),
            ("a lone record, synced", &alone.record, NONE),
            (&bare_batch, &alone.bare_batch, &disk),
        ] {
            table.row(name, [&micros(p.p50_us), &micros(p.p99_us), most]);
        }
        let name = format!("in batches of {batch}, each synced");
        table.row(&name, [NONE, NONE, &batched]);
        table
    }

    fn targets(&self, empty: &Run, sync: &Run, not: &Run) -> Vec<Goal> {
        let ratio = sync.records_per_second / empty.records_per_second;
        let faster = not.records_per_second / sync.records_per_second;
        let cpu = |name: &str, run: &Run| {
            let seconds = run.cpu_seconds_per_million;
            Goal::speed(
                format!("{name}: processor time per million"),
                "at most 2.0 s",
                format!("{seconds:.2} s"),
                seconds <= 2.0,
            )
        };
        let in_batches = self.median(Mode::SyncInBatches);
        let lone = self.alone.record.p50_us / self.alone.bare.p50_us;
        let batched = self.alone.batched_per_second;
        let longest = self.runs.iter().map(|run| run.queue_records_longest).max();
        let longest = longest.unwrap_or(0);
        let bound = sync.queue_records_bound;
        let within = self.runs.iter().all(|run| {
            run.queue_records_longest <= run.queue_records_bound
                && run.queue_bytes_most <= run.queue_bytes_bound
        });
        let lost: u64 = self.runs.iter().map(|run| run.lost(self.plan)).sum();
        vec![
            Goal::none("records lost, in all runs", lost),
            Goal::promise(
                "longest queue, in all runs",
                format!("at most {}", count(bound as u64)),
                count(longest as u64),
                within,
            ),
            Goal::speed(
                "sync against an empty queue with replies",
                "at least 80 %",
                format!("{:.0} %", ratio * 100.0),
                ratio >= 0.8,
            ),
            cpu("sync, in batches as shards send", in_batches),
            cpu("sync, a task for each producer included", sync),
            Goal::speed(
                "async against sync",
                "at least as fast",
                format!("{faster:.2} times"),
                faster >= 1.0,
            ),
            Goal::speed(
                "lone synced record against a bare write and fdatasync, p50",
                "at most 1.5 times",
                format!("{lone:.2} times"),
                lone <= 1.5,
            ),
            Goal::speed(
                "the log by itself, in batches of 1,000",
                "at least 1,000,000/s",
                per_second(batched),
                batched >= 1e6,
            ),
        ]
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            format!(
                "The bound is {} records that wait or are being committed: one of each producer that waits for its reply. For producers that do not wait, half of them may wait while the other half is being committed.",
                count(self.plan.queue_records_max as u64)
            ),
            "The producers of 'no log' and 'sync' are tasks, in one thread per core; the reply to its record wakes each task. The empty queue with replies is the limit of such producers. The producers of the other runs are state machines, in one thread per core, that send and receive in batches, as the connections of the server's shards do. They cost next to nothing, so the ratio of these runs shows the cost of a record and not that of a queue."
                .to_owned(),
            self.in_batches(),
            self.ceiling(),
            "Async is level accepted: records are acknowledged when their order is decided, written with their batch, and synced within a second. Times end when the queue is empty; the line below adds the time until everything is durable and the sealed segments are in history."
                .to_owned(),
            "The queue's longest length is exact, from the mailbox's own gauge; the curves and the memory are samples, one \
             every 3 ms."
                .to_owned(),
        ];
        notes.extend(self.notes.iter().cloned());
        notes
    }

    /// The cost of the log for producers that send in batches.
    fn in_batches(&self) -> String {
        let [empty, sync] = [Mode::EmptyInBatches, Mode::SyncInBatches].map(|m| self.median(m));
        format!(
            "In batches, sync reaches {:.0} % of the empty queue's rate, with {:.2} s of processor time per million.",
            sync.records_per_second / empty.records_per_second * 100.0,
            sync.cpu_seconds_per_million
        )
    }

    /// The share of the empty queue's rate that the disk allows for any log.
    fn ceiling(&self) -> String {
        let alone = &self.alone;
        let empty = self.median(Mode::Empty).records_per_second;
        let share = |per_second: f64| format!("{:.0} %", per_second / empty * 100.0);
        let batch = count(alone.batch_records);
        format!(
            "The empty queue waits for no disk. {batch} producers that each wait for their record fill a batch of {batch} at \
             most: a bare write and fdatasync of its bytes, one after the other and nothing else, make {} of the empty queue's \
             rate on this disk, and the log by itself, such batches with no producer at all, {}.",
            share(alone.disk_per_second()),
            share(alone.batched_per_second)
        )
    }
}

impl Run {
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
        assert!(report.alone.frame_bytes > RECORD_BYTES);
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
