//! History: the records of sealed segments, sorted by stream, in a log-structured merge tree (fjall).
//!
//! The keyspaces:
//! - `records`, `records-0-FIRST` and `records-kept`: stream and sequence, both big-endian, to the record. Filled by bulk ingestion of
//!   whole segments; `generations.rs` says which keyspace has which records.
//! - `states`: the state store. Filled by bulk ingestion of whole checkpoints.
//! - `floors`: stream, big-endian, to its floor. Filled by each checkpoint.
//! - `marks`: the number of the format.
//!
//! Nothing goes through the tree's own journal, so the journal can't stall the writer. An ingestion is durable when it
//! ends, and only then is it stated in the superblock. After a crash in between it is repeated, with the same result.
//!
//! This file reads and ingests. `tree.rs` opens the tree, `sort.rs` brings a segment into its order, `shared.rs` of the crate
//! states what history holds, and `verify/` checks its files before the tree opens them.

pub(crate) mod error;
pub(crate) mod floor;
pub(crate) mod floors;
pub(crate) mod generations;
pub(crate) mod ingest;
pub(crate) mod old_marks;
pub(crate) mod reclaim;
pub(crate) mod sort;
pub(crate) mod state;
pub(crate) mod state_range;
pub(crate) mod stored;
pub(crate) mod tree;
pub(crate) mod verify;

use crate::error::OpenError;
use crate::history::error::HistoryError;
use crate::history::floor::floor_of;
use crate::history::generations::{Generations, KEPT, Times};
use crate::history::ingest::{Put, ingest_into};
use crate::history::state_range::{EachState, StateRange};
use crate::history::stored::{record_key, view};
use crate::history::tree::{CompactionThreads, KeyspaceKind, Tree};
use crate::history::verify::fingerprints::Fingerprints;
use crate::history::verify::inspect::{self, Inspection, META, ReadWhole};
use crate::ids::{Sequence, StreamNo};
use crate::retention::LogRetention;
use crate::segments::frame::FrameView;
use crate::superblock::statement::{StatedHistory, StatedKeyspace};
use encke_clock::WallTime;
use fjall::Keyspace;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The history of one log.
pub(crate) struct History {
    path: PathBuf,
    cache_bytes: u64,
    /// The times of generations. They are kept when the tree is closed and opened again.
    times: Mutex<Times>,
    pub(crate) fingerprints: Mutex<Fingerprints>,
    /// `None` when it is closed, or could not be opened again.
    open: RwLock<Option<Tree>>,
}

impl History {
    /// Opens a history that was inspected and is stated in the superblock.
    pub(crate) fn open(
        path: PathBuf,
        cache_bytes: u64,
        times: Times,
    ) -> Result<History, OpenError> {
        tree::reset_journal(&path)
            .map_err(|e| HistoryError::from(e).on_open(&path, "begin the journal of"))?;
        History::open_with(path, cache_bytes, times, CompactionThreads::One)
    }

    /// Opens a history without a statement, whose version kept marks in the journal too.
    pub(crate) fn open_without_statement(
        path: PathBuf,
        cache_bytes: u64,
        times: Times,
    ) -> Result<History, OpenError> {
        History::open_with(path, cache_bytes, times, CompactionThreads::One)
    }

    /// Opens a private copy of a history, which is only read.
    pub(crate) fn open_copy(path: PathBuf, times: Times) -> Result<History, OpenError> {
        History::open_with(path, COPY_CACHE_BYTES, times, CompactionThreads::None)
    }

    fn open_with(
        path: PathBuf,
        cache_bytes: u64,
        times: Times,
        workers: CompactionThreads,
    ) -> Result<History, OpenError> {
        let open = Tree::new(&path, cache_bytes, &times, workers);
        let open = open.map_err(|e| e.on_open(&path, "open"))?;
        Ok(History {
            path,
            cache_bytes,
            times: Mutex::new(times),
            fingerprints: Mutex::default(),
            open: RwLock::new(Some(open)),
        })
    }

    /// Makes an empty history with an identity. It gets its name when it is complete.
    pub(crate) fn make(path: &Path, (log_id, history_id): (u64, u64)) -> Result<(), OpenError> {
        let failed = |e: HistoryError| e.on_open(path, "make");
        let prepared = path.with_extension("prepared");
        if prepared.exists() {
            std::fs::remove_dir_all(&prepared).map_err(|e| failed(e.into()))?;
        }
        std::fs::create_dir(&prepared).map_err(|e| failed(e.into()))?;
        let history =
            History::open_without_statement(prepared.clone(), COPY_CACHE_BYTES, Times::new())?;
        history.set_format().map_err(failed)?;
        drop(history);
        inspect::identify_history(&prepared, log_id, history_id)
            .and_then(|()| std::fs::rename(&prepared, path))
            .and_then(|()| tree::sync_parent(path))
            .map_err(|e| failed(e.into()))
    }

    /// Closes history for good. Reads fail from then on.
    pub(crate) fn close(&self) {
        *self.open.write() = None;
    }

