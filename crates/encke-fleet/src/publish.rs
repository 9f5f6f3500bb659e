//! Sends the batches of this node, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::{self, context::PublishErrorKind, message::PublishMessage};
use encke_stream::{BatchId, NextOutgoing, OrderHandle, OutgoingBatch, OutgoingBatches, Refusal};
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
                NextOutgoing::Refused(submitters, refusal) => {
                    self.order.refuse(submitters, refusal);
                    continue;
                }
            };
            self.status.begin(batch.commands);
            let sent = runtime.block_on(self.send(&batch));
            self.status.end();
            if let Err(unconfirmed) = sent {
                let reason = unconfirmed.to_string();
                tracing::error!(%reason, log = self.stream, commands = batch.commands, "a batch was not confirmed");
                self.status.gave_up();
                let number = batch.batch.at.number;
                self.order.give_up(number, reason.as_str().into());
                if let Unconfirmed::Late(_) = unconfirmed {
                    // The commands behind it would fail after as long a wait.
                    let waiting = outgoing.take_waiting();
                    self.order.refuse(waiting, Refusal::Stalled(reason.into()));
                }
            }
        }
    }

    /// Sends the messages of a batch. Each is sent again until a broker confirms it, or the time is over. They have the size that the
    /// broker allows which is connected when the first one is sent.
    async fn send(&self, batch: &OutgoingBatch) -> Result<(), Unconfirmed> {
        let until = Instant::now() + self.retry;
        let client = self.context.client();
        let mut bytes_max = client.max_payload();
        let mut messages = batch.messages(bytes_max);
        let mut part = 0;
        let mut is_begun = false;
        while part < messages.len() {
            if self.order.status().has_stopped() {
                return Err(Unconfirmed::Late(STOPPED.into()));
            }
            // A message would wait in the client, and reach a broker that does not take it.
            let is_connected = client.connection_state() == State::Connected;
            if is_connected && bytes_max != client.max_payload() {
                bytes_max = client.max_payload();
                if !is_begun {
                    messages = batch.messages(bytes_max);
                }
            }
            if is_begun && messages[part].len() > bytes_max {
                let bytes = messages[part].len();
                return Err(Unconfirmed::TooLarge { bytes, bytes_max });
            }
            let sent = match is_connected {
                true => {
                    is_begun = true;
                    self.send_part(batch, part, &messages[part]).await
                }
                false => Err(Unconfirmed::Late("no broker is connected".into())),
            };
            match sent {
                Ok(None) => part += 1,
                Ok(Some(lost)) => {
                    self.order.stop(lost.as_str().into());
                    return Err(Unconfirmed::Late(lost));
                }
                Err(error) if Instant::now() >= until => return Err(error),
                Err(error) => {
                    self.status.retried();
                    tracing::debug!(%error, "a batch is sent again");
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        }
        Ok(())
    }

    /// Sends a message once. Returns the loss that the confirmation shows, if it shows one.
    async fn send_part(
        &self,
        batch: &OutgoingBatch,
        part: usize,
        message: &[u8],
    ) -> Result<Option<String>, Unconfirmed> {
        let BatchId { node, at } = &batch.batch;
        let id = format!("{node}:{}:{}:{part}", at.run, at.number);
        let begun = Instant::now();
        let received = self.order.status().received();
        let peer = self.status.furthest_peer();
        let Stored { position, again } = self.attempt(&id, message).await?;
        let lost = lost(position, received, peer.as_ref()).filter(|_| !again);
        if lost.is_none() {
            self.status.confirmed(begun.elapsed(), position);
        }
        Ok(lost)
    }

    async fn attempt(&self, id: &str, message: &[u8]) -> Result<Stored, Unconfirmed> {
        let message = PublishMessage::build()
            .payload(message.to_vec().into())
            .message_id(id)
            .expected_stream(&self.stream);
        let subject = self.subject.clone();
        let confirmed = async { self.context.send_publish(subject, message).await?.await };
        match tokio::time::timeout(ATTEMPT_WITHIN, confirmed).await {
            Ok(Ok(ack)) => Ok(Stored {
                position: ack.sequence,
                again: ack.duplicate,
            }),
            Ok(Err(error)) if error.kind() == PublishErrorKind::Other => {
                self.status.refused(error.to_string());
                Err(Unconfirmed::Late(error.to_string()))
            }
            Ok(Err(error)) => Err(Unconfirmed::Late(error.to_string())),
            Err(_) => Err(Unconfirmed::Late("no broker has confirmed it".into())),
        }
    }
}

/// Why a batch may be stored or not.
#[derive(Debug, thiserror::Error)]
enum Unconfirmed {
    /// No broker has confirmed it in time.
    #[error("{0}")]
    Late(String),
    /// A broker may have stored it, and the one that is connected now takes no message of that size.
    #[error(
        "a message of {bytes} bytes was not confirmed, and the broker now takes {bytes_max} bytes (max_payload)"
    )]
    TooLarge { bytes: usize, bytes_max: usize },
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
