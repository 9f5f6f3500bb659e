//! Reads records of streams from the log, in pieces of bounded size.
//!
//! `piece.rs` reads one stream, `order_read.rs` all streams that match patterns, and `data_at_rest.rs` a stream of a log that is
//! not open.

pub(crate) mod data_at_rest;
pub(crate) mod order_read;
pub(crate) mod piece;
