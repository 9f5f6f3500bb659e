//! Writes records: batches are built in memory, written once, synced once, then published.
//!
//! `log.rs` is the writer, and the public interface of an open log. `batch.rs` is the batch in memory, `active_segment.rs`
//! the file that it goes to, `prepare.rs` makes the next file, and `deferred_sync.rs` lets the caller work during a sync.

pub(crate) mod active_segment;
pub(crate) mod batch;
pub(crate) mod deferred_sync;
pub(crate) mod log;
pub(crate) mod prepare;
