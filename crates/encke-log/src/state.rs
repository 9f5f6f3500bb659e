//! The state store: what the log's user wants to find again without replaying everything.
//!
//! Entries are changed by checkpoints only. A checkpoint can be read at once, and is kept in memory until it is durable.

use crate::disk::Disk;
use crate::error::{CommitError, ReadError};
use crate::failed_read::Wanted;
use crate::history::{History, HistoryError};
use crate::log::Log;
use crate::read::Reader;
use parking_lot::RwLock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

/// A key and its new value; `None` deletes it.
pub type StateEntry = (Vec<u8>, Option<Vec<u8>>);

/// What checkpoints have changed that history does not have yet.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// Without history, everything.
    settled: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// With history, the checkpoints that are not durable, oldest first.
    pending: RwLock<VecDeque<Arc<Pending>>>,
}

/// One checkpoint's changes.
#[derive(Debug)]
pub(crate) struct Pending {
    entries: Vec<StateEntry>,
    /// What [`Pending::order`] says, once somebody has found it out.
    order: OnceLock<Vec<u32>>,
}

impl Pending {
    pub(crate) fn new(entries: Vec<StateEntry>) -> Pending {
        Pending {
            entries,
            order: OnceLock::new(),
        }
    }

    /// How many bytes the keys and values have.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.entries.iter();
        let bytes = entries.map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len));
        bytes.map(|bytes| bytes as u64).sum()
    }

    /// The entries in the order of their keys, each key once, the last of its entries.
    pub(crate) fn in_order(&self) -> impl ExactSizeIterator<Item = (&[u8], Option<&[u8]>)> {
        self.order().iter().map(|i| {
            let (key, value) = &self.entries[*i as usize];
            (&key[..], value.as_deref())
        })
    }

    /// Which entries count, in the order of their keys. Nobody waits for another who is at it: he may be in the background,
    /// where it takes long.
    fn order(&self) -> &[u32] {
        if let Some(order) = self.order.get() {
            return order;
        }
        let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
        let key = |i: &u32| &self.entries[*i as usize].0;
        order.sort_unstable_by(|a, b| key(a).cmp(key(b)).then(b.cmp(a)));
        order.dedup_by(|b, a| key(b) == key(a));
        self.order.get_or_init(|| order)
    }

    /// What this checkpoint says of a key, if anything.
    fn find(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let order = self.order();
        let found = order.binary_search_by(|i| self.entries[*i as usize].0[..].cmp(key));
        let (_, value) = &self.entries[order[found.ok()?] as usize];
        Some(value.as_deref())
    }
}

impl States {
    pub(crate) fn settle(&self, entries: Vec<StateEntry>) {
        let mut settled = self.settled.write();
        for (key, value) in entries {
            match value {
                Some(value) => settled.insert(key, value),
                None => settled.remove(&key),
            };
        }
    }

    pub(crate) fn push(&self, pending: Arc<Pending>) {
        self.pending.write().push_back(pending);
    }

    /// The oldest checkpoint is durable.
    pub(crate) fn pop(&self) {
        self.pending.write().pop_front();
    }

    fn get(&self, key: &[u8], history: Option<&History>) -> Result<Option<Vec<u8>>, HistoryError> {
        let Some(history) = history else {
            return Ok(self.settled.read().get(key).cloned());
        };
        // Taken before history is read: a checkpoint that becomes durable in between is in both, never in neither.
        let pending: Vec<_> = self.pending.read().iter().cloned().collect();
        match pending.iter().rev().find_map(|pending| pending.find(key)) {
            Some(value) => Ok(value.map(<[u8]>::to_vec)),
            None => history.state(key),
        }
    }

    fn each(
        &self,
        prefix: &[u8],
        history: Option<&History>,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), HistoryError> {
        let Some(history) = history else {
            let settled = self.settled.read();
            let from = settled.range::<[u8], _>((
                std::ops::Bound::Included(prefix),
                std::ops::Bound::Unbounded,
            ));
            from.take_while(|(key, _)| key.starts_with(prefix))
                .for_each(|(key, value)| each(key, value));
            return Ok(());
        };
        let pending: Vec<_> = self.pending.read().iter().cloned().collect();
        let mut newer = BTreeMap::new();
        for pending in &pending {
            newer.extend(
                pending
                    .in_order()
                    .filter(|(key, _)| key.starts_with(prefix)),
            );
        }
        let mut newer = newer.into_iter().peekable();
        history.states(prefix, &mut |key, value| {
            while let Some((key, value)) = newer.next_if(|(newer, _)| *newer < key) {
                value.into_iter().for_each(|value| each(key, value));
            }
            match newer.next_if(|(newer, _)| *newer == key) {
                Some((key, value)) => value.into_iter().for_each(|value| each(key, value)),
                None => each(key, value),
            }
        })?;
        for (key, value) in newer {
            value.into_iter().for_each(|value| each(key, value));
        }
        Ok(())
    }
}

impl<D: Disk> Log<D> {
    /// Whether a segment was sealed since the last checkpoint, so that a new one would shorten the next replay.
    pub fn wants_checkpoint(&self) -> bool {
        self.sealed_since_checkpoint
    }

    /// How many checkpoints are not durable yet, and are kept in memory until they are.
    pub fn checkpoints_waiting(&self) -> usize {
        self.shared.states.pending.read().len()
    }

    /// Changes the state store: `entries` are what changed since the last checkpoint (the last entry of a key counts), and
    /// together with the store they are the state after the last published record. They can be read at once, and become
    /// durable in the background, all or none of them, together with the floors that are set. Opens after that replay only
    /// what came later. Without history nothing is ever durable here, and all is replayed.
    ///
    /// Call it when everything that was written is published. What is published and not synced is synced first, because a
    /// state must not outlive the records it follows from; a log that is poisoned takes no checkpoint.
    pub fn checkpoint(&mut self, entries: Vec<StateEntry>) {
        if let Err(CommitError::Poisoned { .. }) = self.sync() {
            return;
        }
        self.sealed_since_checkpoint = false;
        if self.shared.history.is_none() {
            self.shared.states.settle(entries);
            return;
        }
        let pending = Arc::new(Pending::new(entries));
        self.shared.states.push(pending.clone());
        let upto = self.reader().published();
        self.sealer
            .checkpoint(upto, pending, self.shared.floors.raised());
    }

    /// Gives `each` all entries of the state store whose key begins with `prefix`, in the order of their keys.
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn states(
        &self,
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), ReadError> {
        self.reader().states(prefix, each)
    }

    /// One entry of the state store.
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.reader().state(key)
    }
}

impl<D: Disk> Reader<D> {
    /// As [`Log::states`].
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn states(
        &self,
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), ReadError> {
        let read = self.read_states(prefix, each);
        self.watch(read, || Wanted::States(prefix.to_vec()))
    }

    pub(crate) fn read_states(
        &self,
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), ReadError> {
        let shared = self.shared();
        let given = shared.states.each(prefix, shared.history.as_ref(), each);
        given.map_err(|e| shared.unreadable(e))
    }

    /// As [`Log::state`].
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.watch(self.read_state(key), || Wanted::State(key.to_vec()))
    }

    pub(crate) fn read_state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let shared = self.shared();
        let value = shared.states.get(key, shared.history.as_ref());
        value.map_err(|e| shared.unreadable(e))
    }
}
