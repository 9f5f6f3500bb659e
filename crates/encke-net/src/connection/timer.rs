//! The deadlines of a connection, or of one of its exchanges.

use crate::clock::Monotonic;

/// Deadlines, and when the shard looks at them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timer {
    /// When the shard looks next, if it does.
    pub(crate) reminder: Option<Monotonic>,
    /// When the client or a long poll times out, if it does.
    pub(crate) deadline: Option<Monotonic>,
    /// When a response whose caller's time is over is cut off.
    pub(crate) cut_off: Option<Monotonic>,
}

impl Timer {
    /// The first deadline.
    pub(crate) fn first(&self) -> Option<Monotonic> {
        self.deadline.into_iter().chain(self.cut_off).min()
    }
}
