//! History: what sealed segments held, sorted by stream, in a log-structured merge tree (fjall).
//!
//! The keyspaces:
//! - `records` and `records-CLASS-FIRST`: stream and sequence, both big-endian, to the record. Filled by bulk ingestion of
//!   whole segments. Which has what is told in `generations.rs`.
//! - `states`: the state store. Filled by bulk ingestion of whole checkpoints.
//! - `floors`: stream, big-endian, to its floor, and for a forgotten one the record before which it was. Filled with each
//!   checkpoint.
//! - `marks`: the number of the format.
//!
//! Nothing goes through the tree's own journal, so nothing of it can stall the writer. Everything that is ingested is durable when the
//! ingestion ends, and only then is it stated in the superblock: after a crash in between it is ingested again, and means the same.
//!
//! Reading and ingesting is here; opening the tree is in `tree.rs`; what is stated of it, in `marks.rs`.

use crate::error::OpenError;
use crate::fingerprints::Fingerprints;
use crate::frame::FrameView;
use crate::generations::{self, Generations};
pub(crate) use crate::history_error::HistoryError;
use crate::ingest::ingest_into;
use crate::inspect::{self, Inspection};
pub(crate) use crate::marks::Marks;
use crate::marks::Times;
use crate::retention::Retention;
use crate::statement::StatedHistory;
use crate::stored::{floor_of, record_key, view};
use crate::tree::{self, Tree, Workers};
use crate::{Sequence, StreamNo};
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The history of one log.
pub(crate) struct History {
    path: PathBuf,
    cache_bytes: u64,
    /// The times of generations, which outlive the tree when it is opened again.
    times: Mutex<Times>,
    pub(crate) fingerprints: Mutex<Fingerprints>,
    /// `None` when it was closed, or could not be opened again.
    open: RwLock<Option<Tree>>,
}

/// What can be ingested into.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    States,
    Floors,
}

/// What an ingestion is given: keys in ascending order, each once; `None` deletes.
pub(crate) type Put<'p> = &'p mut dyn FnMut(&[u8], Option<&[u8]>) -> fjall::Result<()>;

impl History {
    /// Opens a history that was inspected, and of which the superblock states everything.
    pub(crate) fn open(
        path: PathBuf,
        cache_bytes: u64,
        times: Times,
    ) -> Result<History, OpenError> {
        tree::begin_journal_anew(&path)
            .map_err(|e| HistoryError::from(e).on_open(&path, "begin the journal of"))?;
        History::open_with(path, cache_bytes, times, Workers::One)
    }

    /// Opens a history whose version stated nothing and kept its marks in the journal, too.
    pub(crate) fn open_unstated(path: PathBuf, cache_bytes: u64) -> Result<History, OpenError> {
        History::open_unstated_with(path, cache_bytes, Times::new())
    }

    /// The same, with the times of its generations.
    pub(crate) fn open_unstated_with(
        path: PathBuf,
        cache_bytes: u64,
        times: Times,
    ) -> Result<History, OpenError> {
        History::open_with(path, cache_bytes, times, Workers::One)
    }

    /// Opens a private copy of a history, which is only read.
    pub(crate) fn open_copy(path: PathBuf, times: Times) -> Result<History, OpenError> {
        History::open_with(path, COPY_CACHE_BYTES, times, Workers::None)
    }

