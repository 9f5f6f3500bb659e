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

impl Run<'_> {
    /// A position, behind which records may follow.
    pub fn position(end: Offset) -> Self {
        Run {
            items: &[],
            end,
            at_tail: false,
            closed: false,
        }
    }

    /// The end of a closed stream.
    pub fn closed_at(end: Offset) -> Self {
        Run {
            at_tail: true,
            closed: true,
            ..Run::position(end)
        }
    }
}
