//! When reads and live readers renew a sliding lifetime. On a node of a fleet each renewal is a record.

use crate::stream::Stream;
use crate::{Lifetime, Now};

impl Stream {
    /// Whether its sliding lifetime was renewed so long ago that another read or write counts.
    pub(crate) fn is_renewal_due(&self, now: Now) -> bool {
        match self.lifetime {
            Lifetime::Sliding { ttl_s } => {
                let window_ms = (ttl_s.saturating_mul(1000) / RENEWALS_IN_A_LIFETIME)
                    .clamp(1, RENEW_EVERY_MS_MAX);
                now.steady_ms.saturating_sub(self.touched_ms()) >= window_ms
            }
            Lifetime::Unbounded | Lifetime::Until { .. } => false,
        }
    }

    /// Whether half of its sliding lifetime is over, so that live readers must renew it. A long one is renewed sooner.
    pub(crate) fn is_half_over(&self, now: Now) -> bool {
        match self.lifetime {
            Lifetime::Sliding { ttl_s } => {
                let half_ms = (ttl_s.saturating_mul(1000) / 2).clamp(1, RENEW_EVERY_MS_MAX);
                now.steady_ms.saturating_sub(self.touched_ms()) >= half_ms
            }
            Lifetime::Unbounded | Lifetime::Until { .. } => false,
        }
    }
}

/// A sliding lifetime is renewed at most this often while it lasts.
const RENEWALS_IN_A_LIFETIME: u64 = 16;

/// A longer lifetime is renewed this often, in milliseconds.
const RENEW_EVERY_MS_MAX: u64 = 60_000;
