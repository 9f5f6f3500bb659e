//! Streams at rest: only streams in use are in memory, the state store of the log has the others.
//!
//! `checkpoint.rs` puts changed streams into the store, `unstored.rs` knows which ones, and `eviction.rs` takes idle streams out
//! of memory. `load.rs` brings a stream back, `loaders.rs` those of several logs, and `list.rs` lists them by name. `stored.rs` is the form in the store.

pub(crate) mod checkpoint;
pub(crate) mod eviction;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod loaders;
pub(crate) mod stored;
pub(crate) mod unstored;
