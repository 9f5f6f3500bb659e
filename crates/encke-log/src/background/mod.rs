//! The background thread of a log: brings sealed segments and checkpoints into history, and removes what is no longer kept.
//!
//! `seal.rs` is the thread, `jobs.rs` its queue, `retire.rs` what it removes. `priority.rs` lowers the priority of threads
//! that must not delay deliveries.

pub(crate) mod jobs;
pub(crate) mod priority;
pub(crate) mod retire;
pub(crate) mod seal;
