//! Where the records of each stream lie in the segments that are not in history yet.
//!
//! The index costs some 24 bytes per stream and segment and 8 per record, and it goes away with the segment: nothing
//! here grows with the number of records that history holds.

use crate::frame::Position;
use crate::segment::Segment;
use crate::{Sequence, StreamNo};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// A record in one segment: its sequence, counted from the segment's first, and where its frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) delta: u32,
    pub(crate) position: u32,
}

/// All segments that readers may look into, oldest first.
#[derive(Debug)]
pub(crate) struct Index<F> {
    /// Records up to this one can be read.
    pub(crate) published: Sequence,
    /// Records up to this one are in history.
    pub(crate) history_upto: Sequence,
    /// The state store is durable as it was after this record.
    pub(crate) checkpoint_upto: Sequence,
    /// Segments that are in history and kept for the global order.
    pub(crate) done: VecDeque<Done<F>>,
    /// The segments after those, which are not in history. There is always one, and the last one is being written.
    pub(crate) segments: VecDeque<SegmentIndex<F>>,
}

/// A segment that is in history.
#[derive(Debug)]
pub(crate) struct Done<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// The sequence after its last record.
    pub(crate) end: Sequence,
    /// Found out when they are needed, if the segment was in history when the log was opened.
    pub(crate) places: Option<Places>,
}

/// Where to begin a walk through a segment.
#[derive(Debug)]
pub(crate) struct Start<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// The sequence after its last record.
    pub(crate) end: Sequence,
    /// The record at which to begin; `None` when the places of the segment are not known.
    pub(crate) at: Option<Entry>,
}

impl<F> Index<F> {
    /// Where the last record of a stream lies, if it is in one of these segments.
    pub(crate) fn last(&self, stream: StreamNo) -> Position {
        let last = |segment: &SegmentIndex<F>| {
            let entry = segment.last(stream)?;
            Some(Position::new(segment.segment.number, entry.position))
        };
        self.segments
            .iter()
            .rev()
            .find_map(last)
            .unwrap_or_default()
    }

    /// Notes a record that lies in the newest segment.
    pub(crate) fn insert(
        &mut self,
        streams: impl Iterator<Item = StreamNo>,
        (sequence, time_ms): (Sequence, u64),
        position: u32,
    ) {
        if let Some(segment) = self.segments.back_mut() {
            segment.insert(streams, (sequence, time_ms), position);
        }
    }

    /// The oldest record that is still in the global order, or the next one when there is none.
    pub(crate) fn oldest(&self) -> Sequence {
        let done = self.done.front().map(|done| done.segment.first);
        let waiting = self.segments.front().map(|segment| segment.segment.first);
        done.or(waiting).unwrap_or(self.published + 1)
    }

    /// Up to which record all that the segments have are older than `time_ms`, as far as places tell; 0 when none is.
    pub(crate) fn older_than(&self, time_ms: u64) -> Sequence {
        let done = self.done.iter().filter_map(|done| {
            let places = done.places.as_ref()?;
            places.older_than(time_ms, done.segment.first, done.end)
        });
        let waiting = self.segments.iter().filter_map(|segment| {
            let first = segment.segment.first;
            segment.places.older_than(time_ms, first, segment.end)
        });
        done.chain(waiting).max().unwrap_or(0)
    }

    /// Where to begin walking the global order from `from` on.
    pub(crate) fn start(&self, from: Sequence) -> Option<Start<F>> {
        let older = self.done.partition_point(|done| done.end <= from);
        if let Some(done) = self.done.get(older) {
            let delta = from.saturating_sub(done.segment.first);
            return Some(Start {
                segment: done.segment.clone(),
                end: done.end,
                at: done.places.as_ref().and_then(|places| places.before(delta)),
            });
        }
        let segment = self.from(from).next()?;
        let delta = from.saturating_sub(segment.segment.first);
        Some(Start {
            segment: segment.segment.clone(),
            end: segment.end,
            at: Some(segment.places.before(delta)?),
        })
    }

    /// Keeps the places of a segment that is done.
    pub(crate) fn keep_places(&mut self, number: u64, places: Places) {
        if let Some(done) = self
            .done
            .iter_mut()
            .find(|done| done.segment.number == number)
        {
            done.places = Some(places);
        }
    }

    /// The segments in which records from `from` on may lie, oldest first.
    pub(crate) fn from(&self, from: Sequence) -> impl Iterator<Item = &SegmentIndex<F>> {
        let older = self.segments.partition_point(|segment| segment.end <= from);
        self.segments.range(older..)
    }
}

