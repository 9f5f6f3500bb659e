//! Making segments anew from what history and sound segments still have.

use crate::batch::{Batch, Notes};
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::frame::{FILLER, Frame, FrameView};
use crate::history::{History, HistoryError};
use crate::options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::plan::Range;
use crate::prepare::{Prepared, Preparer};
use crate::recover;
use crate::scan::{Scan, Step, WINDOW_BYTES};
use crate::segment::{self, HEAD_BYTES, Segment};
use crate::statement::LastSegment;
use crate::stored::of_record_key;
use crate::survey::Surveyed;
use crate::{Sequence, StreamNo};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Where the records lie that go into the new segments.
pub(crate) struct Sources<'s, F> {
    pub(crate) history: Option<&'s History>,
    pub(crate) surveyed: &'s [Surveyed<F>],
}

/// Writes the records of a range into new segments, the first of which has this number, and returns the last one. A record that no source
/// has becomes a filler. The log goes on at `next`; an empty segment begins there when the range is empty.
pub(crate) fn remake<D: Disk>(
    disk: &D,
    sources: &Sources<'_, D::File>,
    (from, upto): Range,
    (log_id, number): (u64, u64),
    next: Sequence,
) -> Result<LastSegment, OpenError> {
    if from > upto {
        // The next open replaces an empty segment that is smaller than it wants them.
        return Writer::begin(disk, SEGMENT_BYTES_MIN, (log_id, number), next)?.end();
    }
    let segments = sources.surveyed.iter();
    let segments = segments.filter_map(|found| found.segment.as_ref());
    let largest = segments.map(|segment| segment.bytes).max();
    let segment_bytes = largest.unwrap_or(Options::default().segment_bytes);
    let segment_bytes = segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let mut writer = Writer::begin(disk, segment_bytes, (log_id, number), from)?;
    let in_history = match sources.history {
        Some(history) => history.streams_of((from, upto)),
        None => Ok(BTreeMap::new()),
    };
    let in_history = in_history.map_err(|e| of_history(disk, e))?;
    for found in sources.surveyed {
        let Some(segment) = &found.segment else {
            continue;
        };
        let mut scan = Scan::new(segment, WINDOW_BYTES);
        while scan.due() < found.end && scan.due() <= upto {
            let step = scan.next();
            let step = step.map_err(|e| OpenError::io(&disk.path(&segment.name), "read", e))?;
            if let Step::Record(_, frame) = step
                && frame.sequence >= writer.next()
            {
                fill(&mut writer, sources.history, &in_history, frame.sequence)?;
                writer.push(&frame.view(None))?;
            }
        }
    }
    fill(&mut writer, sources.history, &in_history, upto + 1)?;
    writer.end()
}

/// Writes everything before `end` from history.
fn fill<D: Disk>(
    writer: &mut Writer<'_, D>,
    history: Option<&History>,
    in_history: &BTreeMap<Sequence, StreamNo>,
    end: Sequence,
) -> Result<(), OpenError> {
    while writer.next() < end {
        let sequence = writer.next();
        if let Some((stream, history)) = in_history.get(&sequence).zip(history) {
            let mut pushed = Ok(());
            let read = history.read(*stream, sequence - 1, sequence, &mut |view| {
                pushed = writer.push(&view);
                ControlFlow::Break(())
            });
            read.map_err(|e| of_history(writer.disk, e))?;
            pushed?;
        }
        if writer.next() == sequence {
            writer.push_filler()?;
        }
    }
    Ok(())
}

fn of_history<D: Disk>(disk: &D, error: HistoryError) -> OpenError {
    error.on_open(&disk.history().unwrap_or_default(), "read")
}

/// Writes records into new segments.
struct Writer<'d, D: Disk> {
    disk: &'d D,
    preparer: Preparer<D>,
    log_id: u64,
    active: Arc<Segment<D::File>>,
    used: u64,
    batch: Batch,
    notes: Notes,
}

impl<'d, D: Disk> Writer<'d, D> {
    fn begin(
        disk: &'d D,
        segment_bytes: u64,
        (log_id, number): (u64, u64),
        first: Sequence,
    ) -> Result<Self, OpenError> {
        let preparer = Preparer::start(disk.clone(), segment_bytes, &[])
            .map_err(|e| OpenError::io(&disk.path(""), "prepare segments in", e))?;
        let prepared = take(disk, &preparer)?;
        let active = begin(disk, prepared, (log_id, number), first)?;
        Ok(Writer {
            disk,
            preparer,
            log_id,
            used: HEAD_BYTES,
            batch: Batch::new(first, HEAD_BYTES, active.bytes, segment_bytes),
            notes: Notes::default(),
            active,
        })
    }

