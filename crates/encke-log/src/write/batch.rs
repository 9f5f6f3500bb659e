//! The batch that is being built: encoded frames in memory, with their positions.

use crate::error::AppendError;
use crate::ids::{Sequence, StreamNo};
use crate::segments::frame::{self, Frame, Position};
use crate::segments::segment::{self, HEAD_BYTES, Segment};
use encke_clock::WallTime;
use hashbrown::HashMap;
use std::fs::File;

/// Frames that are encoded and placed but not written.
///
/// Invariant: `parts` is never empty. The first part goes to the end of the active segment, each later one to the
/// beginning of a new segment.
#[derive(Debug)]
pub(crate) struct FrameBatch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) parts: Vec<BatchPart>,
    /// The streams of all frames, in order.
    pub(crate) streams: Vec<StreamNo>,
    /// The sequence that the next frame will get.
    pub(crate) next: Sequence,
    /// The size of a new segment.
    segment_bytes: u64,
    /// How many bytes of the last part's segment will be in use, and its size.
    used: u64,
    capacity: u64,
}

/// The part of a batch that goes to one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPart {
    /// Its beginning in the batch's bytes.
    pub(crate) from: usize,
    /// Its position in the segment.
    pub(crate) position: u32,
    /// The sequence of its first frame.
    pub(crate) first: Sequence,
}

impl FrameBatch {
    /// An empty batch behind `used` of the active segment's `capacity` bytes.
    pub(crate) fn new(next: Sequence, used: u64, capacity: u64, segment_bytes: u64) -> FrameBatch {
        let mut batch = FrameBatch {
            bytes: Vec::new(),
            parts: Vec::new(),
            streams: Vec::new(),
            next,
            segment_bytes,
            used,
            capacity,
        };
        batch.clear(next, used, capacity);
        batch
    }

    /// Empties the batch; it then begins behind `used` of the active segment's `capacity` bytes.
    pub(crate) fn clear(&mut self, next: Sequence, used: u64, capacity: u64) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.streams.clear();
        self.streams.shrink_to(KEPT_NOTES);
        self.next = next;
        (self.used, self.capacity) = (used, capacity);
        self.parts.clear();
        self.parts.push(BatchPart {
            from: 0,
            position: used as u32,
            first: next,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a frame. After an error the batch is unchanged.
    pub(crate) fn push(&mut self, frame: &Frame<'_>) -> Result<Sequence, AppendError> {
        if frame.streams.len() > frame::STREAMS_MAX {
            return Err(AppendError::TooManyStreams {
                streams: frame.streams.len(),
                max: frame::STREAMS_MAX,
            });
        }
        let payload = frame.payload.iter().map(|piece| piece.len()).sum();
        let bytes_max = Segment::<File>::room(self.segment_bytes);
        // A frame may become the first of a part, so there must be room for `durable_upto`.
        let bytes = frame::bytes(frame.streams.len(), payload, true);
        if bytes > bytes_max {
            let max = bytes_max;
            return Err(AppendError::TooLarge { bytes, max });
        }
        let first_of_part = |batch: &FrameBatch| {
            batch
                .parts
                .last()
                .is_none_or(|part| part.from == batch.bytes.len())
        };
        let bytes = frame::bytes(frame.streams.len(), payload, first_of_part(self));
        if self.used + bytes > segment::records_end(self.capacity) {
            (self.used, self.capacity) = (HEAD_BYTES, self.segment_bytes);
            self.parts.push(BatchPart {
                from: self.bytes.len(),
                position: HEAD_BYTES as u32,
                first: self.next,
            });
        }
        let before = self.bytes.len();
        frame::encode(frame, self.next, first_of_part(self), &mut self.bytes);
        self.used += (self.bytes.len() - before) as u64;
        self.streams.extend_from_slice(frame.streams);
        self.next += 1;
        Ok(self.next - 1)
    }

    /// The bytes of a part.
    pub(crate) fn part(&self, part: usize) -> &[u8] {
        let to = self
            .parts
            .get(part + 1)
            .map_or(self.bytes.len(), |next| next.from);
        &self.bytes[self.parts[part].from..to]
    }

    /// Finishes the frames of a part that goes to the segment with this number and seed, and adds each to
    /// `unpublished`. `previous` gives for each of their streams, in order, the position of its last record before this
    /// batch.
    pub(crate) fn seal(
        &mut self,
        part: usize,
        (number, seed): (u64, u32),
        durable_upto: Sequence,
        unpublished: &mut UnpublishedRecords,
        previous: &mut impl Iterator<Item = Position>,
    ) {
        let BatchPart {
            mut from,
            position,
            first,
        } = self.parts[part];
        let to = self
            .parts
            .get(part + 1)
            .map_or(self.bytes.len(), |next| next.from);
        let (mut position, mut sequence) = (position, first);
        while from < to {
            let here = Position::new(number, position);
            unpublished.records.push(UnpublishedRecord {
                sequence,
                position,
                time: frame::time(&self.bytes[from..to]),
                streams_from: unpublished.streams.len(),
            });
            let bytes = frame::seal(&mut self.bytes[from..to], seed, durable_upto, |stream| {
                unpublished.streams.push(stream);
                let before = previous.next().unwrap_or_default();
                unpublished.last.insert(stream, here).unwrap_or(before)
            });
            from += bytes;
            position += bytes as u32;
            sequence += 1;
        }
    }
}

/// The records that are written and not published, with their positions.
#[derive(Debug, Default)]
pub(crate) struct UnpublishedRecords {
    pub(crate) records: Vec<UnpublishedRecord>,
    /// The streams of all records, in order.
    pub(crate) streams: Vec<StreamNo>,
    /// The last of these records of each stream.
    last: HashMap<StreamNo, Position, foldhash::fast::FixedState>,
}

/// A record that is written and not published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnpublishedRecord {
    pub(crate) sequence: Sequence,
    pub(crate) position: u32,
    pub(crate) time: WallTime,
    /// Where its streams begin in [`UnpublishedRecords::streams`]; they end where the next record's begin.
    pub(crate) streams_from: usize,
}

impl UnpublishedRecords {
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.streams.clear();
        self.last.clear();
        self.records.shrink_to(KEPT_NOTES);
        self.streams.shrink_to(KEPT_NOTES);
        self.last.shrink_to(KEPT_NOTES);
    }

    /// Each record with its streams.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (UnpublishedRecord, &[StreamNo])> {
        self.records.iter().enumerate().map(|(i, note)| {
            let to = self
                .records
                .get(i + 1)
                .map_or(self.streams.len(), |next| next.streams_from);
            (*note, &self.streams[note.streams_from..to])
        })
    }
}

/// How much memory a batch keeps for the next one.
const KEPT_BYTES: usize = 4 << 20;
/// For how many records memory is kept.
const KEPT_NOTES: usize = 16 << 10;