/// What lies where in one segment.
#[derive(Debug)]
pub(crate) struct SegmentIndex<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// The sequence after the last record that was inserted.
    end: Sequence,
    streams: HashMap<StreamNo, Slot, foldhash::fast::FixedState>,
    /// The records of the streams that have more than one here.
    runs: Vec<Vec<Entry>>,
    places: Places,
}

/// The only record of a stream in a segment, or the last one and where the others are.
#[derive(Clone, Copy, Debug)]
struct Slot {
    last: Entry,
    /// Which of the runs has all of them, the last one too; [`NO_RUN`] when there is only one.
    run: u32,
}

impl<F> SegmentIndex<F> {
    /// An empty index with room for as many streams as the segment before had, so that it seldom has to grow.
    pub(crate) fn new(segment: Arc<Segment<F>>, streams: usize) -> Self {
        SegmentIndex {
            end: segment.first,
            streams: HashMap::with_capacity_and_hasher(
                streams,
                foldhash::fast::FixedState::default(),
            ),
            runs: Vec::new(),
            places: Places::default(),
            segment,
        }
    }

    /// How many streams have records here.
    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The sequence after the last record here.
    pub(crate) fn end(&self) -> Sequence {
        self.end
    }

    pub(crate) fn insert(
        &mut self,
        streams: impl Iterator<Item = StreamNo>,
        (sequence, time_ms): (Sequence, u64),
        position: u32,
    ) {
        let entry = Entry {
            // A segment has fewer bytes than 2^32, so it has fewer records.
            delta: (sequence - self.segment.first) as u32,
            position,
        };
        for stream in streams {
            let slot = self.streams.entry(stream).or_insert(Slot {
                last: entry,
                run: NO_RUN,
            });
            if slot.last == entry {
                continue;
            }
            if slot.run == NO_RUN {
                slot.run = self.runs.len() as u32;
                self.runs.push(vec![slot.last]);
            }
            self.runs[slot.run as usize].push(entry);
            slot.last = entry;
        }
        self.places.note(entry, time_ms);
        self.end = sequence + 1;
    }

    fn last(&self, stream: StreamNo) -> Option<Entry> {
        self.streams.get(&stream).map(|slot| slot.last)
    }

    /// The records of a stream from sequence `from` on, oldest first.
    pub(crate) fn records(&self, stream: StreamNo, from: Sequence) -> &[Entry] {
        let Some(slot) = self.streams.get(&stream) else {
            return &[];
        };
        let all = match self.runs.get(slot.run as usize) {
            Some(run) => &run[..],
            None => std::slice::from_ref(&slot.last),
        };
        let delta = from.saturating_sub(self.segment.first);
        &all[all.partition_point(|entry| u64::from(entry.delta) < delta)..]
    }

    /// Gives up the places, when the rest is about to go.
    pub(crate) fn take_places(&mut self) -> Places {
        std::mem::take(&mut self.places)
    }
}

/// A record about every [`PLACE_BYTES`] of a segment, for finding a place in the global order.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Each with the newest time of the records up to it.
    places: Vec<(Entry, u64)>,
    /// The newest time of all records.
    time_ms_max: u64,
}

impl Places {
    /// Notes the next record, if it is far enough from the last one that was noted.
    pub(crate) fn note(&mut self, entry: Entry, time_ms: u64) {
        self.time_ms_max = self.time_ms_max.max(time_ms);
        let last = self.places.last();
        if last.is_none_or(|(last, _)| entry.position - last.position >= PLACE_BYTES) {
            self.places.push((entry, self.time_ms_max));
        }
    }

    /// The last of these records whose sequence is at most `delta` after the segment's first; the first one when none is.
    pub(crate) fn before(&self, delta: u64) -> Option<Entry> {
        let after = self
            .places
            .partition_point(|(entry, _)| u64::from(entry.delta) <= delta);
        let place = self.places.get(after.saturating_sub(1));
        place.map(|(entry, _)| *entry)
    }

    /// Up to which record all here are older than `time_ms`, as far as places tell: `None` when none is, and the last one,
    /// before `end`, when all are.
    fn older_than(&self, time_ms: u64, first: Sequence, end: Sequence) -> Option<Sequence> {
        if self.time_ms_max < time_ms && end > first {
            return Some(end - 1);
        }
        let younger = self.places.partition_point(|(_, time)| *time < time_ms);
        let (older, _) = self.places.get(younger.checked_sub(1)?)?;
        Some(first + u64::from(older.delta))
    }
}

const NO_RUN: u32 = u32::MAX;
/// How far apart places are: what a walk has to skip at most, beside the frame at the place.
const PLACE_BYTES: u32 = 64 << 10;
