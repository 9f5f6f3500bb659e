//! The metrics of traces.

use std::sync::atomic::{AtomicU64, Ordering};

use encke_trace::SpanCounts;
use prometheus::{IntCounter, IntCounterVec, Registry};

use super::registrar::{Registrar, set_total};

/// The metrics of traces. They stay 0 without a collector.
#[derive(Clone)]
pub(crate) struct TraceMetrics {
    exported: IntCounter,
    dropped: IntCounterVec,
}

impl TraceMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        let metrics = TraceMetrics {
            exported: metrics.counter(
                "encke_trace_spans_exported_total",
                "Spans of traces that the collector has taken.",
            )?,
            dropped: metrics.counters(
                "encke_trace_spans_dropped_total",
                "Spans that were dropped, by reason: queue_full or export_failed.",
                &["reason"],
            )?,
        };
        metrics.show(&SpanCounts::default());
        Ok(metrics)
    }

    /// Shows what became of spans.
    pub(crate) fn show(&self, counts: &SpanCounts) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        set_total(&self.exported, read(&counts.exported));
        for (reason, count) in [
            ("queue_full", &counts.queue_full),
            ("export_failed", &counts.export_failed),
        ] {
            set_total(&self.dropped.with_label_values(&[reason]), read(count));
        }
    }
}
