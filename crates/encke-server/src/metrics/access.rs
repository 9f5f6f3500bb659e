//! The metrics of access control.

use encke_access::AccessCounts;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The metrics of access control. They stay 0 without it.
#[derive(Clone)]
pub(crate) struct AccessMetrics {
    cached: IntGauge,
    hits: IntCounter,
    misses: IntCounter,
    evictions: IntCounter,
    denied: IntCounterVec,
    key_fetches: IntCounterVec,
    keys: IntGauge,
    unknown_keys: IntGauge,
    revocations: IntGauge,
}

impl AccessMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let counters = |name: &str, help: &str, label: &str| {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        Ok(AccessMetrics {
            cached: gauge("encke_token_cache_entries", "Verified tokens in memory.")?,
            hits: counter(
                "encke_token_cache_hits_total",
                "Requests whose token was verified before.",
            )?,
            misses: counter(
                "encke_token_cache_misses_total",
                "Requests whose token had to be verified.",
            )?,
            evictions: counter(
                "encke_token_cache_evictions_total",
                "Verified tokens that gave way to others.",
            )?,
            denied: counters(
                "encke_access_denied_total",
                "Requests whose credentials were refused, by reason.",
                "reason",
            )?,
            key_fetches: counters(
                "encke_key_fetches_total",
                "Fetches of the keys of issuers, by outcome: done or failed.",
                "outcome",
            )?,
            keys: gauge("encke_issuer_keys", "Keys of all issuers in memory.")?,
            unknown_keys: gauge(
                "encke_unknown_keys",
                "Keys in memory that tokens have named and their issuers may not have.",
            )?,
            revocations: gauge("encke_revocations", "Revocations in memory.")?,
        })
    }

    /// Shows the state of the access control.
    pub(crate) fn show(&self, counts: &AccessCounts) {
        let set = |counter: &IntCounter, count: u64| {
            counter.reset();
            counter.inc_by(count);
        };
        self.cached.set(counts.tokens.entries as i64);
        set(&self.hits, counts.tokens.hits);
        set(&self.misses, counts.tokens.misses);
        set(&self.evictions, counts.tokens.evictions);
        for (reason, count) in &counts.denied {
            set(&self.denied.with_label_values(&[*reason]), *count);
        }
        for (outcome, count) in [
            ("done", counts.key_fetches),
            ("failed", counts.key_fetches_failed),
        ] {
            set(&self.key_fetches.with_label_values(&[outcome]), count);
        }
        self.keys.set(counts.keys as i64);
        self.unknown_keys.set(counts.unknown_keys as i64);
        self.revocations.set(counts.revocations as i64);
    }
}
