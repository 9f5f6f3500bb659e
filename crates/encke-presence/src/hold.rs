//! Guards: a connection that has entered, and who follows a stream.

use std::sync::Arc;

use crate::Presence;
use crate::local::Connection;

/// A connection that has entered a stream. It has left when the hold is dropped.
#[derive(Debug)]
#[must_use = "the connection leaves when the hold is dropped"]
pub struct PresenceHold {
    pub(crate) presence: Arc<Presence>,
    pub(crate) connection: Connection,
}

impl Drop for PresenceHold {
    fn drop(&mut self) {
        self.presence.disconnect(self.connection);
    }
}

/// Keeps the entry of a stream, and with it its number, while the stream is empty.
#[derive(Debug)]
#[must_use = "the entry is kept until the follower is dropped"]
pub struct Follower {
    pub(crate) presence: Arc<Presence>,
    pub(crate) stream: u32,
    pub(crate) number: u64,
}

impl Follower {
    /// The number of the stream's entry, as events have it: unique in the process, never used again.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.presence.unfollow(self.stream);
    }
}
