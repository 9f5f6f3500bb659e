//! From a request's path to its protocol.

use std::sync::Arc;

use encke_access::{Access, Caller, CanonicalPath};
use encke_stream::{Views, home};

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
    /// Other nodes change the same streams.
    in_fleet: bool,
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
            in_fleet: false,
        }
    }

    /// The router of a node of a fleet: what it says of a stream includes everything that any node has acknowledged before the
    /// request.
    #[must_use]
    pub fn in_fleet(self) -> Self {
        Router {
            in_fleet: true,
            ..self
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
        if let Some(log) = self.awaited_log(&request, path.as_str()) {
            return (Action::AwaitOrder(log, request.body), caller);
        }
        let admitted = Admitted {
            path: path.as_str(),
            method: request.method,
            rights,
        };
        (self.route(request, &admitted), caller)
    }

    /// The log whose order the request must wait for before it is answered. A change is decided in the order anyway, so it waits
    /// only where this node knows no stream that it could change.
    fn awaited_log(&self, request: &Request<'_>, path: &str) -> Option<usize> {
        if !self.in_fleet {
            return None;
        }
        let logs = self.streams.views.logs();
        if path == events::PATH {
            return (request.barriers < logs).then_some(request.barriers);
        }
        let name = self.durable_streams.path(path)?;
        let waits = match request.method {
            "GET" | "HEAD" => true,
            "PUT" => request.headers.first("Stream-Forked-From").is_some(),
            "POST" | "DELETE" => match self.streams.views.look(name) {
                Some(_) => self.streams.find(name, request.now_ms).is_err(),
                // It is loaded first.
                None => false,
            },
            _ => false,
        };
        (waits && request.barriers == 0).then(|| home(name, logs))
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
