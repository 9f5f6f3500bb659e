//! The time that items are stamped with.

use std::time::Duration;

#[cfg(not(encke_model))]
use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock in nanoseconds, with the kernel's tick (1 to 10 ms) as its grain: it costs a few nanoseconds where
/// the fine one costs several times as much, and an age is for people and for shedding, not for measuring.
pub(crate) enum CoarseClock {
    #[cfg(not(encke_model))]
    Coarse,
    /// Moves only when it is told to.
    #[cfg(encke_model)]
    Manual(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl CoarseClock {
    #[cfg(not(encke_model))]
    pub(crate) fn real() -> Self {
        Self::Coarse
    }

    /// Models know no time.
    #[cfg(encke_model)]
    pub(crate) fn real() -> Self {
        Self::Manual(std::sync::Arc::default())
    }

    /// Nanoseconds since some fixed moment; never 0, which stands for "no time" in the gauges.
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
