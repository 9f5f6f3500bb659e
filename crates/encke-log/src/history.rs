//! History: what sealed segments held, sorted by stream, in a log-structured merge tree (fjall).
//!
//! Four keyspaces:
//! - `records`: stream and sequence, both big-endian, to the record. Filled by bulk ingestion of whole segments.
//! - `states`: the state store. Filled by bulk ingestion of whole checkpoints.
//! - `floors`: stream, big-endian, to its floor. Filled with each checkpoint.
//! - `marks`: how far segments and checkpoints have come. Two small values, written with a sync each.
//!
//! Nothing goes through the tree's own journal but the marks, so nothing of it can stall the writer. Everything that is
//! ingested is durable when the ingestion ends, and only then is it marked: after a crash in between it is ingested again,
//! and means the same.
//!
//! A record's value is its kind (1 byte), its number of streams (2), its time (8), its streams (8 each, unless there is only
//! the one in the key) and its payload. All numbers but those in keys are little-endian.

use crate::disk::is_shortage;
use crate::error::OpenError;
use crate::frame::{FrameView, Parsed, Streams, u64_at};
use crate::manifest;
use crate::reclaim::{DurableFloors, Reclaim};
use crate::{Sequence, StreamNo};
use fjall::config::{BlockSizePolicy, FilterPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::RwLock;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The history of one log.
pub(crate) struct History {
    path: PathBuf,
    cache_bytes: u64,
    /// `None` when it was closed, or could not be opened again.
    open: RwLock<Option<Open>>,
}

struct Open {
    database: Database,
    records: Keyspace,
    states: Keyspace,
    floors: Keyspace,
    marks: Keyspace,
    /// What the compaction looks up; emptied before the database goes, which it would keep alive.
    reclaim: Arc<DurableFloors>,
}

/// How far the work in the background has come, durably.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Every record up to this one is in history.
    pub(crate) history_upto: Sequence,
    /// The state store is that after this record.
    pub(crate) checkpoint_upto: Sequence,
}

