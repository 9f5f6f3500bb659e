//! `backlog`: messages that wait, and replies that arrive behind them.
//!
//! The report filled a server's mailbox with N messages; handling each asked another process and waited for its reply,
//! which arrived behind the rest, so every wait scanned the whole backlog: N squared. Here the messages wait in an
//! `encke_mailbox` and the reply goes to its own slot. The old way is measured too, over a plain queue in the same program,
//! so that the report's curve is in the same plot.

mod scanning;
mod waiting;

use crate::report::plot::{self, Axis, Curve, Panel, Scale};
use crate::units::{bytes, count, micros};
use minijinja::context;
use minijinja::value::Serde;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use serde::Serialize;

use crate::experiment::lab::Lab;
use crate::experiment::past::{BACKLOG, REPORTS, TODAY};
use crate::machine::free_memory_bytes;
use crate::{BenchError, Section};

use waiting::{Backlog, Echo, Handled, Turn};

/// The results of the experiment.
#[derive(Debug, Clone, Serialize)]
struct BacklogReport {
    /// Encke's way, in order of the number of messages.
    encke: Vec<Point>,
    /// The old way, over a plain queue.
    old: Vec<Point>,
    /// Messages handled between the sending of a control message behind a backlog and its handling; the most of all runs,
    /// for messages sent before anything was handled.
    handled_before_control: u64,
    /// The same for control messages that another thread sent while a message was in work: that one counts.
    handled_before_control_at_work: u64,
    /// Whether both threads were kept on one core.
    one_core: bool,
    notes: Vec<String>,
}

/// A number of messages, and what each of them cost.
#[derive(Debug, Clone, Copy, Serialize)]
struct Point {
    /// Messages that waited.
    messages: u64,
    /// In how many turns it was done; the figures are the middle of them.
    turns: usize,
    /// How long all take, in seconds.
    seconds: f64,
    /// How long each took, in microseconds.
    message_us: f64,
    /// How much processor time each took of both threads, in microseconds; of the old way it is not measured.
    message_cpu_us: Option<f64>,
    /// How many messages were looked at to find the replies, where they are looked for.
    looked: Option<u64>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    Ok(measure(lab)?.section())
}

/// Measures in a thread of its own, which with all threads that it starts stays on one core: whether two threads that wake
/// each other share a core is the scheduler's mood, and makes five times the difference.
fn measure(lab: &Lab<'_>) -> Result<BacklogReport, BenchError> {
    std::thread::scope(|scope| {
        let here = || {
            let mut one = CpuSet::new();
            one.set(sched_getcpu());
            let kept = sched_setaffinity(None, &one).is_ok();
            let mut report = measure_here(lab)?;
            report.one_core = kept;
            Ok(report)
        };
        let thread = std::thread::Builder::new()
            .name("backlog".into())
            .spawn_scoped(scope, here)
            .map_err(BenchError::system("start a thread"))?;
        thread.join().map_err(|_| BenchError::Thread("backlog"))?
    })
}

