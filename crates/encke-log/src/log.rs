//! The writer: batches in memory, one write, one sync, then readers see it.

use crate::Sequence;
use crate::batch::{FrameBatch, Notes};
use crate::disk::{Disk, DiskFile, is_shortage};
use crate::error::{AppendError, CommitError, OpenError, ReadError};
use crate::files::Files;
use crate::floor::Floors;
use crate::frame::{self, Frame, FrameView};
use crate::health::{Health, Vitals, WriteTime};
use crate::index::SegmentIndex;
use crate::opening::{self, Opening};
use crate::options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::prepare::{Prepared, Preparer};
use crate::read::{Reader, Shared};
use crate::recover::{self, Recovered};
use crate::retention::ClassFloors;
use crate::salvage;
use crate::seal::Sealer;
use crate::segment::{self, Segment};
use crate::state::States;
use crate::statement::{LastSegment, Statement};
use crate::superblock::Superblock;
use crate::tail::TailKeeper;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The one writer of a log. Readers are made with [`Log::reader`].
///
/// A batch goes [`append`](Log::append) (as often as wanted), [`write`](Log::write), [`sync`](Log::sync),
/// [`publish`](Log::publish). A caller that acknowledges before the sync publishes after the write.
///
/// Dropping a log stops its background work and leaves what was not synced to the operating system, as a crash would;
/// [`Log::close`] makes it durable.
#[derive(Debug)]
pub struct Log<D: Disk = Files> {
    disk: D,
    options: Options,
    pub(crate) shared: Arc<Shared<D>>,
    preparer: Preparer<D>,
    pub(crate) sealer: Sealer<D>,
    tail: TailKeeper<D>,
    /// Whether the log is idle and the superblock is to state its end.
    end_wanted: bool,
    log_id: u64,
    active: Arc<Segment<D::File>>,
    /// Segments that were begun and are not published.
    begun: VecDeque<Arc<Segment<D::File>>>,
    /// How many bytes of the active segment are written.
    used: u64,
    batch: FrameBatch,
    notes: Notes,
    /// Up to which record everything is written; durable; called durable by a frame.
    written_upto: Sequence,
    durable_upto: Sequence,
    vouched_upto: Sequence,
    /// Whether something was written to the active segment and not synced.
    dirty: bool,
    pub(crate) sealed_since_checkpoint: bool,
    poisoned: Option<Arc<str>>,
}

