//! Consecutive records of one stream.

use encke_stream::{Item, Offset};

/// Consecutive records of one stream.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The records, oldest first.
    pub items: &'a [Item<'a>],
    /// The position behind the run.
    pub end: Offset,
    /// No record is known to follow it.
    pub at_tail: bool,
    /// No record will ever follow it.
    pub closed: bool,
}
