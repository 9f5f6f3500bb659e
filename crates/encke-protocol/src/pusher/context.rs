//! What all connections and requests share.

use std::sync::Arc;

use encke_presence::{Presence, PresenceCounts};

use super::app::App;
use super::socket_id::SocketIds;
use crate::encoder::EncoderId;
use crate::presence::PresenceStreams;
use crate::streams::StreamAccess;

/// What all connections and requests share.
#[derive(Debug)]
pub(super) struct PusherContext {
    pub(super) apps: Vec<Arc<App>>,
    pub(super) streams: StreamAccess,
    pub(super) encoder: EncoderId,
    /// How many are subscribed to channels, and who to presence channels.
    pub(super) presence: Arc<PresenceStreams>,
    /// Of what is told of them.
    pub(super) members_encoder: EncoderId,
    pub(super) socket_ids: SocketIds,
}

impl PusherContext {
    pub(super) fn registry(&self) -> &Arc<Presence> {
        self.presence.registry()
    }

    /// How many members and subscriptions a channel has, over all nodes.
    pub(super) fn counts(&self, app: &App, channel: &str) -> PresenceCounts {
        self.registry().counts(&app.stream(channel))
    }

    pub(super) fn app_of_key(&self, key: &str) -> Option<&Arc<App>> {
        self.apps.iter().find(|app| app.settings.key == key)
    }

    pub(super) fn app_of_id(&self, id: &str) -> Option<&Arc<App>> {
        self.apps.iter().find(|app| app.settings.id == id)
    }
}
