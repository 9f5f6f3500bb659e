//! Large records of history. History gives values whole; here are those that were read last, so that readers of one record, and one
//! that reads it in many parts, load it once.
//!
//! While the segment of a record is kept for the global order, the record is lent from there. After that its value is put into an
//! anonymous file, from which the kernel sends it as it does from a segment. A value may be lent longer than it is kept, to a client
//! that reads slowly: those that are kept or lent have at most so many bytes together. A record for which there is no room is given
//! whole.

mod payload;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use self::payload::Payload;
use crate::disk::DiskFile;
use crate::history::stored::{self, record_key};
use crate::ids::{Sequence, StreamNo};
use crate::read::large::{
    self, FileRange, GivenRecord, HEAD_AT_ONCE, LargeRecord, VerifiedRecords,
};
use crate::segments::frame::FrameView;
use crate::segments::index::Entry;
use crate::segments::segment::Segment;

/// The large records of history that were read last.
#[derive(Debug)]
pub(crate) struct OldLargeRecords<F> {
    /// How many bytes the values may have that are kept or lent.
    bytes_max: u64,
    /// The bytes that they have.
    held_bytes: Arc<AtomicU64>,
    /// The record that was used last is the last one.
    kept: Mutex<VecDeque<Arc<OldLarge<F>>>>,
}

/// A large record of history.
#[derive(Debug)]
pub(crate) struct OldLarge<F> {
    stream: StreamNo,
    /// It is the first record of its stream behind this one.
    after: Sequence,
    pub(crate) sequence: Sequence,
    /// The bytes of its payload.
    pub(crate) bytes: u64,
    place: Place<F>,
}

/// Where a record can be read in parts.
#[derive(Debug)]
enum Place<F> {
    /// In a segment, which may be removed.
    Segment(SegmentPlace<F>),
    Value {
        kind: u8,
        /// The beginning of its payload.
        head: Box<[u8]>,
        payload: Arc<Payload>,
    },
}

/// Where a segment has a record.
#[derive(Debug)]
pub(crate) struct SegmentPlace<F> {
    pub(crate) segment: Weak<Segment<F>>,
    pub(crate) entry: Entry,
    /// The bytes of the frame.
    pub(crate) bytes: u32,
}

/// A large record, as history gave it.
pub(crate) struct Loaded {
    pub(crate) stream: StreamNo,
    /// It is the first record of its stream behind this one.
    pub(crate) after: Sequence,
    pub(crate) sequence: Sequence,
    pub(crate) value: fjall::UserValue,
}

impl Loaded {
    /// The record. `None`: its value is malformed, which no record is that was read.
    pub(crate) fn view(&self) -> Option<FrameView<'_>> {
        let key = record_key(self.stream, self.sequence);
        stored::view(self.stream, &key, &self.value)
    }
}

impl<F> OldLargeRecords<F> {
    pub(crate) fn new(bytes_max: u64) -> Self {
        OldLargeRecords {
            bytes_max,
            held_bytes: Arc::default(),
            kept: Mutex::default(),
        }
    }

    /// Bytes of the values that are kept or lent.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// The first record of a stream with `after` < sequence <= `upto`, if it is kept, and its payload has at least so many bytes.
    pub(crate) fn first(
        &self,
        stream: StreamNo,
        (after, upto): (Sequence, Sequence),
        bytes_min: u64,
    ) -> Option<Arc<OldLarge<F>>> {
        let mut kept = self.kept.lock();
        let place = kept.iter().rposition(|record| {
            record.stream == stream
                && (record.after..record.sequence).contains(&after)
                && record.sequence <= upto
                && record.bytes >= bytes_min
        })?;
        let record = kept.remove(place)?;
        kept.push_back(Arc::clone(&record));
        Some(record)
    }

    fn add(&self, record: OldLarge<F>) -> Arc<OldLarge<F>> {
        let record = Arc::new(record);
        let mut kept = self.kept.lock();
        // Another reader may have kept it meanwhile, or before from a record that is farther behind.
        kept.retain(|one| (one.stream, one.sequence) != (record.stream, record.sequence));
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Arc::clone(&record));
        record
    }

    fn forget(&self, record: &Arc<OldLarge<F>>) {
        self.kept.lock().retain(|one| !Arc::ptr_eq(one, record));
    }

    /// Keeps where a record is. `None`: it can only be given whole.
    pub(crate) fn keep_place(
        &self,
        loaded: &Loaded,
        place: SegmentPlace<F>,
    ) -> Option<Arc<OldLarge<F>>> {
        Some(self.add(OldLarge {
            stream: loaded.stream,
            after: loaded.after,
            sequence: loaded.sequence,
            bytes: loaded.view()?.payload.len() as u64,
            place: Place::Segment(place),
        }))
    }

    /// Keeps the value of a record. `None`: there is no room for it.
    pub(crate) fn keep_value(&self, loaded: &Loaded) -> Option<Arc<OldLarge<F>>> {
        let view = loaded.view()?;
        let bytes = view.payload.len();
        let held_bytes = self.reserve(bytes as u64)?;
        let payload = Payload::new(&loaded.value, bytes, held_bytes);
        Some(self.add(OldLarge {
            stream: loaded.stream,
            after: loaded.after,
            sequence: loaded.sequence,
            bytes: bytes as u64,
            place: Place::Value {
                kind: view.kind,
                head: view.payload[..view.payload.len().min(HEAD_AT_ONCE)].into(),
                payload: Arc::new(payload),
            },
        }))
    }

    /// Makes room for so many bytes: values that are not lent go, beginning with the one that was used longest ago.
    fn reserve(&self, bytes: u64) -> Option<Arc<AtomicU64>> {
        // Nothing is added without this lock.
        let mut kept = self.kept.lock();
        while self.held_bytes().saturating_add(bytes) > self.bytes_max {
            let place = kept.iter().position(OldLarge::can_go)?;
            kept.remove(place);
        }
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(Arc::clone(&self.held_bytes))
    }
}

impl<F: DiskFile> OldLargeRecords<F> {
    /// Gives a record. False: it is not where it was, and was forgotten.
    pub(crate) fn give(
        &self,
        record: &Arc<OldLarge<F>>,
        directory: &Path,
        verified: &VerifiedRecords,
        each: &mut dyn FnMut(GivenRecord<'_>),
    ) -> bool {
        let is_given = match &record.place {
            Place::Segment(place) => place.segment.upgrade().is_some_and(|segment| {
                let (entry, bytes) = (&place.entry, place.bytes);
                let given = large::give(directory, &segment, entry, bytes, verified, each);
                matches!(given, Ok(Some(_)))
            }),
            Place::Value {
                kind,
                head,
                payload,
            } => {
                each(GivenRecord::Large(LargeRecord {
                    sequence: record.sequence,
                    kind: *kind,
                    head,
                    payload: FileRange::whole(Arc::clone(payload) as _, payload.bytes),
                }));
                true
            }
        };
        if !is_given {
            self.forget(record);
        }
        is_given
    }
}

impl<F> OldLarge<F> {
    /// Whether there is more room without it.
    fn can_go(self: &Arc<Self>) -> bool {
        match &self.place {
            Place::Segment(_) => false,
            Place::Value { payload, .. } => {
                Arc::strong_count(self) == 1 && Arc::strong_count(payload) == 1
            }
        }
    }
}

/// Records of which it is kept where they are.
const KEPT_MAX: usize = 1024;
