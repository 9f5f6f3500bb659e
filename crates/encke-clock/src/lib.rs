//! Instants by two clocks, as two types.
//!
//! [`SteadyTime`] is an instant of a clock that never steps. Durations follow it: timeouts, sliding lifetimes, the time limit of an
//! attempt. [`WallTime`] is an instant of the time of day, which steps when it is set. What a user names as an instant follows it: the
//! end of a token, the end of a stream, the time of a record. [`Now`] is one moment by both.
//!
//! This crate reads no clock. The caller does, and hands the time in.
//!
//! # The invariant
//!
//! **An instant of one clock is never compared with, subtracted from, or stored as an instant of the other.** Only the methods of [`Now`]
//! convert between them: [`Now::wall_at`] and [`Now::steady_at`]. Both types know arithmetic with [`Duration`](std::time::Duration) only.
//! `from_ms` and `as_ms` are for the borders of the program: formats on disk and on the wire, JSON, header fields, system calls.
//!
//! ```
//! use std::time::Duration;
//!
//! use encke_clock::{Now, SteadyTime, WallTime};
//!
//! let now = Now {
//!     steady: SteadyTime::from_ms(10_000),
//!     wall: WallTime::from_ms(4_000),
//! };
//! let deadline = now.steady.after(Duration::from_secs(5));
//! assert_eq!(deadline.since(now.steady), Duration::from_secs(5));
//! assert!(deadline > now.steady);
//! assert_eq!(now.wall_at(deadline), WallTime::from_ms(9_000));
//! ```
//!
//! The compiler refuses everything that mixes them. An instant of one clock is not an instant of the other:
//!
//! ```compile_fail,E0308
//! # use encke_clock::{Now, SteadyTime, WallTime};
//! # let now = Now::from_ms(4_000);
//! let deadline: SteadyTime = now.wall;
//! ```
//!
//! They do not compare, neither as equal nor as earlier:
//!
//! ```compile_fail,E0308
//! # use encke_clock::Now;
//! # let now = Now::from_ms(4_000);
//! let is_over = now.steady >= now.wall;
//! ```
//!
//! ```compile_fail,E0308
//! # use encke_clock::Now;
//! # let now = Now::from_ms(4_000);
//! let is_start = now.steady == now.wall;
//! ```
//!
//! There is no duration between them:
//!
//! ```compile_fail,E0308
//! # use encke_clock::Now;
//! # let now = Now::from_ms(4_000);
//! let left = now.wall.since(now.steady);
//! ```
//!
//! No conversion leads from one to the other, and a number is neither:
//!
//! ```compile_fail,E0308
//! # use encke_clock::{Now, SteadyTime};
//! # let now = Now::from_ms(4_000);
//! let deadline = SteadyTime::from(now.wall);
//! ```
//!
//! ```compile_fail,E0277
//! # use encke_clock::WallTime;
//! let end = WallTime::from(4_000_u64);
//! ```
//!
//! ```compile_fail,E0423
//! # use encke_clock::WallTime;
//! let end = WallTime(4_000);
//! ```
//!
//! ```compile_fail,E0369
//! # use encke_clock::Now;
//! # let now = Now::from_ms(4_000);
//! let end = now.wall + 4_000;
//! ```
//!
//! # Where to start reading
//!
//! `now.rs`, then `instant.rs`.

mod instant;
mod now;
mod rfc3339;

pub use instant::{SteadySeconds, SteadyTime, WallSeconds, WallTime};
pub use now::{Now, StepDetector};
pub use rfc3339::NotRfc3339;
