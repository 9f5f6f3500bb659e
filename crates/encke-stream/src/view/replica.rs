//! What the view of a node of a fleet has beside streams: the time of the order, its dispatcher, and the reads that renew
//! lifetimes.

use std::sync::atomic::{AtomicU64, Ordering};

use encke_clock::{Now, WallTime};
use parking_lot::Mutex;

use crate::replicated::{Chain, DispatcherTerm, Reads};

/// What a node has followed of the order, as readers see it.
#[derive(Debug, Default)]
pub(super) struct ReplicaView {
    /// Reads that must renew sliding lifetimes.
    pub(super) reads: Reads,
    /// The time of the last applied batch, in milliseconds since 1970.
    time_ms: AtomicU64,
    dispatcher: Mutex<Option<DispatcherTerm>>,
}

impl ReplicaView {
    /// The time of the order.
    pub(super) fn time(&self) -> Now {
        Now::at(WallTime::from_ms(self.time_ms.load(Ordering::Relaxed)))
    }

    /// Sets what is known of the order.
    pub(super) fn set_order(&self, chain: &Chain) {
        self.time_ms
            .fetch_max(chain.time.as_ms(), Ordering::Relaxed);
        let mut known = self.dispatcher.lock();
        if *known != chain.dispatcher {
            known.clone_from(&chain.dispatcher);
        }
    }

    /// The node that dispatches the jobs of the pools.
    pub(super) fn dispatcher(&self) -> Option<DispatcherTerm> {
        self.dispatcher.lock().clone()
    }
}