impl Log {
    /// Opens the log in a directory, or makes one there. `replay` is given each record since the last checkpoint, in
    /// order; when opening fails after all, what it was given is void.
    ///
    /// # Errors
    /// See [`OpenError`]. A log that was damaged is refused, and the error names the file and the position.
    pub fn open(
        directory: &Path,
        options: Options,
        replay: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<Log, OpenError> {
        Log::open_on(Files::lock(directory)?, options, replay)
    }
}

impl<D: Disk> Log<D> {
    /// [`Log::open`] on any disk. The disk must be this log's alone.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_on(
        disk: D,
        options: Options,
        replay: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<Log<D>, OpenError> {
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
            return Err(OpenError::SegmentBytes {
                bytes: options.segment_bytes,
                min: SEGMENT_BYTES_MIN,
                max: SEGMENT_BYTES_MAX,
            });
        }
        let directory = |action| {
            let disk = &disk;
            move |e| OpenError::io(&disk.path(""), action, e)
        };
        // First everything is looked at; nothing is changed before it is known to be whole.
        let mut opening = Opening::of(&disk)?;
        let (fingerprints, marks) = opening.inspect(&disk)?;
        let stated = opening.statement.as_ref();
        let log_id = match stated {
            Some(stated) => stated.log_id,
            None => opening::salt(&disk)?,
        };
        let found = recover::find(&disk, &opening.names, stated, marks, replay)?;
        let preparer = Preparer::start(disk.clone(), options.segment_bytes, &opening.names)
            .map_err(directory("prepare segments in"))?;
        // A history of a version that stated nothing is stated together with its marks. A new one is made only when a superblock is there,
        // so that one without it can't be taken for a new one.
        let is_made = stated.is_some() || opening.history.is_none();
        let mut opened = match is_made {
            true => None,
            false => opening.open_history(&disk, log_id, &options)?,
        };
        if let Some(opened) = &mut opened {
            opened.identify(log_id)?;
        }
        let stated_history = match &opened {
            Some(opened) => Some(opened.stated.clone()),
            None => stated.and_then(|stated| stated.history.clone()),
        };
        let statement = Statement {
            log_id,
            identified_from: stated.map_or(found.next_number(), |stated| stated.identified_from),
            last: found.last(options.segment_bytes),
            durable_upto: stated.map_or(0, |stated| stated.durable_upto),
            history: stated_history,
        };
        let superblock = Superblock::write(&disk, opening.superblocks.take(), statement)?;
        if is_made {
            opened = opening.open_history(&disk, log_id, &options)?;
            if let Some(opened) = &mut opened {
                opened.history.set_fingerprints(fingerprints);
                opened.identify(log_id)?;
            }
        }
        let (history, stated_history) =
            opened.map(|opened| (opened.history, opened.stated)).unzip();
        superblock
            .change(|statement| statement.history = stated_history)
            .map_err(directory("write the superblock in"))?;
        if let Some(path) = disk.history() {
            // The mark of a repair whose outcome is stated by now.
            salvage::finish(&path).map_err(directory("finish a repair in"))?;
        }
        if let Some(history) = &history {
            let formatted = history.set_format();
            formatted.map_err(|e| e.on_open(history.path(), "write to"))?;
        }
        let Recovered {
            active,
            used,
            active_bytes,
            next,
            vouched_upto,
            index,
        } = recover::recover(&disk, &preparer, log_id, found)?;
        let last = LastSegment {
            number: active.number,
            first: active.first,
            bytes: active_bytes,
        };
        superblock
            .change(|statement| {
                statement.last = Some(last);
                statement.reaches(next - 1);
            })
            .map_err(directory("write the superblock in"))?;
        let class_floors = superblock
            .statement()
            .history
            .unwrap_or_default()
            .class_floors;
        let superblock = Arc::new(superblock);
        let tail = TailKeeper::start(superblock.clone())
            .map_err(directory("state the end of the log in"))?;
        let vitals = Vitals::default();
        let done = index.done.iter().map(|done| done.segment.bytes);
        let waiting = index.segments.iter().map(|segment| segment.segment.bytes);
        vitals.add_bytes(done.chain(waiting).sum());
        let sealed_since_checkpoint = active.first > marks.checkpoint_upto + 1;
        let sealed: Vec<_> = index
            .segments
            .iter()
            .take(index.segments.len() - 1)
            .map(|sealed| (sealed.segment.clone(), sealed.end()))
            .collect();
        let shared = Arc::new(Shared {
            directory: disk.path(""),
            index: RwLock::new(index),
            vitals,
            states: States::default(),
            floors: Floors::default(),
            class_floors: ClassFloors::new(class_floors.into_iter()),
            history,
            superblock,
            stating: Mutex::default(),
        });
        let sealer = Sealer::start(disk.clone(), shared.clone(), &options)
            .map_err(directory("seal segments in"))?;
        // Before anybody reads: what went before must not be seen for a moment.
        if let (Err(error), Some(history)) = (sealer.raise_class_floors(), &shared.history) {
            return Err(error.on_open(history.path(), "read"));
        }
        for (segment, end) in sealed {
            sealer.segment(segment, end);
        }
        let batch = FrameBatch::new(next, used, active.bytes, options.segment_bytes);
        Ok(Log {
            shared,
            sealer,
            tail,
            end_wanted: false,
            log_id,
            disk,
            options,
            preparer,
            active,
            begun: VecDeque::new(),
            used,
            batch,
            notes: Notes::default(),
            written_upto: next - 1,
            durable_upto: next - 1,
            vouched_upto,
            dirty: false,
            sealed_since_checkpoint,
            poisoned: None,
        })
    }

    /// The sequence that the next appended frame will get.
    pub fn next_sequence(&self) -> Sequence {
        self.batch.next
    }

    /// The largest frame that can be stored, in bytes, with 44 bytes for its head and its first stream and 16 for each
    /// further stream.
    pub fn frame_bytes_max(&self) -> u64 {
        Segment::<D::File>::room(self.options.segment_bytes)
    }

    /// Takes a frame into the batch in memory, and gives it its sequence.
    ///
    /// # Errors
    /// The frame is too large; the batch is as it was. A poisoned log takes frames, and refuses to write them.
    pub fn append(&mut self, frame: &Frame<'_>) -> Result<Sequence, AppendError> {
        self.batch.push(frame)
    }