fn measure_here(lab: &Lab<'_>) -> Result<BacklogReport, BenchError> {
    let mut report = BacklogReport {
        encke: Vec::new(),
        old: Vec::new(),
        handled_before_control: 0,
        handled_before_control_at_work: 0,
        one_core: false,
        notes: Vec::new(),
    };
    let room = free_memory_bytes() / BYTES_PER_MESSAGE;
    let mut sizes: Vec<u64> = MESSAGES
        .iter()
        .map(|&messages| lab.scaled(messages, MESSAGES_MIN).min(room))
        .collect();
    sizes.dedup();
    if sizes.last() == Some(&room) {
        report.notes.push(format!(
            "The memory that is free ({}) has room for {} messages only.",
            bytes(free_memory_bytes()),
            count(room)
        ));
    }
    let echo = Echo::start()?;
    // All sizes turn by turn, and of the largest a part in each turn, so that the machine's moods meet all of them alike.
    let largest = sizes.pop().unwrap_or(MESSAGES_MIN);
    lab.say(&format!(
        "backlog: {} messages come to wait",
        count(largest)
    ));
    let mut whole = Backlog::new(largest)?;
    // The first questions find cold caches and a processor at rest.
    waiting::handle(lab.scaled(WARM_UP, MESSAGES_MIN), &echo)?;
    let mut turns = vec![Vec::new(); sizes.len() + 1];
    for turn in 1..=TURNS {
        lab.say(&format!(
            "backlog: turn {turn} of {TURNS}: {} messages of {}, and all smaller backlogs",
            count(largest / TURNS),
            count(largest)
        ));
        for (&messages, turns) in sizes.iter().zip(&mut turns) {
            let mut sum = Turn::default();
            for _ in 0..(REPEAT_UP_TO / messages).clamp(1, RUNS_MAX) {
                lab.check()?;
                let handled = waiting::handle(messages, &echo)?;
                report.note(messages, handled)?;
                sum.add(handled.cost);
            }
            turns.push(sum);
        }
        lab.check()?;
        let part = whole.handle(largest * turn / TURNS, &echo)?;
        turns[sizes.len()].push(part);
    }
    report.note(largest, whole.end(&echo)?)?;
    sizes.push(largest);
    let points = sizes.into_iter().zip(turns);
    report
        .encke
        .extend(points.map(|(messages, turns)| Point::middle(messages, &turns)));
    for past in &BACKLOG {
        lab.check()?;
        let messages = lab.scaled(past.messages, MESSAGES_MIN);
        lab.say(&format!(
            "backlog: {} messages, the old way",
            count(messages)
        ));
        let handled = scanning::handle(messages)?;
        let turn = Turn {
            messages,
            ns: handled.ns,
            cpu_ns: 0,
        };
        report.old.push(Point {
            looked: Some(handled.looked),
            message_cpu_us: None,
            ..Point::middle(messages, &[turn])
        });
    }
    Ok(report)
}

impl Point {
    /// The middle of the turns. The machine's moods meet all sizes, and a second that is lost to something else only the one
    /// that was in work.
    fn middle(messages: u64, turns: &[Turn]) -> Self {
        let middle_us = |ns: fn(&Turn) -> u64| {
            let mut each: Vec<_> = turns
                .iter()
                .map(|turn| ns(turn) as f64 / 1e3 / turn.messages as f64)
                .collect();
            each.sort_by(f64::total_cmp);
            let half = each.len() / 2;
            (each[half] + each[(each.len() - 1) / 2]) / 2.0
        };
        let message_us = middle_us(|turn| turn.ns);
        Self {
            messages,
            turns: turns.len(),
            seconds: message_us * messages as f64 / 1e6,
            message_us,
            message_cpu_us: Some(middle_us(|turn| turn.cpu_ns)),
            looked: None,
        }
    }
}

impl BacklogReport {
    /// Takes a run in.
    fn note(&mut self, messages: u64, handled: Handled) -> Result<(), BenchError> {
        if handled.cost.messages != messages {
            return Err(BenchError::Refused {
                refused: messages.abs_diff(handled.cost.messages),
                records: messages,
                first: "the mailbox handed out another number than it took".into(),
            });
        }
        let most = |so_far: &mut u64, now: u64| *so_far = (*so_far).max(now);
        most(&mut self.handled_before_control, handled.before_first);
        most(
            &mut self.handled_before_control_at_work,
            handled.before_second,
        );
        Ok(())
    }

    fn section(&self) -> Section {
        let past = BACKLOG.iter();
        let past = past.map(|one| (one.messages, one.report_s, one.today_s));
        let derived = context! { past => Serde(past.collect::<Vec<_>>()) };
        let plot = plot::draw(&[self.panel()]);
        Section::from_template("backlog", self, derived, Some(plot))
    }

