//! Bounds and lanes of a mailbox.

/// How much a lane holds while it gathers. An item must fit under both bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of waiting items. At least 1.
    pub items_max: usize,
    /// The maximum sum of the waiting items' bytes, as their senders declare them. A single item larger than this (or
    /// than 4 GiB - 1) never fits and is refused with [`crate::SendErrorKind::TooLarge`].
    pub bytes_max: usize,
}

impl Default for Bounds {
    /// 65,536 items, 64 MiB.
    fn default() -> Self {
        Self {
            items_max: 65_536,
            bytes_max: 64 << 20,
        }
    }
}

/// A queue of a mailbox. Priority is strict: the receiver gets all items of `Control` before any of `Data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Few and urgent items, such as a request to stop.
    Control = 0,
    /// The work.
    Data = 1,
}

impl Lane {
    /// Every lane, the most urgent first.
    pub const ALL: [Self; 2] = [Self::Control, Self::Data];
    pub(crate) const COUNT: usize = Self::ALL.len();
}

/// The bounds of each mailbox's control lane.
pub(crate) const CONTROL_BOUNDS: Bounds = Bounds {
    items_max: 1_024,
    bytes_max: 1 << 20,
};
