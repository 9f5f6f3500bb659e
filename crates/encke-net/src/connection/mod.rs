//! Connections: a slot of 40 bytes for each, and what only an active one needs beside it.

pub(crate) mod active;
pub(crate) mod by_slot;
pub(crate) mod callers;
pub(crate) mod close;
pub(crate) mod ending;
pub(crate) mod merged_feed;
pub(crate) mod owners;
pub(crate) mod slot;
pub(crate) mod table;
pub(crate) mod withheld;
