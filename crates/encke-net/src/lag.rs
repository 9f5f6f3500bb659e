//! How far the deliveries of a shard are behind.

use std::sync::atomic::AtomicU64;

/// How far a shard's deliveries are behind: the shard writes it, the sequencer reads it.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    pub(crate) bytes: AtomicU64,
    pub(crate) us: AtomicU64,
}
