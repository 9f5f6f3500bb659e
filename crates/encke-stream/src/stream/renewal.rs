//! When reads and live readers renew a sliding lifetime. On a node of a fleet each renewal is a record.

use std::time::Duration;

use encke_clock::Now;

use crate::Lifetime;
use crate::stream::Stream;

impl Stream {
    /// Whether its sliding lifetime was renewed so long ago that another read or write counts.
    pub(crate) fn is_renewal_due(&self, now: Now) -> bool {
        match self.lifetime {
            Lifetime::Sliding { ttl_s } => {
                now.steady.since(self.touched()) >= part_of(ttl_s, RENEWALS_IN_A_LIFETIME)
            }
            Lifetime::Unbounded | Lifetime::Until { .. } => false,
        }
    }

    /// Whether half of its sliding lifetime is over, so that live readers must renew it. A long one is renewed sooner.
    pub(crate) fn is_half_over(&self, now: Now) -> bool {
        match self.lifetime {
            Lifetime::Sliding { ttl_s } => now.steady.since(self.touched()) >= part_of(ttl_s, 2),
            Lifetime::Unbounded | Lifetime::Until { .. } => false,
        }
    }
}

/// A part of a lifetime, or the longest time between two renewals.
fn part_of(ttl_s: u64, parts: u64) -> Duration {
    let part = Duration::from_millis(ttl_s.saturating_mul(1_000) / parts);
    part.clamp(Duration::from_millis(1), RENEW_EVERY_MAX)
}

/// A sliding lifetime is renewed at most this often while it lasts.
const RENEWALS_IN_A_LIFETIME: u64 = 16;

/// A longer lifetime is renewed this often.
const RENEW_EVERY_MAX: Duration = Duration::from_secs(60);
