//! Asks the brokers how far the order is: so a node knows that it is behind, that no broker answers, and that the order is
//! another one.

use std::sync::Arc;
use std::time::Duration;

use encke_stream::OrderHandle;
use tokio::sync::watch;

use crate::broker::{self, OrderStream};
use crate::status::LogStatus;

pub(crate) struct Probe {
    pub(crate) order: OrderStream,
    pub(crate) handle: OrderHandle,
    pub(crate) status: Arc<LogStatus>,
    pub(crate) ended: watch::Receiver<bool>,
}

impl Probe {
    /// Runs until the publisher has ended.
    pub(crate) async fn run(mut self) {
        loop {
            self.ask().await;
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                _ = self.ended.wait_for(|ended| *ended) => return,
            }
        }
    }

    async fn ask(&self) {
        // Before the question: what arrives meanwhile may be newer than the answer.
        let received = self.handle.status().received();
        let info = match self.order.stream.get_info().await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(%error, "no broker says how far the order is");
                return;
            }
        };
        let last = info.state.last_sequence;
        let other = broker::created_ns(&info) != self.order.created_ns;
        if other || last < received {
            let reason = match other {
                true => "the brokers have another order than before".to_owned(),
                false => format!(
                    "the brokers have lost a part of the order: it ends at {last}, and this node has received {received}"
                ),
            };
            if !self.handle.status().has_stopped() {
                self.handle.stop(reason.into());
            }
            return;
        }
        self.status.heard(last);
    }
}

/// How often the brokers are asked.
const ASK_EVERY: Duration = Duration::from_millis(500);