    /// The sequence that the next record gets.
    fn next(&self) -> Sequence {
        self.batch.next
    }

    fn push(&mut self, view: &FrameView<'_>) -> Result<(), OpenError> {
        let streams: Vec<StreamNo> = view.streams.iter().map(|(stream, _)| stream).collect();
        self.push_frame(&Frame {
            kind: view.kind,
            time_ms: view.time_ms,
            streams: &streams,
            payload: &[view.payload],
        })
    }

    fn push_filler(&mut self) -> Result<(), OpenError> {
        self.push_frame(&Frame {
            kind: 0,
            time_ms: 0,
            streams: &[],
            payload: &[FILLER],
        })
    }

    fn push_frame(&mut self, frame: &Frame<'_>) -> Result<(), OpenError> {
        let pushed = self.batch.push(frame);
        pushed.map_err(|e| self.failed(std::io::Error::other(e)))?;
        if self.batch.bytes.len() >= BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }

    /// Writes the batch and syncs it.
    fn write(&mut self) -> Result<(), OpenError> {
        for part in 0..self.batch.parts.len() {
            let first = self.batch.parts[part].first;
            if part > 0 {
                let prepared = take(self.disk, &self.preparer)?;
                let number = (self.log_id, self.active.number + 1);
                self.active = begin(self.disk, prepared, number, first)?;
                self.used = HEAD_BYTES;
            }
            let place = (self.active.number, self.active.seed);
            let no_previous = &mut std::iter::empty();
            self.batch
                .seal(part, place, first - 1, &mut self.notes, no_previous);
            let bytes = self.batch.part(part);
            let written = self.active.file.write_at(bytes, self.used);
            let synced = written.and_then(|()| self.active.file.sync());
            synced.map_err(|e| self.failed(e))?;
            self.used += bytes.len() as u64;
        }
        self.notes.clear();
        self.batch
            .clear(self.batch.next, self.used, self.active.bytes);
        Ok(())
    }

    fn end(mut self) -> Result<LastSegment, OpenError> {
        if !self.batch.is_empty() {
            self.write()?;
        }
        Ok(LastSegment {
            number: self.active.number,
            first: self.active.first,
            bytes: self.active.bytes,
        })
    }

    fn failed(&self, error: std::io::Error) -> OpenError {
        OpenError::io(&self.disk.path(&self.active.name), "write", error)
    }
}

fn take<D: Disk>(disk: &D, preparer: &Preparer<D>) -> Result<Prepared<D::File>, OpenError> {
    let taken = preparer.take(1);
    let mut taken = taken.map_err(|e| OpenError::io(&disk.path(""), "make a segment in", e))?;
    Ok(taken.remove(0))
}

fn begin<D: Disk>(
    disk: &D,
    prepared: Prepared<D::File>,
    number: (u64, u64),
    first: Sequence,
) -> Result<Arc<Segment<D::File>>, OpenError> {
    let begun = recover::begin(disk, prepared, number, first);
    begun.map_err(|e| OpenError::io(&disk.path(&segment::name(first)), "make", e))
}

impl History {
    /// Of each record in a range, one of its streams.
    pub(crate) fn streams_of(
        &self,
        (from, upto): Range,
    ) -> Result<BTreeMap<Sequence, StreamNo>, HistoryError> {
        let mut streams = BTreeMap::new();
        self.each_record_key(&mut |stream, sequence| {
            if (from..=upto).contains(&sequence) {
                streams.entry(sequence).or_insert(stream);
            }
        })?;
        Ok(streams)
    }

    /// Gives `each` the stream and the sequence of every record.
    pub(crate) fn each_record_key(
        &self,
        each: &mut dyn FnMut(StreamNo, Sequence),
    ) -> Result<(), HistoryError> {
        for generation in self.generations()?.all() {
            for pair in generation.keyspace.iter() {
                if let Some((stream, sequence)) = of_record_key(&pair.key()?) {
                    each(stream, sequence);
                }
            }
        }
        Ok(())
    }
}

/// A batch of so many bytes is written.
const BATCH_BYTES: usize = 4 << 20;
