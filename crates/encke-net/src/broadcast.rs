//! Hands ephemeral messages to the shards that have subscribers of their streams, and to the other nodes of a fleet.
//!
//! A message goes the way of committed batches, so that a shard gets it behind the records that were delivered before. Nothing waits: a
//! shard without room for it loses it.

use std::sync::Arc;

use encke_stream::{EphemeralMessage, Views};

use crate::broadcast_message::{BroadcastMessage, ChannelName};
use crate::metrics::EphemeralMetrics;
use crate::shard_channel::ShardSender;

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
