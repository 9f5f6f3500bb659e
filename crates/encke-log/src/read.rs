//! The path of a read.

use crate::disk::{Disk, DiskFile};
use crate::error::ReadError;
use crate::failed_read::Wanted;
use crate::files::Files;
use crate::floor::{Floors, MetFloors};
use crate::frame::{self, FrameView, HEAD_BYTES, STREAM_BYTES};
use crate::health::{Health, Vitals};
use crate::history::{History, HistoryError};
use crate::index::{Entry, Index, Places, Start};
use crate::retention::{ClassFloors, class_of};
use crate::scan::{Scan, Step, WINDOW_BYTES};
use crate::segment::Segment;
use crate::state::States;
use crate::superblock::Superblock;
use crate::{Sequence, StreamNo};
use parking_lot::{Mutex, RwLock};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the writer, the readers and the background work share.
#[derive(Debug)]
pub(crate) struct Shared<D: Disk> {
    /// Where the segments are, for messages. The disk itself stays with the writer: its lock must not live as long as the
    /// last reader does.
    pub(crate) directory: PathBuf,
    pub(crate) index: RwLock<Index<D::File>>,
    pub(crate) vitals: Vitals,
    pub(crate) states: States,
    pub(crate) floors: Floors,
    pub(crate) class_floors: ClassFloors,
    pub(crate) history: Option<History>,
    pub(crate) superblock: Arc<Superblock<D::File>>,
    /// Held while the statement of history is made and changed.
    pub(crate) stating: Mutex<()>,
}

impl<D: Disk> Shared<D> {
    pub(crate) fn health(&self) -> Health {
        // The newest segment is being written, the others wait.
        let waiting = self.index.read().segments.len().saturating_sub(1);
        let history_bytes = self.history.as_ref().map_or(0, History::bytes);
        self.vitals.health(waiting, history_bytes)
    }

    /// The records of a stream up to this one are gone; 0 when none are.
    pub(crate) fn floor(&self, stream: StreamNo) -> Result<Sequence, HistoryError> {
        let of_class = self.class_floors.of(class_of(stream));
        Ok(self.floors.of(stream, self.history.as_ref())?.max(of_class))
    }

    /// An error of history as a reader sees it.
    pub(crate) fn unreadable(&self, error: HistoryError) -> ReadError {
        ReadError::History {
            path: self
                .history
                .as_ref()
                .map_or(&*self.directory, History::path)
                .to_owned(),
            reason: error.reason,
            io: error.io,
        }
    }
}

/// Reads what is published. Cheap to clone; every thread may have its own.
#[derive(Debug)]
pub struct Reader<D: Disk = Files> {
    shared: Arc<Shared<D>>,
}

/// How far a read came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEnd {
    /// Everything up to this sequence was given. It is the last record's when there is more, and otherwise what was
    /// asked for, but never beyond what is published, so a reader may go on from here without missing anything.
    pub last: Sequence,
    /// Whether there is more of what was asked for.
    pub more: bool,
    /// The floor when the read began: of one stream, its records up to this one are gone, 0 when none are. When it is beyond
    /// the position that the read was to go on from, there may have been something in between that nobody will see any more.
    /// [`FORGOTTEN`](crate::FORGOTTEN) when all of the stream is gone. Of the global order, always 0: a read of it that comes
    /// too late is [`ReadError::NoLongerKept`].
    pub floor: Sequence,
}

impl<D: Disk> Reader<D> {
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Reader<D> {
        Reader { shared }
    }

    pub(crate) fn shared(&self) -> &Shared<D> {
        &self.shared
    }

    pub(crate) fn shared_arc(&self) -> &Arc<Shared<D>> {
        &self.shared
    }

    /// The last record that can be read; 0 when there is none.
    pub fn published(&self) -> Sequence {
        self.shared.index.read().published
    }

    /// How the log is.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Why no record behind `published` will ever be there to be read, if that is so: the log has failed and nothing more is
    /// published.
    pub fn given_up(&self, published: Sequence) -> Option<Arc<str>> {
        let reason = self.shared.vitals.poisoned()?;
        // Asked afterwards, because something may have been published just before the log failed.
        (self.published() == published).then_some(reason)
    }

