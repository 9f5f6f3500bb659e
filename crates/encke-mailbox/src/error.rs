//! What can go wrong at either end.

use std::fmt;

/// An item that was not accepted, and why. The item comes back.
#[derive(thiserror::Error)]
#[error("refused: {why}")]
pub struct Refused<T> {
    /// What was to be sent.
    pub item: T,
    /// Why it was not.
    pub why: Why,
}

/// Why an item was not accepted.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is no room now; later there may be.
    #[error("full: {items} of {items_max} items, {bytes} of {bytes_max} bytes wait")]
    Full {
        /// Items waiting in the lane.
        items: usize,
        /// Bytes waiting in the lane.
        bytes: usize,
        /// The lane's bound on items.
        items_max: usize,
        /// The lane's bound on bytes.
        bytes_max: usize,
    },
    /// The item alone is larger than the lane; it never fits.
    #[error("too large: {bytes} bytes, the lane holds {bytes_max}")]
    TooLarge {
        /// What the sender declared.
        bytes: usize,
        /// The lane's bound.
        bytes_max: usize,
    },
    /// The lane was full and refuses until it has been worked off down to its mark.
    #[error("overloaded: {depth} items wait or are in work, {resume} is the mark to resume")]
    Shedding {
        /// Items waiting and in hand.
        depth: usize,
        /// The depth at which the lane accepts again.
        resume: usize,
    },
    /// No room came up within the time that the sender gave.
    #[error("no room in time")]
    TimedOut,
    /// The receiver is gone.
    #[error("the receiver is gone")]
    Closed,
}

/// Every sender is gone and everything has been handed out.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("every sender is gone and the mailbox is empty")]
pub struct Closed;

impl<T> fmt::Debug for Refused<T> {
    // The item need not be printable for its refusal to be.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("why", &self.why)
            .finish_non_exhaustive()
    }
}
