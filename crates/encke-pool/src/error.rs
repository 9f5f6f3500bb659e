//! Errors of a pool.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::options::Strategy;

/// Why a pool refused. Nothing has changed.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolError {
    /// The pool has no worker of this name.
    #[error("unknown worker {name:?}")]
    UnknownWorker {
        /// The name.
        name: Arc<str>,
    },
    /// Every slot is taken and the pool may not grow.
    #[error("full: all {size} slots are taken")]
    Full {
        /// The number of slots.
        size: usize,
    },
    /// The pool has a worker of this name.
    #[error("the name {name:?} is taken, by slot {slot}")]
    NameTaken {
        /// The name.
        name: Arc<str>,
        /// That worker's slot.
        slot: usize,
    },
    /// Another worker has this slot.
    #[error("slot {slot} is taken, by {by:?}")]
    SlotTaken {
        /// The slot.
        slot: usize,
        /// That worker's name.
        by: Arc<str>,
    },
    /// The worker is connected, so it can neither connect again nor be removed.
    #[error("worker {name:?} is connected")]
    WorkerConnected {
        /// Its name.
        name: Arc<str>,
    },
    /// The slot does not exist.
    #[error("slot {slot} is out of range: there are {size}")]
    OutOfRange {
        /// The requested slot; the first is 0.
        slot: usize,
        /// The number of slots.
        size: usize,
    },
    /// The pool, or the requested slot, has no connected worker.
    #[error("no worker is connected")]
    NoWorkerConnected,
    /// No suitable worker has room for the job.
    #[error("no worker has room")]
    NoRoom,
    /// Too many claims of disconnected workers are not released yet.
    #[error("too many claims of disconnected workers are not released yet")]
    TooManyLeftClaimed,
    /// The pool's strategy does not pick in this way.
    #[error("a pool of type {strategy} does not pick in this way")]
    WrongStrategy {
        /// The pool's strategy.
        strategy: Strategy,
    },
}
