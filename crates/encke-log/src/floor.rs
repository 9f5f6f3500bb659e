//! Floors: below them a stream's records are gone.

use crate::disk::Disk;
use crate::frame::Streams;
use crate::log::Log;
use crate::{Sequence, StreamNo};
use hashbrown::HashMap;
use parking_lot::RwLock;

/// The floors of all streams that have one.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    memory: RwLock<HashMap<StreamNo, Sequence, foldhash::fast::FixedState>>,
}

impl Floors {
    fn raise(&self, stream: StreamNo, floor: Sequence) {
        let mut memory = self.memory.write();
        let known = memory.entry(stream).or_default();
        *known = floor.max(*known);
    }

    /// The records of a stream up to this one are gone; 0 when none are.
    pub(crate) fn of(&self, stream: StreamNo) -> Sequence {
        self.memory.read().get(&stream).copied().unwrap_or(0)
    }

    /// Whether a record is gone from all of its streams. One that belongs to none is never gone.
    pub(crate) fn hide(&self, sequence: Sequence, streams: Streams<'_>) -> bool {
        !streams.is_empty()
            && streams
                .iter()
                .all(|(stream, _)| sequence <= self.of(stream))
    }
}

impl<D: Disk> Log<D> {
    /// Makes the records of a stream up to `floor` be gone: no read gives them any more, and their space is reclaimed in
    /// time. A floor never sinks.
    ///
    /// A floor lasts from the next checkpoint on. Until then it must follow from a record, so that it is set again when
    /// that record is replayed.
    pub fn set_floor(&mut self, stream: StreamNo, floor: Sequence) {
        self.shared.floors.raise(stream, floor);
    }

    /// Makes everything of a stream be gone, what is still to come included. Its number must not be used again.
    pub fn forget(&mut self, stream: StreamNo) {
        self.set_floor(stream, Sequence::MAX);
    }
}
