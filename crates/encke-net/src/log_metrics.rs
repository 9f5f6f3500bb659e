//! What the log says of itself, for metrics.

use encke_log::Health;
use prometheus::{Gauge, IntGauge, IntGaugeVec, Opts, Registry};

/// Gauges of the log's health.
#[derive(Clone)]
pub(crate) struct LogMetrics {
    segment_bytes: IntGauge,
    history_bytes: IntGauge,
    segments_waiting: IntGauge,
    history_failed: IntGauge,
    waited_seconds: Gauge,
    rolled_seconds: Gauge,
    kept_behind: IntGauge,
    poisoned: IntGaugeVec,
}

impl LogMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let whole = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let seconds = |name: &str, help: &str| -> Result<Gauge, prometheus::Error> {
            let gauge = Gauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let poisoned = IntGaugeVec::new(
            Opts::new(
                "encke_log_poisoned",
                "1 for a log that has failed and takes nothing more, by its index.",
            ),
            &["log"],
        )?;
        registry.register(Box::new(poisoned.clone()))?;
        Ok(LogMetrics {
            poisoned,
            segment_bytes: whole(
                "encke_log_segment_bytes",
                "Bytes of segments on the disk, of all logs, those in history and still kept included.",
            )?,
            history_bytes: whole("encke_log_history_bytes", "Bytes of history on the disk.")?,
            segments_waiting: whole(
                "encke_log_segments_waiting",
                "Sealed segments that are not in history yet.",
            )?,
            history_failed: whole(
                "encke_log_history_failed",
                "1 while history takes no sealed segments.",
            )?,
            waited_seconds: seconds(
                "encke_log_waited_seconds",
                "How long writes have waited for a segment to be prepared or to go into history.",
            )?,
            rolled_seconds: seconds(
                "encke_log_rolled_seconds",
                "How long going from one segment to the next has taken, syncs included.",
            )?,
            kept_behind: whole(
                "encke_log_kept_behind",
                "Records up to this one are past their retention, in the log where most are.",
            )?,
        })
    }

    /// Brings all up to date with the health of the logs; age or bytes have taken what is up to the sequence beside it.
    pub(crate) fn set(&self, logs: &[(Health, u64)]) {
        let sum =
            |of: fn(&Health) -> u64| logs.iter().map(|(health, _)| of(health)).sum::<u64>() as i64;
        let seconds =
            |of: fn(&Health) -> f64| logs.iter().map(|(health, _)| of(health)).sum::<f64>();
        self.segment_bytes.set(sum(|health| health.segment_bytes));
        self.history_bytes.set(sum(|health| health.history_bytes));
        self.segments_waiting
            .set(sum(|health| health.segments_waiting as u64));
        let failed = logs
            .iter()
            .any(|(health, _)| health.history_failed.is_some());
        self.history_failed.set(i64::from(failed));
        self.waited_seconds
            .set(seconds(|health| health.waited.as_secs_f64()));
        self.rolled_seconds
            .set(seconds(|health| health.rolled.as_secs_f64()));
        let kept_behind = logs.iter().map(|(_, kept_behind)| *kept_behind);
        self.kept_behind.set(kept_behind.max().unwrap_or(0) as i64);
        for (log, (health, _)) in logs.iter().enumerate() {
            let poisoned = self.poisoned.with_label_values(&[&log.to_string()]);
            poisoned.set(i64::from(health.poisoned.is_some()));
        }
    }
}
