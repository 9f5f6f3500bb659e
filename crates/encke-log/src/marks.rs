//! How far the background work has come, as the superblock states it: which keyspaces history has, up to which record they hold
//! everything, and what is gone.

use crate::Sequence;
use crate::copy::HistoryCopy;
use crate::disk::Disk;
use crate::fingerprints::Fingerprints;
use crate::frame::u64_at;
use crate::history::{History, HistoryError};
use crate::ingest::ingest_into;
use crate::inspect;
use crate::read::Shared;
use crate::retention::Class;
use crate::statement::{StatedHistory, StatedKeyspace};
use crate::stored::floor_of;
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tempfile::TempDir;

/// How far the background work has come, durably.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Every record up to this one is in history.
    pub(crate) history_upto: Sequence,
    /// The state store is that after this record.
    pub(crate) checkpoint_upto: Sequence,
}

/// Times of the first and the newest record of each generation that has any, by the name of its keyspace.
pub(crate) type Times = BTreeMap<String, (u64, u64)>;

impl Marks {
    /// Those that were stated of a log, which may be without history.
    pub(crate) fn stated(history: Option<&StatedHistory>) -> Marks {
        history.map_or_else(Marks::default, |history| Marks {
            history_upto: history.history_upto,
            checkpoint_upto: history.checkpoint_upto,
        })
    }
}

impl StatedHistory {
    /// The times of generations.
    pub(crate) fn times(&self) -> Times {
        let keyspaces = self.keyspaces.iter();
        let times = keyspaces.filter_map(|one| Some((one.name.clone(), one.times_ms?)));
        times.collect()
    }
}

impl<D: Disk> Shared<D> {
    /// States durably what history holds now, with a change.
    pub(crate) fn state_history(
        &self,
        change: impl FnOnce(&mut StatedHistory),
    ) -> Result<(), HistoryError> {
        let _stating = self.stating.lock();
        self.state_history_without(&BTreeSet::new(), change)
    }

    /// The same, of all keyspaces but some that are about to be removed.
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

    /// States the lists of tables of a history that is closed, whose keyspaces are the stated ones.
    pub(crate) fn state_closed_history(&self) -> Result<(), HistoryError> {
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

    /// Notes durably that the records of a class up to `floor` are gone, and removes the generations that have nothing else.
    /// `history_upto` is up to where history has all records. Returns how many generations went.
    pub(crate) fn raise_class_floor(
        &self,
        class: Class,
        floor: Sequence,
        history_upto: Sequence,
    ) -> Result<usize, HistoryError> {
        let Some(history) = &self.history else {
            return Ok(0);
        };
        let _stating = self.stating.lock();
        // Readers of these generations keep them until they end.
        let mut generations = history.generations()?;
        let gone = generations.take_below(class, floor, history_upto);
        let ids = gone.iter().map(|one| one.keyspace.id()).collect();
        // What is removed must not be stated any more, or a crash in between would look like damage.
        self.state_history_without(&ids, |stated| stated.raise_floor(class, floor))?;
        history.with(|open| {
            open.records.write().take_below(class, floor, history_upto);
            for generation in &gone {
                open.database.delete_keyspace(generation.keyspace.clone())?;
            }
            if !gone.is_empty() {
                // The engine learns its sequence numbers from the other keyspaces when it opens. One of them must be newer than the
                // deletion, or that would count for the next keyspace with the same number.
                put_format(open)?;
            }
            Ok(gone.len())
        })
    }
}

impl History {
    /// What there is to state of the keyspaces. A keyspace that is not `identified` gets its identity first.
    pub(crate) fn stated_keyspaces(
        &self,
        (log_id, history_id): (u64, u64),
        identified: &BTreeSet<u64>,
    ) -> Result<Vec<StatedKeyspace>, HistoryError> {
        let times = self.times();
        let mut keyspaces = vec![(META, String::new())];
        keyspaces.extend(self.with(|open| Ok(open.keyspace_names()))?);
        let mut stated = Vec::with_capacity(keyspaces.len());
        for (id, name) in keyspaces {
            if !identified.contains(&id) {
                inspect::identify_keyspace(self.path(), log_id, history_id, id)?;
            }
            stated.push(StatedKeyspace {
                id,
                times_ms: times.get(&name).copied(),
                name,
                ..StatedKeyspace::default()
            });
        }
        self.update_lists(&mut stated)?;
        Ok(stated)
    }

