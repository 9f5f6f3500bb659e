//! Endurance: memory must stay flat, hang-ups must be noticed, no sockets may be left.

use crate::load::descriptors::Descriptors;
use crate::load::latency::{Latencies, Percentiles};
use crate::load::probe::Memory;
use crate::units::count;
use serde::Serialize;

/// The figures of one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Seconds since the start of the run.
    pub seconds: f64,
    /// Subscribers connected.
    pub active: u64,
    /// Connections closed by the server so far.
    pub closed: u64,
    /// Clients that hung up so far.
    pub hung_up: u64,
    /// Hang-ups that the server has noticed so far.
    pub noticed: u64,
    /// Failures so far.
    pub failed: u64,
    /// Messages arrived so far.
    pub events: u64,
    /// Messages per second since the sample before.
    pub events_per_second: f64,
    /// Messages acknowledged to this run's producers so far.
    pub acknowledged: u64,
    /// The server's memory, if its process is known.
    pub memory: Option<Memory>,
    /// The server's open files, if they can be counted.
    pub descriptors: Option<u64>,
    /// The server's processor time so far, in seconds.
    pub server_cpu_seconds: Option<f64>,
}

/// How many parts a run is cut into. In the first, what is meant to fill up fills up.
const PARTS: usize = 10;

/// The state of the server while clients connected and left.
#[derive(Debug, Clone, Serialize)]
pub struct Endurance {
    /// Whether it counts for the verdict on the run.
    pub judged: bool,
    /// By how many percent memory may drift.
    pub drift_percent_max: f64,
    /// By how many percent the server's resident anonymous memory has drifted over the last nine tenths of the run: from
    /// the beginning to the end of the straight line that fits the samples best, so that it does not matter where in its
    /// ups and downs the run ends. `None` without a server to measure, or in a run with too few samples.
    pub drift_percent: Option<f64>,
    /// The same of what the kernel holds and can't give back, of all processes.
    pub kernel_drift_percent: Option<f64>,
    /// The run in ten parts of the same length, from when all had connected to the end of publishing.
    pub parts: Vec<RunPart>,
    /// Hang-ups that the run has made.
    pub hang_ups: HangUps,
    /// The server's open files before anything was done.
    pub descriptors_before: Option<Descriptors>,
    /// When all subscribers were connected.
    pub descriptors_open: Option<Descriptors>,
    /// At the end, before they were closed.
    pub descriptors_after: Option<Descriptors>,
    /// A second after they were closed.
    pub descriptors_closed: Option<Descriptors>,
}

/// A tenth of a run: means of its samples.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RunPart {
    /// Where it begins, in seconds since the start of the run.
    pub seconds: f64,
    /// How many samples it has.
    pub samples: usize,
    /// Subscribers connected.
    pub active: f64,
    /// The server's resident anonymous memory.
    pub rss_anon_bytes: f64,
    /// Kernel memory of all processes that cannot be reclaimed.
    pub kernel_bytes: f64,
    /// The server's open files.
    pub descriptors: Option<f64>,
}

/// Hang-ups, and when the server noticed them.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HangUps {
    /// How many clients hung up.
    pub made: u64,
    /// How many of them the server noticed: it has closed its side.
    pub noticed: u64,
    /// Of these, how many later than `late_ms`.
    pub late: u64,
    /// From when on a hang-up counts as noticed late.
    pub late_ms: f64,
    /// How many it had not noticed after five seconds.
    pub unnoticed: u64,
    /// How many were not waited for, because too many others were.
    pub unmeasured: u64,
    /// From the client's end to the server's.
    pub after: Option<Percentiles>,
}

impl HangUps {
    /// Puts the figures together; `late_ns` is from when on a hang-up counts as noticed late.
    pub(crate) fn new(notices: &Latencies, late_ns: u64) -> Self {
        Self {
            noticed: notices.count(),
            late: notices.above(late_ns),
            late_ms: late_ns as f64 / 1e6,
            after: notices.percentiles(),
            ..Self::default()
        }
    }
}

