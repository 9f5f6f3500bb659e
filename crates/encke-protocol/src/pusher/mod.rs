//! The Pusher Channels protocol, version 7 (docs/pusher.md).
//!
//! ```text
//! GET   /app/{key}                       a WebSocket: subscribe to channels
//! POST  /apps/{id}/events                an event on up to 100 channels
//! POST  /apps/{id}/batch_events          up to 10 events
//! GET   /apps/{id}/channels              the channels that have subscribers
//! GET   /apps/{id}/channels/{name}       one channel
//! GET   /apps/{id}/channels/{name}/users its members
//! POST  /apps/{id}/users/{user}/terminate_connections
//! ```
//!
//! An event of a channel is a record of the stream `app/{id}/{channel}`: `event` is its form, `records` the encoder that makes messages of
//! such records, `channel_stream` finds or creates the stream. `socket` is a connection, `client_message` and `server_message` are what it
//! receives and sends, `subscribe` is how a subscription begins, `client_event` what clients send to each other, `member` the
//! members of presence channels, `user` as whom a client has signed in, `watchlist` what
//! it is told of other users. `api` has the requests of servers. `app` is what both sides know of an app, `stream_names` what its streams are called, and
//! `reporter` tells clients and, by `webhook`, servers what happens to its channels. `signature` and `socket_id` have the rules that keep apps and
//! clients apart.

mod api;
mod app;
mod channel_name;
mod channel_stream;
mod client_event;
mod client_message;
mod context;
mod event;
mod member;
mod position;
mod records;
mod reporter;
mod server_message;
mod settings;
mod shared;
mod signature;
mod socket;
mod socket_id;
mod sockets;
mod stream_names;
mod subscribe;
mod user;
mod watchlist;
mod webhook;

use std::sync::Arc;

use self::api::PusherApi;
use self::app::App;
use self::context::PusherContext;
use self::member::PusherMembers;
use self::records::PusherRecords;
use self::sockets::PusherSockets;
use crate::encoder::Encoders;
use crate::presence::PresenceStreams;
use crate::streams::StreamAccess;

pub use self::reporter::{AppReporter, AppWebhook, ReportStream};
pub use self::settings::{
    AppSecret, BadPusherApp, BadPusherWebhook, PusherApp, PusherSettings, PusherWebhook,
};
pub(crate) use self::stream_names::is_of_webhooks;
pub use self::webhook::{BadWebhookKind, WebhookBatch, WebhookKind};

/// The apps, for both sides of the protocol.
#[derive(Clone, Debug)]
pub(crate) struct Pusher(Arc<PusherContext>);

impl Pusher {
    /// `None`: there are no apps.
    pub(crate) fn new(
        settings: &PusherSettings,
        streams: &StreamAccess,
        presence: &Arc<PresenceStreams>,
        encoders: &mut Encoders,
    ) -> Option<Self> {
        if settings.apps().is_empty() {
            return None;
        }
        let apps = settings.apps().iter().cloned().zip(settings.shared());
        let apps = apps.map(|(app, shared)| Arc::new(App::new(app, Arc::clone(shared))));
        let apps: Vec<Arc<App>> = apps.collect();
        let records = PusherRecords { apps: apps.clone() };
        Some(Pusher(Arc::new(PusherContext {
            apps,
            streams: streams.clone(),
            encoder: encoders.add("pusher", records),
            presence: Arc::clone(presence),
            members_encoder: encoders.add("pusher members", PusherMembers),
            socket_ids: socket_id::SocketIds::new(settings.seed()),
        })))
    }

    /// The side of clients.
    pub(crate) fn sockets(&self) -> PusherSockets {
        PusherSockets::new(Arc::clone(&self.0))
    }

    /// The side of servers.
    pub(crate) fn api(&self) -> PusherApi {
        PusherApi::new(Arc::clone(&self.0))
    }
}
