//! The index: the positions of each stream's records in the segments that are not in history yet.
//!
//! The index takes some 40 bytes per stream and segment and 12 per record, until its segment is in history. So its size
//! does not depend on the number of records in history.
//!
//! With many streams every access to one of them is a cache miss. So a record costs a single such access, to its
//! stream's slot; the previous content of the slot is appended to a list that all streams share. A stream with many
//! records gets a list of its own, for binary search.

use crate::ids::{Sequence, StreamNo};
use crate::segments::frame::Position;
use crate::segments::segment::Segment;
use encke_clock::WallTime;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// A record in a segment: its sequence relative to the first of the segment, and the position of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) delta: u32,
    pub(crate) position: u32,
}

/// All segments, oldest first.
#[derive(Debug)]
pub(crate) struct Index<F> {
    /// Records up to this one can be read.
    pub(crate) published: Sequence,
    /// Records up to this one are in history.
    pub(crate) history_upto: Sequence,
    /// The state store is durable as of this record.
    pub(crate) checkpoint_upto: Sequence,
    /// Segments that are in history and kept for the global order.
    pub(crate) done: VecDeque<IngestedSegment<F>>,
    /// The later segments, which are not in history. There is at least one; the last one is written to.
    pub(crate) segments: VecDeque<SegmentIndex<F>>,
}

/// A segment that is in history.
#[derive(Debug)]
pub(crate) struct IngestedSegment<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// The sequence after its last record.
    pub(crate) end: Sequence,
    /// Built when it is needed, if the segment was in history when the log was opened.
    pub(crate) places: Option<SparseIndex>,
}

/// Where to begin a scan of a segment.
#[derive(Debug)]
pub(crate) struct Start<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// The sequence after its last record.
    pub(crate) end: Sequence,
    /// The record at which to begin; `None` without a sparse index.
    pub(crate) at: Option<Entry>,
}

impl<F> Index<F> {
    /// The position of the last record of a stream in these segments.
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

    /// Adds a record of the newest segment.
    pub(crate) fn insert(
        &mut self,
        streams: impl Iterator<Item = StreamNo>,
        (sequence, time): (Sequence, WallTime),
        position: u32,
    ) {
        if let Some(segment) = self.segments.back_mut() {
            segment.insert(streams, (sequence, time), position);
        }
    }

    /// The oldest record in the global order, or the next one when there is none.
    pub(crate) fn oldest(&self) -> Sequence {
        let done = self.done.front().map(|done| done.segment.first);
        let waiting = self.segments.front().map(|segment| segment.segment.first);
        done.or(waiting).unwrap_or(self.published + 1)
    }

    /// The last record such that it and all before it in its segment are older than `time`, as far as the sparse
    /// indexes show; 0 without one.
    pub(crate) fn older_than(&self, time: WallTime) -> Sequence {
        let done = self.done.iter().filter_map(|done| {
            let places = done.places.as_ref()?;
            places.older_than(time, done.segment.first, done.end)
        });
        let waiting = self.segments.iter().filter_map(|segment| {
            let first = segment.segment.first;
            segment.places.older_than(time, first, segment.end)
        });
        done.chain(waiting).max().unwrap_or(0)
    }

    /// Where to begin a read of the global order from `from` on.
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

    /// Sets the sparse index of a segment that is in history.
    pub(crate) fn set_sparse_index(&mut self, number: u64, places: SparseIndex) {
        if let Some(done) = self
            .done
            .iter_mut()
            .find(|done| done.segment.number == number)
        {
            done.places = Some(places);
        }
    }

    /// The segments that may have records from `from` on, oldest first.
    pub(crate) fn from(&self, from: Sequence) -> impl Iterator<Item = &SegmentIndex<F>> {
        let older = self.segments.partition_point(|segment| segment.end <= from);
        self.segments.range(older..)
    }
}

/// The index of one segment.
#[derive(Debug)]
pub(crate) struct SegmentIndex<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// The sequence after the last record that was inserted.
    end: Sequence,
    streams: HashMap<StreamNo, Slot, foldhash::fast::FixedState>,
    /// Records that are not the last of their streams, in the order in which the next ones followed.
    links: Vec<Link>,
    /// The records of streams with many records here, oldest first, without the last one of each.
    runs: Vec<Vec<Entry>>,
    places: SparseIndex,
}

/// The last record of a stream in a segment, and the way to the others.
#[derive(Clone, Copy, Debug)]
struct Slot {
    last: Entry,
    /// The number of the others.
    others: u32,
    /// The link of the newest of them, or the run with all of them when there are [`RUN_RECORDS`] or more.
    before: u32,
}