/// What can be ingested into.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Records,
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
            make(&path, cache_bytes).map_err(|e| e.on_open(&path, "make"))?;
        }
        let open = Open::new(&path, cache_bytes).map_err(|e| e.on_open(&path, "open"))?;
        let history = History {
            path: path.clone(),
            cache_bytes,
            open: RwLock::new(Some(open)),
        };
        let format = history.mark(FORMAT).map_err(|e| e.on_open(&path, "read"))?;
        if format != FORMAT_NUMBER {
            let reason =
                format!("it has format {format}, this Encke reads format {FORMAT_NUMBER} only");
            return Err(HistoryError::from(reason).on_open(&path, "read"));
        }
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
        *open = Some(Open::new(&self.path, self.cache_bytes)?);
        Ok(())
    }

    pub(crate) fn marks(&self) -> Result<Marks, HistoryError> {
        Ok(Marks {
            history_upto: self.mark(HISTORY_UPTO)?,
            checkpoint_upto: self.mark(CHECKPOINT_UPTO)?,
        })
    }

    /// Notes durably that every record up to this one is in history.
    pub(crate) fn set_history_upto(&self, sequence: Sequence) -> Result<(), HistoryError> {
        self.set_mark(HISTORY_UPTO, sequence)
    }

    /// Notes durably that the state store is that after this record.
    pub(crate) fn set_checkpoint_upto(&self, sequence: Sequence) -> Result<(), HistoryError> {
        self.set_mark(CHECKPOINT_UPTO, sequence)
    }

    /// Ingests what `all` puts, all of it or nothing. It is durable and can be read on return. There must be something.
    pub(crate) fn ingest(
        &self,
        kind: Kind,
        all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            let mut ingestion = open.keyspace(kind).start_ingestion()?;
            all(&mut |key, value| match value {
                Some(value) => ingestion.write(key, value),
                None => ingestion.write_tombstone(key),
            })?;
            Ok(ingestion.finish()?)
        })
    }

    /// The value of a record, as [`record_value`] makes it.
    pub(crate) fn record(
        &self,
        stream: StreamNo,
        sequence: Sequence,
    ) -> Result<Option<fjall::UserValue>, HistoryError> {
        self.with(|open| Ok(open.records.get(record_key(stream, sequence))?))
    }

    /// Reads every entry of every keyspace, and so verifies every block. Says how many records there are, each counted once
    /// for each of its streams, how many states and how many floors; `progress` is told after every few thousand entries.
    pub(crate) fn read_all_tables(
        &self,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(u64, u64, u64), HistoryError> {
        let mut entries = 0;
        let mut count = |keyspace: &Keyspace, sound: &dyn Fn(&[u8], &[u8]) -> bool| {
            let mut count = 0;
            for pair in keyspace.iter() {
                let (key, value) = pair.into_inner()?;
                if !sound(&key, &value) {
                    let (name, key) = (keyspace.name(), &*key);
                    let reason =
                        format!("the entry {key:02x?} in {name} is not one that was written");
                    return Err(HistoryError::from(reason));
                }
                count += 1;
                entries += 1;
                if entries % PROGRESS_ENTRIES == 0 {
                    progress(entries);
                }
            }
            Ok(count)
        };
        self.with(|open| {
            let records = count(&open.records, &|key, value| {
                of_record_key(key).is_some_and(|(stream, _)| view(stream, key, value).is_some())
            })?;
            let states = count(&open.states, &|_, _| true)?;
            let floors = count(&open.floors, &|key, value| {
                key.len() == 8 && value.len() == 8
            })?;
            count(&open.marks, &|_, value| value.len() == 8)?;
            Ok((records, states, floors))
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
            for pair in open
                .records
                .range(record_key(stream, from)..=record_key(stream, upto))
            {
                let (key, value) = pair.into_inner()?;
                let Some(view) = view(stream, &key, &value) else {
                    let reason = format!("record {key:02x?} is too short");
                    return Err(HistoryError::from(reason));
                };
                if each(view).is_break() {
                    break;
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
        self.with(|open| Ok(open.records.major_compact()?))
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.with(|open| Ok(open.database.disk_space()?))
            .unwrap_or(0)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn mark(&self, key: &str) -> Result<u64, HistoryError> {
        self.with(|open| Ok(open.marks.get(key)?)).map(|value| {
            value
                .filter(|value| value.len() == 8)
                .map_or(0, |value| u64_at(&value, 0))
        })
    }

    fn set_mark(&self, key: &str, value: u64) -> Result<(), HistoryError> {
        self.with(|open| {
            open.marks.insert(key, value.to_le_bytes())?;
            Ok(open.database.persist(PersistMode::SyncAll)?)
        })
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&Open) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        match self.open.read().as_ref() {
            Some(open) => work(open),
            None => Err(HistoryError::from("it is closed".to_owned())),
        }
    }
}

impl Open {
    fn new(path: &Path, cache_bytes: u64) -> Result<Open, HistoryError> {
        // The tree reads its journal with assertions, and a flipped bit is enough to fail one. Nothing is left of what the
        // closure has made then, so nothing can be seen half done.
        manifest::verify(path)?;
        std::panic::catch_unwind(|| Open::unguarded(path, cache_bytes)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(HistoryError::from(format!(
                "it is damaged: {}",
                text.unwrap_or("no more is known")
            )))
        })
    }

    fn unguarded(path: &Path, cache_bytes: u64) -> Result<Open, HistoryError> {
        let reclaim = Arc::new(DurableFloors::default());
        let floors = reclaim.clone();
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .max_cached_files(Some(FILES_MAX))
            // With more than one, an idle worker spins for as long as another one compacts.
            .worker_threads(1)
            .with_compaction_filter_factories(Arc::new(move |keyspace| {
                (keyspace == RECORDS).then(|| Arc::new(Reclaim::new(floors.clone())) as Arc<_>)
            }))
            .open()?;
        // Records are only ever read in ranges, which filters of single keys are of no use to.
        let records = || {
            KeyspaceCreateOptions::default()
                .filter_policy(FilterPolicy::disabled())
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        };
        let records = database.keyspace(RECORDS, records)?;
        let floors = database.keyspace("floors", KeyspaceCreateOptions::default)?;
        reclaim.set(floors.clone());
        Ok(Open {
            records,
            states: database.keyspace("states", KeyspaceCreateOptions::default)?,
            floors,
            marks: database.keyspace("marks", KeyspaceCreateOptions::default)?,
            reclaim,
            database,
        })
    }

    fn keyspace(&self, kind: Kind) -> &Keyspace {
        match kind {
            Kind::Records => &self.records,
            Kind::States => &self.states,
            Kind::Floors => &self.floors,
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.reclaim.clear();
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Makes an empty history beside its path and then moves it there.
fn make(path: &Path, cache_bytes: u64) -> Result<(), HistoryError> {
    let prepared = path.with_extension("prepared");
    if prepared.exists() {
        std::fs::remove_dir_all(&prepared)?;
    }
    let open = Open::new(&prepared, cache_bytes)?;
    open.marks.insert(FORMAT, FORMAT_NUMBER.to_le_bytes())?;
    open.database.persist(PersistMode::SyncAll)?;
    drop(open);
    std::fs::rename(&prepared, path)?;
    if let Some(parent) = path.parent() {
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// The key of a record.
pub(crate) fn record_key(stream: StreamNo, sequence: Sequence) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&stream.to_be_bytes());
    key[8..].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// The stream and the sequence of a record's key.
pub(crate) fn of_record_key(key: &[u8]) -> Option<(StreamNo, Sequence)> {
    let (stream, sequence) = key.split_first_chunk::<8>()?;
    Some((
        u64::from_be_bytes(*stream),
        u64::from_be_bytes(sequence.try_into().ok()?),
    ))
}

/// Appends to `value` what the value of a record is in each of its streams.
pub(crate) fn record_value(frame: &Parsed<'_>, value: &mut Vec<u8>) {
    value.push(frame.kind);
    value.extend_from_slice(&(frame.streams.len() as u16).to_le_bytes());
    value.extend_from_slice(&frame.time_ms.to_le_bytes());
    if frame.streams.len() != 1 {
        for (stream, _) in frame.streams.iter() {
            value.extend_from_slice(&stream.to_le_bytes());
        }
    }
    value.extend_from_slice(frame.payload);
}

fn view<'v>(stream: StreamNo, key: &[u8], value: &'v [u8]) -> Option<FrameView<'v>> {
    let (_, sequence) = of_record_key(key)?;
    let (head, rest) = value.split_first_chunk::<VALUE_HEAD_BYTES>()?;
    let (streams, payload) = match u16::from_le_bytes([head[1], head[2]]) {
        1 => (Streams::one(stream), rest),
        n => {
            let (streams, payload) = rest.split_at_checked(usize::from(n) * 8)?;
            (Streams::bare(streams), payload)
        }
    };
    Some(FrameView {
        sequence,
        time_ms: u64_at(head, 3),
        kind: head[0],
        stream,
        streams,
        payload,
    })
}

/// What the value of a floor says.
pub(crate) fn floor_of(value: Option<fjall::UserValue>) -> Sequence {
    value
        .filter(|value| value.len() == 8)
        .map_or(0, |value| u64_at(&value, 0))
}

/// What history said when something failed.
#[derive(Debug)]
pub(crate) struct HistoryError {
    pub(crate) reason: String,
    /// Whether it may well work when there is room again.
    pub(crate) shortage: bool,
}

impl HistoryError {
    /// As an error of opening a log.
    pub(crate) fn on_open(self, path: &Path, action: &'static str) -> OpenError {
        OpenError::History {
            path: path.to_owned(),
            action,
            reason: self.reason,
        }
    }
}

impl From<fjall::Error> for HistoryError {
    fn from(error: fjall::Error) -> Self {
        let shortage = match &error {
            fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => is_shortage(e),
            _ => false,
        };
        HistoryError {
            reason: error.to_string(),
            shortage,
        }
    }
}

impl From<std::io::Error> for HistoryError {
    fn from(error: std::io::Error) -> Self {
        HistoryError {
            shortage: is_shortage(&error),
            reason: error.to_string(),
        }
    }
}

impl From<String> for HistoryError {
    fn from(reason: String) -> Self {
        HistoryError {
            reason,
            shortage: false,
        }
    }
}

const RECORDS: &str = "records";
const HISTORY_UPTO: &str = "history_upto";
const CHECKPOINT_UPTO: &str = "checkpoint_upto";
const FORMAT: &str = "format";
const FORMAT_NUMBER: u64 = 1;
/// After how many entries progress is told again.
const PROGRESS_ENTRIES: u64 = 16 << 10;
const VALUE_HEAD_BYTES: usize = 11;
/// How many files of the tree may be open at once.
const FILES_MAX: usize = 256;
/// How large the tree's blocks are, which is what a cold read takes at least.
const BLOCK_BYTES: u32 = 16 << 10;
