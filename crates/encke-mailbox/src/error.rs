//! Errors of both ends.

use std::fmt;

/// An item that was not accepted, and the reason. The item comes back to the sender.
#[derive(thiserror::Error)]
#[error("refused: {kind}")]
pub struct SendError<T> {
    /// The item.
    pub item: T,
    /// The reason.
    pub kind: SendErrorKind,
}

/// Why an item was not accepted.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendErrorKind {
    /// The lane is full now.
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
    /// The item alone exceeds the lane's bound; it never fits.
    #[error("too large: {bytes} bytes, the lane holds {bytes_max}")]
    TooLarge {
        /// The declared size.
        bytes: usize,
        /// The lane's bound.
        bytes_max: usize,
    },
    /// The receiver was dropped.
    #[error("the receiver is gone")]
    Closed,
}

/// Every sender was dropped and every item has been received.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("every sender is gone and the mailbox is empty")]
pub struct Closed;

impl<T> fmt::Debug for SendError<T> {
    // An item without `Debug` can still be refused with a printable reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