    fn panel(&self) -> Panel {
        let own = |points: &[Point]| -> Vec<(f64, f64)> {
            let point = |p: &Point| (p.messages as f64, p.message_us);
            points.iter().map(point).collect()
        };
        let past = |seconds: fn(&crate::experiment::past::Handled) -> f64| -> Vec<(f64, f64)> {
            let point = |p: &crate::experiment::past::Handled| {
                (p.messages as f64, seconds(p) * 1e6 / p.messages as f64)
            };
            BACKLOG.iter().map(point).collect()
        };
        let curve = |name: &str, colour, faint, points| Curve {
            name: name.to_owned(),
            colour,
            faint,
            points,
        };
        Panel {
            title: "time of each message, by the number that wait (both axes logarithmic)"
                .to_owned(),
            x: Axis {
                scale: Scale::Logarithmic,
                label: |n, _| count(n as u64),
            },
            y: Axis {
                scale: Scale::Logarithmic,
                label: |us, _| micros(us),
            },
            curves: vec![
                curve("Encke", 0, false, own(&self.encke)),
                curve("the old way, now", 1, false, own(&self.old)),
                curve(REPORTS, 4, true, past(|p| p.report_s)),
                curve(TODAY, 3, true, past(|p| p.today_s)),
            ],
            marks: Vec::new(),
        }
    }
}

/// How many messages wait: the report's numbers, then on to where its way would take years.
const MESSAGES: [u64; 7] = [
    10_000, 20_000, 40_000, 80_000, 100_000, 1_000_000, 10_000_000,
];

/// Fewer show nothing.
const MESSAGES_MIN: u64 = 10;

/// Messages before the first that count: a fifth of a second.
const WARM_UP: u64 = 60_000;

/// Into how many parts the largest backlog is cut, with all others between them.
const TURNS: u64 = 10;

/// In each turn, runs are repeated until they have handled about this number of messages, or `RUNS_MAX` times.
const REPEAT_UP_TO: u64 = 100_000;
const RUNS_MAX: u64 = 5;

/// The maximum memory of a waiting message while the queue grows.
const BYTES_PER_MESSAGE: u64 = 48;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::lab::tests::lab;

    #[test]
    fn a_tiny_run_handles_all_and_control_first() {
        let data = tempfile::tempdir().unwrap();
        let report = measure(&lab(0.001, data.path())).unwrap();
        let messages: Vec<_> = report.encke.iter().map(|point| point.messages).collect();
        assert_eq!(messages, [10, 20, 40, 80, 100, 1_000, 10_000]);
        assert_eq!(report.old.len(), 4);
        for point in report.encke.iter().chain(&report.old) {
            let product = point.message_us * point.messages as f64;
            assert!((product / (point.seconds * 1e6) - 1.0).abs() < 1e-6);
            assert!(point.seconds > 0.0);
        }
        assert!(
            report
                .encke
                .iter()
                .all(|point| point.message_cpu_us > Some(0.0))
        );
        assert_eq!(report.handled_before_control, 0);
        assert!(report.handled_before_control_at_work <= 1);
        let section = report.section();
        assert!(section.targets.iter().all(|t| t.met || !t.promise));
        assert_eq!(plot::legends(&section.plot.unwrap()), 4);
        assert_eq!(section.tables[1].rows.len(), 7);
    }

    #[test]
    fn the_old_way_looks_at_all_that_waits_for_each_message() {
        for messages in [10, 1_000] {
            let handled = scanning::handle(messages).unwrap();
            // Each message once to take it, then all that are left and the reply.
            let looked = messages + messages * (messages - 1) / 2 + messages;
            assert_eq!(handled.looked, looked);
            assert!(handled.ns > 0);
        }
    }

    #[test]
    fn one_message_is_in_work_when_control_comes_from_elsewhere() {
        let echo = Echo::start().unwrap();
        for messages in [10, 999] {
            let handled = waiting::handle(messages, &echo).unwrap();
            assert_eq!(handled.cost.messages, messages);
            assert_eq!((handled.before_first, handled.before_second), (0, 1));
        }
    }
}
