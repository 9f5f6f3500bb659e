//! Removes what is no longer kept: segments that are in history, records that exceed a limit of retention, and floors of
//! forgotten streams without records.

use crate::disk::{Disk, DiskFile};
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::floor;
use crate::history::tree::KeyspaceKind;
use crate::ids::{Sequence, StreamNo};
use crate::options::Options;
use crate::retention::LogRetention;
use crate::segments::segment::Segment;
use crate::shared::Shared;
use encke_clock::WallTime;
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Removes what is no longer kept.
#[derive(Debug)]
pub(crate) struct Retirement<D: Disk> {
    disk: D,
    shared: Arc<Shared<D>>,
    done_bytes_max: u64,
    done_age_max: Option<Duration>,
    retention: LogRetention,
    removed: Mutex<RemovalState>,
    /// The stream after which the next search for unneeded floors begins.
    swept_upto: Mutex<StreamNo>,
}

/// The state of the removal of old segments.
#[derive(Debug)]
struct RemovalState {
    /// No crash brings back records of the global order before this one.
    oldest: Sequence,
    /// A segment could not be removed: its records are there until the next open.
    failed: bool,
}

impl<D: Disk> Retirement<D> {
    pub(crate) fn new(disk: D, shared: Arc<Shared<D>>, options: &Options) -> Retirement<D> {
        // The names that the log was opened with are durable.
        let removed = RemovalState {
            oldest: shared.index.read().oldest(),
            failed: false,
        };
        Retirement {
            disk,
            shared,
            done_bytes_max: options.done_bytes_max,
            done_age_max: options.done_age_max,
            retention: options.retention,
            removed: Mutex::new(removed),
            swept_upto: Mutex::default(),
        }
    }

    /// Removes everything that is no longer kept. Failures are logged, and retried the next time.
    pub(crate) fn retire(&self) {
        let _background = self.shared.background.lock();
        self.retire_segments();
        let Some(history) = &self.shared.history else {
            return;
        };
        let expired = self
            .expire(history)
            .and_then(|()| self.sweep_floors(history));
        if let Err(error) = expired {
            let (reason, path) = (error.reason, history.path().display());
            tracing::warn!(reason, history = %path, "records past their retention are kept for now");
        }
        self.shared.measure_history();
    }

    /// The interval between two calls of [`Retirement::retire`].
    pub(crate) fn interval(&self) -> Duration {
        let ages = [self.retention.age_max, self.done_age_max];
        let shortest = ages.into_iter().flatten().min();
        let part = shortest.map_or(INTERVAL_MAX, |age| age / 8);
        part.clamp(INTERVAL_MIN, INTERVAL_MAX)
    }

