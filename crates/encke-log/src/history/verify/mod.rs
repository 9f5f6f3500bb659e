//! Verifies the files of a history before the storage engine opens them.
//!
//! The engine deletes files that it does not know and makes missing ones again, so `inspect.rs` compares the directory with
//! the superblock first. `lists.rs` reads the engine's lists of tables, `fingerprints.rs` avoids reading whole tables, and
//! `private_copy.rs` lets the engine open a copy where nothing may change.

pub(crate) mod fingerprints;
pub(crate) mod inspect;
pub(crate) mod lists;
pub(crate) mod private_copy;
