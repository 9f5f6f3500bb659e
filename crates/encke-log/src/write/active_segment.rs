//! The segment that is written to.

use crate::disk::DiskFile;
use crate::ids::Sequence;
use crate::segments::frame::{self, Position};
use crate::segments::segment::{HEAD_BYTES, Segment};
use crate::superblock::statement::LastSegment;
use crate::write::batch::{FrameBatch, UnpublishedRecords};
use std::io;
use std::sync::Arc;

/// The segment that is written to, and how far the log is written and durable.
#[derive(Debug)]
pub(crate) struct ActiveSegment<F> {
    segment: Arc<Segment<F>>,
    /// How many of its bytes are written.
    used: u64,
    /// The last record that is written; that is durable; that a frame states to be durable.
    written_upto: Sequence,
    durable_upto: Sequence,
    confirmed_upto: Sequence,
    /// Whether it has unsynced writes.
    dirty: bool,
}

impl<F: DiskFile> ActiveSegment<F> {
    /// A segment with `used` bytes; all records up to `durable_upto` are durable.
    pub(crate) fn new(
        segment: Arc<Segment<F>>,
        used: u64,
        durable_upto: Sequence,
        confirmed_upto: Sequence,
    ) -> ActiveSegment<F> {
        ActiveSegment {
            segment,
            used,
            written_upto: durable_upto,
            durable_upto,
            confirmed_upto,
            dirty: false,
        }
    }

    pub(crate) fn segment(&self) -> &Arc<Segment<F>> {
        &self.segment
    }

    /// How many of its bytes are written.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The last record that is written.
    pub(crate) fn written_upto(&self) -> Sequence {
        self.written_upto
    }

    /// The last record that is known to be durable.
    pub(crate) fn durable_upto(&self) -> Sequence {
        self.durable_upto
    }

    /// Whether it has unsynced writes.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// The segment as the superblock states it.
    pub(crate) fn stated(&self) -> LastSegment {
        LastSegment {
            number: self.segment.number,
            first: self.segment.first,
            bytes: self.segment.bytes,
        }
    }

    /// Goes to a new segment. The one before must be durable to its end.
    pub(crate) fn roll(&mut self, segment: Arc<Segment<F>>) {
        self.segment = segment;
        self.used = HEAD_BYTES;
    }

    /// Completes all frames of a batch: previous positions, the last durable record, checksums. `previous` has the
    /// position of the last record before the batch for each of its streams, in order; `seeds` are those of the
    /// segments that the batch begins.
    pub(crate) fn seal_batch(
        &self,
        batch: &mut FrameBatch,
        unpublished: &mut UnpublishedRecords,
        previous: Vec<Position>,
        seeds: impl Iterator<Item = u32>,
    ) {
        let mut previous = previous.into_iter();
        let mut durable_upto = self.durable_upto;
        let seeds = std::iter::once(self.segment.seed).chain(seeds);
        for ((part, seed), number) in seeds.enumerate().zip(self.segment.number..) {
            // A segment begins only when everything before it is durable.
            if part > 0 {
                durable_upto = batch.parts[part].first - 1;
            }
            let place = (number, seed);
            batch.seal(part, place, durable_upto, unpublished, &mut previous);
        }
    }

    /// Writes a part of a batch that was sealed.
    pub(crate) fn write_part(&mut self, batch: &FrameBatch, part: usize) -> io::Result<()> {
        let frames = batch.part(part);
        if frames.is_empty() {
            return Ok(());
        }
        let next = batch.parts.get(part + 1);
        let next = next.map_or(batch.next, |next| next.first);
        self.write(frames, next - 1)
    }

    /// Writes frames with all records up to `upto`. The first frame states what is durable now.
    fn write(&mut self, frames: &[u8], upto: Sequence) -> io::Result<()> {
        self.segment.file.write_at(frames, self.used)?;
        self.dirty = true;
        self.confirmed_upto = self.confirmed_upto.max(self.durable_upto);
        self.used += frames.len() as u64;
        self.written_upto = upto;
        Ok(())
    }

    /// Writes a watermark, if everything is durable, no frame states so, and there is room. Returns whether it did.
    pub(crate) fn write_watermark(&mut self) -> io::Result<bool> {
        let room = self.segment.bytes - self.used >= frame::WATERMARK_BYTES as u64;
        let durable_upto = self.durable_upto;
        if durable_upto != self.written_upto || durable_upto == self.confirmed_upto || !room {
            return Ok(false);
        }
        let next = self.written_upto + 1;
        let watermark = frame::watermark(next, durable_upto, self.segment.seed);
        self.write(&watermark, self.written_upto)?;
        Ok(true)
    }

    /// Notes that everything written is durable.
    pub(crate) fn note_synced(&mut self) {
        self.dirty = false;
        self.durable_upto = self.written_upto;
    }
}
