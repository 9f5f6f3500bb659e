//! The deadlines of a connection, or of one of its exchanges.

use std::time::Duration;

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

/// How long a client may continue to send that is sent nothing more, before it is closed.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
