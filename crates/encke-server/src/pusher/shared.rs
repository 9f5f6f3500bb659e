//! What the threads of the Pusher protocol share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use encke_presence::PresenceEvent;
use encke_stream::Offset;
use parking_lot::Mutex;

/// Whether a node writes what happens to channels and calls webhooks, and since which change of that.
pub(crate) type Leads = Arc<dyn Fn() -> (bool, u64) + Send + Sync>;

/// A webhook has accepted all events before this position, while this node calls it.
pub(super) type WebhookProgress = Arc<Mutex<Offset>>;

/// What the threads share.
#[derive(Default)]
pub(super) struct SharedReports {
    pub(super) ends: AtomicBool,
    /// What has happened to subscribers and was not looked at.
    pub(super) events: Mutex<Vec<PresenceEvent>>,
}

impl SharedReports {
    /// Whether the threads are to end.
    pub(super) fn end(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }
}
