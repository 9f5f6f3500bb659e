//! What is too old or too much to be kept goes: segments that are done, records of classes with limits, and floors of streams
//! of which nothing is left.

use crate::disk::{Disk, DiskFile};
use crate::history::{History, HistoryError, Kind};
use crate::retention::ClassRetention;
use crate::seal::Work;
use crate::stored;
use crate::{Sequence, StreamNo};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

impl<D: Disk> Work<D> {
    /// Looks for everything that may go. What fails is said, and tried again the next time.
    pub(crate) fn retire(&self) {
        self.retire_segments();
        let Some(history) = &self.shared.history else {
            return;
        };
        let expired = self
            .expire(history)
            .and_then(|()| self.sweep_floors(history));
        if let Err(error) = expired {
            let (reason, path) = (error.reason, history.path().display());
            tracing::warn!(reason, history = %path, "what is past its retention stays for now");
        }
    }

    /// Raises the floors of classes, and leaves the rest to the background.
    pub(crate) fn raise_class_floors(&self) -> Result<(), HistoryError> {
        if let Some(history) = &self.shared.history {
            for retention in &self.retention {
                let floor = self.due_floor(history, retention)?;
                self.shared.class_floors.raise(retention.class, floor);
            }
        }
        Ok(())
    }

    /// How long to wait at most before looking again.
    pub(crate) fn retire_every(&self) -> Duration {
        let ages = self
            .retention
            .iter()
            .filter_map(|retention| retention.age_max);
        let shortest = ages.chain(self.done_age_max).min();
        let part = shortest.map_or(EVERY_MAX, |age| age / 8);
        part.clamp(EVERY_MIN, EVERY_MAX)
    }

    /// Removes segments that are in history and older than the global order has to go back.
    fn retire_segments(&self) {
        let mut index = self.shared.index.write();
        let mut kept: u64 = index.done.iter().map(|done| done.segment.bytes).sum();
        let checkpoint_upto = index.checkpoint_upto;
        let mut retired = Vec::new();
        while let Some(done) = index.done.pop_front_if(|done| {
            let too_many = kept > self.done_bytes_max;
            done.end <= checkpoint_upto + 1 && (too_many || self.is_too_old(&done.segment.file))
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
                // It is of no use and will be found again by the next open.
                Err(error) => {
                    removed.failed = true;
                    tracing::warn!(%error, name = segment.name, "cannot remove an old segment");
                }
            }
        }
        // What a sync that failed has left is synced the next time.
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

    fn is_too_old(&self, file: &D::File) -> bool {
        let Some(age_max) = self.done_age_max else {
            return false;
        };
        let written_at = file.written_at().ok();
        let age = written_at.and_then(|at| self.disk.now().duration_since(at).ok());
        age.is_some_and(|age| age > age_max)
    }

    /// Raises the floors of classes over what is past their limits, and removes the generations below.
    fn expire(&self, history: &History) -> Result<(), HistoryError> {
        let limited = || {
            self.retention
                .iter()
                .filter(|retention| retention.is_limited())
        };
        if limited().next().is_none() {
            return Ok(());
        }
        let stated = self.shared.superblock.statement().history;
        let durable = stated.map_or_else(Vec::new, |stated| stated.class_floors);
        for retention in limited() {
            let class = retention.class;
            let floor = self.due_floor(history, retention)?;
            self.shared.class_floors.raise(class, floor);
            // What may not be durable itself has no durable floor: its sequences might be given again after a crash.
            let (history_upto, sealed_upto) = {
                let index = self.shared.index.read();
                let active = index.segments.back();
                let sealed_upto = active.map_or(0, |active| active.segment.first - 1);
                (index.history_upto, sealed_upto)
            };
            let floor = self.shared.class_floors.of(class).min(sealed_upto);
            let mut known = durable.iter().filter(|(of, _)| *of == class);
            let raised = floor > known.next().map_or(0, |(_, known)| *known);
            // A crash may have come between raising the floor and removing what is below.
            let second = history.generations()?.of(class).get(1).map(|one| one.first);
            if raised || second.is_some_and(|first| first <= floor + 1) {
                self.disk.between_steps()?;
                let generations = self.shared.raise_class_floor(class, floor, history_upto)?;
                tracing::debug!(
                    class,
                    floor,
                    generations,
                    "records are past their retention"
                );
            }
        }
        Ok(())
    }

    /// Up to which record a class is past its limits.
    fn due_floor(
        &self,
        history: &History,
        retention: &ClassRetention,
    ) -> Result<Sequence, HistoryError> {
        let mut floor = 0;
        let generations = history.generations()?;
        let generations = generations.of(retention.class);
        let history_upto = self.shared.index.read().history_upto;
        let last_of = |i: usize| {
            let next = generations.get(i + 1);
            next.map_or(history_upto, |next| next.first - 1)
        };
        if let Some(age_ms) = retention.age_ms_max() {
            let now = self.disk.now().duration_since(SystemTime::UNIX_EPOCH);
            let now_ms = now.map_or(0, |now| now.as_millis() as u64);
            let oldest_ms = now_ms.saturating_sub(age_ms);
            floor = self.shared.index.read().older_than(oldest_ms);
            let is_old = |times: Option<(u64, u64)>| times.is_none_or(|(_, upto)| upto < oldest_ms);
            let old = generations
                .iter()
                .take_while(|generation| is_old(generation.times_ms))
                .count();
            // The newest one may be empty because it was just begun; that says nothing.
            let newest_is_empty = generations
                .last()
                .is_some_and(|last| last.times_ms.is_none());
            let old = old.min(generations.len() - usize::from(newest_is_empty));
            if let Some(last) = old.checked_sub(1) {
                floor = floor.max(last_of(last));
            }
        }
        if let Some(bytes_max) = retention.bytes_max {
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
        Ok(floor)
    }

    /// Drops the floors of forgotten streams of which nothing is left, some of them each time.
    fn sweep_floors(&self, history: &History) -> Result<(), HistoryError> {
        let mut cursor = self.swept_upto.lock();
        // A segment that a crash brings back must not bring back what was forgotten.
        let oldest = self.removed.lock().oldest;
        let mut candidates: Vec<StreamNo> = Vec::new();
        let mut seen = 0;
        let after = std::mem::take(&mut *cursor);
        history.floors_after(after, &mut |stream, value| {
            // Every record of it is older than that.
            if stored::forgotten_at(&value).is_some_and(|at| at <= oldest) {
                candidates.push(stream);
            }
            seen += 1;
            if seen < SWEPT_FLOORS {
                return ControlFlow::Continue(());
            }
            *cursor = stream;
            ControlFlow::Break(())
        })?;
        let mut gone = Vec::new();
        for stream in candidates {
            if !history.has_any(stream)? {
                gone.push(stream);
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        self.disk.between_steps()?;
        history.ingest(Kind::Floors, |put| {
            gone.iter()
                .try_for_each(|stream| put(&stream.to_be_bytes(), None))
        })
    }
}

/// How often to look for what may go: an eighth of the shortest age, but not more and not less often than this.
const EVERY_MIN: Duration = Duration::from_millis(100);
const EVERY_MAX: Duration = Duration::from_secs(60);
/// How many floors are looked at each time.
const SWEPT_FLOORS: usize = 4096;
