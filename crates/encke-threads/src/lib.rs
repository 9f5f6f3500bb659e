//! Threads whose end is noticed.
//!
//! Other threads wait for most threads of a server: a request for the keys of its issuer, a writer for the next segment. A thread that
//! panics would leave them waiting, and nothing would say so. So each thread is started as one of two kinds:
//!
//! - [`spawn_restarting`]: what it does can begin anew. After a panic it does, a second later, in the same thread: the system may
//!   refuse another one.
//! - [`spawn_essential`]: it has state that a panic may have spoilt, or that ended with it. Its panic is a failure of the process, which
//!   [`on_failure`] learns: a server stops in order, and its service manager starts it again.
//!
//! A thread for one task that others wait for, such as a call of a webhook, catches the panic itself and reports a failed task.
//!
//! # The invariant
//!
//! **No thread of a server ends by a panic unnoticed.** No code of a server uses `std::thread::spawn`, which panics itself when the system
//! refuses a thread, and neither do the libraries that it calls at run time: [`SystemNames`] looks names up for clients of HTTP, whose own
//! look-ups do that.
//!
//! # Where to start reading
//!
//! `supervised.rs` has the two kinds, `names.rs` the look-ups.

mod names;
mod supervised;

pub use names::{ResolveNames, SystemNames};
pub use supervised::{
    FailureGuard, on_failure, report_failure, restarts, spawn_essential, spawn_restarting,
    wait_for_end,
};
