//! Ephemeral messages on their way to subscribers, and what of them may wait for a shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use encke_stream::{EphemeralMessage, StreamNo};

use crate::feed::slot::Token;

/// A message on its way to subscribers.
#[derive(Debug)]
pub(crate) struct BroadcastMessage {
    pub(crate) message: EphemeralMessage,
    /// The patterns with subscribers that match the name of its stream.
    pub(crate) patterns: Box<[StreamNo]>,
    /// The channel that does not get it.
    pub(crate) except: Option<ChannelName>,
}

/// Names a channel in the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelName {
    pub(crate) shard: u16,
    pub(crate) token: Token,
}

/// A message in the queue of a shard, where it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) broadcast: Arc<BroadcastMessage>,
    share: QueueShare,
}

/// What a message takes of the bytes that wait for a shard.
#[derive(Debug)]
struct QueueShare {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

/// The bytes of ephemeral messages that wait for a shard, and their bound.
#[derive(Clone, Debug)]
pub(crate) struct EphemeralBytes {
    used: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl EphemeralBytes {
    /// Nothing waits. `ring_bytes` is what the channel of the shard holds.
    pub(crate) fn new(ring_bytes: usize) -> Self {
        EphemeralBytes {
            used: Arc::default(),
            bytes_max: EPHEMERAL_BYTES_MAX.min(ring_bytes / RING_PART),
        }
    }

    /// Takes the room of a message. `None`: there is none. A message that is larger than the bound may be there alone.
    pub(crate) fn take(&self, broadcast: &Arc<BroadcastMessage>) -> Option<QueuedMessage> {
        let bytes = broadcast.weight_bytes();
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let share = QueueShare {
            bytes,
            of: Arc::clone(&self.used),
        };
        (before == 0 || before + bytes <= self.bytes_max).then(|| QueuedMessage {
            broadcast: Arc::clone(broadcast),
            share,
        })
    }

    /// What waits.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl QueuedMessage {
    /// What it counts.
    pub(crate) fn bytes(&self) -> usize {
        self.share.bytes
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl BroadcastMessage {
    /// What it takes in memory, about.
    fn weight_bytes(&self) -> usize {
        let patterns = self.patterns.len() * size_of::<StreamNo>();
        self.message.weight_bytes() + patterns + MESSAGE_OVERHEAD_BYTES
    }
}

/// Bytes of ephemeral messages that wait for a shard: in its channel, for the records before them, and for their rounds.
const EPHEMERAL_BYTES_MAX: usize = 4 << 20;

/// Of what the channel of a shard holds, they may have this part: commits must find room beside them.
const RING_PART: usize = 4;

/// What a message costs beside its data: allocations, its places in lists, and its event.
const MESSAGE_OVERHEAD_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::ephemeral;

    #[test]
    fn a_message_counts_until_it_is_dropped() {
        let bytes = EphemeralBytes::new(RING_PART * 1000);
        let broadcast = ephemeral(7, "a", &[b'x'; 600]);
        let first = bytes
            .take(&broadcast)
            .expect("the first may be larger than the bound");
        assert_eq!(bytes.used(), first.bytes());
        assert!(bytes.take(&broadcast).is_none());
        assert_eq!(
            bytes.used(),
            first.bytes(),
            "a refused message counts nothing"
        );
        drop(first);
        assert_eq!(bytes.used(), 0);
        let small = ephemeral(7, "a", b"x");
        let held: Vec<_> = std::iter::from_fn(|| bytes.take(&small)).collect();
        assert!(held.len() > 1 && bytes.used() <= 1000, "{}", held.len());
    }
}