    /// How many bytes the batch in memory has.
    pub fn batch_bytes(&self) -> usize {
        self.batch.bytes.len()
    }

    /// Drops the batch in memory. Its sequences are given again.
    pub fn abandon(&mut self) {
        self.batch
            .clear(self.written_upto + 1, self.used, self.active.bytes);
    }

    /// Writes the batch. What fits the active segment goes there with one write; what does not goes to the next ones,
    /// each begun when the one before it is durable. When a segment is begun and too many wait for history, so does this.
    ///
    /// # Errors
    /// [`CommitError::NoSpace`] when there is no room, and [`CommitError::HistoryFailed`] when too many segments wait for
    /// history and it does not take them: nothing was written, the batch is still there.
    /// [`CommitError::Poisoned`] when something failed, now or before.
    pub fn write(&mut self) -> Result<(), CommitError> {
        self.check()?;
        if self.batch.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let mut time = WriteTime::default();
        let written = self.write_batch(&mut time);
        let upto = self.written_upto;
        let vitals = &self.shared.vitals;
        vitals.add_write(begun.elapsed(), &time, upto);
        written
    }

    fn write_batch(&mut self, time: &mut WriteTime) -> Result<(), CommitError> {
        let rolls = self.batch.parts.len() - 1;
        let prepared = match rolls {
            0 => Vec::new(),
            rolls => self.wait_for_segments(rolls, time)?,
        };
        self.seal_batch(prepared.iter().map(|prepared| segment::seed(prepared.salt)));
        self.write_part(0)?;
        for (part, prepared) in (1..).zip(prepared) {
            let rolling = Instant::now();
            self.sync()?;
            let first = self.batch.parts[part].first;
            let number = (self.log_id, self.active.number + 1);
            let begun = recover::begin(&self.disk, prepared, number, first);
            self.active = begun.map_err(|error| self.poison("beginning a segment", &error))?;
            match self.state_segment() {
                // A later segment than the stated one is fine, and the next statement has it.
                Err(error) if is_shortage(&error) => {
                    tracing::warn!(%error, "there is no room to state a segment");
                }
                stated => stated.map_err(|error| self.poison("stating a segment", &error))?,
            }
            time.rolling += rolling.elapsed();
            self.shared.vitals.add_bytes(self.active.bytes);
            self.begun.push_back(self.active.clone());
            self.used = segment::HEAD_BYTES;
            self.write_part(part)?;
        }
        self.batch
            .clear(self.batch.next, self.used, self.active.bytes);
        Ok(())
    }

    /// States durably that the active segment is the last one.
    fn state_segment(&self) -> std::io::Result<()> {
        let active = &self.active;
        let last = LastSegment {
            number: active.number,
            first: active.first,
            bytes: active.bytes,
        };
        self.shared.superblock.change(|statement| {
            statement.last = Some(last);
            statement.reaches(last.first - 1);
        })
    }

    /// Waits for room in history and takes so many files that are ready to become segments.
    fn wait_for_segments(
        &mut self,
        count: usize,
        time: &mut WriteTime,
    ) -> Result<Vec<Prepared<D::File>>, CommitError> {
        let waiting = Instant::now();
        if !self.sealer.has_room(self.options.waiting_segments_max) {
            // It may take long, and what is written must not wait for its sync as long.
            self.sync()?;
            time.rolling += waiting.elapsed();
        }
        let waiting = Instant::now();
        let room = self.sealer.wait_for_room(self.options.waiting_segments_max);
        time.for_history = waiting.elapsed();
        if let Err(failed) = room {
            return Err(failed.of_write(self.options.segment_bytes));
        }
        let waiting = Instant::now();
        let prepared = self.preparer.take(count);
        time.for_segment = waiting.elapsed();
        prepared.map_err(|error| {
            if is_shortage(&error) {
                return CommitError::NoSpace {
                    bytes: self.options.segment_bytes,
                    reason: error.to_string().into(),
                };
            }
            let vitals = &self.shared.vitals;
            let failed = vitals.poison(&format!("preparing a segment failed: {error}"));
            if let CommitError::Poisoned { reason } = &failed {
                self.poisoned = Some(reason.clone());
            }
            failed
        })
    }