    /// Gives `each` the records of a stream with `after` < sequence <= `upto`, in order, until about `bytes_max` bytes
    /// were given, but at least one record.
    ///
    /// # Errors
    /// Something could not be read or is damaged. What was given before is right, and what follows is not absent.
    pub fn read(
        &self,
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<ReadEnd, ReadError> {
        let read = self.read_stream(stream, after, upto, bytes_max, each);
        self.watch(read, || Wanted::Stream {
            stream,
            after,
            upto,
            bytes_max,
        })
    }

    pub(crate) fn read_stream(
        &self,
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<ReadEnd, ReadError> {
        let shared = &self.shared;
        let floor = shared.floor(stream).map_err(|e| shared.unreadable(e))?;
        let from = after.max(floor);
        let records_max = bytes_max / (HEAD_BYTES + STREAM_BYTES) + 1;
        let index = shared.index.read();
        let upto = upto.min(index.published);
        let history_upto = index.history_upto.min(upto);
        // One more than can be given, so that it is known whether there is more.
        let found = find(
            &index,
            stream,
            from.max(index.history_upto),
            upto,
            records_max + 1,
        );
        drop(index);
        let mut left = bytes_max;
        let mut last = None;
        let mut more = false;
        if let Some(history) = &shared.history {
            let read = history.read(stream, from, history_upto, &mut |view| {
                if left == 0 && last.is_some() {
                    more = true;
                    return ControlFlow::Break(());
                }
                last = Some(view.sequence);
                left = left.saturating_sub(HEAD_BYTES + STREAM_BYTES + view.payload.len());
                each(view);
                ControlFlow::Continue(())
            });
            read.map_err(|e| shared.unreadable(e))?;
        }
        if let (true, Some(last)) = (more, last) {
            return Ok(ReadEnd { last, more, floor });
        }
        for (segment, entries) in &found {
            let mut window = Window::new(&shared.directory, segment);
            for (i, entry) in entries.iter().enumerate() {
                if let (true, Some(last)) = (left == 0, last) {
                    let more = true;
                    return Ok(ReadEnd { last, more, floor });
                }
                let (bytes, sequence) = window.frame(entry, &entries[i..], left, |frame| {
                    each(frame.view(Some(stream)));
                })?;
                last = Some(sequence);
                left = left.saturating_sub(bytes);
            }
        }
        Ok(ReadEnd {
            last: upto.max(after),
            more: false,
            floor,
        })
    }

    /// Gives `each` all records with `after` < sequence <= `upto`, in order, until about `bytes_max` bytes were given, but
    /// at least one record.
    ///
    /// # Errors
    /// As [`Reader::read`], and [`ReadError::NoLongerKept`] when records after `after` are gone from the global order.
    pub fn read_all(
        &self,
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<ReadEnd, ReadError> {
        let read = self.read_order(after, upto, bytes_max, each);
        self.watch(read, || Wanted::Order {
            after,
            upto,
            bytes_max,
        })
    }

    pub(crate) fn read_order(
        &self,
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<ReadEnd, ReadError> {
        let mut walk = Walk {
            floors: MetFloors::default(),
            last: after,
            left: bytes_max,
            given: false,
        };
        loop {
            let index = self.shared.index.read();
            let upto = upto.min(index.published);
            let last = walk.last;
            if last >= upto {
                let (more, floor) = (false, 0);
                return Ok(ReadEnd { last, more, floor });
            }
            if walk.left == 0 && walk.given {
                let (more, floor) = (true, 0);
                return Ok(ReadEnd { last, more, floor });
            }
            let oldest = index.oldest();
            // There are records, so if no segment has them, they are gone, whatever the reason.
            let start = index.start(last + 1).filter(|_| oldest <= last + 1);
            drop(index);
            let Some(start) = start else {
                return Err(ReadError::NoLongerKept {
                    after: last,
                    oldest,
                });
            };
            match start.at {
                Some(at) => {
                    self.walk(&start.segment, at, upto.min(start.end - 1), &mut walk, each)?;
                }
                None => self.find_places(&start)?,
            }
        }
    }

    /// Finds the places of a segment that was in history when the log was opened.
    fn find_places(&self, start: &Start<D::File>) -> Result<(), ReadError> {
        let (segment, directory) = (&*start.segment, &self.shared.directory);
        let mut places = Places::default();
        let mut scan = Scan::new(segment, WINDOW_BYTES);
        while scan.due() < start.end {
            let (position, due) = (scan.position(), scan.due());
            match scan
                .next()
                .map_err(|e| unreadable(directory, segment, position, e))?
            {
                Step::Record(position, frame) => {
                    let delta = (frame.sequence - segment.first) as u32;
                    places.note(Entry { delta, position }, frame.time_ms);
                }
                Step::Watermark(_) => {}
                Step::End(position, flaw) => {
                    return Err(damaged(directory, segment, position, due, flaw));
                }
            }
        }
        self.shared
            .index
            .write()
            .keep_places(segment.number, places);
        Ok(())
    }

    /// Walks through a segment from `at` on and gives what comes after the last record, up to `upto` and while there is
    /// anything left to give.
    fn walk(
        &self,
        segment: &Segment<D::File>,
        at: Entry,
        upto: Sequence,
        walk: &mut Walk,
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<(), ReadError> {
        let directory = &self.shared.directory;
        let due = segment.first + u64::from(at.delta);
        let window_bytes = WALK_BYTES.min(walk.left.saturating_add(GAP_BYTES));
        let mut scan = Scan::from(segment, at.position, due, window_bytes);
        while walk.last < upto && (walk.left > 0 || !walk.given) {
            let (position, due) = (scan.position(), scan.due());
            match scan
                .next()
                .map_err(|e| unreadable(directory, segment, position, e))?
            {
                Step::Record(_, frame) if frame.sequence <= walk.last => {}
                Step::Record(_, frame) => {
                    let hidden = walk.floors.hide(frame.sequence, frame.streams, |stream| {
                        self.shared.floor(stream)
                    });
                    if !hidden.map_err(|e| self.shared.unreadable(e))? {
                        each(frame.view(None));
                        walk.given = true;
                        walk.left = walk.left.saturating_sub(frame.bytes as usize);
                    }
                    walk.last = frame.sequence;
                }
                Step::Watermark(_) => {}
                Step::End(position, flaw) => {
                    return Err(damaged(directory, segment, position, due, flaw));
                }
            }
        }
        Ok(())
    }
}

/// How far a read of the global order has come.
struct Walk {
    floors: MetFloors,
    last: Sequence,
    /// How many bytes may still be given, and whether any record was.
    left: usize,
    given: bool,
}

impl<D: Disk> Clone for Reader<D> {
    fn clone(&self) -> Self {
        Reader {
            shared: self.shared.clone(),
        }
    }
}

/// Where the records of a stream with `after` < sequence <= `upto` lie, at most `records_max` of them.
fn find<F>(
    index: &Index<F>,
    stream: StreamNo,
    after: Sequence,
    upto: Sequence,
    records_max: usize,
) -> Vec<(Arc<Segment<F>>, Vec<Entry>)> {
    let mut found = Vec::new();
    let mut left = records_max;
    for segment in index.from(after.saturating_add(1)) {
        let wanted = |entry: &Entry| segment.segment.first + u64::from(entry.delta) <= upto;
        let mut entries = segment.records(stream, after.saturating_add(1), left);
        entries.truncate(entries.partition_point(wanted));
        left -= entries.len();
        if !entries.is_empty() {
            found.push((segment.segment.clone(), entries));
        }
        if left == 0 {
            break;
        }
    }
    found
}

/// A piece of a segment in memory, read so that records that lie close together need one read.
struct Window<'s, F> {
    directory: &'s Path,
    segment: &'s Segment<F>,
    buffer: Vec<u8>,
    from: u64,
}

impl<'s, F: DiskFile> Window<'s, F> {
    fn new(directory: &'s Path, segment: &'s Segment<F>) -> Self {
        Window {
            directory,
            segment,
            buffer: Vec::new(),
            from: 0,
        }
    }

    /// Gives `each` the frame of `entry`; says how long it is and which record. `entries` begin with it and go on with
    /// what will be wanted next, of which about `left` bytes are.
    fn frame(
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

/// How far to read for these records: over gaps that cost less to read than another read does.
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

fn unreadable<F>(
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

fn damaged<F>(
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
const WALK_BYTES: usize = 256 << 10;
/// What is read over rather than skipped; also what is read of a frame whose length is not known yet.
const GAP_BYTES: usize = 4 << 10;
