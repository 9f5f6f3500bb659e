//! Sends the batches of this node, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, message::PublishMessage};
use encke_stream::{NextOutgoing, OrderHandle, OutgoingBatch, OutgoingBatches, Refusal};
use tokio::runtime::Handle;

use crate::peers::PeerTip;
use crate::status::LogStatus;

/// What the publisher of a log uses.
pub(crate) struct Publisher {
    pub(crate) context: jetstream::Context,
    pub(crate) stream: String,
    pub(crate) subject: String,
    pub(crate) order: OrderHandle,
    pub(crate) retry: Duration,
    pub(crate) status: Arc<LogStatus>,
}

impl Publisher {
    /// Runs until no command arrives any more.
    pub(crate) fn run(self, runtime: &Handle, mut outgoing: OutgoingBatches) {
        while let Some(next) = outgoing.next_commands() {
            let batch = match next {
                NextOutgoing::Batch(batch) => batch,
                NextOutgoing::Refused(submitters) => {
                    self.order
                        .refuse(submitters, Refusal::LogFailed(STOPPED.into()));
                    continue;
                }
            };
            self.status.begin(batch.commands);
            let sent = runtime.block_on(self.send(&batch));
            self.status.end();
            if let Err(reason) = sent {
                tracing::error!(%reason, log = self.stream, commands = batch.commands, "a batch was not confirmed in time");
                self.status.gave_up();
                let number = batch.batch.at.number;
                self.order.give_up(number, reason.as_str().into());
                // What waits behind it would wait as long again.
                let waiting = outgoing.take_waiting();
                self.order.refuse(waiting, Refusal::Stalled(reason.into()));
            }
        }
    }

    /// Sends the messages of a batch. Each is sent again until a broker confirms it, or the time is over.
    async fn send(&self, batch: &OutgoingBatch) -> Result<(), String> {
        let until = Instant::now() + self.retry;
        let at = batch.batch.at;
        for (part, message) in batch.messages.iter().enumerate() {
            let id = format!("{}:{}:{}:{part}", batch.batch.node, at.run, at.number);
            let payload: Arc<[u8]> = message.as_slice().into();
            loop {
                if self.order.status().has_stopped() {
                    return Err(STOPPED.into());
                }
                let begun = Instant::now();
                let received = self.order.status().received();
                let peer = self.status.furthest_peer();
                let sent = self.attempt(&id, &payload).await;
                match sent {
                    Ok(Stored { position, again }) => {
                        let lost = lost(position, received, peer.as_ref());
                        if let Some(reason) = lost.filter(|_| !again) {
                            self.order.stop(reason.as_str().into());
                            return Err(reason);
                        }
                        self.status.confirmed(begun.elapsed(), position);
                        break;
                    }
                    Err(error) if Instant::now() >= until => return Err(error),
                    Err(error) => {
                        self.status.retried();
                        tracing::debug!(%error, "a batch is sent again");
                        tokio::time::sleep(RETRY_EVERY).await;
                    }
                }
            }
        }
        Ok(())
    }

    async fn attempt(&self, id: &str, payload: &Arc<[u8]>) -> Result<Stored, String> {
        let message = PublishMessage::build()
            .payload(payload.to_vec().into())
            .message_id(id)
            .expected_stream(&self.stream);
        let subject = self.subject.clone();
        let confirmed = async {
            let sent = self.context.send_publish(subject, message).await;
            sent.map_err(|error| error.to_string())?
                .await
                .map_err(|error| error.to_string())
        };
        match tokio::time::timeout(ATTEMPT_WITHIN, confirmed).await {
            Ok(Ok(ack)) => Ok(Stored {
                position: ack.sequence,
                again: ack.duplicate,
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err("no broker has confirmed it".into()),
        }
    }
}

/// What it means that the brokers have stored a new message at a position. None: it is behind all that was known of the order before the
/// message was sent, by this node and by the others.
fn lost(position: u64, received: u64, peer: Option<&PeerTip>) -> Option<String> {
    let stored = format!(
        "the brokers have lost a part of the order: they have stored a message at position {position}"
    );
    if position <= received {
        return Some(format!("{stored}, and this node has received {received}"));
    }
    let PeerTip { node, tip } = peer.filter(|peer| position <= peer.tip.position)?;
    let applied = tip.position;
    Some(format!(
        "{stored}, and node {node} has applied position {applied}"
    ))
}

/// A confirmation.
struct Stored {
    position: u64,
    /// The message was stored before.
    again: bool,
}

/// Why a node sends nothing more.
const STOPPED: &str = "this node follows the order no longer";

/// A message is sent again after this long without a confirmation.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(1);

/// The pause between two attempts.
const RETRY_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use encke_stream::Tip;

    use super::*;

    #[test]
    fn a_new_message_is_behind_what_any_node_has() {
        let peer = PeerTip {
            node: "b".into(),
            tip: Tip {
                position: 10,
                ..Tip::default()
            },
        };
        assert_eq!(lost(6, 5, None), None);
        assert!(lost(5, 5, None).unwrap().contains("this node"));
        assert_eq!(lost(11, 5, Some(&peer)), None);
        assert!(
            lost(10, 5, Some(&peer))
                .unwrap()
                .contains("node b has applied position 10")
        );
    }
}
