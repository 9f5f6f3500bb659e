//! Records on their way to a subscriber.

use encke_stream::{Item, MediaKind, Offset};

/// Records of one stream, one behind the other, that are due to a subscriber.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The records, oldest first.
    pub items: &'a [Item<'a>],
    /// The position behind the run.
    pub end: Offset,
    /// Whether nothing is known to follow it.
    pub at_tail: bool,
    /// Whether nothing ever will.
    pub closed: bool,
}

/// How a subscriber's records are written. Subscribers with the same style at the same position
/// share one encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Server-sent events of Durable Streams (section 5.8).
    DurableStreams {
        /// What the data is.
        kind: MediaKind,
        /// Cursors must be greater than this one; 0 for all who brought none that matters.
        cursor_floor: u64,
    },
}

/// A place in an encoded run where a subscriber may be left and found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Bytes of the encoding before this place.
    pub end: usize,
    /// The subscriber's position there.
    pub at: Offset,
}

/// The last word to a subscriber whose connection the server closes though more would follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Why, in words to the client: one line.
    pub why: &'static str,
    /// Up to where it has everything.
    pub at: Offset,
    /// It may go on from there; otherwise what follows is no longer kept.
    pub goes_on: bool,
}
