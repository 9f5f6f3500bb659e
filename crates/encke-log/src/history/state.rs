//! The state store: state of the caller that survives a restart without a replay of all records.
//!
//! Only checkpoints change entries. The entries of a checkpoint can be read at once, and are in memory until they are
//! durable.

use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::state_range::{EachState, StateRange};
use parking_lot::RwLock;
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

/// A key and its new value; `None` deletes it.
pub type StateEntry = (Vec<u8>, Option<Vec<u8>>);

/// The changes of checkpoints that history does not have yet.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// Without history: all entries.
    settled: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// With history: the checkpoints that are not durable, oldest first.
    pending: RwLock<VecDeque<Arc<PendingCheckpoint>>>,
}

/// The changes of a checkpoint.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    entries: Vec<StateEntry>,
    /// The cached result of [`Pending::order`].
    order: OnceLock<Vec<u32>>,
}

impl PendingCheckpoint {
    pub(crate) fn new(entries: Vec<StateEntry>) -> PendingCheckpoint {
        PendingCheckpoint {
            entries,
            order: OnceLock::new(),
        }
    }

    /// The size of the keys and values in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.entries.iter();
        let bytes = entries.map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len));
        bytes.map(|bytes| bytes as u64).sum()
    }

    /// The entries in the order of their keys. Of several entries of a key, the last one.
    pub(crate) fn in_order(&self) -> impl ExactSizeIterator<Item = (&[u8], Option<&[u8]>)> {
        self.order().iter().map(|i| {
            let (key, value) = &self.entries[*i as usize];
            (&key[..], value.as_deref())
        })
    }

    /// The entries that count, in the order of their keys. Several threads may compute this at once: a reader must not
    /// wait for the background thread, which has a low priority.
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

    /// The value of a key in this checkpoint; `None` when it does not change the key.
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

    pub(crate) fn push(&self, pending: Arc<PendingCheckpoint>) {
        self.pending.write().push_back(pending);
    }

    /// The number of checkpoints that are not durable yet.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.read().len()
    }

    /// Drops the oldest checkpoint, which is durable.
    pub(crate) fn pop(&self) {
        self.pending.write().pop_front();
    }

    pub(crate) fn get(
        &self,
        key: &[u8],
        history: Option<&History>,
    ) -> Result<Option<Vec<u8>>, HistoryError> {
        let Some(history) = history else {
            return Ok(self.settled.read().get(key).cloned());
        };
        // Copied before history is read: a checkpoint that becomes durable in between is in both, never in neither.
        let pending: Vec<_> = self.pending.read().iter().cloned().collect();
        match pending.iter().rev().find_map(|pending| pending.find(key)) {
            Some(value) => Ok(value.map(<[u8]>::to_vec)),
            None => history.state(key),
        }
    }

    pub(crate) fn each(
        &self,
        range: StateRange<'_>,
        history: Option<&History>,
        each: &mut EachState<'_>,
    ) -> Result<(), HistoryError> {
        let Some(history) = history else {
            let settled = self.settled.read();
            let mut from = settled.range::<[u8], _>(range.bounds());
            let _ = from.try_for_each(|(key, value)| match range.has(key) {
                true => each(key, value),
                false => ControlFlow::Break(()),
            });
            return Ok(());
        };
        let pending: Vec<_> = self.pending.read().iter().cloned().collect();
        let mut newer = BTreeMap::new();
        for pending in &pending {
            newer.extend(pending.in_order().filter(|(key, _)| range.has(key)));
        }
        let mut newer = newer.into_iter().peekable();
        let each_newer = |(key, value): (&[u8], Option<&[u8]>), each: &mut EachState<'_>| {
            value.map_or(ControlFlow::Continue(()), |value| each(key, value))
        };
        let mut ended = ControlFlow::Continue(());
        history.states(range, &mut |key, value| {
            while let Some(one) = newer.next_if(|(newer, _)| *newer < key) {
                ended = each_newer(one, each);
                ended?;
            }
            ended = match newer.next_if(|(newer, _)| *newer == key) {
                Some(one) => each_newer(one, each),
                None => each(key, value),
            };
            ended
        })?;
        if ended.is_continue() {
            let _ = newer.try_for_each(|one| each_newer(one, each));
        }
        Ok(())
    }
}
