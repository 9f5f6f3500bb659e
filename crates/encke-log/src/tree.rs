//! The tree (fjall) in which history is kept: how it is made, opened and closed.

use crate::Sequence;
use crate::background;
use crate::generations::{self, Generation, Generations};
use crate::history::{HistoryError, Kind};
use crate::marks::Times;
use crate::reclaim::{DurableFloors, Reclaim};
use crate::retention::Class;
use fjall::config::{BlockSizePolicy, FilterPolicy, PartitioningPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use parking_lot::RwLock;
use std::path::Path;
use std::sync::Arc;

/// The tree while it is open.
pub(crate) struct Tree {
    pub(crate) database: Database,
    pub(crate) records: RwLock<Generations>,
    pub(crate) states: Keyspace,
    pub(crate) floors: Keyspace,
    pub(crate) marks: Keyspace,
    /// What the compaction looks up; emptied before the database goes, which it would keep alive.
    reclaim: Arc<DurableFloors>,
}

/// How many threads of the tree compact it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionThreads {
    /// With more than one, an idle worker spins for as long as another one compacts.
    One,
    /// Nothing is compacted.
    None,
}

impl Tree {
    /// Opens the tree, or makes an empty one. What the tree deletes or makes anew must have been looked at before.
    pub(crate) fn new(
        path: &Path,
        cache_bytes: u64,
        times: &Times,
        workers: CompactionThreads,
    ) -> Result<Tree, HistoryError> {
        // The tree reads its journal with assertions, and a flipped bit is enough to fail one. Nothing is left of what the
        // closure has made then, so nothing can be seen half done.
        // And its thread for compaction, which nobody waits for, begins in the background as the one that begins it.
        let open = || {
            background::step_back();
            Tree::unguarded(path, cache_bytes, times, workers)
        };
        let opened = std::thread::scope(|scope| scope.spawn(open).join());
        opened.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(HistoryError::from(format!(
                "it is damaged: {}",
                text.unwrap_or("no more is known")
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
                let of_records = generations::of_name(keyspace).is_some();
                of_records.then(|| Arc::new(Reclaim::new(floors.clone())) as Arc<_>)
            }))
            .open()?;
        let floors = database.keyspace("floors", in_small_parts)?;
        reclaim.set(floors.clone());
        let open = Tree {
            records: RwLock::default(),
            states: database.keyspace("states", in_small_parts)?,
            floors,
            marks: database.keyspace("marks", KeyspaceCreateOptions::default)?,
            reclaim,
            database,
        };
        open.open_generations(times)?;
        Ok(open)
    }

    /// Opens the generations that there are.
    pub(crate) fn open_generations(&self, times: &Times) -> fjall::Result<()> {
        self.add_generation((0, 0), times)?;
        for name in self.database.list_keyspace_names() {
            if let Some((class, first)) = generations::of_name(&name).filter(|of| *of != (0, 0)) {
                self.add_generation((class, first), times)?;
            }
        }
        Ok(())
    }

    /// Opens a keyspace of records, or makes it.
    pub(crate) fn records_keyspace(&self, name: &str) -> fjall::Result<Keyspace> {
        // Records are only ever read in ranges, which filters of single keys are of no use to.
        let options = || {
            in_small_parts()
                .filter_policy(FilterPolicy::disabled())
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        };
        self.database.keyspace(name, options)
    }

    /// Makes the keyspace of a generation.
    pub(crate) fn begin_generation(
        &self,
        class: Class,
        first: Sequence,
    ) -> fjall::Result<Keyspace> {
        self.add_generation((class, first), &Times::new())
    }

    fn add_generation(
        &self,
        (class, first): (Class, Sequence),
        times: &Times,
    ) -> fjall::Result<Keyspace> {
        let name = generations::name(class, first);
        let keyspace = self.records_keyspace(&name)?;
        self.records.write().add(
            class,
            Generation {
                first,
                keyspace: keyspace.clone(),
                times_ms: times.get(&name).copied(),
            },
        );
        Ok(keyspace)
    }

    /// The numbers and names of all keyspaces.
    pub(crate) fn keyspace_names(&self) -> Vec<(u64, String)> {
        let records = self.records.read();
        let records = records.all().map(|one| &one.keyspace);
        let all = records.chain([&self.states, &self.floors, &self.marks]);
        all.map(|keyspace| (keyspace.id(), keyspace.name().to_string()))
            .collect()
    }

    pub(crate) fn keyspace(&self, kind: Kind) -> &Keyspace {
        match kind {
            Kind::States => &self.states,
            Kind::Floors => &self.floors,
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.reclaim.clear();
    }
}

/// Begins the tree's journal anew, and makes its lock if that is missing. A journal never holds anything of a log that has a
/// superblock, so it does not matter what became of it; but without any, the tree would take all records for later ones.
pub(crate) fn begin_journal_anew(path: &Path) -> std::io::Result<()> {
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
        Some(parent) => std::fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// How a keyspace is made that may become large: what is looked for in it is found by way of small parts of its indices and
/// filters, of which no more is in memory than the cache has room for. By default those of the upper levels are all in memory,
/// and grow with the data, and of the others each look-up reads a whole one: a megabyte where a million streams are.
fn in_small_parts() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::all(false))
        .filter_block_pinning_policy(PinningPolicy::all(false))
}

/// How many files of the tree may be open at once.
const FILES_MAX: usize = 256;
/// How large the tree's blocks are, which is what a cold read takes at least.
const BLOCK_BYTES: u32 = 16 << 10;
