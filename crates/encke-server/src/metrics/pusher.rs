//! The metrics of the Pusher protocol.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::registrar::Registrar;

/// The metrics of the Pusher protocol.
#[derive(Clone)]
pub(crate) struct PusherMetrics {
    calls: IntCounterVec,
    /// Events that servers have accepted.
    pub(crate) accepted_events: IntCounter,
    /// Events of clients that no server is told of.
    pub(crate) dropped_events: IntCounter,
    /// Times that a webhook found events removed that it was not told of.
    pub(crate) gaps: IntCounter,
}

impl PusherMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        let metrics = PusherMetrics {
            calls: metrics.counters(
                "encke_pusher_webhook_calls_total",
                "Calls of webhooks of the Pusher protocol, by outcome: accepted or failed.",
                &["outcome"],
            )?,
            accepted_events: metrics.counter(
                "encke_pusher_webhook_events_total",
                "Events of the Pusher protocol that webhooks have accepted.",
            )?,
            dropped_events: metrics.counter(
                "encke_pusher_webhook_events_dropped_total",
                "Client events and cache misses that webhooks are not told of, because too many waited for the log or could not be handed to \
                 it; what it refuses then is lost and not counted.",
            )?,
            gaps: metrics.counter(
                "encke_pusher_webhook_gaps_total",
                "Times that a webhook was out of reach for so long that events were removed, or that a node began to report and the log had forgotten what was told.",
            )?,
        };
        for outcome in [ACCEPTED, FAILED] {
            metrics.calls.with_label_values(&[outcome]);
        }
        Ok(metrics)
    }

    /// A call has ended.
    pub(crate) fn called(&self, is_accepted: bool) {
        let outcome = if is_accepted { ACCEPTED } else { FAILED };
        self.calls.with_label_values(&[outcome]).inc();
    }
}

const ACCEPTED: &str = "accepted";
const FAILED: &str = "failed";
