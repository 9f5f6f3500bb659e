//! From a request's path to its protocol.

use std::sync::Arc;

use encke_stream::Views;

use crate::action::Action;
use crate::admin::Admin;
use crate::durable_streams::{DurableStreams, DurableStreamsSettings};
use crate::encoder::Encoders;
use crate::events::{self, Events, EventsSettings};
use crate::misspelled;
use crate::pool::{PoolApi, PoolApiSettings};
use crate::request::Request;
use crate::streams::{StreamAccess, empty_segment, has_empty_segment};

/// All protocols over the same streams.
#[derive(Clone, Debug)]
pub struct Router {
    durable_streams: DurableStreams,
    events: Events,
    pools: PoolApi,
    admin: Admin,
    encoders: Arc<Encoders>,
}

/// The settings of all protocols.
#[derive(Clone, Debug, Default)]
pub struct ProtocolSettings {
    /// Of Durable Streams.
    pub durable_streams: DurableStreamsSettings,
    /// Of subscriptions to several streams.
    pub events: EventsSettings,
    /// Of pools.
    pub pool: PoolApiSettings,
}

impl Router {
    /// The protocols over the committed streams.
    pub fn new(views: Arc<Views>, settings: ProtocolSettings, admin: Admin) -> Self {
        let mut encoders = Encoders::default();
        let streams = StreamAccess {
            views,
            name_bytes_max: settings.durable_streams.name_bytes_max,
        };
        Router {
            durable_streams: DurableStreams::new(
                streams.clone(),
                settings.durable_streams,
                &mut encoders,
            ),
            events: Events::new(streams, settings.events, &mut encoders),
            pools: PoolApi::new(settings.pool),
            admin,
            encoders: Arc::new(encoders),
        }
    }

    /// What to do for a request.
    pub fn request(&self, request: Request<'_>) -> Action {
        if let Err(refused) = misspelled::check_fields(request.headers) {
            return Action::Respond(refused);
        }
        if request.path == events::PATH {
            return self.events.request(&request);
        }
        if let Some(path) = self.durable_streams.path(request.path) {
            return self.durable_streams.request(request, path);
        }
        // Streams have this rule in their names, where encoded slashes count, too.
        if has_empty_segment(request.path) && request.method != "OPTIONS" {
            return Action::Respond(empty_segment());
        }
        match self.pools.path(request.path) {
            Some(path) => self.pools.request(request, path),
            None => self.admin.request(&request),
        }
    }

    /// The encoders of all protocols.
    pub fn encoders(&self) -> &Arc<Encoders> {
        &self.encoders
    }
}
