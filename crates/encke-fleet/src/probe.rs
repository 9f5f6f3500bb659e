//! Asks the brokers how far the order is: so a node knows that it is behind, that no broker answers, and that the order is
//! another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::stream::{Info, LastRawMessageErrorKind};
use async_nats::{Client, jetstream};
use encke_stream::{OrderHandle, message_hash};
use tokio::sync::watch;

use crate::broker::{self, OrderStream};
use crate::connect;
use crate::loss_watch::LossWatch;
use crate::peers::PeerTip;
use crate::status::LogStatus;

pub(crate) struct Probe {
    pub(crate) context: jetstream::Context,
    /// Changes to another broker when this one says nothing that counts. One probe of a node does so.
    pub(crate) reconnects: Option<Client>,
    pub(crate) order: OrderStream,
    pub(crate) handle: OrderHandle,
    pub(crate) status: Arc<LogStatus>,
    pub(crate) ended: watch::Receiver<bool>,
}

impl Probe {
    /// Runs until the publisher has ended.
    pub(crate) async fn run(self) {
        let mut loss = LossWatch::default();
        // When this broker has last said something that counts, or was connected.
        let mut useful = Instant::now();
        let mut ended = self.ended.clone();
        loop {
            let answer = tokio::select! {
                answer = self.ask() => answer,
                _ = ended.wait_for(|ended| *ended) => return,
            };
            match answer {
                Answer::Has(last) => {
                    loss.is_not_said();
                    useful = Instant::now();
                    self.status.heard(last);
                }
                Answer::None(reason) => {
                    loss.is_not_said();
                    tracing::debug!(reason, "no broker says how far the order is");
                    self.status.not_heard(reason);
                }
                Answer::Lost(reason) => {
                    useful = Instant::now();
                    if loss.is_said(useful) {
                        self.stop(&reason);
                    }
                    self.status.not_heard(reason);
                }
                Answer::Differs(reason) => {
                    useful = Instant::now();
                    self.stop(&reason);
                    self.status.not_heard(reason);
                }
            }
            if let Some(client) = &self.reconnects
                && useful.elapsed() >= RECONNECT_AFTER
                && self.is_in_vain(client)
                && connect::has_others(client).await
            {
                useful = Instant::now();
                tracing::info!(
                    "this broker says nothing about the order that counts; trying another one"
                );
                let _ = client.force_reconnect().await;
            }
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                _ = ended.wait_for(|ended| *ended) => return,
            }
        }
    }

    /// Whether a broker is connected that has not answered about the order for long, nor confirmed a message.
    fn is_in_vain(&self, client: &Client) -> bool {
        client.connection_state() == State::Connected
            && !self.handle.status().has_stopped()
            && self.status.figures().silence >= RECONNECT_AFTER
    }

    fn stop(&self, reason: &str) {
        if !self.handle.status().has_stopped() {
            // The sequencer may be busy.
            tokio::task::block_in_place(|| self.handle.stop(reason.into()));
        }
    }

    async fn ask(&self) -> Answer {
        // Before the question: what arrives meanwhile may be newer than the answer.
        let received = self.handle.status().received();
        let peer = self.status.furthest_peer();
        match self.order.stream.get_info().await {
            Ok(info) => match answer(&info, self.order.created_ns, received, peer.as_ref()) {
                Answer::Has(last) => match self.peer_difference(info.state.first_sequence).await {
                    Some(reason) => Answer::Differs(reason),
                    None => Answer::Has(last),
                },
                other => other,
            },
            Err(error) if error.kind() == RequestErrorKind::TimedOut => {
                Answer::None(error.to_string())
            }
            Err(error) if !broker::is_missing(&self.context, &self.order.name).await => {
                Answer::None(error.to_string())
            }
            Err(_) => Answer::Lost(format!("the brokers have lost the order; {REPAIR}")),
        }
    }

    /// Compares the order, whose first message has position `first`, with what other nodes have applied. Returns the first difference.
    async fn peer_difference(&self, first: u64) -> Option<String> {
        let own = self.handle.status();
        if own.has_stopped() {
            return None;
        }
        for peer in self.status.uncompared_peers() {
            let position = peer.tip.position;
            let same = match own.tip_at(position) {
                Some(own) => own == peer.tip,
                // The brokers no longer have the message.
                None if position < first => true,
                None => match self.order.stream.get_raw_message(position).await {
                    Ok(message) => message_hash(&message.payload) == peer.tip.message,
                    // It is lost by itself: a node that needs it finds the hole.
                    Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => true,
                    // The next answer is compared.
                    Err(_) => return None,
                },
            };
            if !same {
                return Some(format!(
                    "the brokers have lost a part of the order: node {} has applied another message at position {position} than they have \
                     now; {REPAIR}",
                    peer.node
                ));
            }
            self.status.mark_compared(&peer);
        }
        None
    }
}

