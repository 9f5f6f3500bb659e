//! Rates and latencies of the last hour, in a ring of fixed size: one sample every 10 seconds, whoever looks or not.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::{Duration, Instant};

use encke_clock::WallTime;
use encke_net::{ReactorTotals, Surveyor};

use crate::metrics::ServerMetrics;

/// The samples of the last hour, the newest last.
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// The last figures, and when they were taken.
    last: Option<(Instant, Figures)>,
    next: Instant,
}

/// What is counted at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    totals: ReactorTotals,
    records: u64,
    log_bytes: u64,
    /// How long the oldest record waits whose delivery has not begun.
    delivery_lag: Duration,
    /// Syncs so far, by the bounds of their times in seconds; each with all that took less.
    syncs: Vec<(f64, u64)>,
    syncs_total: u64,
}

/// What a sample has, by the names in [`COLUMNS`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    at: WallTime,
    values: [f32; COLUMNS.len()],
}

// The hour costs about 25 KiB.
const _: () = assert!(size_of::<Sample>() * SAMPLES_MAX <= 26 << 10);

impl Figures {
    pub(super) fn of(metrics: &ServerMetrics, surveyor: &Surveyor) -> Figures {
        let (records, syncs, syncs_total) = metrics.streams.commits();
        Figures {
            totals: metrics.reactor.totals(),
            records,
            log_bytes: metrics.log.committed_bytes(),
            delivery_lag: surveyor.delivery_lag(),
            syncs,
            syncs_total,
        }
    }

    /// What has happened since earlier figures, per second where it is a count.
    fn since(&self, earlier: &Figures, seconds: f64) -> [f32; COLUMNS.len()] {
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as f32;
        let (now, before) = (&self.totals, &earlier.totals);
        [
            now.connections as f32,
            now.subscribers as f32,
            now.behind as f32,
            rate(now.accepted, before.accepted),
            rate(now.requests, before.requests),
            rate(self.records, earlier.records),
            rate(self.log_bytes, earlier.log_bytes),
            rate(now.deliveries, before.deliveries),
            rate(now.received_bytes, before.received_bytes),
            rate(now.sent_bytes, before.sent_bytes),
            self.delivery_lag.as_secs_f32() * 1e3,
            self.sync_ms(earlier, 0.5),
            self.sync_ms(earlier, 0.99),
        ]
    }

    /// The time that a share of the syncs since earlier figures took at most, in milliseconds, interpolated within a bucket; 0 if there
    /// were none.
    fn sync_ms(&self, earlier: &Figures, share: f64) -> f32 {
        let total = self.syncs_total.saturating_sub(earlier.syncs_total);
        if total == 0 {
            return 0.0;
        }
        let wanted = (total as f64 * share).max(1.0);
        let (mut below_s, mut below) = (0.0, 0u64);
        for (place, (bound_s, count)) in self.syncs.iter().enumerate() {
            let before = earlier.syncs.get(place).map_or(0, |(_, count)| *count);
            let count = count.saturating_sub(before);
            if count as f64 >= wanted {
                let part = (wanted - below as f64) / (count - below).max(1) as f64;
                return ((below_s + (bound_s - below_s) * part) * 1e3) as f32;
            }
            (below_s, below) = (*bound_s, count);
        }
        // Slower than the last bound.
        (below_s * 1e3) as f32
    }
}

impl History {
    /// No samples. The first comes when figures were taken twice.
    pub(super) fn begin(now: Instant) -> History {
        History {
            samples: VecDeque::with_capacity(SAMPLES_MAX),
            last: None,
            next: now,
        }
    }

