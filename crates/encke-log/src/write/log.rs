//! The writer of a log: batches are built in memory, written once, synced once, then published.

use crate::background::seal::Sealer;
use crate::disk::files::Files;
use crate::disk::unfinished_marker::refuse_unfinished;
use crate::disk::{Disk, DiskFile, is_shortage};
use crate::error::{AppendError, CommitError, OpenError, ReadError};
use crate::health::{Health, WriteTime};
use crate::history::floor::{FORGOTTEN, Floor};
use crate::history::state::{PendingCheckpoint, StateEntry};
use crate::ids::{Sequence, StreamNo};
use crate::options::Options;
use crate::read::reader::Reader;
use crate::segments::frame::{Frame, FrameView};
use crate::segments::index::SegmentIndex;
use crate::segments::segment::{self, Segment};
use crate::shared::Shared;
use crate::start::{self, Started};
use crate::superblock::updater::SuperblockUpdater;
use crate::write::active_segment::ActiveSegment;
use crate::write::batch::{FrameBatch, UnpublishedRecords};
use crate::write::deferred_sync::{DeferredSync, DeferredSyncResult};
use crate::write::prepare::{self, PreparedFile, Preparer};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The only writer of a log. [`Log::reader`] makes readers.
///
/// A batch goes through [`append`](Log::append) (repeatedly), [`write`](Log::write), [`sync`](Log::sync) and
/// [`publish`](Log::publish). A caller that acknowledges before the sync publishes after the write.
///
/// Dropping a log stops its background work, and leaves unsynced data to the operating system, as a crash would.
/// [`Log::close`] makes everything durable.
#[derive(Debug)]
pub struct Log<D: Disk = Files> {
    disk: D,
    options: Options,
    pub(crate) shared: Arc<Shared<D>>,
    preparer: Preparer<D>,
    pub(crate) sealer: Sealer<D>,
    superblock_updater: SuperblockUpdater<D>,
    /// Whether the log is idle and the superblock is to state its end.
    end_wanted: bool,
    log_id: u64,
    active: ActiveSegment<D::File>,
    /// Segments that were begun and are not published.
    begun: VecDeque<Arc<Segment<D::File>>>,
    batch: FrameBatch,
    unpublished: UnpublishedRecords,
    pub(crate) sealed_since_checkpoint: bool,
    poisoned: Option<Arc<str>>,
}

impl Log {
    /// Opens the log in a directory, or makes one there. `replay` gets each record since the last checkpoint, in order.
    /// When opening fails, these records are void.
    ///
    /// # Errors
    /// See [`OpenError`]. A damaged log is refused, and the error names the file and the position.
    pub fn open(
        directory: &Path,
        options: Options,
        replay: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<Log, OpenError> {
        refuse_unfinished(directory)?;
        Log::open_on(Files::lock(directory)?, options, replay)
    }
}

impl<D: Disk> Log<D> {
    /// [`Log::open`] on any disk. No other log may use the disk.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_on(
        disk: D,
        options: Options,
        replay: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<Log<D>, OpenError> {
        let Started {
            disk,
            shared,
            preparer,
            sealer,
            superblock_updater,
            log_id,
            active,
            used,
            next,
            confirmed_upto,
            sealed_since_checkpoint,
        } = start::start(disk, &options, replay)?;
        let batch = FrameBatch::new(next, used, active.bytes, options.segment_bytes);
        Ok(Log {
            shared,
            sealer,
            superblock_updater,
            end_wanted: false,
            log_id,
            disk,
            options,
            preparer,
            active: ActiveSegment::new(active, used, next - 1, confirmed_upto),
            begun: VecDeque::new(),
            batch,
            unpublished: UnpublishedRecords::default(),
            sealed_since_checkpoint,
            poisoned: None,
        })
    }

    /// The sequence of the next appended frame.
    pub fn next_sequence(&self) -> Sequence {
        self.batch.next
    }

    /// Adds a frame to the batch in memory. Returns its sequence.
    ///
    /// # Errors
    /// The frame is too large; the batch is unchanged. A poisoned log takes frames, and refuses to write them.
    pub fn append(&mut self, frame: &Frame<'_>) -> Result<Sequence, AppendError> {
        self.batch.push(frame)
    }

    /// The size of the batch in memory, in bytes.
    pub fn batch_bytes(&self) -> usize {
        self.batch.bytes.len()
    }

    /// Drops the batch in memory. Its sequences are assigned again.
    pub fn abandon(&mut self) {
        let next = self.active.written_upto() + 1;
        self.clear_batch(next);
    }

