//! Pools by their names.

use std::collections::HashMap;
use std::fmt;

use crate::error::PoolError;
use crate::options::Options;
use crate::pool::Pool;
use crate::sync::{Arc, Mutex, Published};

type Name = std::sync::Arc<str>;

/// The pools of a server. Looking one up waits for nobody; still, who picks often keeps the [`Pool`] at hand.
pub struct Pools<W> {
    by_name: Published<HashMap<Name, Pool<W>>>,
    /// Whoever changes the map.
    writer: Mutex<()>,
}

impl<W> Pools<W> {
    /// No pools yet.
    pub fn new() -> Self {
        Self {
            by_name: Published::new(HashMap::new()),
            writer: Mutex::new(()),
        }
    }

    /// Makes a pool.
    pub fn create(&self, name: &str, options: Options) -> Result<Pool<W>, PoolError> {
        let _writer = self.writer.lock();
        let mut by_name = self.snapshot();
        if by_name.contains_key(name) {
            return Err(PoolError::PoolExists { name: name.into() });
        }
        let pool = Pool::new(name, options);
        by_name.insert(name.into(), pool.clone());
        self.by_name.store(by_name);
        Ok(pool)
    }

    /// The pool of this name.
    pub fn pool(&self, name: &str) -> Result<Pool<W>, PoolError> {
        let by_name = self.by_name.load();
        let pool = by_name.get(name).cloned();
        pool.ok_or_else(|| PoolError::UnknownPool { name: name.into() })
    }

    /// Every pool, in the order of names.
    pub fn list(&self) -> Vec<Pool<W>> {
        let mut pools: Vec<_> = self.by_name.load().values().cloned().collect();
        pools.sort_by(|a, b| a.name().cmp(b.name()));
        pools
    }

    /// Deletes a pool of which no worker is connected. Who waits for one is told that the pool is unknown.
    pub fn delete(&self, name: &str) -> Result<(), PoolError> {
        self.remove(name, false)
    }

    /// Deletes a pool; its workers are disconnected.
    pub fn delete_by_force(&self, name: &str) -> Result<(), PoolError> {
        self.remove(name, true)
    }

    fn remove(&self, name: &str, by_force: bool) -> Result<(), PoolError> {
        let _writer = self.writer.lock();
        let mut by_name = self.snapshot();
        let Some(pool) = by_name.remove(name) else {
            return Err(PoolError::UnknownPool { name: name.into() });
        };
        pool.inner.close(by_force)?;
        self.by_name.store(by_name);
        Ok(())
    }

    fn snapshot(&self) -> HashMap<Name, Pool<W>> {
        let by_name = self.by_name.load();
        HashMap::clone(&Arc::clone(&by_name))
    }
}

impl<W> Default for Pools<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W> fmt::Debug for Pools<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_name.load().keys()).finish()
    }
}
