//! Copies of an open log: another node of a fleet reads a snapshot of the files, and puts the copy in the place of its own
//! log.
//!
//! `snapshot.rs` has the files at one moment, `log_copy.rs` writes them into another directory.

pub(crate) mod log_copy;
pub(crate) mod snapshot;
pub(crate) mod unfinished_directory;
