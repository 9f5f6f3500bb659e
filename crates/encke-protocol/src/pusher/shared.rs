//! What the connections of an app share with what reports on them.

use std::sync::Arc;

use super::watchlist::Watchers;
use super::webhook::WebhookQueue;

/// What the connections of an app share with what reports on them.
#[derive(Debug, Default)]
pub(super) struct SharedByApp {
    /// What webhooks are to be told.
    pub(super) webhooks: WebhookQueue,
    pub(super) watchers: Arc<Watchers>,
}
