//! What the log says of itself, for metrics.

use encke_log::Health;
use prometheus::{Gauge, IntGauge, Registry};

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
        Ok(LogMetrics {
            segment_bytes: whole(
                "encke_log_segment_bytes",
                "Bytes of segments on the disk, those in history and still kept included.",
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
                "Records up to this one are past their retention.",
            )?,
        })
    }

    /// Brings all up to date. Age or bytes have taken what is up to `kept_behind`.
    pub(crate) fn set(&self, health: &Health, kept_behind: u64) {
        self.segment_bytes.set(health.segment_bytes as i64);
        self.history_bytes.set(health.history_bytes as i64);
        self.segments_waiting.set(health.segments_waiting as i64);
        self.history_failed
            .set(i64::from(health.history_failed.is_some()));
        self.waited_seconds.set(health.waited.as_secs_f64());
        self.rolled_seconds.set(health.rolled.as_secs_f64());
        self.kept_behind.set(kept_behind as i64);
    }
}
