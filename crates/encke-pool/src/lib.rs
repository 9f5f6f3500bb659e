//! Pools of named workers, of which each piece of work goes to one.
//!
//! There is no dispatcher: whoever has work picks the worker, in its own thread, from a snapshot of who is connected.
//! A pool has a [`Strategy`]: `round_robin`, `random`, `hash` (the same worker for the same value), `direct` (by slot),
//! or `claim` (the first that is free, for one claimant at a time).
//!
//! # The invariant
//!
//! **A worker of a `claim` pool belongs to at most one claimant, and whatever becomes of the claimant, of the worker or of
//! those who wait, it is claimed again as long as it is connected.** It follows from one rule: the seat of a connection
//! has exactly one owner (the pool, a claim, or nobody once it has gone), and only the owner passes it on. The models in
//! `tests/model.rs` check that in every order in which threads can run.
//!
//! # How it works
//!
//! Workers are *added* under a name, which gives them a slot, and then *connect* and *disconnect* as they come and go;
//! what they connect with (`W`) is whatever it takes to give them work. The [`Connected`] that a worker holds takes it out
//! when it is dropped, so it is gone when it dies. Coming and going makes a new snapshot behind an atomic pointer; picking
//! takes no lock and waits for nobody. Free workers to claim are bits in a few atomic words; only claims that find none stand
//! in a line, first come first served.
//!
//! ```
//! use encke_pool::{Options, Pool, PoolError, Strategy};
//!
//! let pool = Pool::new("thumbnails", Options::new(Strategy::Claim));
//! pool.add("anna")?;
//! let anna = pool.connect("anna", "what it takes to reach anna")?;
//!
//! let claim = pool.try_claim()?;
//! assert_eq!(claim.name(), "anna");
//! assert_eq!(pool.try_claim().unwrap_err(), PoolError::AllBusy);
//! drop(claim);
//!
//! drop(anna);
//! assert_eq!(pool.try_claim().unwrap_err(), PoolError::NobodyConnected);
//! # Ok::<(), PoolError>(())
//! ```
//!
//! # Where to start reading
//!
//! `options.rs` and `error.rs` say what a pool can be told and what it answers; `pool.rs` has the picks, `claim.rs` the
//! claims. Below them are `roster.rs` (who belongs to the pool), `seats.rs` (who is free), `line.rs` (who waits),
//! `choice.rs` (the arithmetic of hash and random) and `parts.rs` (counting without meeting).

// Set by hand, for the models of tests/model.rs alone; that file says how.
#![allow(unexpected_cfgs)]

mod choice;
mod claim;
mod connection;
mod error;
mod line;
mod options;
mod parts;
mod pool;
mod pools;
mod roster;
mod seats;
mod sync;

pub use claim::{Claim, InLine};
pub use connection::{Connected, Picked};
pub use error::PoolError;
pub use options::{Options, Size, Strategy, UnknownStrategy};
pub use pool::{Pool, PoolInfo, WorkerInfo};
pub use pools::Pools;
