//! The metrics of handshakes.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Counts handshakes.
#[derive(Clone)]
pub(crate) struct HandshakeMetrics {
    done: IntCounterVec,
    failed: IntCounterVec,
    seconds: Histogram,
    /// Handshakes under way.
    pub(crate) under_way: IntGauge,
    /// Connections that wait because their address has its share.
    pub(crate) waiting: IntGauge,
    /// Times accepting paused because there were too many.
    pub(crate) held: IntCounter,
    /// Times certificates were read again, by result.
    pub(crate) reloads: IntCounterVec,
}

impl HandshakeMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, label: &str| -> Result<_, prometheus::Error> {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let buckets = prometheus::exponential_buckets(0.000_5, 2.0, 16)?;
        let seconds = Histogram::with_opts(
            HistogramOpts::new(
                "encke_tls_handshake_seconds",
                "How long complete handshakes of TLS took, most of it waiting for the client.",
            )
            .buckets(buckets),
        )?;
        registry.register(Box::new(seconds.clone()))?;
        let under_way = IntGauge::new(
            "encke_tls_handshakes_under_way",
            "Handshakes of TLS that have not ended.",
        )?;
        registry.register(Box::new(under_way.clone()))?;
        let waiting = IntGauge::new(
            "encke_tls_handshakes_waiting",
            "Connections that wait for their handshakes, because there are as many of their address as may be.",
        )?;
        registry.register(Box::new(waiting.clone()))?;
        let held = IntCounter::new(
            "encke_tls_handshakes_held_total",
            "Times accepting paused because `handshakes-max` was reached.",
        )?;
        registry.register(Box::new(held.clone()))?;
        Ok(HandshakeMetrics {
            done: counters(
                "encke_tls_handshakes_total",
                "Handshakes of TLS that are complete, full or resumed by a ticket.",
                "kind",
            )?,
            failed: counters(
                "encke_tls_handshakes_failed_total",
                "Handshakes of TLS that failed, by reason.",
                "reason",
            )?,
            reloads: counters(
                "encke_tls_reloads_total",
                "Times certificates and keys were read again, by result: done or failed.",
                "result",
            )?,
            seconds,
            under_way,
            waiting,
            held,
        })
    }

    /// Counts a complete handshake.
    pub(super) fn done(&self, resumed: bool, took: Duration) {
        let kind = if resumed { "resumed" } else { "full" };
        self.done.with_label_values(&[kind]).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts one that failed.
    pub(super) fn failed(&self, reason: &str) {
        self.failed.with_label_values(&[reason]).inc();
    }
}
