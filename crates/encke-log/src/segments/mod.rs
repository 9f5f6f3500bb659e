//! Segments: the files that hold records in the order in which they were written.
//!
//! `segment.rs` is the format of a file, `frame.rs` the format of a record in it, `checksum.rs` its checksum. `scan.rs` reads a
//! file from its begin and classifies its end. `index.rs` has the positions of each stream's records until they are in history.

pub(crate) mod checksum;
pub(crate) mod frame;
pub(crate) mod index;
pub(crate) mod scan;
pub(crate) mod segment;
