//! The tree (fjall) that stores history: making, opening and closing it.

use crate::background::priority;
use crate::history::error::HistoryError;
use crate::history::generations::{self, Generation, Generations, KEPT, Times};
use crate::history::ingest::ingest_into;
use crate::history::reclaim::{DurableFloors, Reclaim};
use crate::ids::Sequence;
use crate::segments::frame::u64_at;
use fjall::config::{BlockSizePolicy, FilterPolicy, PartitioningPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use parking_lot::RwLock;
use std::path::Path;
use std::sync::Arc;

/// The open tree.
pub(crate) struct Tree {
    pub(crate) database: Database,
    pub(crate) records: RwLock<Generations>,
    pub(crate) states: Keyspace,
    pub(crate) floors: Keyspace,
    pub(crate) marks: Keyspace,
    /// The floors for compaction. They are cleared before the database is dropped, because they would keep it alive.
    reclaim: Arc<DurableFloors>,
}

/// The keyspaces for [`History::ingest`](crate::history::History::ingest).
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyspaceKind {
    States,
    Floors,
}

/// How many threads of the tree compact it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionThreads {
    /// With more than one, an idle worker spins while another one compacts.
    One,
    /// Nothing is compacted.
    None,
}

impl Tree {
    /// Opens the tree, or makes an empty one. Everything that the tree deletes or makes again must have been inspected
    /// before.
    pub(crate) fn new(
        path: &Path,
        cache_bytes: u64,
        times: &Times,
        workers: CompactionThreads,
    ) -> Result<Tree, HistoryError> {
        // The tree asserts while it reads its journal, and a flipped bit can fail an assertion. A panic in this thread
        // drops everything that the closure has made, so no state is left half done. The thread has a low priority,
        // which the compaction thread inherits.
        let open = || {
            priority::lower_priority();
            Tree::unguarded(path, cache_bytes, times, workers)
        };
        let opened = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("encke-open".to_owned());
            Ok(thread.spawn_scoped(scope, open)?.join())
        });
        let opened = opened.map_err(|error: std::io::Error| HistoryError::from(error))?;
        opened.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(HistoryError::from(format!(
                "it is damaged: {}",
                text.unwrap_or("unknown reason")
            )))
        })
    }

    fn unguarded(
        path: &Path,
        cache_bytes: u64,
        times: &Times,
        workers: CompactionThreads,
    ) -> Result<Tree, HistoryError> {
        let reclaim = Arc::new(DurableFloors::default());
        let floors = reclaim.clone();
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .max_cached_files(Some(FILES_MAX))
            .worker_threads_unchecked(usize::from(workers == CompactionThreads::One))
            .with_compaction_filter_factories(Arc::new(move |keyspace| {
                let has_records = generations::has_records(keyspace);
                has_records.then(|| Arc::new(Reclaim::new(floors.clone())) as Arc<_>)
            }))
            .open()?;
        let floors = database.keyspace("floors", partitioned)?;
        reclaim.set(floors.clone());
        let open = Tree {
            records: RwLock::default(),
            states: database.keyspace("states", partitioned)?,
            floors,
            marks: database.keyspace("marks", KeyspaceCreateOptions::default)?,
            reclaim,
            database,
        };
        open.open_generations(times)?;
        Ok(open)
    }

    /// Opens the existing keyspaces of records.
    pub(crate) fn open_generations(&self, times: &Times) -> fjall::Result<()> {
        for name in self.database.list_keyspace_names() {
            if &*name == KEPT {
                self.kept()?;
            }
            if let Some(first) = generations::of_name(&name) {
                self.add_generation(first, times)?;
            }
        }
        Ok(())
    }

    /// Opens a keyspace of records, or makes it.
    pub(crate) fn records_keyspace(&self, name: &str) -> fjall::Result<Keyspace> {
        // Records are read in ranges only, for which filters of single keys are useless.
        let options = || {
            partitioned()
                .filter_policy(FilterPolicy::disabled())
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        };
        self.database.keyspace(name, options)
    }

    /// The keyspace of kept records, which is made if there is none.
    pub(crate) fn kept(&self) -> fjall::Result<Keyspace> {
        let kept = self.records_keyspace(KEPT)?;
        self.records.write().set_kept(kept.clone());
        Ok(kept)
    }

    /// Makes the keyspace of a generation.
    pub(crate) fn begin_generation(&self, first: Sequence) -> fjall::Result<Keyspace> {
        self.add_generation(first, &Times::new())
    }

    fn add_generation(&self, first: Sequence, times: &Times) -> fjall::Result<Keyspace> {
        let name = generations::name(first);
        let keyspace = self.records_keyspace(&name)?;
        self.records.write().add(Generation {
            first,
            keyspace: keyspace.clone(),
            times: times.get(&name).copied(),
        });
        Ok(keyspace)
    }

    /// The numbers and names of all keyspaces.
    pub(crate) fn keyspace_names(&self) -> Vec<(u64, String)> {
        let records = self.records.read();
        let all = records
            .keyspaces()
            .chain([&self.states, &self.floors, &self.marks]);
        all.map(|keyspace| (keyspace.id(), keyspace.name().to_string()))
            .collect()
    }

    pub(crate) fn keyspace(&self, kind: KeyspaceKind) -> &Keyspace {
        match kind {
            KeyspaceKind::States => &self.states,
            KeyspaceKind::Floors => &self.floors,
        }
    }

    /// Writes the number of the format, past the engine's journal.
    pub(crate) fn put_format(&self) -> Result<(), HistoryError> {
        ingest_into(&self.marks, |put| {
            put(FORMAT.as_bytes(), Some(&FORMAT_NUMBER.to_le_bytes()))
        })
    }

    /// Writes the number of the format, if it is missing or different.
    pub(crate) fn set_format(&self) -> Result<(), HistoryError> {
        match self.has_format()? {
            true => Ok(()),
            false => self.put_format(),
        }
    }

    /// Whether the number of the format is there.
    pub(crate) fn has_format(&self) -> Result<bool, HistoryError> {
        Ok(self.mark(FORMAT)? == FORMAT_NUMBER)
    }

    /// One of the marks; 0 when it is missing.
    pub(crate) fn mark(&self, key: &str) -> Result<u64, HistoryError> {
        let value = self.marks.get(key)?.filter(|value| value.len() == 8);
        Ok(value.map_or(0, |value| u64_at(&value, 0)))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.reclaim.clear();
    }
}