    /// Makes durable what was written, with one `fdatasync`; nothing is done when everything is.
    ///
    /// # Errors
    /// [`CommitError::Poisoned`] when it failed, now or before. Nothing that was written since the last sync may be
    /// acknowledged then.
    pub fn sync(&mut self) -> Result<(), CommitError> {
        self.check()?;
        if self.dirty {
            let begun = Instant::now();
            let synced = self.active.file.sync();
            return self.note_sync(begun.elapsed(), synced, self.written_upto);
        }
        self.durable_upto = self.written_upto;
        Ok(())
    }

    /// Whether everything that was written is durable.
    pub fn is_synced(&self) -> bool {
        !self.dirty
    }

    /// The segment that was written to and not synced, and what the last record written is.
    pub(crate) fn unsynced(&self) -> Option<(&Arc<Segment<D::File>>, Sequence)> {
        let dirty = self.dirty && self.poisoned.is_none();
        dirty.then_some((&self.active, self.written_upto))
    }

    /// How a sync of the active segment went, since whose begin nothing was written to it.
    pub(crate) fn note_sync(
        &mut self,
        took: Duration,
        synced: std::io::Result<()>,
        written_upto: Sequence,
    ) -> Result<(), CommitError> {
        debug_assert_eq!(
            written_upto, self.written_upto,
            "written while it was synced"
        );
        self.shared.vitals.add_sync(took);
        synced.map_err(|error| self.poison("making a batch durable", &error))?;
        self.dirty = false;
        self.durable_upto = written_upto;
        self.tail.state_from_time_to_time(written_upto);
        self.state_end_if_wanted();
        Ok(())
    }

    /// Has the end of an idle log stated, once everything is synced.
    fn state_end_if_wanted(&mut self) {
        if !self.dirty && std::mem::take(&mut self.end_wanted) {
            self.tail.state(self.durable_upto);
        }
    }

    /// Shows readers everything that was written. A poisoned log publishes nothing.
    pub fn publish(&mut self) {
        if self.poisoned.is_some() {
            return;
        }
        let mut sealed = Vec::new();
        let mut index = self.shared.index.write();
        for (note, streams) in self.notes.iter() {
            if let Some(segment) = self
                .begun
                .pop_front_if(|segment| segment.first <= note.sequence)
            {
                let before = index.segments.back();
                sealed.extend(before.map(|before| (before.segment.clone(), before.end())));
                let streams = before.map_or(0, SegmentIndex::streams);
                let begun = SegmentIndex::new(segment, streams);
                index.segments.push_back(begun);
            }
            let at = (note.sequence, note.time_ms);
            index.insert(streams.iter().copied(), at, note.position);
        }
        index.published = self.written_upto;
        drop(index);
        self.notes.clear();
        self.sealed_since_checkpoint |= !sealed.is_empty();
        for (segment, end) in sealed {
            self.sealer.segment(segment, end);
        }
    }

    /// Writes down, when nothing else is being written, that everything is durable, in the log and in the superblock. Then damage to the
    /// last batch can be told from a torn one even if nothing follows. It is worth doing when the log falls idle, and [`Log::close`] does it.
    ///
    /// # Errors
    /// As [`Log::write`]. The mark itself is durable after the next sync.
    pub fn mark_durable(&mut self) -> Result<(), CommitError> {
        self.check()?;
        let idle = self.batch.is_empty() && self.durable_upto == self.written_upto;
        let room = self.active.bytes - self.used >= frame::WATERMARK_BYTES as u64;
        self.end_wanted |= idle;
        if !idle || !room || self.vouched_upto == self.durable_upto {
            self.state_end_if_wanted();
            return Ok(());
        }
        let mark = frame::watermark(self.batch.next, self.durable_upto, self.active.seed);
        let written = self.active.file.write_at(&mark, self.used);
        written.map_err(|error| self.poison("writing a watermark", &error))?;
        self.dirty = true;
        self.vouched_upto = self.durable_upto;
        self.used += mark.len() as u64;
        self.batch
            .clear(self.batch.next, self.used, self.active.bytes);
        Ok(())
    }

    /// A reader of what is published. Readers may be cloned and sent to other threads; they outlive the log.
    pub fn reader(&self) -> Reader<D> {
        Reader::new(self.shared.clone())
    }

    /// What gives the gauge of the mailbox in which work waits for the background. It may be kept when the log is gone.
    pub fn background(&self) -> impl Fn() -> encke_mailbox::Gauge + Send + Sync + use<D> {
        self.sealer.gauge()
    }

