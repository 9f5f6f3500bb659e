//! The floors of streams while a log is open.

use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::floor::{FORGOTTEN, Floor};
use crate::ids::{Sequence, StreamNo};
use crate::segments::frame::Streams;
use hashbrown::HashMap;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The floors that no checkpoint has made durable yet. Durable ones are in history, so that they need no memory.
#[derive(Debug)]
pub(crate) struct Floors {
    raised: RwLock<HashMap<StreamNo, Floor, foldhash::fast::FixedState>>,
    /// How often a floor was raised, by groups of streams.
    raises: [AtomicU64; RAISE_GROUPS],
}

type Map = HashMap<StreamNo, Sequence, foldhash::fast::FixedState>;

impl Default for Floors {
    fn default() -> Self {
        Floors {
            raised: RwLock::default(),
            raises: [const { AtomicU64::new(0) }; RAISE_GROUPS],
        }
    }
}

impl Floors {
    pub(crate) fn raise(&self, stream: StreamNo, floor: Floor) {
        let mut raised = self.raised.write();
        let known = raised.entry(stream).or_default();
        if floor.upto >= known.upto {
            *known = floor;
        }
        self.raises[raise_group(stream)].fetch_add(1, Ordering::AcqRel);
    }

    /// A number that grows when the floor of a stream is raised. Other streams share it.
    pub(crate) fn raises(&self, stream: StreamNo) -> u64 {
        self.raises[raise_group(stream)].load(Ordering::Acquire)
    }

    /// The records of a stream up to this one are removed; 0 when none are.
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
        // No floor is above that of a forgotten stream.
        match history {
            Some(history) if raised < FORGOTTEN => Ok(history.floor(stream)?.max(raised)),
            _ => Ok(raised),
        }
    }

    /// The floors that a checkpoint has to make durable, by stream.
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

    /// Drops floors that are durable now; those raised further meanwhile stay.
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

/// The floors that one read has looked up, so that it looks each up once.
#[derive(Debug, Default)]
pub(crate) struct FloorCache(Map);

impl FloorCache {
    /// The floor of the first stream of a record that is removed from all of its streams. A record without streams is never
    /// removed.
    pub(crate) fn hide(
        &mut self,
        sequence: Sequence,
        streams: Streams<'_>,
        of: impl Fn(StreamNo) -> Result<Sequence, HistoryError>,
    ) -> Result<Option<Sequence>, HistoryError> {
        let mut first = None;
        for (stream, _) in streams.iter() {
            let floor = match self.0.get(&stream) {
                Some(floor) => *floor,
                None => *self.0.entry(stream).insert(of(stream)?).get(),
            };
            if sequence > floor {
                return Ok(None);
            }
            first.get_or_insert(floor);
        }
        Ok(first)
    }
}

fn raise_group(stream: StreamNo) -> usize {
    (stream % RAISE_GROUPS as u64) as usize
}

/// A raised floor makes the readers of one in this many other streams compare their floors again.
const RAISE_GROUPS: usize = 64;
