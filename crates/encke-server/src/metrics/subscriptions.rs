//! The metrics of the subscriptions, from what the dispatcher publishes.

use encke_subscriptions::SubscriptionCounts;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::registrar::{Registrar, set_total};

/// The metrics of the subscriptions. On a fleet they are 0 at the nodes that do not dispatch.
#[derive(Clone)]
pub(crate) struct SubscriptionMetrics {
    subscriptions: IntGauge,
    links: IntGauge,
    links_refused: IntCounter,
    failing: IntGauge,
    calling: IntGauge,
    calls: IntCounterVec,
    wakes: IntCounter,
    leases_over: IntCounter,
    events_refused: IntCounter,
}

impl SubscriptionMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        Ok(SubscriptionMetrics {
            calls: metrics.counters(
                "encke_webhook_calls_total",
                "Calls of webhooks that are over, by their result: accepted or failed.",
                &["result"],
            )?,
            subscriptions: metrics.gauge(
                "encke_subscriptions",
                "Subscriptions of workers to streams.",
            )?,
            links: metrics.gauge(
                "encke_subscription_links",
                "Streams that subscriptions of workers follow, a stream counted once for each, and for each 128 bytes begun of its name.",
            )?,
            links_refused: metrics.counter(
                "encke_subscription_links_refused_total",
                "Commits of streams that the pattern of a subscription matches and that it does not follow, because it follows as many as it may.",
            )?,
            failing: metrics.gauge(
                "encke_subscriptions_failing",
                "Subscriptions whose last attempt to wake a worker has failed.",
            )?,
            calling: metrics.gauge(
                "encke_webhook_calls_under_way",
                "Calls of webhooks that are under way.",
            )?,
            wakes: metrics.counter(
                "encke_subscription_wakes_total",
                "Wakes of subscriptions that have begun.",
            )?,
            leases_over: metrics.counter(
                "encke_subscription_leases_over_total",
                "Wakes that have ended because their worker did not report in time.",
            )?,
            events_refused: metrics.counter(
                "encke_subscription_events_refused_total",
                "Events of wakes that their streams have refused.",
            )?,
        })
    }

    pub(crate) fn show(&self, counts: SubscriptionCounts) {
        self.subscriptions.set(counts.subscriptions as i64);
        self.links.set(counts.links as i64);
        self.failing.set(counts.failing as i64);
        self.calling.set(counts.calling as i64);
        for (counter, value) in [
            (&self.links_refused, counts.links_refused),
            (&self.wakes, counts.wakes),
            (&self.leases_over, counts.leases_over),
            (&self.events_refused, counts.events_refused),
            (
                &self.calls.with_label_values(&["accepted"]),
                counts.calls_accepted,
            ),
            (
                &self.calls.with_label_values(&["failed"]),
                counts.calls_failed,
            ),
        ] {
            set_total(counter, value);
        }
    }
}