    /// How the log is.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Writes the batch, makes everything durable, says so in the log, and waits for the background work to end. Readers
    /// can't read history any more then.
    ///
    /// # Errors
    /// As [`Log::write`] and [`Log::sync`]; [`CommitError::HistoryFailed`] when everything is durable and only the background
    /// work is left to the next open.
    pub fn close(mut self) -> Result<(), CommitError> {
        self.write()?;
        self.sync()?;
        self.mark_durable()?;
        self.sync()?;
        self.publish();
        let worked = self.sealer.wait_for_all();
        let upto = self.durable_upto;
        let stated = self.state_end(upto);
        stated.map_err(|error| self.poison("stating the end of the log", &error))?;
        worked.map_err(|failed| CommitError::HistoryFailed {
            reason: failed.reason,
        })
    }

    /// States how far the log reaches, and the lists of tables that compaction has left.
    fn state_end(&self, upto: Sequence) -> std::io::Result<()> {
        self.shared
            .superblock
            .change(|statement| statement.reaches(upto))?;
        let Some(history) = &self.shared.history else {
            return Ok(());
        };
        // Compaction ends with this.
        history.close();
        if let Err(error) = self.shared.state_closed_history() {
            // The lists that were stated before are there, or newer ones.
            tracing::warn!(reason = error.reason, history = %history.path().display(), "the newest lists of tables are not stated");
        }
        Ok(())
    }

    /// Compacts all of history now, so that what is below floors that are durable takes no space any more. It takes long and
    /// many reads and writes; by itself this happens bit by bit.
    ///
    /// # Errors
    /// History could not be read or written.
    pub fn reclaim(&self) -> Result<(), ReadError> {
        let shared = &self.shared;
        match &shared.history {
            Some(history) => history.compact().map_err(|e| shared.unreadable(e)),
            None => Ok(()),
        }
    }

    /// Looks now for what is too old or too much to be kept. The background does it from time to time by itself.
    pub fn retire(&self) {
        self.sealer.retire();
    }

    fn check(&self) -> Result<(), CommitError> {
        match &self.poisoned {
            Some(reason) => Err(CommitError::Poisoned {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    fn poison(&mut self, action: &str, error: &std::io::Error) -> CommitError {
        let file = self.disk.path(&self.active.name);
        let error = self
            .shared
            .vitals
            .poison(&format!("{action} failed in {}: {error}", file.display()));
        if let CommitError::Poisoned { reason } = &error {
            self.poisoned = Some(reason.clone());
        }
        error
    }

    /// Finishes all frames of the batch: previous positions, what is durable, checksums.
    fn seal_batch(&mut self, seeds: impl Iterator<Item = u32>) {
        // All look-ups first and nothing else between them: each waits for memory, and so they wait together.
        let index = self.shared.index.read();
        let previous: Vec<_> = (self.batch.streams.iter())
            .map(|stream| index.last(*stream))
            .collect();
        drop(index);
        let mut previous = previous.into_iter();
        let mut durable_upto = self.durable_upto;
        let seeds = std::iter::once(self.active.seed).chain(seeds);
        for ((part, seed), number) in seeds.enumerate().zip(self.active.number..) {
            // A segment is begun only when all before it is durable.
            if part > 0 {
                durable_upto = self.batch.parts[part].first - 1;
            }
            self.batch.seal(
                part,
                (number, seed),
                durable_upto,
                &mut self.notes,
                &mut previous,
            );
        }
    }

    fn write_part(&mut self, part: usize) -> Result<(), CommitError> {
        let bytes = self.batch.part(part);
        if bytes.is_empty() {
            return Ok(());
        }
        let written = self.active.file.write_at(bytes, self.used);
        let bytes = bytes.len() as u64;
        written.map_err(|error| self.poison("writing a batch", &error))?;
        self.dirty = true;
        self.vouched_upto = self.vouched_upto.max(self.durable_upto);
        self.used += bytes;
        let next = self
            .batch
            .parts
            .get(part + 1)
            .map_or(self.batch.next, |next| next.first);
        self.written_upto = next - 1;
        Ok(())
    }
}

impl<D: Disk> Drop for Log<D> {
    fn drop(&mut self) {
        // The job that is being done is done first: history does not close under it.
        self.sealer.stop();
        if let Some(history) = &self.shared.history {
            history.close();
        }
    }
}
