//! The state that the writer, the readers and the background work share, and the statement of history.

use crate::disk::Disk;
use crate::error::ReadError;
use crate::health::{Health, Vitals};
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::floors::Floors;
use crate::history::state::States;
use crate::history::state_range::{EachState, StateRange};
use crate::ids::{Sequence, StreamNo};
use crate::read::large::VerifiedRecords;
use crate::read::large_places::LargePlaces;
use crate::retention::{ExemptStreams, RetentionFloor};
use crate::segments::index::Index;
use crate::superblock::Superblock;
use crate::superblock::statement::StatedHistory;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// The state that the writer, the readers and the background work share.
#[derive(Debug)]
pub(crate) struct Shared<D: Disk> {
    /// The directory of the segments, for messages. The disk itself stays with the writer: readers must not keep its
    /// lock.
    pub(crate) directory: PathBuf,
    pub(crate) index: RwLock<Index<D::File>>,
    pub(crate) vitals: Vitals,
    pub(crate) states: States,
    pub(crate) floors: Floors,
    pub(crate) retention_floor: RetentionFloor,
    pub(crate) exempt: ExemptStreams,
    pub(crate) verified: VerifiedRecords,
    pub(crate) large_places: LargePlaces,
    pub(crate) history: Option<History>,
    pub(crate) superblock: Arc<Superblock<D::File>>,
    /// Held while the statement of history is made and changed.
    pub(crate) stating: Mutex<()>,
    /// Held while background work changes what is in history or removes segments, and while a snapshot is taken.
    pub(crate) background: Mutex<()>,
}

impl<D: Disk> Shared<D> {
    /// The health of the log. It waits for no disk, so that a thread that serves clients may ask.
    pub(crate) fn health(&self) -> Health {
        // The newest segment is still written to; the others wait.
        let waiting = self.index.read().segments.len().saturating_sub(1);
        self.vitals.health(waiting)
    }

    /// Measures how much space history takes. It takes locks that the tree holds while it writes and syncs.
    pub(crate) fn measure_history(&self) {
        if let Some(Ok(bytes)) = self.history.as_ref().map(History::bytes) {
            self.vitals.set_history_bytes(bytes);
        }
    }

    /// The records of a stream up to this one are removed; 0 when none are.
    pub(crate) fn floor(&self, stream: StreamNo) -> Result<Sequence, HistoryError> {
        let floor = self.floors.of(stream, self.history.as_ref())?;
        Ok(floor.max(self.retention_floor_of(stream)))
    }

    /// The records of a stream up to this one are removed by the retention of the log; 0 for an exempt stream.
    pub(crate) fn retention_floor_of(&self, stream: StreamNo) -> Sequence {
        match self.retention_floor.get() {
            floor if floor > 0 && self.exempt.contains(stream) => 0,
            floor => floor,
        }
    }

    /// [`Shared::floor`], for a reader.
    pub(crate) fn read_floor(&self, stream: StreamNo) -> Result<Sequence, ReadError> {
        self.floor(stream).map_err(|e| self.unreadable(e))
    }

    pub(crate) fn read_states(
        &self,
        range: StateRange<'_>,
        each: &mut EachState<'_>,
    ) -> Result<(), ReadError> {
        let read = self.states.each(range, self.history.as_ref(), each);
        read.map_err(|e| self.unreadable(e))
    }

    pub(crate) fn read_state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let value = self.states.get(key, self.history.as_ref());
        value.map_err(|e| self.unreadable(e))
    }

    /// Converts an error of history for a reader.
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

    /// States durably what history holds now, with a change.
    pub(crate) fn state_history(
        &self,
        change: impl FnOnce(&mut StatedHistory),
    ) -> Result<(), HistoryError> {
        let _stating = self.stating.lock();
        self.state_history_without(&BTreeSet::new(), change)
    }

    /// [`Shared::state_history`] without keyspaces that are about to be removed.
    fn state_history_without(
        &self,
        without: &BTreeSet<u64>,
        change: impl FnOnce(&mut StatedHistory),
    ) -> Result<(), HistoryError> {
        let Some(history) = &self.history else {
            return Ok(());
        };
        let statement = self.superblock.statement();
        let mut stated = statement.history.unwrap_or_default();
        let identified = stated.keyspaces.iter().map(|one| one.id).collect();
        stated.keyspaces = history.stated_keyspaces((statement.log_id, stated.id), &identified)?;
        stated.keyspaces.retain(|one| !without.contains(&one.id));
        change(&mut stated);
        Ok(self
            .superblock
            .change(|statement| statement.history = Some(stated))?)
    }

    /// States the lists of tables of a closed history, whose keyspaces are the stated ones.
    pub(crate) fn state_closed_history(&self) -> Result<(), HistoryError> {
        let _stating = self.stating.lock();
        let (Some(history), Some(mut stated)) =
            (&self.history, self.superblock.statement().history)
        else {
            return Ok(());
        };
        history.update_lists(&mut stated.keyspaces)?;
        Ok(self
            .superblock
            .change(|statement| statement.history = Some(stated))?)
    }

    /// States durably that the records up to `floor` are removed, and leaves their removal to the background.
    pub(crate) fn state_retention_floor(&self, floor: Sequence) -> std::io::Result<()> {
        let _stating = self.stating.lock();
        self.superblock.change(|statement| {
            if let Some(history) = &mut statement.history {
                history.raise_floor(floor);
            }
        })?;
        self.retention_floor.raise(floor);
        Ok(())
    }

    /// States durably that the records up to `floor` are removed, and removes the generations without other records, except the
    /// records of `exempt` streams. History has all records up to `history_upto`. Returns the number of removed generations.
    pub(crate) fn raise_retention_floor(
        &self,
        floor: Sequence,
        history_upto: Sequence,
        exempt: &BTreeSet<StreamNo>,
    ) -> Result<usize, HistoryError> {
        let Some(history) = &self.history else {
            return Ok(0);
        };
        let _stating = self.stating.lock();
        // Reads in progress keep these generations until they end.
        let mut generations = history.generations()?;
        let (mut parts, removed) = (
            generations.parts(),
            generations.take_below(floor, history_upto),
        );
        parts.truncate(removed.len());
        // Moved records are durable before the statement that lacks their generations. After a crash they are moved again.
        history.keep(exempt, &parts)?;
        let ids = removed.iter().map(|one| one.keyspace.id()).collect();
        // A removed keyspace must not be stated, or a crash in between would look like damage.
        self.state_history_without(&ids, |stated| stated.raise_floor(floor))?;
        // Before anything is removed, so that no read finds a gap.
        self.retention_floor.raise(floor);
        history.with(|open| {
            open.records.write().take_below(floor, history_upto);
            for generation in &removed {
                open.database.delete_keyspace(generation.keyspace.clone())?;
            }
            if !removed.is_empty() {
                // At its opening, the engine finds its sequence numbers in the other keyspaces. One of them must be
                // newer than the deletion, which would otherwise apply to the next keyspace with the same number.
                open.put_format()?;
            }
            Ok(removed.len())
        })
    }
}
