//! Pools of named workers, of which each job goes to one.
//!
//! Picks happen in the caller's thread, from a snapshot of the connected workers. A pool has a [`Strategy`]:
//! `round_robin`, `random`, `hash` (the same worker for the same value), `direct` (by slot), or `claim` (the first free
//! worker, one job at a time). A worker may have a [`Capacity`]; picks choose only workers with room for the job, and the
//! [`Picked`] value occupies its place until it is dropped.
//!
//! # The invariant
//!
//! **A worker has no more jobs than its capacity, and a worker with room can be picked as long as it is connected**,
//! whatever happens to the picking threads and to the worker in between. For a `claim` pool this follows from one rule:
//! the seat of a connection has exactly one owner (the pool, a claim, or the connection while it is paused), and only the
//! owner passes it on. For all others a worker's load is one atomic number, and the bits of workers with room are hints
//! that are checked again after each change. The models in `tests/model.rs` check both in every order in which threads can run.
//!
//! # How it works
//!
//! Workers are *added* under a name, which gives them a slot. Then they *connect* with a value `W` and disconnect when they
//! drop their [`Connected`]. Connecting and disconnecting publishes a new snapshot behind an atomic pointer; a pick takes no
//! lock. A worker that only [pauses](Connected::pause) changes no snapshot.
//!
//! ```
//! use encke_pool::{Pool, PoolError, PoolOptions, Strategy};
//!
//! let pool = Pool::new(PoolOptions::new(Strategy::Claim));
//! pool.add("anna")?;
//! let anna = pool.connect("anna", "the address of anna")?;
//!
//! let picked = pool.pick(0, None)?;
//! assert_eq!(picked.name(), "anna");
//! assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoRoom);
//! drop(picked);
//!
//! drop(anna);
//! assert_eq!(pool.pick(0, None).unwrap_err(), PoolError::NoWorkerConnected);
//! # Ok::<(), PoolError>(())
//! ```
//!
//! # Where to start reading
//!
//! `options.rs` and `error.rs`, then `pool.rs` (workers and connections), `pick.rs` and `claim.rs`. Below them are
//! `roster.rs` (names and slots), `worker.rs` (the load), `open_slots.rs` (which workers have room), `seats.rs` (which can
//! be claimed), `choice.rs` (the arithmetic of hash and random), `turns.rs` (whose turn it is) and `parts.rs` (cache lines).

// Set by hand for the models of tests/model.rs; that file says how.
#![allow(unexpected_cfgs)]

mod choice;
mod claim;
mod error;
mod open_slots;
mod options;
mod parts;
mod pick;
mod pool;
mod roster;
mod seats;
mod sync;
mod turns;
mod worker;

pub use error::PoolError;
pub use options::{Capacity, PoolOptions, Size, Strategy, UnknownStrategy};
pub use pool::{Connected, Picked, Pool, PoolInfo, WorkerInfo};
