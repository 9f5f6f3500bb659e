//! Reads records of streams from the log, in pieces of bounded size.
//!
//! `piece.rs` reads one stream, `large_records.rs` says how it takes large records, `last_messages.rs` finds where its last messages
//! begin, `order_read.rs` reads all streams that match patterns, and `records.rs` a whole stream of the server's own.

pub(crate) mod large_records;
pub(crate) mod last_messages;
pub(crate) mod order_read;
pub(crate) mod piece;
pub(crate) mod record_run;
pub(crate) mod records;
pub(crate) mod run_cache;
