//! Reads records of streams from the log, in pieces of bounded size.
//!
//! `piece.rs` reads one stream, `large_records.rs` says how it takes large records, `last_messages.rs` finds where its last messages begin, `order_read.rs` reads all streams that match
//! patterns, `records.rs` a whole stream of the server's own, and `data_at_rest.rs` a stream of a log that is not open.

pub(crate) mod data_at_rest;
pub(crate) mod large_records;
pub(crate) mod last_messages;
pub(crate) mod order_read;
pub(crate) mod piece;
pub(crate) mod records;
