//! Reads of a stream and of the global order.
//!
//! `reader.rs` is the public interface. `forwards.rs` and `backwards.rs` read a stream, `order.rs` the global order; `progress.rs` counts what a
//! read gives, and `window.rs` joins reads of frames that lie close together. `large.rs` leaves large records in their files, `in_history.rs`
//! reads the part of a stream in history, and `large_places.rs` keeps where segments have its large records. `failed_read.rs` repeats a read that
//! failed until it works.

pub(crate) mod backwards;
pub(crate) mod failed_read;
pub(crate) mod forwards;
pub(crate) mod in_history;
pub(crate) mod large;
pub(crate) mod large_places;
pub(crate) mod order;
pub(crate) mod progress;
pub(crate) mod reader;
pub(crate) mod window;