impl Endurance {
    /// Cuts the samples between two times into parts, and finds how memory has drifted.
    pub(crate) fn cut(&mut self, samples: &[Sample], from_seconds: f64, to_seconds: f64) {
        let length = (to_seconds - from_seconds) / PARTS as f64;
        let part = |number: usize| {
            let begin = from_seconds + length * number as f64;
            let within: Vec<_> = samples
                .iter()
                .filter(|s| s.seconds >= begin && s.seconds < begin + length)
                .collect();
            RunPart::new(begin, &within)
        };
        let parts: Option<Vec<_>> = (0..PARTS).map(part).collect();
        self.parts = parts.unwrap_or_default();
        if self.parts.is_empty() {
            return;
        }
        let drift = |value: fn(&Memory) -> u64| {
            let points: Vec<_> = samples
                .iter()
                .filter(|s| s.seconds >= from_seconds + length && s.seconds < to_seconds)
                .filter_map(|s| Some((s.seconds, value(s.memory.as_ref()?) as f64)))
                .collect();
            drift_percent(&points)
        };
        self.drift_percent = drift(|memory| memory.rss_anon_bytes);
        self.kernel_drift_percent = drift(Memory::kernel_bytes);
    }

    /// Sockets that are open in the server though all have gone, beyond those it had before.
    pub fn sockets_left(&self) -> Option<u64> {
        let (before, closed) = (self.descriptors_before?, self.descriptors_closed?);
        Some(closed.sockets.saturating_sub(before.sockets))
    }

    /// The failed targets; empty if none.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        match self.drift_percent {
            Some(drift) if drift > self.drift_percent_max => complaints.push(format!(
                "memory has drifted by {drift:+.1} %, more than {} %",
                self.drift_percent_max
            )),
            Some(_) => {}
            None => complaints.push("too few samples to determine the drift of memory".into()),
        }
        let HangUps { made, late, .. } = self.hang_ups;
        let missed = late + self.hang_ups.unnoticed + self.hang_ups.unmeasured;
        if missed > 0 {
            complaints.push(format!(
                "{} of {} hang-ups were not seen to be noticed within {:.0} ms",
                count(missed),
                count(made),
                self.hang_ups.late_ms
            ));
        }
        match self.sockets_left() {
            Some(0) => {}
            Some(left) => complaints.push(format!("{} sockets were left open", count(left))),
            None => complaints.push("the server's descriptors can't be counted".into()),
        }
        complaints
    }

    /// Whether nothing counts against the server.
    pub fn is_success(&self) -> bool {
        !self.judged || self.complaints().is_empty()
    }
}

/// How far the straight line that fits the points best rises from the first to the last, in percent of its beginning.
fn drift_percent(points: &[(f64, f64)]) -> Option<f64> {
    let (first, last) = (points.first()?.0, points.last()?.0);
    let count = points.len() as f64;
    let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let across: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let along: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let slope = along / across;
    let begin = y + slope * (first - x);
    let drift = slope * (last - first) / begin * 100.0;
    drift.is_finite().then_some(drift)
}