    /// Writes the batch. The part that fits goes to the active segment with one write, the rest to new segments, each
    /// begun when the one before it is durable. A write that needs a new segment waits while too many segments wait for
    /// history.
    ///
    /// # Errors
    /// [`CommitError::NoSpace`] when there is no room, and [`CommitError::HistoryFailed`] when too many segments wait
    /// and history fails: nothing was written, the batch is kept. [`CommitError::Poisoned`] when this or an earlier
    /// write or sync failed.
    pub fn write(&mut self) -> Result<(), CommitError> {
        self.check()?;
        if self.batch.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let mut time = WriteTime::default();
        let written = self.write_batch(&mut time);
        let upto = self.active.written_upto();
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
            let number = (self.log_id, self.active.segment().number + 1);
            let begun = prepare::begin(&self.disk, prepared, number, first);
            let begun = begun.map_err(|error| self.poison("beginning a segment", &error))?;
            self.active.roll(begun);
            match self.state_segment() {
                // The superblock may state an earlier segment than the last one. The next statement has it.
                Err(error) if is_shortage(&error) => {
                    tracing::warn!(%error, "there is no room to state a segment");
                }
                stated => stated.map_err(|error| self.poison("stating a segment", &error))?,
            }
            time.rolling += rolling.elapsed();
            let begun = self.active.segment();
            self.shared.vitals.add_bytes(begun.bytes);
            self.begun.push_back(begun.clone());
            self.write_part(part)?;
        }
        self.clear_batch(self.batch.next);
        Ok(())
    }

    /// Empties the batch; it then begins with the record `next` in the active segment.
    fn clear_batch(&mut self, next: Sequence) {
        let capacity = self.active.segment().bytes;
        self.batch.clear(next, self.active.used(), capacity);
    }

    /// States durably that the active segment is the last one.
    fn state_segment(&self) -> std::io::Result<()> {
        let last = self.active.stated();
        self.shared.superblock.change(|statement| {
            statement.last = Some(last);
            statement.note_durable(last.first - 1);
        })
    }