/// What the brokers say.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The order ends at this position.
    Has(u64),
    /// The order is not what this node has followed, or lacks what another node has applied.
    Lost(String),
    /// The order has another message than a node has applied.
    Differs(String),
    /// Nothing that counts.
    None(String),
}

/// What an answer means for a node that has received the order up to a position, while `peer` is the furthest of the others.
fn answer(info: &Info, created_ns: i64, received: u64, peer: Option<&PeerTip>) -> Answer {
    let last = info.state.last_sequence;
    if !broker::has_quorum(info) {
        return Answer::None(broker::NO_QUORUM.to_owned());
    }
    if broker::created_ns(info) != created_ns {
        return Answer::Lost(format!(
            "the brokers have another order than before; {REPAIR}"
        ));
    }
    if last < received {
        return Answer::Lost(format!(
            "the brokers have lost a part of the order: it ends at {last}, and this node has received {received}; {REPAIR}"
        ));
    }
    match peer.filter(|peer| last < peer.tip.position) {
        Some(PeerTip { node, tip }) => Answer::Lost(format!(
            "the brokers have lost a part of the order: it ends at {last}, and node {node} has applied position {}; {REPAIR}",
            tip.position
        )),
        None => Answer::Has(last),
    }
}

/// What an operator does about a loss.
const REPAIR: &str = "run `encke fleet repair`, then start this node again";

/// A broker that does not answer about the order for this long may be cut off from the others, although it answers its clients. A connection that
/// is dead is noticed before.
const RECONNECT_AFTER: Duration = Duration::from_secs(5);

/// How often the brokers are asked.
const ASK_EVERY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use encke_stream::Tip;

    use super::*;
    use crate::broker::tests::info;

    #[test]
    fn only_an_answer_with_a_quorum_counts() {
        let whole = info(3, &[(true, 10), (true, 10)]);
        let created = broker::created_ns(&whole);
        assert_eq!(answer(&whole, created, 0, None), Answer::Has(0));
        assert!(matches!(answer(&whole, created, 1, None), Answer::Lost(_)));
        assert!(matches!(
            answer(&whole, created + 1, 0, None),
            Answer::Lost(_)
        ));
        // Another node has applied what the order does not have.
        let peer = PeerTip {
            node: "b".into(),
            tip: Tip {
                position: 1,
                ..Tip::default()
            },
        };
        assert!(matches!(
            answer(&whole, created, 0, Some(&peer)),
            Answer::Lost(reason) if reason.contains("it ends at 0, and node b has applied position 1")
        ));
        let mut longer = whole.clone();
        longer.state.last_sequence = 1;
        assert_eq!(answer(&longer, created, 0, Some(&peer)), Answer::Has(1));
        // A leader that is cut off from the others does not have what they have stored without it.
        let alone = info(3, &[(true, 5_000), (true, 5_000)]);
        assert!(matches!(answer(&alone, created, 1, None), Answer::None(_)));
    }
}