    /// Sets the versions and checksums of the lists as they are now, and remembers the fingerprints of all tables.
    fn update_lists(&self, keyspaces: &mut [StatedKeyspace]) -> Result<(), HistoryError> {
        let mut fingerprints = self.fingerprints.lock();
        let mut changed = false;
        for keyspace in &mut *keyspaces {
            let directory = self.path().join("keyspaces");
            let directory = directory.join(keyspace.id.to_string());
            let (current, is_new) = fingerprints.update(keyspace.id, &directory)?;
            changed |= is_new;
            (keyspace.version, keyspace.checksum) = (current.version, current.checksum);
        }
        if changed {
            fingerprints.retain(|id| keyspaces.iter().any(|one| one.id == id));
            if let Err(error) = fingerprints.write(self.path()) {
                tracing::debug!(%error, "the fingerprints of tables are not written; the next start reads new tables whole");
            }
        }
        Ok(())
    }

    /// Takes over what an inspection has found out.
    pub(crate) fn set_fingerprints(&self, fingerprints: Fingerprints) {
        if Fingerprints::read(self.path()) != fingerprints {
            // Tables that the inspection has read whole need not be read again.
            let _ = fingerprints.write(self.path());
        }
        *self.fingerprints.lock() = fingerprints;
    }
}

/// The marks of a history whose version kept them in the history itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnstatedMarks {
    pub(crate) marks: Marks,
    pub(crate) class_floors: Vec<(Class, Sequence)>,
    pub(crate) times: Times,
}

impl UnstatedMarks {
    /// Those of a history that is not open.
    pub(crate) fn of_copy(
        directory: TempDir,
        history: &Path,
    ) -> Result<UnstatedMarks, HistoryError> {
        UnstatedMarks::read(&HistoryCopy::of_unstated(directory, history)?.history)
    }

    pub(crate) fn read(history: &History) -> Result<UnstatedMarks, HistoryError> {
        history.with(|open| {
            let format = mark(open, FORMAT)?;
            if !matches!(format, 1 | 2) {
                return Err(HistoryError::from(format!(
                    "it has format {format} and no superblock states what it holds"
                )));
            }
            let mut unstated = UnstatedMarks {
                marks: Marks {
                    history_upto: mark(open, "history_upto")?,
                    checkpoint_upto: mark(open, "checkpoint_upto")?,
                },
                ..UnstatedMarks::default()
            };
            for pair in open.marks.prefix(CLASS_FLOOR) {
                let (key, value) = pair.into_inner()?;
                let class = key.get(CLASS_FLOOR.len()).copied();
                let floor = class.map(|class| (class, floor_of(Some(value))));
                unstated.class_floors.extend(floor);
            }
            for pair in open.marks.prefix(TIMES) {
                let (key, value) = pair.into_inner()?;
                let name = std::str::from_utf8(&key[TIMES.len()..]).ok();
                if let (Some(name), 16) = (name, value.len()) {
                    let times = (u64_at(&value, 0), u64_at(&value, 8));
                    unstated.times.insert(name.to_owned(), times);
                }
            }
            Ok(unstated)
        })
    }
}

impl History {
    /// Notes in the history itself that it is of the format that a superblock states, so that versions that know no superblock
    /// refuse it.
    pub(crate) fn set_format(&self) -> Result<(), HistoryError> {
        self.with(|open| {
            if mark(open, FORMAT)? == FORMAT_NUMBER {
                return Ok(());
            }
            put_format(open)
        })
    }
}

/// Writes the number of the format; nothing goes through the engine's journal.
fn put_format(open: &Tree) -> Result<(), HistoryError> {
    ingest_into(&open.marks, |put| {
        put(FORMAT.as_bytes(), Some(&FORMAT_NUMBER.to_le_bytes()))
    })
}

fn mark(open: &Tree, key: &str) -> Result<u64, HistoryError> {
    let value = open.marks.get(key)?.filter(|value| value.len() == 8);
    Ok(value.map_or(0, |value| u64_at(&value, 0)))
}

/// The number of the keyspace in which the engine keeps the names of all others.
const META: u64 = 0;
/// What the keys of class floors began with; the class follows.
const CLASS_FLOOR: &str = "floor/";
/// What the keys of the times of generations began with; the name of the keyspace follows.
const TIMES: &str = "times/";
const FORMAT: &str = "format";
const FORMAT_NUMBER: u64 = 3;
