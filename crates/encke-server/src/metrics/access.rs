//! The metrics of access control.

use encke_access::AccessCounts;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::registrar::{Registrar, set_total};

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
    accounts: IntGauge,
    quotas_exceeded: IntCounterVec,
}

impl AccessMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Registrar(registry);
        Ok(AccessMetrics {
            cached: metrics.gauge("encke_token_cache_entries", "Verified tokens in memory.")?,
            hits: metrics.counter(
                "encke_token_cache_hits_total",
                "Requests whose token was verified before.",
            )?,
            misses: metrics.counter(
                "encke_token_cache_misses_total",
                "Requests whose token had to be verified.",
            )?,
            evictions: metrics.counter(
                "encke_token_cache_evictions_total",
                "Verified tokens that gave way to others.",
            )?,
            denied: metrics.counters(
                "encke_access_denied_total",
                "Requests whose credentials were refused, by reason.",
                &["reason"],
            )?,
            key_fetches: metrics.counters(
                "encke_key_fetches_total",
                "Fetches of the keys of issuers, by outcome: done or failed.",
                &["outcome"],
            )?,
            keys: metrics.gauge("encke_issuer_keys", "Keys of all issuers in memory.")?,
            unknown_keys: metrics.gauge(
                "encke_unknown_keys",
                "Keys in memory that tokens have named and their issuers may not have.",
            )?,
            revocations: metrics.gauge("encke_revocations", "Revocations in memory.")?,
            accounts: metrics.gauge(
                "encke_quota_accounts",
                "Callers whose use is counted for quotas (access.quotas).",
            )?,
            quotas_exceeded: metrics.counters(
                "encke_quotas_exceeded_total",
                "Requests and messages that were refused because a quota of their caller was used up, by quota.",
                &["quota"],
            )?,
        })
    }

    /// Shows the state of the access control.
    pub(crate) fn show(&self, counts: &AccessCounts) {
        self.cached.set(counts.tokens.entries as i64);
        set_total(&self.hits, counts.tokens.hits);
        set_total(&self.misses, counts.tokens.misses);
        set_total(&self.evictions, counts.tokens.evictions);
        for (reason, count) in &counts.denied {
            set_total(&self.denied.with_label_values(&[*reason]), *count);
        }
        for (outcome, count) in [
            ("done", counts.key_fetches),
            ("failed", counts.key_fetches_failed),
        ] {
            set_total(&self.key_fetches.with_label_values(&[outcome]), count);
        }
        self.keys.set(counts.keys as i64);
        self.unknown_keys.set(counts.unknown_keys as i64);
        self.revocations.set(counts.revocations as i64);
        self.accounts.set(counts.accounts as i64);
        for (quota, count) in &counts.quotas_exceeded {
            let counter = self.quotas_exceeded.with_label_values(&[quota.key()]);
            set_total(&counter, *count);
        }
    }
}
