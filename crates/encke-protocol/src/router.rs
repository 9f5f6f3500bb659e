//! From a request's path to its protocol.

use std::sync::Arc;

use encke_access::{Access, Caller, CanonicalPath};
use encke_stream::Views;

use crate::action::Action;
use crate::admin::Admin;
use crate::durable_streams::{DurableStreams, DurableStreamsSettings};
use crate::encoder::Encoders;
use crate::events::{self, Events, EventsSettings};
use crate::gate::{Admitted, Gate, OriginReader, Stop, preflight, refused};
use crate::misspelled;
use crate::pool::{PoolApi, PoolApiSettings};
use crate::problem::error;
use crate::request::Request;
use crate::stream_rights::StreamRights;
use crate::streams::StreamAccess;

/// All protocols over the same streams.
#[derive(Clone, Debug)]
pub struct Router {
    gate: Arc<Gate>,
    durable_streams: DurableStreams,
    events: Events,
    pools: PoolApi,
    admin: Admin,
    streams: StreamAccess,
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
    /// Other nodes change the same streams: what is said of a stream includes everything that any node has acknowledged before the
    /// request.
    pub in_fleet: bool,
}

/// What becomes of a request.
#[derive(Debug)]
pub struct Routed {
    /// What the reactor does for it.
    pub action: Action,
    /// Who made it, with access control: what lasts longer than the caller's credentials ends with them.
    pub caller: Option<Arc<Caller>>,
    /// The origin that the response names as its reader.
    pub reader: OriginReader,
}

impl Router {
    /// The protocols over the committed streams, behind a gate.
    pub fn new(views: Arc<Views>, settings: ProtocolSettings, gate: Gate, admin: Admin) -> Self {
        let mut encoders = Encoders::default();
        let root = settings.durable_streams.root.clone();
        let streams = StreamAccess {
            views,
            name_bytes_max: settings.durable_streams.name_bytes_max,
            in_fleet: settings.in_fleet,
            rights: StreamRights::new(&settings.pool.root),
        };
        Router {
            gate: Arc::new(gate),
            durable_streams: DurableStreams::new(
                streams.clone(),
                settings.durable_streams,
                &mut encoders,
            ),
            events: Events::new(streams.clone(), settings.events, root.into(), &mut encoders),
            pools: PoolApi::new(settings.pool),
            streams,
            admin,
            encoders: Arc::new(encoders),
        }
    }

    /// What to do for a request.
    pub fn request(&self, request: Request<'_>) -> Routed {
        let reader = self.gate.reader(&request);
        let (action, caller) = match self.gate.check(&request) {
            Ok(()) => self.admit(request),
            Err(response) => (Action::Respond(response), None),
        };
        Routed {
            action,
            caller,
            reader,
        }
    }

    /// The access control, if there is one.
    pub fn access(&self) -> Option<&Arc<Access>> {
        self.gate.access.control()
    }

    /// Whether responses depend on the origins that their requests name.
    pub fn varies(&self) -> bool {
        self.gate.origins.vary()
    }

    /// The encoders of all protocols.
    pub fn encoders(&self) -> &Arc<Encoders> {
        &self.encoders
    }

    fn admit(&self, request: Request<'_>) -> (Action, Option<Arc<Caller>>) {
        // A preflight request has no credentials, and the answer says nothing but what a browser may ask.
        if request.method == "OPTIONS" {
            return (Action::Respond(preflight()), None);
        }
        let path = match CanonicalPath::parse(request.path) {
            Ok(path) => path,
            Err(why) => {
                let response = error(400, "bad_path", why.to_string());
                return (Action::Respond(response), None);
            }
        };
        let rights = match self.gate.resolve(&request, &path) {
            Ok(rights) => rights,
            Err(Stop::Refused(response)) => return (Action::Respond(response), None),
            Err(Stop::AwaitingKeys(response)) => {
                return (Action::AwaitKeys(response, request.body), None);
            }
        };
        if let Err(refused) = misspelled::check_fields(request.headers) {
            return (Action::Respond(refused), None);
        }
        let caller = rights.caller().cloned();
        let admitted = Admitted {
            path: path.as_str(),
            method: request.method,
            rights,
        };
        (self.route(request, &admitted), caller)
    }

    fn route(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let path = admitted.path;
        if request.caller.operator && !self.admin.serves(path) {
            let why = "at this address there are only /healthz, /readyz, /metrics and /v1/admin/";
            let response = refused(&request, error(404, "not_found", why), "not_here");
            return Action::Respond(response);
        }
        if path == events::PATH {
            return self.events.request(&request, admitted);
        }
        if let Some(name) = self.durable_streams.path(path) {
            return self.durable_streams.request(request, name, admitted);
        }
        match self.pools.path(path) {
            Some(below) => self.pools.request(request, below, admitted),
            None => self
                .admin
                .request(&request, admitted, self.access(), &self.streams),
        }
    }
}