impl RunPart {
    /// The means of some samples; `None` without any, or without memory.
    fn new(seconds: f64, samples: &[&Sample]) -> Option<Self> {
        let mean = |value: &dyn Fn(&Sample) -> Option<f64>| {
            let values: Option<Vec<_>> = samples.iter().map(|s| value(s)).collect();
            values
                .filter(|values| !values.is_empty())
                .map(|values| values.iter().sum::<f64>() / values.len() as f64)
        };
        Some(Self {
            seconds,
            samples: samples.len(),
            active: mean(&|s| Some(s.active as f64))?,
            rss_anon_bytes: mean(&|s| Some(s.memory?.rss_anon_bytes as f64))?,
            kernel_bytes: mean(&|s| Some(s.memory?.kernel_bytes() as f64))?,
            descriptors: mean(&|s| s.descriptors.map(|d| d as f64)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, rss_anon_bytes: u64) -> Sample {
        Sample {
            seconds,
            active: 10,
            closed: 0,
            hung_up: 0,
            noticed: 0,
            failed: 0,
            events: 0,
            events_per_second: 0.0,
            acknowledged: 0,
            memory: Some(Memory {
                rss_anon_bytes,
                kernel_tcp_bytes: 100,
                kernel_slab_bytes: 200,
                kernel_slab_other_bytes: 300,
            }),
            descriptors: Some(20),
            server_cpu_seconds: None,
        }
    }

    fn endurance() -> Endurance {
        let sockets = Some(Descriptors { all: 9, sockets: 3 });
        Endurance {
            judged: true,
            drift_percent_max: 2.0,
            drift_percent: None,
            kernel_drift_percent: None,
            parts: Vec::new(),
            hang_ups: HangUps::default(),
            descriptors_before: sockets,
            descriptors_open: sockets,
            descriptors_after: sockets,
            descriptors_closed: sockets,
        }
    }

    #[test]
    fn ups_and_downs_are_no_drift() {
        let saw = |phase: u32| -> Vec<_> {
            (0..3_600)
                .map(|second| {
                    (
                        f64::from(second),
                        10_000.0 + f64::from((second + phase) % 240),
                    )
                })
                .collect()
        };
        for phase in [0, 77, 200] {
            let drift = drift_percent(&saw(phase)).unwrap();
            assert!(drift.abs() < 0.2, "{phase} {drift}");
        }
        assert_eq!(drift_percent(&[(1.0, 5.0)]), None);
        assert_eq!(drift_percent(&[]), None);
    }

    #[test]
    fn drift_leaves_the_first_tenth_out() {
        let mut endurance = endurance();
        // Growth in the first tenth is not drift.
        let samples: Vec<_> = (0..120)
            .map(|second: u32| match second {
                0..20 => sample(second.into(), 1_000),
                _ => sample(second.into(), 9_900 + 10 * u64::from(second)),
            })
            .collect();
        endurance.cut(&samples, 10.0, 110.0);
        assert_eq!(endurance.parts.len(), 10);
        assert_eq!(endurance.parts[0].rss_anon_bytes, 1_000.0);
        let (second, last) = (9_900.0 + 245.0, 9_900.0 + 1_045.0);
        assert_eq!(endurance.parts[1].rss_anon_bytes, second);
        assert_eq!(endurance.parts[9].rss_anon_bytes, last);
        let drift = endurance.drift_percent.unwrap();
        // From second 20 to second 109, by 10 each.
        assert!((drift - 890.0 / 10_100.0 * 100.0).abs() < 1e-9, "{drift}");
        assert_eq!(endurance.kernel_drift_percent, Some(0.0));
        assert_eq!(endurance.parts[3].descriptors, Some(20.0));
        assert_eq!(endurance.complaints().len(), 1, "{drift}");
        endurance.drift_percent_max = 10.0;
        assert!(endurance.is_success());
    }

    #[test]
    fn a_run_too_short_to_tell_is_no_success_when_judged() {
        let mut endurance = endurance();
        endurance.cut(&[sample(1.0, 5), sample(2.0, 5)], 0.0, 3.0);
        assert_eq!(endurance.drift_percent, None);
        assert!(!endurance.is_success());
        endurance.judged = false;
        assert!(endurance.is_success());
    }

    #[test]
    fn late_and_missed_hang_ups_and_sockets_left_count() {
        let mut notices = Latencies::new();
        for ms in [1, 2, 99, 101, 3_000] {
            notices.record(ms * 1_000_000);
        }
        let hang_ups = HangUps::new(&notices, 100_000_000);
        assert_eq!((hang_ups.noticed, hang_ups.late), (5, 2));
        let mut endurance = endurance();
        endurance.drift_percent = Some(-7.0);
        assert!(endurance.is_success(), "less memory is no fault");
        endurance.hang_ups = HangUps {
            made: 9,
            unnoticed: 3,
            unmeasured: 1,
            ..hang_ups
        };
        endurance.descriptors_closed = Some(Descriptors { all: 9, sockets: 5 });
        let complaints = endurance.complaints();
        assert_eq!(complaints.len(), 2);
        assert!(
            complaints[0].starts_with("6 of 9 hang-ups"),
            "{complaints:?}"
        );
        assert!(complaints[1].starts_with("2 sockets"), "{complaints:?}");
    }
}
