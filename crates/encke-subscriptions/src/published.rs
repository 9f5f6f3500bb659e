//! What other threads see of the subscriptions: which streams concern them, and how many there are.

use std::sync::Arc;

use encke_stream::ObserveCommits;
use parking_lot::RwLock;

use crate::index::SubscriptionIndex;
use crate::machine::{SubscriptionCounts, SubscriptionMachine};
use crate::token::{SubscriptionSecrets, WakeToken};

/// The index and the counts of the subscriptions of this server. On a fleet they are empty at the nodes that do not dispatch.
#[derive(Debug, Default)]
pub struct PublishedSubscriptions {
    /// Replaced, so that the index of a machine that has lost its turn is not changed by the next one.
    index: RwLock<Arc<SubscriptionIndex>>,
    counts: RwLock<SubscriptionCounts>,
    /// The secrets of the machine, from when they are in its journal.
    secrets: RwLock<Option<SubscriptionSecrets>>,
}

impl PublishedSubscriptions {
    /// Puts a new index in use, for a machine that is about to be recovered: the commits from here on that concern it are reported.
    pub fn begin(&self) -> Arc<SubscriptionIndex> {
        let index = Arc::new(SubscriptionIndex::default());
        *self.index.write() = Arc::clone(&index);
        index
    }

    /// There are no subscriptions here any more.
    pub fn clear(&self) {
        let mut index = self.index.write();
        *index = Arc::default();
        *self.counts.write() = SubscriptionCounts::default();
        *self.secrets.write() = None;
    }

    /// Whether a text is the token of a wake of this server, of any subscription. `None`: that is not known here, at a node that does not
    /// dispatch or before the first subscription.
    pub fn has_made(&self, token: &str) -> Option<bool> {
        let secrets = self.secrets.read();
        let secrets = secrets.as_ref()?;
        let token = token.parse::<WakeToken>();
        Some(token.is_ok_and(|token| secrets.has_made(&token)))
    }

    /// Publishes the counts and the key of tokens of a machine, unless it has lost its turn.
    pub fn publish(&self, machine: &SubscriptionMachine) {
        let index = self.index.read();
        if Arc::ptr_eq(&index, machine.index()) {
            *self.counts.write() = machine.counts();
            let secrets = machine.stored_secrets();
            if *self.secrets.read() != secrets {
                *self.secrets.write() = secrets;
            }
        }
    }

    /// The counts that were published last.
    pub fn counts(&self) -> SubscriptionCounts {
        *self.counts.read()
    }
}

impl ObserveCommits for PublishedSubscriptions {
    fn concerns(&self, stream: &str) -> bool {
        self.index.read().concerns(stream)
    }
}
