//! The clock for the ages of items.

use std::time::Duration;

#[cfg(not(encke_model))]
use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock in nanoseconds with the resolution of the kernel's tick (1 to 10 ms). It costs a few nanoseconds, several times
/// less than the precise clock, and ages are for display only.
pub(crate) enum CoarseClock {
    #[cfg(not(encke_model))]
    Coarse,
    /// A clock for models, which stands still.
    #[cfg(encke_model)]
    Manual(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl CoarseClock {
    #[cfg(not(encke_model))]
    pub(crate) fn real() -> Self {
        Self::Coarse
    }

    /// Models have no time.
    #[cfg(encke_model)]
    pub(crate) fn real() -> Self {
        Self::Manual(std::sync::Arc::default())
    }

    /// Nanoseconds since a fixed moment; never 0, which means "no time" in the gauges.
    pub(crate) fn now_ns(&self) -> u64 {
        let ns = match self {
            #[cfg(not(encke_model))]
            Self::Coarse => {
                let t = clock_gettime(ClockId::MonotonicCoarse);
                (t.tv_sec as u64)
                    .wrapping_mul(1_000_000_000)
                    .wrapping_add(t.tv_nsec as u64)
            }
            #[cfg(encke_model)]
            Self::Manual(ns) => ns.load(std::sync::atomic::Ordering::Relaxed),
        };
        ns.max(1)
    }

    /// The time since `stamp_ns`.
    pub(crate) fn age(&self, stamp_ns: u64) -> Duration {
        Duration::from_nanos(self.now_ns().saturating_sub(stamp_ns))
    }
}