    /// Closes and opens history, because the tree does not continue after some errors.
    ///
    /// # Errors
    /// It can't be opened, or it does not hold what is stated. Then it stays closed, because the engine would delete
    /// the rest.
    pub(crate) fn reopen(&self, log_id: u64, stated: &StatedHistory) -> Result<(), HistoryError> {
        let mut open = self.open.write();
        *open = None;
        let inspection = Inspection::of(&self.path, stated, log_id, ReadWhole::Unknown);
        if let Some(problem) = inspection.into_problems().into_iter().next() {
            return Err(problem);
        }
        tree::reset_journal(&self.path)?;
        let times = self.times();
        *open = Some(Tree::new(
            &self.path,
            self.cache_bytes,
            &times,
            CompactionThreads::One,
        )?);
        Ok(())
    }

    /// The times of generations.
    pub(crate) fn times(&self) -> Times {
        self.times.lock().clone()
    }

    /// The keyspaces of records.
    pub(crate) fn generations(&self) -> Result<Generations, HistoryError> {
        self.with(|open| Ok(open.records.read().clone()))
    }

    /// Ingests records of a segment that begins with record `first`; otherwise as [`History::ingest`].
    pub(crate) fn ingest_records(
        &self,
        retention: &LogRetention,
        first: Sequence,
        times: (WallTime, WallTime),
        all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            let records = open.records.read().clone();
            // The first keyspace may get any record.
            let first = match records.keyspaces().next() {
                Some(_) => first,
                None => 0,
            };
            let newest = records.newest().cloned();
            let fits =
                newest.filter(|newest| newest.first >= first || !newest.is_full(retention, times));
            let keyspace = match fits {
                Some(generation) => generation.keyspace,
                None => open.begin_generation(first)?,
            };
            ingest_into(&keyspace, all)?;
            let mut records = open.records.write();
            records.note_times(times);
            if let Some(newest) = records.newest()
                && let Some(times) = newest.times
            {
                let name = newest.keyspace.name().to_string();
                self.times.lock().insert(name, times);
            }
            Ok(())
        })
    }

    /// Copies the records that these streams have in these parts of generations to the keyspace of kept records. They are durable
    /// on return.
    pub(crate) fn keep(
        &self,
        streams: &BTreeSet<StreamNo>,
        parts: &[(Keyspace, Sequence, Sequence)],
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            let of_stream = |stream: StreamNo| {
                parts.iter().flat_map(move |(keyspace, from, upto)| {
                    keyspace.range(record_key(stream, *from)..=record_key(stream, *upto))
                })
            };
            let pairs = streams.iter().flat_map(|stream| of_stream(*stream));
            let mut pairs = pairs.map(fjall::Guard::into_inner).peekable();
            if pairs.peek().is_none() {
                return Ok(());
            }
            ingest_into(&open.kept()?, |put| {
                pairs.try_for_each(|pair| {
                    let (key, value) = pair?;
                    put(&key, Some(&value))
                })
            })
        })
    }

    /// Makes the keyspaces of records with these names; other names are ignored.
    pub(crate) fn make_generations<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            for name in names {
                match generations::of_name(name) {
                    Some(first) => drop(open.begin_generation(first)?),
                    None if name == KEPT => drop(open.kept()?),
                    None => {}
                }
            }
            Ok(())
        })
    }

    /// Whether a keyspace of records has one of a stream.
    pub(crate) fn has_any(&self, stream: StreamNo) -> Result<bool, HistoryError> {
        self.with(|open| {
            let records = open.records.read().clone();
            for keyspace in records.keyspaces() {
                let of_stream = record_key(stream, 0)..=record_key(stream, Sequence::MAX);
                if let Some(pair) = keyspace.range(of_stream).next() {
                    pair.into_inner()?;
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Gives `each` floors, from the stream after `after` on, until it breaks: the stream and the value, for
    /// [`floor_of`] and [`forgotten_at`](crate::history::floor::forgotten_at).
    pub(crate) fn floors_after(
        &self,
        after: StreamNo,
        each: &mut dyn FnMut(StreamNo, fjall::UserValue) -> ControlFlow<()>,
    ) -> Result<(), HistoryError> {
        let Some(from) = after.checked_add(1) else {
            return Ok(());
        };
        self.with(|open| {
            for pair in open.floors.range(from.to_be_bytes()..) {
                let (key, value) = pair.into_inner()?;
                let stream = key.first_chunk().map_or(0, |no| u64::from_be_bytes(*no));
                if each(stream, value).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Ingests what `all` puts, all of it or nothing. It is durable and can be read on return. `all` must put at least
    /// one key.
    pub(crate) fn ingest(
        &self,
        kind: KeyspaceKind,
        all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
    ) -> Result<(), HistoryError> {
        self.with(|open| ingest_into(open.keyspace(kind), all))
    }

    /// The value of a record, as [`record_value`](crate::history::stored::record_value) makes it.
    pub(crate) fn record(
        &self,
        stream: StreamNo,
        sequence: Sequence,
    ) -> Result<Option<fjall::UserValue>, HistoryError> {
        self.with(|open| {
            let holding = open.records.read().holding(sequence, sequence);
            match holding.first() {
                Some((keyspace, ..)) => Ok(keyspace.get(record_key(stream, sequence))?),
                None => Ok(None),
            }
        })
    }

    /// Gives `each` the records of a stream with `after` < sequence <= `upto`, in order, until it breaks: each with its value.
    pub(crate) fn read(
        &self,
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        each: &mut EachRecord<'_>,
    ) -> Result<(), HistoryError> {
        let Some(from) = after.checked_add(1).filter(|from| *from <= upto) else {
            return Ok(());
        };
        self.with(|open| {
            let holding = open.records.read().holding(from, upto);
            for (keyspace, from, upto) in holding {
                let pairs = keyspace.range(record_key(stream, from)..=record_key(stream, upto));
                if give(stream, pairs, each)?.is_break() {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    /// As [`History::read`], newest first.
    pub(crate) fn read_back(
        &self,
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        each: &mut EachRecord<'_>,
    ) -> Result<(), HistoryError> {
        let Some(from) = after.checked_add(1).filter(|from| *from <= upto) else {
            return Ok(());
        };
        self.with(|open| {
            let holding = open.records.read().holding(from, upto);
            for (keyspace, from, upto) in holding.into_iter().rev() {
                let pairs = keyspace.range(record_key(stream, from)..=record_key(stream, upto));
                if give(stream, pairs.rev(), each)?.is_break() {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    pub(crate) fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HistoryError> {
        self.with(|open| Ok(open.states.get(key)?.map(|value| value.to_vec())))
    }

    /// Gives `each` the states of a range, in the order of their keys, until it breaks.
    pub(crate) fn states(
        &self,
        range: StateRange<'_>,
        each: &mut EachState<'_>,
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            for pair in open.states.range::<&[u8], _>(range.bounds()) {
                let (key, value) = pair.into_inner()?;
                if !range.has(&key) || each(&key, &value).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The durable floor of a stream; 0 when it has none.
    pub(crate) fn floor(&self, stream: StreamNo) -> Result<Sequence, HistoryError> {
        self.with(|open| Ok(floor_of(open.floors.get(stream.to_be_bytes())?)))
    }

    /// Compacts everything, so that records below the floors are removed from the disk.
    pub(crate) fn compact(&self) -> Result<(), HistoryError> {
        let generations = self.generations()?;
        for keyspace in generations.keyspaces() {
            self.with(|_| Ok(keyspace.major_compact()?))?;
        }
        Ok(())
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> Result<u64, HistoryError> {
        self.with(|open| Ok(open.database.disk_space()?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// Calls `work` with the tree.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&Tree) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        match self.open.read().as_ref() {
            Some(open) => work(open),
            None => Err(HistoryError {
                io: true,
                ..HistoryError::from("it is closed".to_owned())
            }),
        }
    }

    /// The keyspaces as they are to be stated. A keyspace that is not in `identified` gets its identity first.
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
                times: times.get(&name).copied(),
                name,
                ..StatedKeyspace::default()
            });
        }
        self.update_lists(&mut stated)?;
        Ok(stated)
    }

    /// Sets the current versions and checksums of the lists, and keeps the fingerprints of all tables.
    pub(crate) fn update_lists(
        &self,
        keyspaces: &mut [StatedKeyspace],
    ) -> Result<(), HistoryError> {
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

    /// Takes over the fingerprints of an inspection.
    pub(crate) fn set_fingerprints(&self, fingerprints: Fingerprints) {
        if Fingerprints::read(self.path()) != fingerprints {
            // The next start need not read again the tables that the inspection read whole.
            let _ = fingerprints.write(self.path());
        }
        *self.fingerprints.lock() = fingerprints;
    }

    /// Marks the history itself as of the format that needs a superblock, so that versions without superblocks refuse
    /// it.
    pub(crate) fn set_format(&self) -> Result<(), HistoryError> {
        self.with(Tree::set_format)
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What is called with each record: as it is read, and its value in the tree, whose end is the payload.
pub(crate) type EachRecord<'e> =
    dyn FnMut(FrameView<'_>, &fjall::UserValue) -> ControlFlow<()> + 'e;

/// Gives `each` the records of a stream in these pairs, until it breaks.
fn give(
    stream: StreamNo,
    pairs: impl Iterator<Item = fjall::Guard>,
    each: &mut EachRecord<'_>,
) -> Result<ControlFlow<()>, HistoryError> {
    for pair in pairs {
        let (key, value) = pair.into_inner()?;
        let Some(view) = view(stream, &key, &value) else {
            let reason = format!("record {key:02x?} is too short");
            return Err(HistoryError::from(reason));
        };
        if each(view, &value).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The cache of a history that is read once.
const COPY_CACHE_BYTES: u64 = 16 << 20;