    /// Removes segments that are in history and exceed a limit of the global order.
    fn retire_segments(&self) {
        // Without the lock, because the disk may hang. The caller holds `background`, so no other thread removes segments.
        let old = self.count_too_old();
        let mut index = self.shared.index.write();
        let mut kept: u64 = index.done.iter().map(|done| done.segment.bytes).sum();
        let checkpoint_upto = index.checkpoint_upto;
        let mut retired = Vec::new();
        while let Some(done) = index.done.pop_front_if(|done| {
            let too_many = kept > self.done_bytes_max;
            done.end <= checkpoint_upto + 1 && (too_many || retired.len() < old)
        }) {
            kept -= done.segment.bytes;
            retired.push(done.segment);
        }
        let oldest = index.oldest();
        drop(index);
        let mut removed = self.removed.lock();
        for segment in &retired {
            match self.disk.remove(&segment.name) {
                Ok(()) => self.shared.vitals.take_bytes(segment.bytes),
                // It is not needed, and the next open finds it again.
                Err(error) => {
                    removed.failed = true;
                    tracing::warn!(%error, name = segment.name, "cannot remove an old segment");
                }
            }
        }
        // A failed sync is repeated the next time.
        let unsynced = removed.oldest < oldest && !removed.failed;
        if retired.is_empty() && !unsynced {
            return;
        }
        match self.disk.sync_names() {
            Ok(()) if !removed.failed => removed.oldest = oldest,
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot sync the directory after removing old segments");
            }
        }
    }

    /// The number of the oldest segments in history that exceed the age.
    fn count_too_old(&self) -> usize {
        let Some(age_max) = self.done_age_max else {
            return 0;
        };
        let done: Vec<_> = {
            let index = self.shared.index.read();
            index.done.iter().map(|done| done.segment.clone()).collect()
        };
        let is_too_old = |segment: &Segment<D::File>| {
            let written_at = segment.file.written_at().ok();
            let age = written_at.and_then(|at| self.disk.now().duration_since(at).ok());
            age.is_some_and(|age| age > age_max)
        };
        let old = done.iter().take_while(|segment| is_too_old(segment));
        old.count()
    }

    /// Raises the retention floor over the records that exceed a limit, and removes the generations below it.
    fn expire(&self, history: &History) -> Result<(), HistoryError> {
        if !self.retention.is_limited() {
            return Ok(());
        }
        let Some(exempt) = self.shared.exempt.all() else {
            return Ok(());
        };
        let known = self.shared.retention_floor.get();
        let floor = known.max(self.due_floor(history)?);
        let history_upto = self.shared.index.read().history_upto;
        // A start states a floor, or a crash has interrupted the removal of what is below one.
        let below = history.generations()?.take_below(floor, history_upto);
        if floor > known || floor > 0 && !below.is_empty() {
            self.disk.between_steps()?;
            let generations = self
                .shared
                .raise_retention_floor(floor, history_upto, &exempt)?;
            tracing::debug!(floor, generations, "records are past their retention");
        }
        Ok(())
    }

    /// The last record that exceeds a limit and is known to be durable; 0 when none does. After a crash, the sequences of other
    /// records may be assigned again.
    pub(crate) fn due_floor(&self, history: &History) -> Result<Sequence, HistoryError> {
        let mut floor = 0;
        let generations = history.generations()?;
        let generations = generations.all();
        let history_upto = self.shared.index.read().history_upto;
        let last_of = |i: usize| {
            let next = generations.get(i + 1);
            next.map_or(history_upto, |next| next.first - 1)
        };
        if let Some(age) = self.retention.age_max {
            let oldest = WallTime::from(self.disk.now()).before(age);
            floor = self.shared.index.read().older_than(oldest);
            let is_old =
                |times: Option<(WallTime, WallTime)>| times.is_none_or(|(_, upto)| upto < oldest);
            let old = generations
                .iter()
                .take_while(|generation| is_old(generation.times))
                .count();
            // The newest generation may be empty because it just began. That proves nothing.
            let newest_is_empty = generations.last().is_some_and(|last| last.times.is_none());
            let old = old.min(generations.len() - usize::from(newest_is_empty));
            if let Some(last) = old.checked_sub(1) {
                floor = floor.max(last_of(last));
            }
        }
        if let Some(bytes_max) = self.retention.bytes_max {
            let bytes = generations.iter().map(|one| one.keyspace.disk_space());
            let mut bytes: u64 = bytes.sum();
            for (i, generation) in generations.iter().enumerate() {
                if bytes <= bytes_max || i + 1 == generations.len() {
                    break;
                }
                bytes -= generation.keyspace.disk_space();
                floor = floor.max(last_of(i));
            }
        }
        let sealed_upto = {
            let index = self.shared.index.read();
            index
                .segments
                .back()
                .map_or(0, |active| active.segment.first - 1)
        };
        let durable_upto = self.shared.superblock.statement().durable_upto;
        Ok(floor.min(sealed_upto.max(durable_upto)))
    }

    /// Drops the floors of forgotten streams without records, a bounded number each time.
    fn sweep_floors(&self, history: &History) -> Result<(), HistoryError> {
        let mut cursor = self.swept_upto.lock();
        // A segment that a crash brings back must not bring back forgotten records.
        let oldest = self.removed.lock().oldest;
        let mut candidates: Vec<StreamNo> = Vec::new();
        let mut seen = 0;
        let after = std::mem::take(&mut *cursor);
        history.floors_after(after, &mut |stream, value| {
            // All its records are older.
            if floor::forgotten_at(&value).is_some_and(|at| at <= oldest) {
                candidates.push(stream);
            }
            seen += 1;
            if seen < SWEPT_FLOORS {
                return ControlFlow::Continue(());
            }
            *cursor = stream;
            ControlFlow::Break(())
        })?;
        let mut unneeded = Vec::new();
        for stream in candidates {
            if !history.has_any(stream)? {
                unneeded.push(stream);
            }
        }
        if unneeded.is_empty() {
            return Ok(());
        }
        self.disk.between_steps()?;
        history.ingest(KeyspaceKind::Floors, |put| {
            unneeded
                .iter()
                .try_for_each(|stream| put(&stream.to_be_bytes(), None))
        })
    }
}

/// The bounds of the interval, which is an eighth of the shortest age.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// How many floors are examined each time.
const SWEPT_FLOORS: usize = 4096;