    fn open_with(
        path: PathBuf,
        cache_bytes: u64,
        times: Times,
        workers: Workers,
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

    /// Makes an empty history with an identity. It gets its name only when it is whole.
    pub(crate) fn make(path: &Path, (log_id, history_id): (u64, u64)) -> Result<(), OpenError> {
        let failed = |e: HistoryError| e.on_open(path, "make");
        let prepared = path.with_extension("prepared");
        if prepared.exists() {
            std::fs::remove_dir_all(&prepared).map_err(|e| failed(e.into()))?;
        }
        std::fs::create_dir(&prepared).map_err(|e| failed(e.into()))?;
        let history = History::open_unstated(prepared.clone(), COPY_CACHE_BYTES)?;
        history.set_format().map_err(failed)?;
        drop(history);
        inspect::identify_history(&prepared, log_id, history_id)
            .and_then(|()| std::fs::rename(&prepared, path))
            .and_then(|()| tree::sync_parent(path))
            .map_err(|e| failed(e.into()))
    }

    /// Closes history for good. Reading it is an error from then on.
    pub(crate) fn close(&self) {
        *self.open.write() = None;
    }

    /// Closes and opens history, which is how it gets over an error that it won't go on after.
    ///
    /// # Errors
    /// It can't be opened, or it does not hold what is stated: the engine would delete the rest, so it stays closed.
    pub(crate) fn reopen(&self, log_id: u64, stated: &StatedHistory) -> Result<(), HistoryError> {
        let mut open = self.open.write();
        *open = None;
        let inspection = Inspection::of(&self.path, stated, log_id);
        if let Some(problem) = inspection.into_problems().into_iter().next() {
            return Err(problem);
        }
        tree::begin_journal_anew(&self.path)?;
        let times = self.times();
        *open = Some(Tree::new(
            &self.path,
            self.cache_bytes,
            &times,
            Workers::One,
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

    /// Ingests records of one class from a segment that begins with record `first`; otherwise as [`History::ingest`].
    pub(crate) fn ingest_records(
        &self,
        retention: &Retention,
        first: Sequence,
        times_ms: (u64, u64),
        all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
    ) -> Result<(), HistoryError> {
        let class = retention.class;
        self.with(|open| {
            let newest = open.records.read().newest(class).cloned();
            let fits = newest
                .filter(|newest| newest.first >= first || !newest.is_full(retention, times_ms));
            let keyspace = match fits {
                Some(generation) => generation.keyspace,
                None => open.begin_generation(class, first)?,
            };
            ingest_into(&keyspace, all)?;
            let mut records = open.records.write();
            records.note_times(class, times_ms);
            if let Some(newest) = records.newest(class)
                && let Some(times_ms) = newest.times_ms
            {
                let name = newest.keyspace.name().to_string();
                self.times.lock().insert(name, times_ms);
            }
            Ok(())
        })
    }

    /// Makes the keyspaces of records with these names; other names are passed over.
    pub(crate) fn make_generations<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            for (class, first) in names.filter_map(generations::of_name) {
                if (class, first) != (0, 0) {
                    open.begin_generation(class, first)?;
                }
            }
            Ok(())
        })
    }

    /// Whether history has anything of a stream.
    pub(crate) fn has_any(&self, stream: StreamNo) -> Result<bool, HistoryError> {
        let mut any = false;
        self.read(stream, 0, Sequence::MAX - 1, &mut |_| {
            any = true;
            ControlFlow::Break(())
        })?;
        Ok(any)
    }

    /// Gives `each` as many floors as it takes, from the stream after `after` on: the stream and the value, as
    /// [`floor_of`] and [`forgotten_at`] read it.
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

    /// Ingests what `all` puts, all of it or nothing. It is durable and can be read on return. There must be something.
    pub(crate) fn ingest(
        &self,
        kind: Kind,
        all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
    ) -> Result<(), HistoryError> {
        self.with(|open| ingest_into(open.keyspace(kind), all))
    }

    /// The value of a record, as [`record_value`] makes it.
    pub(crate) fn record(
        &self,
        stream: StreamNo,
        sequence: Sequence,
    ) -> Result<Option<fjall::UserValue>, HistoryError> {
        self.with(|open| {
            let holding = open.records.read().holding(stream, sequence, sequence);
            match holding.first() {
                Some((keyspace, ..)) => Ok(keyspace.get(record_key(stream, sequence))?),
                None => Ok(None),
            }
        })
    }

    /// Gives `each` the records of a stream with `after` < sequence <= `upto`, in order, until it breaks.
    pub(crate) fn read(
        &self,
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        each: &mut dyn FnMut(FrameView<'_>) -> ControlFlow<()>,
    ) -> Result<(), HistoryError> {
        let Some(from) = after.checked_add(1).filter(|from| *from <= upto) else {
            return Ok(());
        };
        self.with(|open| {
            let holding = open.records.read().holding(stream, from, upto);
            for (keyspace, from, upto) in holding {
                for pair in keyspace.range(record_key(stream, from)..=record_key(stream, upto)) {
                    let (key, value) = pair.into_inner()?;
                    let Some(view) = view(stream, &key, &value) else {
                        let reason = format!("record {key:02x?} is too short");
                        return Err(HistoryError::from(reason));
                    };
                    if each(view).is_break() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    pub(crate) fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, HistoryError> {
        self.with(|open| Ok(open.states.get(key)?.map(|value| value.to_vec())))
    }

    /// Gives `each` the states whose key begins with `prefix`, in the order of their keys.
    pub(crate) fn states(
        &self,
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            for pair in open.states.prefix(prefix) {
                let (key, value) = pair.into_inner()?;
                each(&key, &value);
            }
            Ok(())
        })
    }

    /// The durable floor of a stream; 0 when it has none.
    pub(crate) fn floor(&self, stream: StreamNo) -> Result<Sequence, HistoryError> {
        self.with(|open| Ok(floor_of(open.floors.get(stream.to_be_bytes())?)))
    }

    /// Compacts everything now, so that what is below the floors is gone from the disk.
    pub(crate) fn compact(&self) -> Result<(), HistoryError> {
        let generations = self.generations()?;
        for generation in generations.all() {
            self.with(|_| Ok(generation.keyspace.major_compact()?))?;
        }
        Ok(())
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.with(|open| Ok(open.database.disk_space()?))
            .unwrap_or(0)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// Works with the tree, if it is open.
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
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// The cache of a history that is read once.
const COPY_CACHE_BYTES: u64 = 16 << 20;
