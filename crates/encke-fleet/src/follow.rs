//! Follows the order: hands every message to the node, in order.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, push::OrderedConfig};
use async_nats::{Client, jetstream::Message};
use encke_clock::WallTime;
use encke_stream::{FollowError, IncomingBatches, OrderHandle};
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::broker::OrderStream;
use crate::status::LogStatus;

/// What the follower of a log uses.
pub(crate) struct Follower {
    pub(crate) client: Client,
    pub(crate) order: OrderStream,
    pub(crate) handle: OrderHandle,
    pub(crate) status: Arc<LogStatus>,
    /// Changes when the publisher has ended.
    pub(crate) ended: watch::Receiver<bool>,
}

/// Why the consumer is made anew.
enum Again {
    Error(String),
    /// Messages are missing, or the order lacks them.
    Gap(FollowError),
}

impl Follower {
    /// Runs until the publisher has ended.
    pub(crate) async fn run(mut self, mut incoming: IncomingBatches) {
        let (mut gaps, mut reached) = (0, 0);
        loop {
            let mut ended = self.ended.clone();
            let again = tokio::select! {
                again = self.follow(&mut incoming) => again,
                _ = ended.wait_for(|ended| *ended) => return,
            };
            match again {
                None => return,
                Some(Again::Error(error)) => {
                    tracing::warn!(%error, "cannot follow the order; trying again");
                }
                Some(Again::Gap(error)) => {
                    gaps = if incoming.position() > reached {
                        1
                    } else {
                        gaps + 1
                    };
                    reached = incoming.position();
                    if gaps >= GAPS_MAX {
                        self.handle.stop(error.to_string().into());
                    }
                }
            }
            let pause = tokio::time::sleep(AGAIN_AFTER);
            tokio::select! {
                () = pause => {}
                _ = self.ended.wait_for(|ended| *ended) => return,
            }
            if self.handle.status().has_stopped() {
                // Nothing more is applied: only the end is waited for.
                let _ = self.ended.wait_for(|ended| *ended).await;
                return;
            }
        }
    }

    /// Follows with one consumer. None: the sequencer is gone.
    async fn follow(&self, incoming: &mut IncomingBatches) -> Option<Again> {
        let error = |error: &dyn std::fmt::Display| Some(Again::Error(error.to_string()));
        let config = OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: incoming.position() + 1,
            },
            ..OrderedConfig::default()
        };
        let consumer = match self.order.stream.create_consumer(config).await {
            Ok(consumer) => consumer,
            Err(why) => return error(&why),
        };
        let mut messages = match consumer.messages().await {
            Ok(messages) => messages,
            Err(why) => return error(&why),
        };
        loop {
            let taken = match tokio::time::timeout(STALLED_AFTER, messages.next()).await {
                Ok(Some(Ok(message))) => take(&message, incoming),
                Ok(Some(Err(why))) => return error(&why),
                Ok(None) => return error(&"the consumer has ended"),
                // A consumer can be lost with its broker, without a word to its client.
                Err(_) if self.status.last() > incoming.position() => {
                    return error(&"the consumer delivers nothing");
                }
                Err(_) => continue,
            };
            match taken {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(Again::Gap(gap @ FollowError::Gap { .. })) => return Some(Again::Gap(gap)),
                Err(Again::Gap(other)) => {
                    // No node can read it, now or later.
                    self.handle.stop(Arc::from(other.to_string()));
                    return Some(Again::Error(other.to_string()));
                }
                Err(again) => return Some(again),
            }
        }
    }
}

fn take(
    message: &Message,
    incoming: &mut IncomingBatches,
) -> Result<Result<(), encke_stream::FollowStopped>, Again> {
    let info = message
        .info()
        .map_err(|why| Again::Error(why.to_string()))?;
    let ms = info.published.unix_timestamp_nanos() / 1_000_000;
    let time = WallTime::from_ms(u64::try_from(ms).unwrap_or(0));
    let position = info.stream_sequence;
    // Waits while the sequencer is far behind; this thread does nothing else.
    incoming
        .take(position, time, &message.payload)
        .map_err(Again::Gap)
}

/// The pause before a consumer is made anew.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A consumer that delivers nothing for this long, although the order is further, is made anew.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// After this many consumers in a row that lack a message, the order has lost it.
const GAPS_MAX: u32 = 3;
