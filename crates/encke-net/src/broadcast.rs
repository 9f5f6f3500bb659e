//! Hands ephemeral messages to the shards that have subscribers of their streams, and to the other nodes of a fleet.
//!
//! A message goes the way of committed batches, so that a shard gets it behind the records that were delivered before. Nothing waits: a
//! shard without room for it loses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use encke_stream::{EphemeralMessage, StreamNo, Views};

use crate::feed::slot::Token;
use crate::metrics::EphemeralMetrics;
use crate::shard_channel::ShardSender;

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

/// Where nodes of a fleet hand messages to the others.
pub trait FleetBroadcast: Send + Sync {
    /// Hands over a message that a client of this node has sent, without a wait.
    ///
    /// # Errors
    /// The other nodes don't get it.
    fn offer(&self, message: &EphemeralMessage) -> Result<(), NotBroadcast>;
}

/// Why the other nodes of a fleet don't get a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBroadcast {
    /// Too much waits to be sent. The subscribers of this node get the message.
    #[error("too many messages wait for the other nodes of the fleet")]
    QueueFull,
    /// The node has no connection to the brokers.
    #[error(
        "this node has no connection to the brokers of its fleet, so that the other nodes would not get the message"
    )]
    Disconnected,
    /// The brokers take no message of that size.
    #[error(
        "the message has {bytes} bytes with its head, and the brokers of the fleet take {bytes_max}"
    )]
    TooLarge {
        /// What was to be sent.
        bytes: usize,
        /// What they take.
        bytes_max: usize,
    },
}

/// Hands messages over.
#[derive(Clone)]
pub(crate) struct Broadcaster {
    views: Arc<Views>,
    shards: Arc<[Arc<ShardSender>]>,
    fleet: Option<Arc<dyn FleetBroadcast>>,
    metrics: EphemeralMetrics,
}

/// Where messages of other nodes of a fleet come in. It must be gone before the reactor is stopped.
#[derive(Clone)]
pub struct BroadcastInlet(Broadcaster);

impl Broadcaster {
    pub(crate) fn new(
        views: Arc<Views>,
        shards: Arc<[Arc<ShardSender>]>,
        fleet: Option<Arc<dyn FleetBroadcast>>,
        metrics: EphemeralMetrics,
    ) -> Self {
        Broadcaster {
            views,
            shards,
            fleet,
            metrics,
        }
    }

    /// Where messages of other nodes come in.
    pub(crate) fn inlet(&self) -> BroadcastInlet {
        BroadcastInlet(self.clone())
    }

    /// Hands over a message of a client of this server. `except`: the channel that does not get it.
    ///
    /// # Errors
    /// The other nodes can't get it. Then no subscriber does.
    pub(crate) fn send(
        &self,
        message: EphemeralMessage,
        except: Option<ChannelName>,
    ) -> Result<(), NotBroadcast> {
        if let Some(fleet) = &self.fleet {
            match fleet.offer(&message) {
                Ok(()) => {}
                Err(NotBroadcast::QueueFull) => self.metrics.dropped.fleet_queue_full.inc(),
                Err(why) => return Err(why),
            }
        }
        self.metrics.taken.inc();
        self.spread(message, except);
        Ok(())
    }

    fn spread(&self, message: EphemeralMessage, except: Option<ChannelName>) {
        let audience = self.views.audience(message.stream, &message.label.name);
        if audience.is_empty() {
            return;
        }
        let broadcast = Arc::new(BroadcastMessage {
            patterns: audience.patterns.clone(),
            message,
            except,
        });
        for (shard, sender) in (0..).zip(&*self.shards) {
            if audience.has_shard(shard) && !sender.offer_ephemeral(&broadcast) {
                self.metrics.dropped.queue_full.inc();
            }
        }
    }
}

impl BroadcastInlet {
    /// Hands a message of another node to the subscribers of this one.
    pub fn receive(&self, message: EphemeralMessage) {
        self.0.spread(message, None);
    }
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
