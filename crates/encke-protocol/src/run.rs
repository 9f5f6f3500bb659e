//! Consecutive records of one stream.

use encke_stream::{EndReason, Facts, Item, LargePart, Offset};

/// Consecutive records of one stream.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The records, oldest first.
    pub items: &'a [Item<'a>],
    /// The data of all records, one behind the other, if that is at hand and no record is cut.
    pub joined: Option<&'a [u8]>,
    /// The position behind the run.
    pub end: Offset,
    /// No record is known to follow it.
    pub at_tail: bool,
    /// No record will ever follow it.
    pub closed: bool,
    /// Why the stream was closed, if it was and that was said.
    pub end_reason: Option<EndReason>,
    /// A reader asks the producer to stop.
    pub stop_asked: bool,
    /// Parts of large records, instead of records.
    pub large: &'a [LargePart],
    /// Bytes of the record behind the run that were read, if its last part is still to come.
    pub cut: u64,
    /// The last record is there with the beginning of its data only.
    pub ends_cut: bool,
}

impl<'a> Run<'a> {
    /// A position, behind which records may follow.
    pub fn position(end: Offset) -> Self {
        Run {
            items: &[],
            joined: None,
            end,
            at_tail: false,
            closed: false,
            end_reason: None,
            stop_asked: false,
            large: &[],
            cut: 0,
            ends_cut: false,
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

    /// The end of a stream, open or closed, as its facts say.
    pub fn at_tail(end: Offset, facts: Facts) -> Self {
        Run {
            at_tail: true,
            closed: facts.closed,
            end_reason: facts.end,
            stop_asked: facts.stop_asked && !facts.closed,
            ..Run::position(end)
        }
    }

    /// The same with records before it.
    pub fn with(self, items: &'a [Item<'a>]) -> Self {
        Run {
            items,
            joined: None,
            ..self
        }
    }
}