/// Replaces the tree's journal by an empty one, and makes its lock file if that is missing. The journal of a log with a
/// superblock never has any data, so its content does not matter. Without a journal the tree would take all records for
/// later ones.
pub(crate) fn reset_journal(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "jnl") {
            std::fs::remove_file(file)?;
        }
    }
    std::fs::File::create(path.join("0.jnl"))?.sync_all()?;
    let lock = path.join("lock");
    if !lock.try_exists()? {
        std::fs::File::create(lock)?;
    }
    std::fs::File::open(path)?.sync_all()
}

/// Makes the names in a path's directory durable.
pub(crate) fn sync_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => std::fs::File::open(".")?.sync_all(),
        Some(parent) => std::fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Options of a keyspace that may become large: its indices and filters are partitioned, and only the cache keeps parts
/// of them in memory. By default those of the upper levels are all in memory and grow with the data, and each look-up
/// reads a whole one of the other levels: a megabyte with a million streams.
fn partitioned() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::all(false))
        .filter_block_pinning_policy(PinningPolicy::all(false))
}

/// The mark with the number of the format.
pub(crate) const FORMAT: &str = "format";
const FORMAT_NUMBER: u64 = 3;
/// How many files of the tree may be open at once.
const FILES_MAX: usize = 256;
/// The size of blocks, and so the least size of a cold read.
const BLOCK_BYTES: u32 = 16 << 10;
