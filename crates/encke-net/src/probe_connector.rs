//! Connections of the server to its own shards, for the health probe: a pair of sockets, of which a shard takes one as it takes a
//! client's. They need no address, no certificate and no place among those of clients.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::shard_channel::{ShardEvent, ShardSender};

/// Connects to the shards. It must be gone before the reactor is stopped.
#[derive(Clone)]
pub struct ProbeConnector {
    senders: Vec<Arc<ShardSender>>,
}

impl ProbeConnector {
    pub(crate) fn new(senders: Vec<Arc<ShardSender>>) -> Self {
        ProbeConnector { senders }
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.senders.len()
    }

    /// Connects to a shard. The shard takes the other end in its next turn. Reads and writes of the socket do not wait.
    ///
    /// # Errors
    /// The system refuses a socket, or the shard has no room for an event ([`std::io::ErrorKind::WouldBlock`]).
    pub fn connect(&self, shard: usize) -> std::io::Result<UnixStream> {
        let (own, other) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let sender = &self.senders[shard];
        match sender.offer_event(ShardEvent::Adopt(other.into())) {
            true => Ok(own),
            false => Err(std::io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Has the shards ask about parked requests again. False: a shard has no room for an event; its requests wait on.
    pub fn unpark(&self) -> bool {
        let told = self.senders.iter();
        // Each of them, whatever becomes of another.
        let told = told.filter(|sender| sender.offer_event(ShardEvent::Unpark));
        told.count() == self.senders.len()
    }
}
