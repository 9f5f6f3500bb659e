//! What can go wrong, as values.

use std::sync::Arc;

use crate::options::Strategy;

/// Why a pool could not do what it was asked.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// There is no pool of this name, or it has been deleted.
    #[error("unknown pool {name:?}")]
    UnknownPool {
        /// The name that was asked for.
        name: Arc<str>,
    },
    /// There is a pool of this name already.
    #[error("pool {name:?} exists")]
    PoolExists {
        /// The name.
        name: Arc<str>,
    },
    /// No worker of this name has been added to the pool.
    #[error("unknown worker {name:?}")]
    UnknownWorker {
        /// The name that was asked for.
        name: Arc<str>,
    },
    /// Every slot is taken, and the pool may not grow any more.
    #[error("full: all {size} slots are taken")]
    Full {
        /// How many slots there are, or may be.
        size: usize,
    },
    /// A worker of this name has been added before. Nothing has changed.
    #[error("the name {name:?} is taken, by slot {slot}")]
    NameTaken {
        /// The name.
        name: Arc<str>,
        /// Where that worker is.
        slot: usize,
    },
    /// Another worker has this slot. Nothing has changed.
    #[error("slot {slot} is taken, by {by:?}")]
    SlotTaken {
        /// The slot.
        slot: usize,
        /// Who has it.
        by: Arc<str>,
    },
    /// The worker is connected, so it can neither connect again nor be removed; nor can its pool.
    #[error("worker {name:?} is connected")]
    WorkerConnected {
        /// Its name.
        name: Arc<str>,
    },
    /// There is no such slot.
    #[error("slot {slot} is out of range: there are {size}")]
    OutOfRange {
        /// The slot that was asked for; the first is 0.
        slot: usize,
        /// How many slots there are, or may be.
        size: usize,
    },
    /// No worker is connected to the pool, or none to the slot that was asked for.
    #[error("nobody is connected")]
    NobodyConnected,
    /// Every connected worker is claimed.
    #[error("every worker is claimed")]
    AllBusy,
    /// No worker became free in time.
    #[error("no worker became free in time")]
    TimedOut,
    /// As many claims wait as may.
    #[error("{waiting_max} claims wait already")]
    TooManyWaiting {
        /// The pool's bound.
        waiting_max: usize,
    },
    /// So many workers have died and connected anew while their old connections are still claimed that the pool has
    /// no place for another until such a claim is released.
    #[error("too many connections that are gone are still claimed")]
    TooManyLeftClaimed,
    /// The pool is of a type that does not choose in this way.
    #[error("a pool of type {strategy} does not do that")]
    WrongStrategy {
        /// The pool's type.
        strategy: Strategy,
    },
}
