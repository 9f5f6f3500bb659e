//! Writes new segments with the records of history and of sound segments.
//!
//! New segments are written beside the old ones, under names that a log ignores. When all are durable, a mark with the
//! new statement is written. Only then the old segments are set aside and the new ones renamed. An interrupted repair
//! continues there.

use encke_clock::WallTime;

use crate::diagnosis::ranges::Range;
use crate::diagnosis::survey::Surveyed;
use crate::disk::file_name::{self, REWRITTEN, REWRITTEN_MARK, aside, is_rewritten};
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::stored::of_record_key;
use crate::ids::{Sequence, StreamNo};
use crate::options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::segments::frame::{FILLER, Frame, FrameView};
use crate::segments::scan::{Scan, Step, WINDOW_BYTES};
use crate::segments::segment::{HEAD_BYTES, Segment};
use crate::superblock::statement::{LastSegment, Statement};
use crate::write::batch::{FrameBatch, UnpublishedRecords};
use crate::write::prepare::{self, PreparedFile, Preparer};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The sources of the records of new segments.
pub(crate) struct Sources<'s, F> {
    pub(crate) history: Option<&'s History>,
    pub(crate) surveyed: &'s [Surveyed<F>],
}

/// Writes the records of a range into new segments beside the old ones; `number` is that of the first one. Returns the
/// last one. A record that no source has becomes a filler. The log continues at `next`; when the range is empty, an
/// empty segment begins there.
pub(crate) fn rewrite<D: Disk>(
    disk: &D,
    sources: &Sources<'_, D::File>,
    (from, upto): Range,
    (log_id, number): (u64, u64),
    next: Sequence,
) -> Result<LastSegment, OpenError> {
    if from > upto {
        // The next open replaces an empty segment that is smaller than the configured size.
        return Writer::begin(disk, SEGMENT_BYTES_MIN, (log_id, number), next)?.end();
    }
    let segments = sources.surveyed.iter();
    let segments = segments.filter_map(|found| found.segment.as_ref());
    let largest = segments.map(|segment| segment.bytes).max();
    let segment_bytes = largest.unwrap_or(Options::default().segment_bytes);
    let segment_bytes = segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let mut writer = Writer::begin(disk, segment_bytes, (log_id, number), from)?;
    let in_history = match sources.history {
        Some(history) => streams_of(history, (from, upto)),
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

/// Writes all records before `end` from history.
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
            let read = history.read(*stream, sequence - 1, sequence, &mut |view, _| {
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
    batch: FrameBatch,
    unpublished: UnpublishedRecords,
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
        for name in names(disk)?.iter().filter(|name| is_rewritten(name)) {
            // Left from an interrupted attempt.
            disk.remove(name)
                .map_err(|e| OpenError::io(&disk.path(name), "remove", e))?;
        }
        let prepared = take(disk, &preparer)?;
        let active = begin(disk, prepared, (log_id, number), first)?;
        Ok(Writer {
            disk,
            preparer,
            log_id,
            used: HEAD_BYTES,
            batch: FrameBatch::new(first, HEAD_BYTES, active.bytes, segment_bytes),
            unpublished: UnpublishedRecords::default(),
            active,
        })
    }

    /// The sequence of the next record.
    fn next(&self) -> Sequence {
        self.batch.next
    }

    fn push(&mut self, view: &FrameView<'_>) -> Result<(), OpenError> {
        let streams: Vec<StreamNo> = view.streams.iter().map(|(stream, _)| stream).collect();
        self.push_frame(&Frame {
            kind: view.kind,
            time: view.time,
            streams: &streams,
            payload: &[view.payload],
        })
    }

    fn push_filler(&mut self) -> Result<(), OpenError> {
        self.push_frame(&Frame {
            kind: 0,
            time: WallTime::from_ms(0),
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
                .seal(part, place, first - 1, &mut self.unpublished, no_previous);
            let bytes = self.batch.part(part);
            let written = self.active.file.write_at(bytes, self.used);
            let synced = written.and_then(|()| self.active.file.sync());
            synced.map_err(|e| self.failed(e))?;
            self.used += bytes.len() as u64;
        }
        self.unpublished.clear();
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

fn take<D: Disk>(disk: &D, preparer: &Preparer<D>) -> Result<PreparedFile<D::File>, OpenError> {
    let taken = preparer.take(1);
    let mut taken = taken.map_err(|e| OpenError::io(&disk.path(""), "make a segment in", e))?;
    Ok(taken.remove(0))
}

fn begin<D: Disk>(
    disk: &D,
    prepared: PreparedFile<D::File>,
    number: (u64, u64),
    first: Sequence,
) -> Result<Arc<Segment<D::File>>, OpenError> {
    let name = format!("{}{REWRITTEN}", file_name::segment(first));
    let begun = prepare::begin_as(disk, prepared, number, first, name.clone());
    begun.map_err(|e| OpenError::io(&disk.path(&name), "make", e))
}

/// Marks durably that the new segments are complete, with the number of the first one and the statement that holds when
/// they are in their places.
pub(crate) fn mark_complete<D: Disk>(
    disk: &D,
    first_number: u64,
    statement: &Statement,
) -> Result<(), OpenError> {
    let content = statement.encode(first_number);
    let new = format!("{REWRITTEN_MARK}.new");
    let made = disk.create(&new, content.len() as u64).and_then(|file| {
        file.write_at(&content, 0)?;
        file.sync()?;
        disk.rename(&new, REWRITTEN_MARK)?;
        disk.sync_names()
    });
    made.map_err(|e| OpenError::io(&disk.path(REWRITTEN_MARK), "write", e))
}

/// The number of the first new segment and the new statement, if new segments are complete and not all in their places.
pub(crate) fn complete<D: Disk>(disk: &D) -> Option<(u64, Statement)> {
    let file = disk.open(REWRITTEN_MARK).ok()?;
    let mut content = vec![0; usize::try_from(file.bytes().ok()?).ok()?];
    file.read_at(&mut content, 0).ok()?;
    Statement::decode(&content).ok()
}

/// Sets the old segments aside and renames the new ones.
pub(crate) fn put_in_place<D: Disk>(disk: &D, first_number: u64) -> Result<(), OpenError> {
    let failed = |name: &str, action| {
        let path = disk.path(name);
        move |e| OpenError::io(&path, action, e)
    };
    let all = names(disk)?;
    let mut segments: Vec<_> = (all.iter())
        .filter(|name| file_name::first_of(name).is_some())
        .collect();
    segments.sort_unstable();
    // The newest first: after an interruption, the rest has no gap that looks sound.
    for name in segments.into_iter().rev() {
        let is_new = Segment::open(disk, name).is_ok_and(|one| one.number >= first_number);
        if !is_new {
            disk.rename(name, &aside(&all, name))
                .map_err(failed(name, "rename"))?;
        }
    }
    disk.sync_names()
        .map_err(failed("", "sync the directory"))?;
    let mut rewritten: Vec<_> = all
        .iter()
        .filter(|name| name.ends_with(REWRITTEN))
        .collect();
    rewritten.sort_unstable();
    // The newest first, so that a renamed one is never taken for an old one.
    for name in rewritten.into_iter().rev() {
        let place = name.strip_suffix(REWRITTEN).unwrap_or(name);
        disk.rename(name, place).map_err(failed(name, "rename"))?;
    }
    disk.sync_names().map_err(failed("", "sync the directory"))
}

/// Removes the mark, when the new statement is in the superblock.
pub(crate) fn finish<D: Disk>(disk: &D) -> Result<(), OpenError> {
    let removed = disk.remove(REWRITTEN_MARK).and_then(|()| disk.sync_names());
    removed.map_err(|e| OpenError::io(&disk.path(REWRITTEN_MARK), "remove", e))
}

fn names<D: Disk>(disk: &D) -> Result<Vec<String>, OpenError> {
    let names = disk.names();
    names.map_err(|e| OpenError::io(&disk.path(""), "list", e))
}

/// For each record of a range in history, one of its streams.
fn streams_of(
    history: &History,
    (from, upto): Range,
) -> Result<BTreeMap<Sequence, StreamNo>, HistoryError> {
    let mut streams = BTreeMap::new();
    for keyspace in history.generations()?.keyspaces() {
        for pair in keyspace.iter() {
            if let Some((stream, sequence)) = of_record_key(&pair.key()?)
                && (from..=upto).contains(&sequence)
            {
                streams.entry(sequence).or_insert(stream);
            }
        }
    }
    Ok(streams)
}

/// A batch of this size is written.
const BATCH_BYTES: usize = 4 << 20;
