//! What happened to the streams of a log, for metrics.

use std::sync::atomic::AtomicU64;

/// What happened to the streams of a log, for metrics.
#[derive(Debug, Default)]
pub struct Counts {
    /// Look-ups in the store that found a stream.
    pub loads: AtomicU64,
    /// Look-ups in the store that found the name free.
    pub absences: AtomicU64,
    /// Streams that were evicted.
    pub evictions: AtomicU64,
    /// Producers that a stream forgot because it had more than [`Limits::producers_max`](crate::Limits::producers_max).
    pub producers_forgotten: AtomicU64,
    /// Acknowledged changes, by the durability level that they had reached ([`AckLevel`](crate::AckLevel) as an index).
    pub acknowledged: [AtomicU64; 3],
}
