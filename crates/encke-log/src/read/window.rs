//! A part of a segment in memory, so that frames that lie close together need one read.

use crate::disk::DiskFile;
use crate::error::ReadError;
use crate::ids::Sequence;
use crate::segments::frame;
use crate::segments::index::Entry;
use crate::segments::segment::Segment;
use std::path::Path;

/// A part of a segment in memory.
pub(crate) struct Window<'s, F> {
    directory: &'s Path,
    segment: &'s Segment<F>,
    buffer: Vec<u8>,
    from: u64,
}

impl<'s, F: DiskFile> Window<'s, F> {
    pub(crate) fn new(directory: &'s Path, segment: &'s Segment<F>) -> Self {
        Window {
            directory,
            segment,
            buffer: Vec::new(),
            from: 0,
        }
    }

    /// Gives `each` the frame of `entry`. Returns its length and its sequence. `entries` begin with it and continue
    /// with the next wanted ones, of which about `left` bytes are needed.
    pub(crate) fn frame(
        &mut self,
        entry: &Entry,
        entries: &[Entry],
        left: usize,
        each: impl FnOnce(&frame::Parsed<'_>),
    ) -> Result<(usize, Sequence), ReadError> {
        let due = self.segment.first + u64::from(entry.delta);
        let position = u64::from(entry.position);
        let flawed = |flaw| damaged(self.directory, self.segment, position, due, flaw);
        let room = self.segment.bytes.saturating_sub(position);
        if self.at(position, 4).is_none() {
            let bytes = span(entries, left) + GAP_BYTES;
            self.fill(position, bytes)?;
        }
        let head = self.at(position, 4).and_then(|head| head.first_chunk());
        let bytes = frame::length(head.unwrap_or(&[0; 4]), room).map_err(flawed)? as usize;
        if self.at(position, bytes).is_none() {
            self.fill(position, bytes)?;
        }
        let bytes = self.at(position, bytes).ok_or_else(|| {
            damaged(
                self.directory,
                self.segment,
                position,
                due,
                frame::Flaw::Length,
            )
        })?;
        let flawed = |flaw| damaged(self.directory, self.segment, position, due, flaw);
        let frame = frame::parse(bytes, self.segment.seed).map_err(flawed)?;
        if frame.sequence != due || frame.watermark {
            return Err(flawed(frame::Flaw::Sequence));
        }
        each(&frame);
        Ok((frame.bytes as usize, frame.sequence))
    }

    /// The length of the frame of `entry`, if it is at least `min` bytes. The other arguments are those of [`Window::frame`].
    pub(crate) fn large(
        &mut self,
        entry: &Entry,
        entries: &[Entry],
        left: usize,
        min: u32,
    ) -> Result<Option<u32>, ReadError> {
        let due = self.segment.first + u64::from(entry.delta);
        let position = u64::from(entry.position);
        let room = self.segment.bytes.saturating_sub(position);
        if self.at(position, 4).is_none() {
            self.fill(position, span(entries, left) + GAP_BYTES)?;
        }
        let head = self.at(position, 4).and_then(|head| head.first_chunk());
        let bytes = frame::length(head.unwrap_or(&[0; 4]), room)
            .map_err(|flaw| damaged(self.directory, self.segment, position, due, flaw))?;
        Ok((bytes >= min).then_some(bytes))
    }

    /// Gives `each` the frame of `entry`, as [`Window::frame`] does. `older` are the wanted ones before it, newest first.
    pub(crate) fn frame_back(
        &mut self,
        entry: &Entry,
        older: &[Entry],
        left: usize,
        each: impl FnOnce(&frame::Parsed<'_>),
    ) -> Result<(usize, Sequence), ReadError> {
        let position = u64::from(entry.position);
        if self.at(position, 4).is_none() {
            let before = span_back(entry, older, left);
            self.fill(position - before as u64, before + GAP_BYTES)?;
        }
        self.frame(entry, std::slice::from_ref(entry), 0, each)
    }

    /// `bytes` bytes from `position`, if they are in memory.
    fn at(&self, position: u64, bytes: usize) -> Option<&[u8]> {
        let from = usize::try_from(position.checked_sub(self.from)?).ok()?;
        self.buffer.get(from..from.checked_add(bytes)?)
    }

    fn fill(&mut self, position: u64, bytes: usize) -> Result<(), ReadError> {
        let bytes = bytes.min(self.segment.bytes.saturating_sub(position) as usize);
        self.from = position;
        self.buffer.resize(bytes, 0);
        let read = self.segment.file.read_at(&mut self.buffer, position);
        let read = read.map_err(|e| unreadable(self.directory, self.segment, position, e))?;
        self.buffer.truncate(read);
        Ok(())
    }
}

/// How far to read for these records: over gaps that are cheaper to read than another read.
fn span(entries: &[Entry], left: usize) -> usize {
    let Some(first) = entries.first() else {
        return 0;
    };
    let reach = WALK_BYTES.min(left.saturating_add(GAP_BYTES)) as u32;
    let near = entries.windows(2).take_while(|pair| {
        pair[1].position - pair[0].position <= GAP_BYTES as u32
            && pair[1].position - first.position <= reach
    });
    near.last()
        .map_or(0, |pair| (pair[1].position - first.position) as usize)
}

/// How far to read before the record of `entry`, so that the older ones near it come with it: as [`span`], in the other direction.
fn span_back(entry: &Entry, older: &[Entry], left: usize) -> usize {
    let reach = WALK_BYTES.min(left) as u32;
    let mut begin = entry.position;
    for entry_before in older {
        if begin - entry_before.position > GAP_BYTES as u32
            || entry.position - entry_before.position > reach
        {
            break;
        }
        begin = entry_before.position;
    }
    (entry.position - begin) as usize
}

pub(crate) fn unreadable<F>(
    directory: &Path,
    segment: &Segment<F>,
    position: u64,
    source: std::io::Error,
) -> ReadError {
    ReadError::Io {
        file: directory.join(&segment.name),
        position,
        source,
    }
}

pub(crate) fn damaged<F>(
    directory: &Path,
    segment: &Segment<F>,
    position: u64,
    sequence: Sequence,
    flaw: frame::Flaw,
) -> ReadError {
    ReadError::Damaged {
        file: directory.join(&segment.name),
        position,
        sequence,
        what: flaw.text(),
    }
}

/// The most that is read of a segment at once for a reader.
pub(crate) const WALK_BYTES: usize = 256 << 10;
/// A gap up to this size is read over; also the first read of a frame whose length is not known.
pub(crate) const GAP_BYTES: usize = 4 << 10;
