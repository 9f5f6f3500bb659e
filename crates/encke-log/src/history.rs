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

use crate::error::OpenError;
use crate::frame::{FrameView, u64_at};
use crate::generations::{self, Generation, Generations};
pub(crate) use crate::history_error::HistoryError;
use crate::ingest::ingest_into;
use crate::manifest;
use crate::reclaim::{DurableFloors, Reclaim};
use crate::retention::{Class, Retention};
use crate::stored::{floor_of, of_record_key, record_key, view};
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
    records: RwLock<Generations>,
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
        match format {
            FORMAT_NUMBER => {}
            // The same without generations.
            1 => history
                .set_marks(&[(FORMAT.to_owned(), FORMAT_NUMBER.to_le_bytes().to_vec())])
                .map_err(|e| e.on_open(&path, "write to"))?,
            _ => {
                let reason =
                    format!("it has format {format}, this Encke reads format {FORMAT_NUMBER} only");
                return Err(HistoryError::from(reason).on_open(&path, "read"));
            }
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

    /// Notes durably that every record up to this one is in history, and the times of generations as they are now.
    pub(crate) fn set_history_upto(&self, sequence: Sequence) -> Result<(), HistoryError> {
        let mut marks = vec![(HISTORY_UPTO.to_owned(), sequence.to_le_bytes().to_vec())];
        self.with(|open| {
            for generation in open.records.read().all() {
                if let Some((from, upto)) = generation.times_ms {
                    let times = [from.to_le_bytes(), upto.to_le_bytes()].concat();
                    marks.push((times_key(generation.keyspace.name()), times));
                }
            }
            Ok(())
        })?;
        self.set_marks(&marks)
    }

    /// Notes durably that the state store is that after this record.
    pub(crate) fn set_checkpoint_upto(&self, sequence: Sequence) -> Result<(), HistoryError> {
        self.set_marks(&[(CHECKPOINT_UPTO.to_owned(), sequence.to_le_bytes().to_vec())])
    }

    /// The floors of classes, as they are durable.
    pub(crate) fn class_floors(&self) -> Result<Vec<(Class, Sequence)>, HistoryError> {
        self.with(|open| {
            let mut floors = Vec::new();
            for pair in open.marks.prefix(CLASS_FLOOR) {
                let (key, value) = pair.into_inner()?;
                let class = key.get(CLASS_FLOOR.len()).copied();
                floors.extend(class.map(|class| (class, floor_of(Some(value)))));
            }
            Ok(floors)
        })
    }

    /// Notes durably that the records of a class up to `floor` are gone, and removes the generations that have nothing else.
    /// `history_upto` is up to where history has all records. Says how many generations went.
    pub(crate) fn raise_class_floor(
        &self,
        class: Class,
        floor: Sequence,
        history_upto: Sequence,
    ) -> Result<usize, HistoryError> {
        let key = [CLASS_FLOOR.as_bytes(), &[class]].concat();
        self.with(|open| {
            open.marks.insert(key, floor.to_le_bytes())?;
            open.database.persist(PersistMode::SyncAll)?;
            // Those who read them still have them.
            let gone = open.records.write().take_below(class, floor, history_upto);
            for generation in &gone {
                open.marks.remove(times_key(generation.keyspace.name()))?;
                open.database.delete_keyspace(generation.keyspace.clone())?;
            }
            Ok(gone.len())
        })
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
            let generations = open.records.read().clone();
            let mut records = 0;
            for generation in generations.all() {
                records += count(&generation.keyspace, &|key, value| {
                    of_record_key(key).is_some_and(|(stream, _)| view(stream, key, value).is_some())
                })?;
            }
            let states = count(&open.states, &|_, _| true)?;
            let floors = count(&open.floors, &|key, value| {
                key.len() == 8 && matches!(value.len(), 8 | 16)
            })?;
            count(&open.marks, &|_, value| matches!(value.len(), 8 | 16))?;
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

    /// All keyspaces, for reading what can be read of a history that is damaged.
    pub(crate) fn keyspaces(&self) -> Result<Vec<Keyspace>, HistoryError> {
        self.with(|open| {
            let generations = open.records.read().clone();
            let records = generations.all().map(|one| one.keyspace.clone());
            let others = [&open.states, &open.floors, &open.marks];
            Ok(records.chain(others.into_iter().cloned()).collect())
        })
    }

    /// Puts entries, in the order of their keys, into a keyspace by its name; it is made if it is not there.
    pub(crate) fn put_all(
        &self,
        keyspace: &str,
        entries: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            let keyspace = match generations::of_name(keyspace) {
                Some(_) => open.records_keyspace(keyspace)?,
                None => open
                    .database
                    .keyspace(keyspace, KeyspaceCreateOptions::default)?,
            };
            if keyspace == open.marks {
                for (key, value) in entries {
                    open.marks.insert(key.as_slice(), value.as_slice())?;
                }
                return Ok(());
            }
            if entries.is_empty() {
                return Ok(());
            }
            ingest_into(&keyspace, |put| {
                let mut entries = entries.iter();
                entries.try_for_each(|(key, value)| put(key, Some(value)))
            })
        })
    }

    /// Makes durable what [`History::put_all`] has put.
    pub(crate) fn persist(&self) -> Result<(), HistoryError> {
        self.with(|open| Ok(open.database.persist(PersistMode::SyncAll)?))
    }

    /// Finds the generations that there are.
    pub(crate) fn open_generations(&self) -> Result<(), HistoryError> {
        self.with(|open| {
            *open.records.write() = Generations::default();
            Ok(open.open_generations()?)
        })
    }

    /// Ingests records again that belong to the generation in which record `first` is, or to none any more.
    pub(crate) fn ingest_again(
        &self,
        class: Class,
        first: Sequence,
        all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
    ) -> Result<(), HistoryError> {
        self.with(|open| {
            let generations = open.records.read().clone();
            let mut of_class = generations.of(class).iter().rev();
            match of_class.find(|generation| generation.first <= first) {
                Some(generation) => ingest_into(&generation.keyspace, all),
                None => Ok(all(&mut |_, _| Ok(()))?),
            }
        })
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

    fn mark(&self, key: &str) -> Result<u64, HistoryError> {
        self.with(|open| Ok(open.marks.get(key)?)).map(|value| {
            value
                .filter(|value| value.len() == 8)
                .map_or(0, |value| u64_at(&value, 0))
        })
    }

    /// Sets all of them durably, or none.
    fn set_marks(&self, marks: &[(String, Vec<u8>)]) -> Result<(), HistoryError> {
        self.with(|open| {
            let mut batch = open.database.batch().durability(Some(PersistMode::SyncAll));
            for (key, value) in marks {
                batch.insert(&open.marks, key.as_str(), value.as_slice());
            }
            Ok(batch.commit()?)
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
                let of_records = generations::of_name(keyspace).is_some();
                of_records.then(|| Arc::new(Reclaim::new(floors.clone())) as Arc<_>)
            }))
            .open()?;
        let floors = database.keyspace("floors", KeyspaceCreateOptions::default)?;
        reclaim.set(floors.clone());
        let open = Open {
            records: RwLock::default(),
            states: database.keyspace("states", KeyspaceCreateOptions::default)?,
            floors,
            marks: database.keyspace("marks", KeyspaceCreateOptions::default)?,
            reclaim,
            database,
        };
        open.open_generations()?;
        Ok(open)
    }

    /// Opens the generations that there are.
    fn open_generations(&self) -> fjall::Result<()> {
        self.begin_generation(0, 0)?;
        for name in self.database.list_keyspace_names() {
            if let Some((class, first)) = generations::of_name(&name).filter(|of| *of != (0, 0)) {
                self.begin_generation(class, first)?;
            }
        }
        Ok(())
    }

    /// Opens a keyspace of records, or makes it.
    fn records_keyspace(&self, name: &str) -> fjall::Result<Keyspace> {
        // Records are only ever read in ranges, which filters of single keys are of no use to.
        let options = || {
            KeyspaceCreateOptions::default()
                .filter_policy(FilterPolicy::disabled())
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        };
        self.database.keyspace(name, options)
    }

    /// Opens the keyspace of a generation, or makes it.
    fn begin_generation(&self, class: Class, first: Sequence) -> fjall::Result<Keyspace> {
        let name = generations::name(class, first);
        let keyspace = self.records_keyspace(&name)?;
        let times = self.marks.get(times_key(&name))?;
        let times_ms = times
            .filter(|times| times.len() == 16)
            .map(|times| (u64_at(&times, 0), u64_at(&times, 8)));
        self.records.write().add(
            class,
            Generation {
                first,
                keyspace: keyspace.clone(),
                times_ms,
            },
        );
        Ok(keyspace)
    }

    fn keyspace(&self, kind: Kind) -> &Keyspace {
        match kind {
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

/// The key of the times of a generation.
fn times_key(keyspace: &str) -> String {
    format!("times/{keyspace}")
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

/// What the keys of the floors of classes begin with; the class follows.
const CLASS_FLOOR: &str = "floor/";
const HISTORY_UPTO: &str = "history_upto";
const CHECKPOINT_UPTO: &str = "checkpoint_upto";
const FORMAT: &str = "format";
const FORMAT_NUMBER: u64 = 2;
/// After how many entries progress is told again.
const PROGRESS_ENTRIES: u64 = 16 << 10;
/// How many files of the tree may be open at once.
const FILES_MAX: usize = 256;
/// How large the tree's blocks are, which is what a cold read takes at least.
const BLOCK_BYTES: u32 = 16 << 10;
