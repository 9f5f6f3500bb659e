//! The producers that streams remember, and the memory that those of all streams of a log take.
//!
//! How many producers a stream remembers is part of the state that all nodes of a fleet share. Which streams are in memory is not, so
//! the bound on the memory decides no command: it has streams evicted sooner, and a node asks it before it submits a command.

use std::collections::HashMap;
use std::collections::hash_map::Iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use encke_log::Sequence;
use serde::{Deserialize, Serialize};

/// The memory of the producers of a log's streams, as far as these are in memory.
#[derive(Debug)]
pub(crate) struct ProducerMemory {
    bytes: AtomicUsize,
    bytes_max: AtomicUsize,
}

/// The producers of a stream, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    by_id: HashMap<Box<str>, ProducerState>,
    bytes: usize,
    share: MemoryShare,
}

/// The progress of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProducerState {
    /// Its session.
    pub(crate) epoch: u64,
    /// The number of its last accepted request in the session.
    pub(crate) seq: u64,
    /// The record of that request. Shows which producer was idle for longest.
    pub(crate) last: Sequence,
}

/// The counted bytes of one stream, until this is dropped.
#[derive(Debug, Default)]
struct MemoryShare {
    bytes: usize,
    of: Option<Arc<ProducerMemory>>,
}

impl Default for ProducerMemory {
    fn default() -> Self {
        ProducerMemory {
            bytes: AtomicUsize::new(0),
            bytes_max: AtomicUsize::new(usize::MAX),
        }
    }
}

impl ProducerMemory {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bytes_max(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Whether streams with producers are to leave memory.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.bytes_max.load(Ordering::Relaxed)
    }

    /// Bytes of producers up to which a stream may get further ones. A stream with few producers is not refused because others have many.
    fn share(&self) -> usize {
        let (bytes, max) = (self.bytes(), self.bytes_max.load(Ordering::Relaxed));
        if bytes < max {
            usize::MAX
        } else if bytes / 2 < max {
            SHARE_BYTES
        } else {
            LAST_SHARE_BYTES
        }
    }
}

impl Producers {
    /// Counts them in the memory of their log from now on.
    pub(crate) fn count_in(&mut self, memory: &Arc<ProducerMemory>) {
        if self.share.of.is_none() {
            self.share.of = Some(Arc::clone(memory));
            self.share.set(self.bytes);
        }
    }

    /// Whether there is memory for the producer, which may be there already.
    pub(crate) fn have_room_for(&self, id: &str) -> bool {
        let memory = self.share.of.as_ref();
        memory.is_none_or(|memory| self.bytes < memory.share()) || self.by_id.contains_key(id)
    }

    pub(crate) fn get(&self, id: &str) -> Option<&ProducerState> {
        self.by_id.get(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> Iter<'_, Box<str>, ProducerState> {
        self.by_id.iter()
    }

    pub(crate) fn insert(&mut self, id: Box<str>, state: ProducerState) -> Option<ProducerState> {
        let cost = cost(&id);
        let before = self.by_id.insert(id, state);
        if before.is_none() {
            self.resize(self.bytes + cost);
        }
        before
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<ProducerState> {
        let before = self.by_id.remove(id);
        if before.is_some() {
            self.resize(self.bytes - cost(id));
        }
        before
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&ProducerState) -> bool) {
        self.by_id.retain(|_, state| keeps(state));
        self.by_id.shrink_to_fit();
        self.resize(self.by_id.keys().map(|id| cost(id)).sum());
    }

    fn resize(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.share.set(bytes);
    }
}

impl FromIterator<(Box<str>, ProducerState)> for Producers {
    fn from_iter<I: IntoIterator<Item = (Box<str>, ProducerState)>>(all: I) -> Self {
        let mut producers = Producers::default();
        for (id, state) in all {
            producers.insert(id, state);
        }
        producers
    }
}

/// A copy is counted nowhere.
impl Clone for Producers {
    fn clone(&self) -> Self {
        Producers {
            by_id: self.by_id.clone(),
            bytes: self.bytes,
            share: MemoryShare::default(),
        }
    }
}

impl PartialEq for Producers {
    fn eq(&self, other: &Self) -> bool {
        self.by_id == other.by_id
    }
}

impl Eq for Producers {}

impl MemoryShare {
    fn set(&mut self, bytes: usize) {
        let Some(memory) = &self.of else {
            return;
        };
        match bytes.checked_sub(self.bytes) {
            Some(more) => memory.bytes.fetch_add(more, Ordering::Relaxed),
            None => memory
                .bytes
                .fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        };
        self.bytes = bytes;
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bytes of a producer.
fn cost(id: &str) -> usize {
    id.len() + ENTRY_BYTES
}

/// An entry of the table, with its share of the room that the table keeps free, and what the allocator adds to the id.
const ENTRY_BYTES: usize = 72;

/// Bytes of producers that each stream may have although the memory is full.
const SHARE_BYTES: usize = 16 << 10;

/// The same while twice as much is taken.
const LAST_SHARE_BYTES: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn state(last: u64) -> ProducerState {
        ProducerState {
            epoch: 0,
            seq: 0,
            last,
        }
    }

    fn id(number: usize) -> Box<str> {
        format!("{number:0256}").into()
    }

    #[test]
    fn what_streams_remember_is_counted_until_it_is_dropped() {
        let memory = Arc::new(ProducerMemory::default());
        let mut one: Producers = (0..10).map(|number| (id(number), state(1))).collect();
        assert_eq!(memory.bytes(), 0);
        one.count_in(&memory);
        one.count_in(&memory);
        let each = 256 + ENTRY_BYTES;
        assert_eq!(memory.bytes(), 10 * each);
        assert_eq!(one.insert(id(3), state(2)), Some(state(1)));
        assert_eq!(one.insert(id(10), state(2)), None);
        assert_eq!(memory.bytes(), 11 * each);
        assert_eq!(one.remove(&id(0)), Some(state(1)));
        assert_eq!(one.remove(&id(0)), None);
        assert_eq!(memory.bytes(), 10 * each);
        let copy = one.clone();
        one.retain(|state| state.last == 2);
        assert_eq!((one.len(), memory.bytes()), (2, 2 * each));
        assert_ne!(one, copy);
        drop(copy);
        drop(one);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn a_stream_with_few_producers_is_not_refused_for_those_with_many() {
        let memory = Arc::new(ProducerMemory::default());
        memory.set_bytes_max(64 << 10);
        let mut large = Producers::default();
        large.count_in(&memory);
        let mut number = 0;
        while large.have_room_for(&id(number)) {
            large.insert(id(number), state(1));
            number += 1;
        }
        assert!(memory.is_full());
        assert_eq!(memory.bytes() / (64 << 10), 1, "one beyond the bound");
        assert!(large.have_room_for(&id(0)), "it is remembered already");
        let mut small = Producers::default();
        small.count_in(&memory);
        while small.have_room_for(&id(number)) {
            small.insert(id(number), state(1));
            number += 1;
        }
        assert_eq!(small.bytes / SHARE_BYTES, 1);
        // Many of them leave each less.
        memory.set_bytes_max(16 << 10);
        let mut last = Producers::default();
        last.count_in(&memory);
        assert!(!small.have_room_for(&id(number)));
        while last.have_room_for(&id(number)) {
            last.insert(id(number), state(1));
            number += 1;
        }
        assert_eq!(last.bytes / LAST_SHARE_BYTES, 1);
        drop(large);
        assert!(last.have_room_for(&id(number)));
    }
}
