//! What other threads see of the subscriptions: which streams concern them, and how many there are.

use std::sync::Arc;

use encke_stream::ObserveCommits;
use parking_lot::RwLock;

use crate::index::SubscriptionIndex;
use crate::machine::{SubscriptionCounts, SubscriptionMachine};

/// The index and the counts of the subscriptions of this server. On a fleet they are empty at the nodes that do not dispatch.
#[derive(Debug, Default)]
pub struct PublishedSubscriptions {
    /// Replaced, so that the index of a machine that has lost its turn is not changed by the next one.
    index: RwLock<Arc<SubscriptionIndex>>,
    counts: RwLock<SubscriptionCounts>,
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
    }

    /// Publishes the counts of a machine, unless it has lost its turn.
    pub fn publish(&self, machine: &SubscriptionMachine) {
        let index = self.index.read();
        if Arc::ptr_eq(&index, machine.index()) {
            *self.counts.write() = machine.counts();
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
