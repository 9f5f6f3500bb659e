//! Retention: how long the records of a log are kept.
//!
//! History keeps the records of a log with limits in *generations*: keyspaces for consecutive ranges of the global order
//! (`history/generations.rs`). Records that exceed a limit are removed as whole generations, without being read. They are below the
//! retention floor, which every read compares with.

use crate::ids::Sequence;
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
