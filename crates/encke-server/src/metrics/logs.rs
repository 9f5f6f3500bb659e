//! The metrics of the logs, each by its index.

use encke_log::Health;
use encke_stream::{AckLevel, Committed, Views};
use prometheus::core::Collector;
use prometheus::{CounterVec, GaugeVec, IntCounter, IntCounterVec, IntGaugeVec, Registry};

use super::registrar::{Registrar, set_total};

/// The activity and the health of the logs.
#[derive(Clone)]
pub(crate) struct LogMetrics {
    records: IntCounterVec,
    bytes: IntCounterVec,
    acknowledged: IntCounterVec,
    syncs: IntCounterVec,
    syncing_seconds: CounterVec,
    segment_bytes: IntGaugeVec,
    history_bytes: IntGaugeVec,
    segments_waiting: IntGaugeVec,
    history_failed: IntGaugeVec,
    waited_seconds: CounterVec,
    rolled_seconds: CounterVec,
    stalls: IntCounterVec,
    longest_stall_seconds: GaugeVec,
    kept_behind: IntGaugeVec,
    poisoned: IntGaugeVec,
}

/// The counters of one log's commits.
#[derive(Clone)]
pub(crate) struct CommitCounters {
    records: IntCounter,
    bytes: IntCounter,
}

impl LogMetrics {
    /// Bytes that were committed to all logs.
    pub(crate) fn committed_bytes(&self) -> u64 {
        let families = self.bytes.collect();
        let metrics = families.iter().flat_map(|family| family.get_metric());
        metrics
            .map(|metric| metric.get_counter().get_value() as u64)
            .sum()
    }

    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        Ok(LogMetrics {
            records: metrics.counters(
                "encke_log_records_total",
                "Records committed to a log.",
                &[LOG],
            )?,
            bytes: metrics.counters(
                "encke_log_bytes_total",
                "Bytes committed to a log.",
                &[LOG],
            )?,
            acknowledged: metrics.counters(
                "encke_acknowledged_total",
                "Acknowledged changes to streams, by durability level at the acknowledgement.",
                &[LEVEL, LOG],
            )?,
            syncs: metrics.counters(
                "encke_log_syncs_total",
                "Syncs of records.",
                &[LOG],
            )?,
            syncing_seconds: metrics.total_seconds(
                "encke_log_syncing_seconds_total",
                "Time spent on syncing records.",
                &[LOG],
            )?,
            segment_bytes: metrics.gauges(
                "encke_log_segment_bytes",
                "Bytes of segments on the disk, including those that are in history already.",
                &[LOG],
            )?,
            history_bytes: metrics.gauges(
                "encke_log_history_bytes",
                "Bytes of history on the disk.",
                &[LOG],
            )?,
            segments_waiting: metrics.gauges(
                "encke_log_segments_waiting",
                "Sealed segments that are not in history yet.",
                &[LOG],
            )?,
            history_failed: metrics.gauges(
                "encke_log_history_failed",
                "1 while sealed segments cannot be added to history.",
                &[LOG],
            )?,
            waited_seconds: metrics.total_seconds(
                "encke_log_waited_seconds_total",
                "Time writes have waited for a segment to be prepared or to be added to history.",
                &[LOG],
            )?,
            rolled_seconds: metrics.total_seconds(
                "encke_log_rolled_seconds_total",
                "Time spent on changing to the next segment, including syncs.",
                &[LOG],
            )?,
            stalls: metrics.counters(
                "encke_log_stalls_total",
                "Writes that took 50 ms or more, without the change to the next segment; the server's log says why.",
                &[LOG],
            )?,
            longest_stall_seconds: metrics.seconds(
                "encke_log_longest_stall_seconds",
                "Time of the slowest write, without the change to the next segment and syncs.",
                &[LOG],
            )?,
            kept_behind: metrics.gauges(
                "encke_log_kept_behind",
                "Sequence up to which retention has removed records.",
                &[LOG],
            )?,
            poisoned: metrics.gauges(
                "encke_log_poisoned",
                "1 for a log that has failed and refuses writes.",
                &[LOG],
            )?,
        })
    }

    /// The counters of one log's commits.
    pub(crate) fn counters(&self, log: usize) -> CommitCounters {
        let log = log.to_string();
        CommitCounters {
            records: self.records.with_label_values(&[&log]),
            bytes: self.bytes.with_label_values(&[&log]),
        }
    }

    /// Updates the gauges of a log; retention has removed what is up to `kept_behind`.
    pub(crate) fn show(&self, log: usize, health: &Health, kept_behind: u64) {
        let log = log.to_string();
        let whole = |gauges: &IntGaugeVec, value: u64| {
            gauges.with_label_values(&[&log]).set(value as i64);
        };
        let total = |counters: &IntCounterVec, value: u64| {
            set_total(&counters.with_label_values(&[&log]), value);
        };
        let total_seconds = |counters: &CounterVec, value: std::time::Duration| {
            let counter = counters.with_label_values(&[&log]);
            counter.inc_by((value.as_secs_f64() - counter.get()).max(0.0));
        };
        let seconds = |gauges: &GaugeVec, value: std::time::Duration| {
            gauges.with_label_values(&[&log]).set(value.as_secs_f64());
        };
        total(&self.syncs, health.syncs);
        total_seconds(&self.syncing_seconds, health.syncing);
        whole(&self.segment_bytes, health.segment_bytes);
        whole(&self.history_bytes, health.history_bytes);
        whole(&self.segments_waiting, health.segments_waiting as u64);
        whole(
            &self.history_failed,
            u64::from(health.history_failed.is_some()),
        );
        total_seconds(&self.waited_seconds, health.waited);
        total_seconds(&self.rolled_seconds, health.rolled);
        total(&self.stalls, health.stalls);
        seconds(&self.longest_stall_seconds, health.longest_stall);
        whole(&self.kept_behind, kept_behind);
        whole(&self.poisoned, u64::from(health.poisoned.is_some()));
    }

    /// Updates the counters of acknowledgements.
    pub(crate) fn show_acknowledged(&self, views: &Views) {
        for (log, counts) in views.acknowledged().enumerate() {
            for (level, count) in AckLevel::ALL.into_iter().zip(counts) {
                let labels = &[level.name(), &log.to_string()];
                set_total(&self.acknowledged.with_label_values(labels), count);
            }
        }
    }
}

impl CommitCounters {
    /// Counts a commit.
    pub(crate) fn committed(&self, committed: &Committed) {
        self.records.inc_by(committed.records as u64);
        self.bytes.inc_by(committed.bytes as u64);
    }
}

const LOG: &str = "log";
const LEVEL: &str = "level";
