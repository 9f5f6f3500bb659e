//! Floors: below them a stream's records are gone.

use crate::disk::Disk;
use crate::frame::Streams;
use crate::history::{History, HistoryError};
use crate::log::Log;
use crate::{Sequence, StreamNo};
use hashbrown::HashMap;
use parking_lot::RwLock;

/// The floor of a stream that was forgotten: everything of it is gone, what is still to come included.
pub const FORGOTTEN: Sequence = Sequence::MAX;

/// A floor, and the record before which it was raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    pub(crate) upto: Sequence,
    pub(crate) at: Sequence,
}

/// The floors that no finished checkpoint has made durable. The others are in history, so that they cost no memory.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    raised: RwLock<HashMap<StreamNo, Floor, foldhash::fast::FixedState>>,
}

type Map = HashMap<StreamNo, Sequence, foldhash::fast::FixedState>;

impl Floors {
    fn raise(&self, stream: StreamNo, floor: Floor) {
        let mut raised = self.raised.write();
        let known = raised.entry(stream).or_default();
        if floor.upto >= known.upto {
            *known = floor;
        }
    }

    /// The records of a stream up to this one are gone; 0 when none are.
    pub(crate) fn of(
        &self,
        stream: StreamNo,
        history: Option<&History>,
    ) -> Result<Sequence, HistoryError> {
        let raised = self
            .raised
            .read()
            .get(&stream)
            .map_or(0, |floor| floor.upto);
        // A forgotten stream has nothing above what was raised.
        match history {
            Some(history) if raised < FORGOTTEN => Ok(history.floor(stream)?.max(raised)),
            _ => Ok(raised),
        }
    }

    /// What a checkpoint has to make durable, by stream.
    pub(crate) fn raised(&self) -> Vec<(StreamNo, Floor)> {
        let mut raised: Vec<_> = self
            .raised
            .read()
            .iter()
            .map(|(stream, floor)| (*stream, *floor))
            .collect();
        raised.sort_unstable_by_key(|(stream, _)| *stream);
        raised
    }

    /// These are durable; what was raised further since stays.
    pub(crate) fn settle(&self, durable: &[(StreamNo, Floor)]) {
        let mut raised = self.raised.write();
        for (stream, floor) in durable {
            if raised.get(stream) == Some(floor) {
                raised.remove(stream);
            }
        }
        raised.shrink_to(0);
    }
}

/// The floors that one read has met, so that it asks for each once.
#[derive(Debug, Default)]
pub(crate) struct MetFloors(Map);

impl MetFloors {
    /// Whether a record is gone from all of its streams. One that belongs to none is never gone.
    pub(crate) fn hide(
        &mut self,
        sequence: Sequence,
        streams: Streams<'_>,
        of: impl Fn(StreamNo) -> Result<Sequence, HistoryError>,
    ) -> Result<bool, HistoryError> {
        for (stream, _) in streams.iter() {
            let floor = match self.0.get(&stream) {
                Some(floor) => *floor,
                None => *self.0.entry(stream).insert(of(stream)?).get(),
            };
            if sequence > floor {
                return Ok(false);
            }
        }
        Ok(!streams.is_empty())
    }
}

impl<D: Disk> Log<D> {
    /// Makes the records of a stream up to `floor` be gone: no read gives them any more, and their space is reclaimed when
    /// history is next compacted there. A floor never sinks.
    ///
    /// A floor is durable when the next checkpoint is. Until then it must follow from a record, so that it is set again when
    /// that record is replayed.
    pub fn set_floor(&mut self, stream: StreamNo, floor: Sequence) {
        let at = self.next_sequence();
        let floor = Floor { upto: floor, at };
        self.shared.floors.raise(stream, floor);
    }

    /// Makes everything of a stream be gone, what is still to come included. Its number must not be used again: when nothing
    /// of the stream is left on the disk, that it was forgotten is forgotten, too.
    pub fn forget(&mut self, stream: StreamNo) {
        self.set_floor(stream, FORGOTTEN);
    }
}
