//! History: what sealed segments held, sorted by stream, in a log-structured merge tree (fjall).
//!
//! The keyspaces:
//! - `records` and `records-CLASS-FIRST`: stream and sequence, both big-endian, to the record. Filled by bulk ingestion of
//!   whole segments. Which has what is told in `generations.rs`.
//! - `states`: the state store. Filled by bulk ingestion of whole checkpoints.
//! - `floors`: stream, big-endian, to its floor, and for a forgotten one the record before which it was. Filled with each
//!   checkpoint.
//! - `marks`: how far segments and checkpoints have come, the times of generations, the floors of classes. Small values,
//!   written with a sync.
//!
//! Nothing goes through the tree's own journal but the marks, so nothing of it can stall the writer. Everything that is
//! ingested is durable when the ingestion ends, and only then is it marked: after a crash in between it is ingested again,
//! and means the same.
//!
//! Reading and ingesting is here; opening the tree in `tree.rs`, the marks in `marks.rs`.

use crate::error::OpenError;
use crate::frame::FrameView;
use crate::generations::Generations;
pub(crate) use crate::history_error::HistoryError;
use crate::ingest::ingest_into;
pub(crate) use crate::marks::Marks;
use crate::retention::Retention;
use crate::stored::{floor_of, record_key, view};
use crate::tree::{self, Tree};
use crate::{Sequence, StreamNo};
use parking_lot::RwLock;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The history of one log.
pub(crate) struct History {
    path: PathBuf,
    cache_bytes: u64,
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
    /// Opens history, or makes an empty one.
    pub(crate) fn open(path: PathBuf, cache_bytes: u64) -> Result<History, OpenError> {
        if !path.exists() {
            // A tree that was made in part can't be opened, so it gets its name only when it is whole.
            tree::make(&path, cache_bytes).map_err(|e| e.on_open(&path, "make"))?;
        }
        let open = Tree::new(&path, cache_bytes).map_err(|e| e.on_open(&path, "open"))?;
        let history = History {
            path: path.clone(),
            cache_bytes,
            open: RwLock::new(Some(open)),
        };
        history.check_format()?;
        Ok(history)
    }

    /// Closes history for good. Reading it is an error from then on.
    pub(crate) fn close(&self) {
        *self.open.write() = None;
    }

    /// Closes and opens history, which is how it gets over an error that it won't go on after.
    pub(crate) fn reopen(&self) -> Result<(), HistoryError> {
        let mut open = self.open.write();
        *open = None;
        *open = Some(Tree::new(&self.path, self.cache_bytes)?);
        Ok(())
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
            open.records.write().note_times(class, times_ms);
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

    /// Works with the tree, if it is open.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&Tree) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        match self.open.read().as_ref() {
            Some(open) => work(open),
            None => Err(HistoryError::from("it is closed".to_owned())),
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
