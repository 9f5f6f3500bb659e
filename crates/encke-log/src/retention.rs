//! Retention: how long the records of a log are kept.
//!
//! History keeps the records of a log with limits in *generations*: keyspaces for consecutive ranges of the global order
//! (`history/generations.rs`). Records that exceed a limit are removed as whole generations, without being read. They are below the
//! retention floor, which every read compares with.
//!
//! The caller exempts streams: their records are moved to a keyspace without limits before a generation is removed, and reads of
//! these streams ignore the retention floor. Nothing is removed before the exempt streams are known.

use crate::ids::{Sequence, StreamNo};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long the records of a log are kept. Both limits apply; without limits, records are kept forever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRetention {
    /// Records that are older are removed, by their own time ([`Frame::time`](crate::Frame::time)). Records are removed
    /// together, so some stay for up to an eighth longer.
    pub age_max: Option<Duration>,
    /// When history has more bytes of records, the oldest records are removed, about an eighth of this size at a time.
    pub bytes_max: Option<u64>,
}

impl LogRetention {
    /// Whether records are ever removed.
    pub fn is_limited(&self) -> bool {
        self.age_max.is_some() || self.bytes_max.is_some()
    }
}

/// The floor of the whole log: the records up to it are removed. It never sinks, because it is stated before it is raised
/// here: readers see no floor that a crash could lower.
#[derive(Debug)]
pub(crate) struct RetentionFloor(AtomicU64);

impl RetentionFloor {
    pub(crate) fn new(floor: Sequence) -> RetentionFloor {
        RetentionFloor(AtomicU64::new(floor))
    }

    pub(crate) fn get(&self) -> Sequence {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self, floor: Sequence) {
        self.0.fetch_max(floor, Ordering::AcqRel);
    }
}

/// The streams whose records retention leaves; `None` until the caller has named them.
#[derive(Debug, Default)]
pub(crate) struct ExemptStreams(RwLock<Option<BTreeSet<StreamNo>>>);

impl ExemptStreams {
    /// Sets the exempt streams of before.
    pub(crate) fn set(&self, streams: BTreeSet<StreamNo>) {
        *self.0.write() = Some(streams);
    }

    /// Adds a stream. Before the others are known it has no effect.
    pub(crate) fn add(&self, stream: StreamNo) {
        if let Some(streams) = &mut *self.0.write() {
            streams.insert(stream);
        }
    }

    /// Takes out a stream that is durably forgotten.
    pub(crate) fn remove(&self, stream: StreamNo) {
        if let Some(streams) = &mut *self.0.write() {
            streams.remove(&stream);
        }
    }

    pub(crate) fn contains(&self, stream: StreamNo) -> bool {
        let streams = self.0.read();
        streams.as_ref().is_some_and(|all| all.contains(&stream))
    }

    /// All exempt streams, in the order of their numbers.
    pub(crate) fn all(&self) -> Option<BTreeSet<StreamNo>> {
        self.0.read().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_never_sinks() {
        let floor = RetentionFloor::new(10);
        floor.raise(5);
        assert_eq!(floor.get(), 10);
        floor.raise(11);
        assert_eq!(floor.get(), 11);
    }
}