/// A record that is not the last of its stream, and the link of the one before it.
#[derive(Clone, Copy, Debug)]
struct Link {
    entry: Entry,
    before: u32,
}

impl<F> SegmentIndex<F> {
    /// An empty index with room for as many streams as the segment before had, so that it seldom grows.
    pub(crate) fn new(segment: Arc<Segment<F>>, streams: usize) -> Self {
        SegmentIndex {
            end: segment.first,
            streams: HashMap::with_capacity_and_hasher(
                streams,
                foldhash::fast::FixedState::default(),
            ),
            links: Vec::new(),
            runs: Vec::new(),
            places: SparseIndex::default(),
            segment,
        }
    }

    /// The number of streams with records here.
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
        (sequence, time): (Sequence, WallTime),
        position: u32,
    ) {
        let entry = Entry {
            // A segment has fewer bytes than 2^32, so it has fewer records.
            delta: (sequence - self.segment.first) as u32,
            position,
        };
        for stream in streams {
            let slot = match self.streams.entry(stream) {
                hashbrown::hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(Slot {
                        last: entry,
                        others: 0,
                        before: NO_LINK,
                    });
                    continue;
                }
                hashbrown::hash_map::Entry::Occupied(slot) => slot.into_mut(),
            };
            if slot.last == entry {
                continue;
            }
            let last = std::mem::replace(&mut slot.last, entry);
            slot.others += 1;
            if slot.others > RUN_RECORDS {
                self.runs[slot.before as usize].push(last);
            } else if slot.others == RUN_RECORDS {
                let mut run = walk_back(&self.links, slot.before, 0);
                run.push(last);
                slot.before = self.runs.len() as u32;
                self.runs.push(run);
            } else {
                let before = std::mem::replace(&mut slot.before, self.links.len() as u32);
                self.links.push(Link {
                    entry: last,
                    before,
                });
            }
        }
        self.places.note(entry, time);
        self.end = sequence + 1;
    }

    fn last(&self, stream: StreamNo) -> Option<Entry> {
        self.streams.get(&stream).map(|slot| slot.last)
    }

    /// The first records of a stream from sequence `from` on, at most `records_max`, oldest first.
    pub(crate) fn records(
        &self,
        stream: StreamNo,
        from: Sequence,
        records_max: usize,
    ) -> Vec<Entry> {
        let Some(slot) = self.streams.get(&stream) else {
            return Vec::new();
        };
        let delta = from.saturating_sub(self.segment.first);
        let mut records = if slot.others >= RUN_RECORDS {
            let run = &self.runs[slot.before as usize];
            let from = run.partition_point(|entry| u64::from(entry.delta) < delta);
            run[from..].iter().take(records_max).copied().collect()
        } else {
            walk_back(&self.links, slot.before, delta)
        };
        if u64::from(slot.last.delta) >= delta {
            records.push(slot.last);
        }
        records.truncate(records_max);
        records
    }

    /// The last records of a stream with `from` <= sequence <= `upto`, at most `records_max`, newest first.
    pub(crate) fn last_records(
        &self,
        stream: StreamNo,
        (from, upto): (Sequence, Sequence),
        records_max: usize,
    ) -> Vec<Entry> {
        let (Some(slot), Some(upto)) = (
            self.streams.get(&stream),
            upto.checked_sub(self.segment.first),
        ) else {
            return Vec::new();
        };
        let from = from.saturating_sub(self.segment.first);
        let is_wanted = |entry: &Entry| (from..=upto).contains(&u64::from(entry.delta));
        let mut records = Vec::new();
        records.extend(Some(slot.last).filter(is_wanted));
        if slot.others >= RUN_RECORDS {
            let run = &self.runs[slot.before as usize];
            let begin = run.partition_point(|entry| u64::from(entry.delta) < from);
            let end = run.partition_point(|entry| u64::from(entry.delta) <= upto);
            let run = run.get(begin..end).unwrap_or_default();
            records.extend(run.iter().rev().take(records_max));
        } else {
            let links = links_before(&self.links, slot.before, from);
            records.extend(links.map(|link| link.entry).filter(is_wanted));
        }
        records.truncate(records_max);
        records
    }

    /// Takes the sparse index, before the rest is dropped. It may be kept for long, so it keeps no spare memory.
    pub(crate) fn take_sparse_index(&mut self) -> SparseIndex {
        let mut places = std::mem::take(&mut self.places);
        places.places.shrink_to_fit();
        places
    }
}

