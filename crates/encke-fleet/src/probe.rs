//! Asks the brokers how far the order is: so a node knows that it is behind, that no broker answers, and that the order is
//! another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::{Client, jetstream};
use encke_stream::OrderHandle;
use tokio::sync::watch;

use crate::broker::{self, OrderStream};
use crate::status::LogStatus;

pub(crate) struct Probe {
    pub(crate) context: jetstream::Context,
    /// Changes to another broker when this one knows nothing of the order any more. One probe of a node does so.
    pub(crate) reconnects: Option<Client>,
    pub(crate) order: OrderStream,
    pub(crate) handle: OrderHandle,
    pub(crate) status: Arc<LogStatus>,
    pub(crate) ended: watch::Receiver<bool>,
}

impl Probe {
    /// Runs until the publisher has ended.
    pub(crate) async fn run(mut self) {
        let mut lost_since = None;
        let mut reconnected = Instant::now();
        loop {
            self.ask(&mut lost_since).await;
            if let Some(client) = &self.reconnects
                && self.is_in_vain(client)
                && reconnected.elapsed() >= RECONNECT_AFTER
            {
                reconnected = Instant::now();
                tracing::info!("this broker does not know the order; trying another one");
                let _ = client.force_reconnect().await;
            }
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                _ = self.ended.wait_for(|ended| *ended) => return,
            }
        }
    }

    /// Whether a broker is connected that has not answered about the order for long.
    fn is_in_vain(&self, client: &Client) -> bool {
        client.connection_state() == State::Connected
            && !self.handle.status().has_stopped()
            && self.status.figures().silence >= RECONNECT_AFTER
    }

    async fn ask(&self, lost_since: &mut Option<Instant>) {
        // Before the question: what arrives meanwhile may be newer than the answer.
        let received = self.handle.status().received();
        let lost = match self.order.stream.get_info().await {
            Ok(info) => {
                let last = info.state.last_sequence;
                if broker::created_ns(&info) != self.order.created_ns {
                    "the brokers have another order than before".to_owned()
                } else if last < received {
                    format!(
                        "the brokers have lost a part of the order: it ends at {last}, and this node has received {received}"
                    )
                } else {
                    *lost_since = None;
                    self.status.heard(last);
                    return;
                }
            }
            Err(error) if error.kind() == RequestErrorKind::TimedOut => {
                tracing::debug!(%error, "no broker says how far the order is");
                return;
            }
            Err(error) if !broker::is_missing(&self.context, &self.order.name).await => {
                tracing::debug!(%error, "no broker says how far the order is");
                return;
            }
            Err(_) => "the brokers have lost the order".to_owned(),
        };
        // A broker that has just become the leader may not have applied all that it has.
        let since = *lost_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LOST_AFTER && !self.handle.status().has_stopped() {
            self.handle.stop(lost.into());
        }
    }
}

/// Positions that the brokers do not report for this long are lost. A message that is stored at such a position says so at once.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// A broker that does not answer about the order for this long may be cut off from the others, although it answers its clients. A connection that
/// is dead is noticed before.
const RECONNECT_AFTER: Duration = Duration::from_secs(5);

/// How often the brokers are asked.
const ASK_EVERY: Duration = Duration::from_millis(500);
