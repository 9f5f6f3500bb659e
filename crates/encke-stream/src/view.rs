//! The committed streams by name: what shards look up without waiting for the sequencer.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use parking_lot::RwLock;

use encke_log::Sequence;

use crate::Stream;

/// All streams that are committed and whose name is taken, found by name.
///
/// Many threads look up; one, the sequencer's, changes it once per committed batch. The table is
/// split, so that one part that grows holds up look-ups in that part only.
#[derive(Debug)]
pub struct View {
    parts: Vec<RwLock<HashTable<Arc<Stream>>>>,
    hasher: RandomState,
    len: AtomicUsize,
    committed: AtomicU64,
}

impl Default for View {
    fn default() -> Self {
        View {
            parts: (0..PARTS).map(|_| RwLock::default()).collect(),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            committed: AtomicU64::new(0),
        }
    }
}

impl View {
    /// The stream of that name, expired or kept for its forks though it may be.
    pub fn find(&self, name: &str) -> Option<Arc<Stream>> {
        let hash = self.hasher.hash_one(name);
        let part = self.part(hash).read();
        part.find(hash, |stream| &*stream.name == name).cloned()
    }

    /// Every record up to this one is visible in the facts of its stream.
    pub fn committed(&self) -> Sequence {
        self.committed.load(Ordering::SeqCst)
    }

    pub(crate) fn set_committed(&self, sequence: Sequence) {
        self.committed.store(sequence, Ordering::SeqCst);
    }

    /// How many names are taken.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether no name is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `each` for every stream, in no order.
    pub fn for_each(&self, each: &mut dyn FnMut(&Arc<Stream>)) {
        for part in &self.parts {
            part.read().iter().for_each(&mut *each);
        }
    }

    pub(crate) fn insert(&self, stream: Arc<Stream>) {
        let hash = self.hasher.hash_one(&*stream.name);
        let mut part = self.part(hash).write();
        if let Ok(entry) = part.find_entry(hash, |other| other.name == stream.name) {
            entry.remove();
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        part.insert_unique(hash, stream, |other| self.hasher.hash_one(&*other.name));
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, name: &str) {
        let hash = self.hasher.hash_one(name);
        let mut part = self.part(hash).write();
        if let Ok(entry) = part.find_entry(hash, |other| &*other.name == name) {
            entry.remove();
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn part(&self, hash: u64) -> &RwLock<HashTable<Arc<Stream>>> {
        // The table itself uses the low and the topmost bits.
        &self.parts[(hash >> 40) as usize % PARTS]
    }
}

const PARTS: usize = 256;