    /// Waits for room in history, then takes prepared files for new segments.
    fn wait_for_segments(
        &mut self,
        count: usize,
        time: &mut WriteTime,
    ) -> Result<Vec<PreparedFile<D::File>>, CommitError> {
        let waiting = Instant::now();
        if !self.sealer.has_room(self.options.waiting_segments_max) {
            // The wait may be long, and written records should not wait for their sync.
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

    /// Makes all written records durable, with one `fdatasync`. Does nothing when they are.
    ///
    /// # Errors
    /// [`CommitError::Poisoned`] when this or an earlier write or sync failed. Then no record written since the last
    /// sync may be acknowledged.
    pub fn sync(&mut self) -> Result<(), CommitError> {
        self.check()?;
        if self.active.is_dirty() {
            let begun = Instant::now();
            let synced = self.active.segment().file.sync();
            return self.note_sync(begun.elapsed(), synced, self.active.written_upto());
        }
        self.active.note_synced();
        Ok(())
    }

    /// Whether everything that was written is durable.
    pub fn is_synced(&self) -> bool {
        !self.active.is_dirty()
    }

    /// Begins the sync of [`Log::sync`], to be run without the log; `None` when everything is durable, or the log is
    /// poisoned. Until [`Log::finish_sync`], frames may be appended and published, and nothing may be written or
    /// synced: of two concurrent syncs only one gets the error of the disk.
    pub fn defer_sync(&self) -> Option<DeferredSync<D>> {
        let unsynced = self.active.is_dirty() && self.poisoned.is_none();
        let active = &self.active;
        unsynced.then(|| DeferredSync::new(active.segment().clone(), active.written_upto()))
    }

    /// Completes a sync.
    ///
    /// # Errors
    /// As [`Log::sync`]: it failed, and the log is poisoned.
    pub fn finish_sync(&mut self, synced: DeferredSyncResult) -> Result<(), CommitError> {
        self.note_sync(synced.took, synced.result, synced.written_upto)
    }

    /// Completes a sync of the active segment, which was not written to since the sync began.
    fn note_sync(
        &mut self,
        took: Duration,
        synced: std::io::Result<()>,
        written_upto: Sequence,
    ) -> Result<(), CommitError> {
        debug_assert_eq!(
            written_upto,
            self.active.written_upto(),
            "written while it was synced"
        );
        self.shared.vitals.add_sync(took);
        synced.map_err(|error| self.poison("making a batch durable", &error))?;
        self.active.note_synced();
        self.superblock_updater.state_periodically(written_upto);
        self.state_end_if_wanted();
        Ok(())
    }

    /// Requests a statement of the end of an idle log, once everything is synced.
    fn state_end_if_wanted(&mut self) {
        if !self.active.is_dirty() && std::mem::take(&mut self.end_wanted) {
            self.superblock_updater.state(self.active.durable_upto());
        }
    }

    /// Publishes all written records to readers. A poisoned log publishes nothing.
    pub fn publish(&mut self) {
        if self.poisoned.is_some() {
            return;
        }
        let mut sealed = Vec::new();
        let mut index = self.shared.index.write();
        for (record, streams) in self.unpublished.iter() {
            if let Some(segment) = self
                .begun
                .pop_front_if(|segment| segment.first <= record.sequence)
            {
                let before = index.segments.back();
                sealed.extend(before.map(|before| (before.segment.clone(), before.end())));
                let streams = before.map_or(0, SegmentIndex::streams);
                let begun = SegmentIndex::new(segment, streams);
                index.segments.push_back(begun);
            }
            let at = (record.sequence, record.time);
            index.insert(streams.iter().copied(), at, record.position);
        }
        index.published = self.active.written_upto();
        drop(index);
        self.unpublished.clear();
        self.sealed_since_checkpoint |= !sealed.is_empty();
        for (segment, end) in sealed {
            self.sealer.segment(segment, end);
        }
    }

    /// Removes the records of a stream up to `floor`: no read returns them any more, and their space is reclaimed when history is
    /// compacted there. A floor never sinks.
    ///
    /// A floor is durable when the next checkpoint is. Until then it must follow from a record, so that it is set again when
    /// that record is replayed.
    pub fn set_floor(&mut self, stream: StreamNo, floor: Sequence) {
        let at = self.next_sequence();
        let floor = Floor { upto: floor, at };
        self.shared.floors.raise(stream, floor);
    }

    /// Removes all records of a stream, further ones included. Its number must not be used again: when no record of the stream
    /// is left on the disk, its floor is dropped too.
    pub fn forget(&mut self, stream: StreamNo) {
        self.set_floor(stream, FORGOTTEN);
        self.shared.large_places.forget_stream(stream);
    }

    /// Begins to remove the records that exceed a limit of [`Options::retention`], except those of these streams, which stay until
    /// they are below a floor of their own stream. Before this call nothing is removed. Exemptions are not stored: each opening
    /// names them again.
    pub fn start_retention(&self, exempt: impl IntoIterator<Item = StreamNo>) {
        self.shared.exempt.set(exempt.into_iter().collect());
    }

    /// Exempts a further stream from retention, before its first record is published.
    pub fn exempt(&self, stream: StreamNo) {
        self.shared.exempt.add(stream);
    }

    /// Whether a segment was sealed since the last checkpoint, so that another checkpoint would shorten the next
    /// replay.
    pub fn wants_checkpoint(&self) -> bool {
        self.sealed_since_checkpoint
    }

    /// The number of checkpoints that are not durable yet; they are kept in memory.
    pub fn checkpoints_waiting(&self) -> usize {
        self.shared.states.waiting()
    }

    /// Changes the state store. `entries` are the changes since the last checkpoint (the last entry of a key counts);
    /// with them, the store is the state after the last published record. Entries can be read at once. They become
    /// durable in the background, all or none, with the floors that are set. Later opens replay only later records.
    /// Without history nothing here is ever durable, and opens replay everything.
    ///
    /// Call it when all written records are published. Published records are synced first, because a state must not
    /// outlive the records that it follows from. A poisoned log takes no checkpoint.
    pub fn checkpoint(&mut self, entries: Vec<StateEntry>) {
        if let Err(CommitError::Poisoned { .. }) = self.sync() {
            return;
        }
        self.sealed_since_checkpoint = false;
        if self.shared.history.is_none() {
            self.shared.states.settle(entries);
            return;
        }
        let pending = Arc::new(PendingCheckpoint::new(entries));
        self.shared.states.push(pending.clone());
        let upto = self.reader().published();
        self.sealer
            .checkpoint(upto, pending, self.shared.floors.raised());
    }

    /// Gives `each` all entries of the state store whose key begins with `prefix`, in the order of their keys.
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn states(
        &self,
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), ReadError> {
        self.reader().states(prefix, each)
    }

    /// One entry of the state store.
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.reader().state(key)
    }

    /// Records that everything is durable, in the log and in the superblock, when nothing else is being written. Then
    /// damage to the last batch can be distinguished from a torn batch even if nothing follows. Call it when the log
    /// becomes idle; [`Log::close`] calls it.
    ///
    /// # Errors
    /// As [`Log::write`]. The mark itself is durable after the next sync.
    pub fn mark_durable(&mut self) -> Result<(), CommitError> {
        self.check()?;
        let idle =
            self.batch.is_empty() && self.active.durable_upto() == self.active.written_upto();
        self.end_wanted |= idle;
        let marked = match idle {
            true => self.active.write_watermark(),
            false => Ok(false),
        };
        if marked.map_err(|error| self.poison("writing a watermark", &error))? {
            self.clear_batch(self.batch.next);
        } else {
            self.state_end_if_wanted();
        }
        Ok(())
    }

    /// A reader of the published records. Readers can be cloned and sent to other threads; they outlive the log.
    pub fn reader(&self) -> Reader<D> {
        Reader::new(self.shared.clone())
    }

    /// Returns a function for the gauge of the mailbox of the background. It can outlive the log.
    pub fn background(&self) -> impl Fn() -> encke_mailbox::Gauge + Send + Sync + use<D> {
        self.sealer.gauge()
    }

    /// The health of the log.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Writes the batch, makes everything durable, records that in the log, and waits for the background work to end.
    /// Readers can't read history afterwards.
    ///
    /// # Errors
    /// As [`Log::write`] and [`Log::sync`]; [`CommitError::HistoryFailed`] when everything is durable and only
    /// background work is left to the next open.
    pub fn close(mut self) -> Result<(), CommitError> {
        self.write()?;
        self.sync()?;
        self.mark_durable()?;
        self.sync()?;
        self.publish();
        let worked = self.sealer.wait_for_all();
        let upto = self.active.durable_upto();
        let stated = self.state_end(upto);
        stated.map_err(|error| self.poison("stating the end of the log", &error))?;
        worked.map_err(|failed| CommitError::HistoryFailed {
            reason: failed.reason,
        })
    }

    /// States the last durable record, and the lists of tables that compaction has made.
    fn state_end(&self, upto: Sequence) -> std::io::Result<()> {
        self.shared
            .superblock
            .change(|statement| statement.note_durable(upto))?;
        let Some(history) = &self.shared.history else {
            return Ok(());
        };
        // This ends compaction.
        history.close();
        if let Err(error) = self.shared.state_closed_history() {
            // The directory holds the stated lists, or newer ones.
            tracing::warn!(reason = error.reason, history = %history.path().display(), "the newest lists of tables are not stated");
        }
        Ok(())
    }

    /// Compacts all of history, so that records below durable floors take no space. This takes long and many reads and
    /// writes; background compaction does it gradually.
    ///
    /// # Errors
    /// History could not be read or written.
    pub fn reclaim(&self) -> Result<(), ReadError> {
        let shared = &self.shared;
        match &shared.history {
            Some(history) => history.compact().map_err(|e| shared.unreadable(e))?,
            None => return Ok(()),
        }
        shared.measure_history();
        Ok(())
    }

    /// Removes what is no longer kept. The background does it periodically.
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
        let file = self.disk.path(&self.active.segment().name);
        let error = self
            .shared
            .vitals
            .poison(&format!("{action} failed in {}: {error}", file.display()));
        if let CommitError::Poisoned { reason } = &error {
            self.poisoned = Some(reason.clone());
        }
        error
    }

    /// Completes the frames of the batch; the segments that it begins have these seeds.
    fn seal_batch(&mut self, seeds: impl Iterator<Item = u32>) {
        // All look-ups in a row: each is a cache miss, and so they overlap.
        let index = self.shared.index.read();
        let previous: Vec<_> = (self.batch.streams.iter())
            .map(|stream| index.last(*stream))
            .collect();
        drop(index);
        let (batch, unpublished) = (&mut self.batch, &mut self.unpublished);
        self.active.seal_batch(batch, unpublished, previous, seeds);
    }

    fn write_part(&mut self, part: usize) -> Result<(), CommitError> {
        let written = self.active.write_part(&self.batch, part);
        written.map_err(|error| self.poison("writing a batch", &error))
    }
}

impl<D: Disk> Drop for Log<D> {
    fn drop(&mut self) {
        // The job in flight ends first: history must not be closed during it.
        self.sealer.stop();
        if let Some(history) = &self.shared.history {
            history.close();
        }
    }
}
