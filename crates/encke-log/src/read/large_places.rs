//! Where segments that are in history have its large records.
//!
//! History gives values whole, so that each part of a record would load all of it. While the segment of a record is kept for the global
//! order, the record is read from there in parts instead. The first reader loads it from history, and looks for it in its segment; what it
//! finds is kept here. An entry costs no room on the disk: a segment that is removed is not held, and its records come from history then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parking_lot::Mutex;

use crate::ids::{Sequence, StreamNo};
use crate::segments::index::Entry;

/// The places of the large records of history that were looked for last.
#[derive(Debug, Default)]
pub(crate) struct LargePlaces(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    found: BTreeMap<(StreamNo, Sequence), LargePlace>,
    /// The oldest one first; some are forgotten already.
    order: VecDeque<(StreamNo, Sequence)>,
    /// Segments that are damaged, by their numbers.
    given_up: BTreeSet<u64>,
}

/// Where a segment has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LargePlace {
    /// The record is the first one of its stream behind this one.
    pub(crate) after: Sequence,
    pub(crate) sequence: Sequence,
    /// The number of the segment.
    pub(crate) segment: u64,
    pub(crate) entry: Entry,
    /// The bytes of the frame.
    pub(crate) bytes: u32,
}

impl LargePlaces {
    /// The first record of a stream with `after` < sequence <= `upto`, if its place is known.
    pub(crate) fn first(
        &self,
        stream: StreamNo,
        (after, upto): (Sequence, Sequence),
    ) -> Option<LargePlace> {
        let from = after.checked_add(1).filter(|from| *from <= upto)?;
        let places = self.0.lock();
        let mut found = places.found.range((stream, from)..=(stream, upto));
        let (_, place) = found.next()?;
        (place.after <= after).then_some(*place)
    }

    /// Keeps the place of a record.
    pub(crate) fn add(&self, stream: StreamNo, mut place: LargePlace) {
        let mut places = self.0.lock();
        let key = (stream, place.sequence);
        if let Some(known) = places.found.get(&key) {
            // Another reader has found it, maybe from a record that is farther behind.
            place.after = place.after.min(known.after);
        } else {
            if places.order.len() == KEPT_MAX
                && let Some(oldest) = places.order.pop_front()
            {
                places.found.remove(&oldest);
            }
            places.order.push_back(key);
        }
        places.found.insert(key, place);
    }

    /// Forgets the place of a record, which is not there any more.
    pub(crate) fn forget(&self, stream: StreamNo, sequence: Sequence) {
        self.0.lock().found.remove(&(stream, sequence));
    }

    /// Forgets all records of a stream.
    pub(crate) fn forget_stream(&self, stream: StreamNo) {
        let mut places = self.0.lock();
        let of_stream = (stream, 0)..=(stream, Sequence::MAX);
        let keys: Vec<_> = places.found.range(of_stream).map(|(key, _)| *key).collect();
        for key in keys {
            places.found.remove(&key);
        }
    }

    /// Looks for nothing in a segment any more. Returns whether that is new.
    pub(crate) fn give_up(&self, segment: u64) -> bool {
        let mut places = self.0.lock();
        if places.given_up.len() == GIVEN_UP_MAX {
            places.given_up.pop_first();
        }
        places.given_up.insert(segment)
    }

    pub(crate) fn is_given_up(&self, segment: u64) -> bool {
        self.0.lock().given_up.contains(&segment)
    }
}

/// Places that are kept.
const KEPT_MAX: usize = 4096;
/// Damaged segments that are remembered.
const GIVEN_UP_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(after: Sequence, sequence: Sequence) -> LargePlace {
        LargePlace {
            after,
            sequence,
            segment: 1,
            entry: Entry {
                delta: 0,
                position: 0,
            },
            bytes: 100,
        }
    }

    #[test]
    fn a_record_is_found_only_from_where_it_is_the_first_one() {
        let places = LargePlaces::default();
        places.add(7, place(3, 9));
        let first = |after, upto| places.first(7, (after, upto)).map(|place| place.sequence);
        assert_eq!(
            [2, 3, 8, 9].map(|after| first(after, 20)),
            [None, Some(9), Some(9), None]
        );
        assert_eq!(
            [first(3, 8), first(3, 9), first(20, 3)],
            [None, Some(9), None]
        );
        assert_eq!(places.first(8, (3, 20)), None);
        // Later from farther behind, and the other way round.
        places.add(7, place(1, 9));
        places.add(7, place(5, 9));
        assert_eq!(first(1, 20), Some(9));
        // A record between hides what is behind it.
        places.add(7, place(0, 4));
        assert_eq!([first(1, 20), first(4, 20)], [Some(4), Some(9)]);
        places.forget(7, 4);
        assert_eq!(first(1, 20), Some(9));
        places.forget_stream(7);
        assert_eq!(first(1, 20), None);
    }

    #[test]
    fn as_many_are_kept_as_there_is_room_for() {
        let places = LargePlaces::default();
        for sequence in 1..=KEPT_MAX as Sequence + 1 {
            places.add(7, place(sequence - 1, sequence));
            places.give_up(sequence);
        }
        assert_eq!(places.first(7, (0, 1)), None);
        assert!(places.first(7, (1, 2)).is_some());
        assert_eq!(places.0.lock().found.len(), KEPT_MAX);
        assert_eq!(places.0.lock().given_up.len(), GIVEN_UP_MAX);
        assert!(!places.is_given_up(1) && places.is_given_up(KEPT_MAX as u64 + 1));
    }
}
