//! The clocks of measurements, in nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds in a second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Nanoseconds in a millisecond.
pub(crate) const MILLISECOND_NS: u64 = 1_000_000;

/// `CLOCK_MONOTONIC` in nanoseconds: one time for every process of a machine, which is what lets
/// a subscriber in one process read the age of a message that another process sent.
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// The processor time that the calling thread has used, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// A span of nanoseconds as the kernel's timers take it.
pub(crate) fn timespec(ns: u64) -> Timespec {
    // Neither field can overflow: u64::MAX / 10^9 is far below i64::MAX.
    Timespec {
        tv_sec: (ns / SECOND_NS) as i64,
        tv_nsec: (ns % SECOND_NS) as i64,
    }
}

/// A duration in nanoseconds, capped at what a `u64` holds (584 years).
pub(crate) fn duration_ns(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn nanoseconds(time: Timespec) -> u64 {
    // Both clocks start at zero and only grow, so neither part is negative.
    time.tv_sec.unsigned_abs() * SECOND_NS + time.tv_nsec.unsigned_abs()
}
