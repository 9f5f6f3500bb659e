//! Latencies: recorded in nanoseconds in a high-dynamic-range histogram, reported as percentiles.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest latency, in nanoseconds: one hour. Longer ones count as this.
const LATENCY_NS_MAX: u64 = 3_600 * crate::load::clock::SECOND_NS;

/// Recorded latencies.
#[derive(Debug, Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// An empty record.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
            .expect("1 ns to 1 h with three digits is a valid range");
        Self { histogram }
    }

    /// Records one latency in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The number of latencies longer than `ns`, to three digits.
    pub fn above(&self, ns: u64) -> u64 {
        let values = self.histogram.iter_recorded();
        values
            .filter(|v| v.value_iterated_to() > self.histogram.highest_equivalent(ns))
            .map(|v| v.count_at_value())
            .sum()
    }

    /// The recorded latencies in nanoseconds, each to three digits and with how often it was recorded.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = (u64, u64)> {
        let values = self.histogram.iter_recorded();
        values.map(|value| (value.value_iterated_to(), value.count_at_value()))
    }

    /// Records a latency in nanoseconds `count` times.
    pub(crate) fn record_many(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns, count);
    }

    /// Takes out what was recorded here, too, and is a part of it.
    pub fn subtract(&mut self, part: &Latencies) {
        // Of what is no part nothing is taken.
        let _ = self.histogram.subtract(&part.histogram);
    }

    /// The percentiles; `None` when nothing was recorded.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let us = |percentile| self.histogram.value_at_percentile(percentile) as f64 / 1e3;
        (!self.histogram.is_empty()).then(|| Percentiles {
            count: self.histogram.len(),
            mean_us: self.histogram.mean() / 1e3,
            p50_us: us(50.0),
            p90_us: us(90.0),
            p99_us: us(99.0),
            p99_9_us: us(99.9),
            max_us: self.histogram.max() as f64 / 1e3,
        })
    }
}

/// A distribution of latencies, in microseconds, each value exact to three digits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// How many latencies there were.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// Half were at most this long.
    pub p50_us: f64,
    /// Nine in ten were at most this long.
    pub p90_us: f64,
    /// 99 in 100 were at most this long.
    pub p99_us: f64,
    /// 999 in 1,000 were at most this long.
    pub p99_9_us: f64,
    /// The longest.
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_three_digits() {
        let mut all = Latencies::new();
        (1..=1_000).for_each(|n| all.record(n * 1_000));
        let p = all.percentiles().unwrap();
        assert_eq!(p.count, 1_000);
        for (value, expected) in [(p.p50_us, 500.0), (p.p99_us, 990.0), (p.max_us, 1_000.0)] {
            assert!((value / expected - 1.0).abs() < 0.002, "{value} {expected}");
        }
        assert!(Latencies::new().percentiles().is_none());
    }

    #[test]
    fn what_is_out_of_range_counts_as_the_edge() {
        let mut latencies = Latencies::new();
        latencies.record(0);
        latencies.record(u64::MAX);
        let p = latencies.percentiles().unwrap();
        assert_eq!(p.count, 2);
        assert!(p.max_us >= 3.599e9, "{}", p.max_us);
    }
}