/// The records of a chain of links down to `delta`, oldest first.
fn walk_back(links: &[Link], at: u32, delta: u64) -> Vec<Entry> {
    let mut entries: Vec<_> = links_before(links, at, delta)
        .map(|link| link.entry)
        .collect();
    entries.reverse();
    entries
}

/// The links of a chain down to `delta`, newest first.
fn links_before(links: &[Link], at: u32, delta: u64) -> impl Iterator<Item = &Link> {
    let link = move |at: u32| {
        let link = links.get(at as usize);
        link.filter(|link| u64::from(link.entry.delta) >= delta)
    };
    std::iter::successors(link(at), move |last| link(last.before))
}

/// A sparse index of a segment: about one record every [`PLACE_BYTES`], to find a position in the global order.
#[derive(Debug, Default)]
pub(crate) struct SparseIndex {
    /// Each with the newest time of the records up to it.
    places: Vec<(Entry, WallTime)>,
    /// The newest time of all records.
    time_max: WallTime,
}

impl SparseIndex {
    /// Adds the next record, if it is far enough from the last entry.
    pub(crate) fn note(&mut self, entry: Entry, time: WallTime) {
        self.time_max = self.time_max.max(time);
        let last = self.places.last();
        if last.is_none_or(|(last, _)| entry.position - last.position >= PLACE_BYTES) {
            self.places.push((entry, self.time_max));
        }
    }

    /// The last entry whose sequence is at most `delta` after the first of the segment; the first entry when there is
    /// none.
    pub(crate) fn before(&self, delta: u64) -> Option<Entry> {
        let after = self
            .places
            .partition_point(|(entry, _)| u64::from(entry.delta) <= delta);
        let place = self.places.get(after.saturating_sub(1));
        place.map(|(entry, _)| *entry)
    }

    /// The last record such that all records up to it are older than `time`, as far as the entries show; `None`
    /// without one.
    fn older_than(&self, time: WallTime, first: Sequence, end: Sequence) -> Option<Sequence> {
        if self.time_max < time && end > first {
            return Some(end - 1);
        }
        let younger = self.places.partition_point(|(_, newest)| *newest < time);
        let (older, _) = self.places.get(younger.checked_sub(1)?)?;
        Some(first + u64::from(older.delta))
    }
}

const NO_LINK: u32 = u32::MAX;
/// A stream with more other records than this has a list of its own.
const RUN_RECORDS: u32 = 64;
/// The distance of entries: a scan skips at most this and the frame at the entry.
const PLACE_BYTES: u32 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> SegmentIndex<()> {
        let segment = Segment {
            number: 1,
            log_id: 0,
            first: 100,
            seed: 0,
            bytes: 1 << 20,
            name: String::new(),
            file: (),
        };
        SegmentIndex::new(Arc::new(segment), 0)
    }

    #[test]
    fn every_record_of_every_stream_is_found_from_anywhere_on() {
        let mut index = index();
        // The lower a stream's number, the more records it has: some one, some a few, some many.
        let streams = |i: u32| (1..=200_u64).filter(move |stream| u64::from(i) % stream == 0);
        for i in 0..1000 {
            index.insert(
                streams(i),
                (100 + u64::from(i), WallTime::from_ms(0)),
                i * 10,
            );
        }
        for stream in [1, 2, 3, 10, 14, 15, 16, 17, 100, 200] {
            let all: Vec<_> = (0..1000)
                .filter(|i| u64::from(*i) % stream == 0)
                .map(|i| Entry {
                    delta: i,
                    position: i * 10,
                })
                .collect();
            assert_eq!(index.last(stream), all.last().copied());
            for from in [0, 100, 101, 163, 500, 1099, 1100] {
                for records_max in [0, 1, 7, 5000] {
                    let due = all
                        .iter()
                        .filter(|entry| u64::from(entry.delta) + 100 >= from);
                    let due: Vec<_> = due.take(records_max).copied().collect();
                    assert_eq!(
                        index.records(stream, from, records_max),
                        due,
                        "{stream} {from}"
                    );
                    for upto in [0, 99, 100, 163, 500, 1099, Sequence::MAX] {
                        let last = all.iter().rev().filter(|entry| {
                            (from..=upto).contains(&(u64::from(entry.delta) + 100))
                        });
                        let last: Vec<_> = last.take(records_max).copied().collect();
                        assert_eq!(
                            index.last_records(stream, (from, upto), records_max),
                            last,
                            "{stream} from {from} to {upto}"
                        );
                    }
                }
            }
        }
        assert_eq!(index.records(201, 0, 10), []);
        assert_eq!(index.last_records(201, (0, 2000), 10), []);
    }
}