    /// How long it is until the next figures are due.
    pub(super) fn due_in(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Takes figures. `wall`: the time of day, for people.
    pub(super) fn add(&mut self, now: Instant, wall: WallTime, figures: Figures) {
        self.next = now + SAMPLE_EVERY;
        if let Some((then, earlier)) = &self.last {
            let seconds = now.saturating_duration_since(*then).as_secs_f64();
            if self.samples.len() >= SAMPLES_MAX {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample {
                at: wall,
                values: figures.since(earlier, seconds.max(0.001)),
            });
        }
        self.last = Some((now, figures));
    }

    /// A list of numbers for each column, the oldest first.
    pub(super) fn to_json(&self) -> String {
        let mut text = format!("{{\"everySeconds\":{},\"at\":[", SAMPLE_EVERY.as_secs());
        let mut comma = "";
        for sample in &self.samples {
            // Writing to a string does not fail.
            let _ = write!(text, "{comma}{}", sample.at.as_ms());
            comma = ",";
        }
        text.push(']');
        for (place, name) in COLUMNS.iter().enumerate() {
            let _ = write!(text, ",\"{name}\":[");
            let mut comma = "";
            for sample in &self.samples {
                let value = sample.values[place];
                let _ = match value.fract() == 0.0 || value >= 1_000.0 {
                    true => write!(text, "{comma}{value:.0}"),
                    false => write!(text, "{comma}{value:.3}"),
                };
                comma = ",";
            }
            text.push(']');
        }
        text.push('}');
        text
    }
}

/// The figures of a sample, in their order. Counts are per second; what ends in `Ms` is in milliseconds.
const COLUMNS: [&str; 13] = [
    "connections",
    "subscribers",
    "behind",
    "accepted",
    "requests",
    "records",
    "logBytes",
    "deliveries",
    "receivedBytes",
    "sentBytes",
    "deliveryLagMs",
    "syncP50Ms",
    "syncP99Ms",
];

/// How often the figures are taken.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// An hour.
const SAMPLES_MAX: usize = 360;

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(requests: u64, fast: u64, slow: u64) -> Figures {
        Figures {
            totals: ReactorTotals {
                requests,
                connections: 7,
                ..ReactorTotals::default()
            },
            syncs: vec![(0.001, fast), (0.002, fast + slow)],
            syncs_total: fast + slow,
            ..Figures::default()
        }
    }

    #[test]
    fn a_sample_has_rates_and_the_times_of_its_own_syncs() {
        let mut history = History::begin(Instant::now());
        let begun = history.next;
        assert!(history.due_in(begun).is_zero());
        history.add(begun, WallTime::from_ms(1_000), figures(100, 1_000, 0));
        assert!(history.samples.is_empty(), "there is no rate yet");
        assert_eq!(history.due_in(begun), SAMPLE_EVERY);
        let later = begun + Duration::from_secs(10);
        history.add(later, WallTime::from_ms(500), figures(150, 1_000, 100));
        let read: serde_json::Value = serde_json::from_str(&history.to_json()).unwrap();
        assert_eq!(read["everySeconds"], 10);
        assert_eq!(read["at"], serde_json::json!([500]));
        assert_eq!(read["requests"], serde_json::json!([5]));
        assert_eq!(read["connections"], serde_json::json!([7]));
        assert_eq!(
            read["syncP50Ms"],
            serde_json::json!([1.5]),
            "none of the fast ones"
        );
        assert_eq!(read["syncP99Ms"], serde_json::json!([1.99]));
        assert_eq!(read["records"], serde_json::json!([0]));
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut history = History::begin(Instant::now());
        let begun = history.next;
        for number in 0..1_000u64 {
            let at = begun + SAMPLE_EVERY * number as u32;
            history.add(at, WallTime::from_ms(number), figures(number, 0, 0));
        }
        assert_eq!(history.samples.len(), SAMPLES_MAX);
        assert_eq!(history.samples[0].at, WallTime::from_ms(640));
        assert!(history.to_json().len() < 64 << 10);
    }

    #[test]
    fn what_has_not_happened_is_zero() {
        let mut history = History::begin(Instant::now());
        let begun = history.next;
        history.add(begun, WallTime::from_ms(0), figures(100, 5, 5));
        // A counter that went back, as after a fault of its source, makes no rate below zero.
        history.add(begun, WallTime::from_ms(0), figures(50, 5, 5));
        let values = history.samples[0].values;
        assert!(
            values
                .iter()
                .all(|value| value.is_finite() && *value >= 0.0)
        );
        assert_eq!(values[4], 0.0);
        assert_eq!(values[11], 0.0);
    }
}
