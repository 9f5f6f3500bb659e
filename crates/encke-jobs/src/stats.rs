//! The state of the pools, for other threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::response::{PoolStats, WorkerStatus};

/// The published state of all pools: written by the dispatcher, read by any thread.
#[derive(Debug, Default)]
pub struct PublishedStats {
    pools: Mutex<BTreeMap<Arc<str>, Arc<PublishedPool>>>,
    cached_bytes: AtomicUsize,
    loads: AtomicU64,
}

/// The published state of one pool.
#[derive(Debug, Default)]
pub struct PublishedPool {
    state: Mutex<(PoolStats, Vec<WorkerStatus>)>,
}

impl PublishedStats {
    /// Every pool: its name, its counts and its workers, in the order of names.
    pub fn read(&self) -> Vec<(Arc<str>, PoolStats, Vec<WorkerStatus>)> {
        let pools = self.pools.lock();
        let read = |(name, published): (&Arc<str>, &Arc<PublishedPool>)| {
            let (figures, workers) = published.state.lock().clone();
            (Arc::clone(name), figures, workers)
        };
        pools.iter().map(read).collect()
    }

    /// Bytes of jobs' content in memory, over all pools.
    pub fn cached_bytes(&self) -> usize {
        self.cached_bytes.load(Ordering::Relaxed)
    }

    /// Jobs read from the log since the start, because their content was not in memory.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    pub(crate) fn cached(&self, bytes: usize) {
        self.cached_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn loaded_one(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, name: &str) -> Arc<PublishedPool> {
        let published = Arc::new(PublishedPool::default());
        self.pools
            .lock()
            .insert(name.into(), Arc::clone(&published));
        published
    }

    /// Another node has the pools.
    pub(crate) fn clear(&self) {
        self.pools.lock().clear();
        self.cached(0);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.pools.lock().remove(name);
    }
}

impl PublishedPool {
    pub(crate) fn set(&self, figures: PoolStats, workers: Vec<WorkerStatus>) {
        *self.state.lock() = (figures, workers);
    }
}
