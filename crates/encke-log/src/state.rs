//! The state store: what the log's user wants to find again without replaying everything.
//!
//! Entries are changed by checkpoints only. A checkpoint is seen by [`Reader::state`] at once and kept in memory until it
//! is durable.

use crate::disk::Disk;
use crate::error::ReadError;
use crate::log::Log;
use crate::read::Reader;
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// A key and its new value; `None` deletes it.
pub type StateEntry = (Vec<u8>, Option<Vec<u8>>);

/// What checkpoints have changed.
#[derive(Debug, Default)]
pub(crate) struct States {
    memory: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl States {
    fn change(&self, entries: Vec<StateEntry>) {
        let mut memory = self.memory.write();
        for (key, value) in entries {
            match value {
                Some(value) => memory.insert(key, value),
                None => memory.remove(&key),
            };
        }
    }
}

impl<D: Disk> Log<D> {
    /// Whether a segment was sealed since the last checkpoint, so that a new one would shorten the next replay.
    pub fn wants_checkpoint(&self) -> bool {
        self.sealed_since_checkpoint
    }

    /// Changes the state store: `entries` are what changed since the last checkpoint, and together with the store they
    /// are the state after the last published record. They can be read at once. Later opens replay only what came after
    /// the last checkpoint that was finished before; without history nothing is ever finished, and all is replayed.
    ///
    /// Call it between a [`publish`](Log::publish) and the next [`append`](Log::append).
    pub fn checkpoint(&mut self, entries: Vec<StateEntry>) {
        self.sealed_since_checkpoint = false;
        self.shared.states.change(entries);
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
        let memory = self.shared().states.memory.read();
        for (key, value) in memory
            .range(prefix.to_vec()..)
            .take_while(|(key, _)| key.starts_with(prefix))
        {
            each(key, value);
        }
        Ok(())
    }

    /// As [`Log::state`].
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        Ok(self.shared().states.memory.read().get(key).cloned())
    }
}
