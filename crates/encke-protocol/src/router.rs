//! From a request's path to its protocol.

use std::sync::Arc;

use encke_access::{Access, Caller, CanonicalPath, SignedFields};
use encke_stream::Views;

use crate::action::Action;
use crate::admin::Admin;
use crate::content;
use crate::durable_streams::{DurableStreams, DurableStreamsSettings};
use crate::encoder::Encoders;
use crate::events::{self, Events, EventsSettings};
use crate::gate::{
    Admitted, Gate, OriginReader, Origins, Passed, Rights, SignedRequest, Stop, covered_fields,
    preflight, refused, unsigned_field,
};
use crate::misspelled;
use crate::mounts::{Mount, Mounts};
use crate::pool::{PoolApi, PoolApiSettings};
use crate::problem::{self, error};
use crate::request::{Headers, Request};
use crate::requirement::{RequestLine, Requirement};
use crate::response::{CrossOriginFields, Response};
use crate::stream_rights::StreamRights;
use crate::streams::StreamAccess;
use crate::unknown_path::bad_path;

/// All protocols over the same streams.
#[derive(Clone, Debug)]
pub struct Router {
    gate: Arc<Gate>,
    mounts: Mounts,
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

impl ProtocolSettings {
    fn mounts(&self) -> Mounts {
        Mounts::new(&self.durable_streams.root, &self.pool.root)
    }

    /// All rights that a request needs at a server with these settings. None: it needs no grant.
    ///
    /// # Errors
    /// What the server says about a request that it refuses whoever sends it.
    pub fn requirements(
        &self,
        method: &str,
        path: &CanonicalPath<'_>,
        query: Option<&str>,
        headers: Headers<'_>,
    ) -> Result<Vec<Requirement<'static>>, String> {
        let request = RequestLine {
            method,
            path: path.as_str(),
            query,
            headers,
        };
        let needed = self.mounts().requirements(request);
        let needed = needed.map_err(|refused| problem::message(&refused))?;
        Ok(needed.into_iter().map(Requirement::into_owned).collect())
    }
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

/// Whether a request may go on, by its head.
#[derive(Debug)]
pub enum HeadAdmission {
    /// It may. Its caller, as far as that is known by now.
    Admitted(Option<Arc<Caller>>),
    /// It gets this response.
    Refused {
        /// The response.
        response: Box<Response>,
        /// The origin that the response names as its reader.
        reader: OriginReader,
    },
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
            mounts: settings.mounts(),
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

    /// Whether a request may go on whose body is still to come: what it is refused for by its head alone, it is refused for before
    /// memory is spent on its body.
    pub fn head(&self, request: &Request<'_>) -> HeadAdmission {
        let checked = self.gate.check(request);
        match checked.and_then(|()| self.admit_head(request)) {
            Ok(caller) => HeadAdmission::Admitted(caller),
            Err(response) => HeadAdmission::Refused {
                response: Box::new(response),
                reader: self.gate.reader(request),
            },
        }
    }

    /// The access control, if there is one.
    pub fn access(&self) -> Option<&Arc<Access>> {
        self.gate.access.control()
    }

    /// What responses say to pages of other origins; `reader` is the one that the request named.
    pub fn cross_origin<'a>(&self, reader: &'a OriginReader) -> CrossOriginFields<'a> {
        CrossOriginFields {
            reader,
            any: self.gate.origins == Origins::Any,
            vary: self.gate.origins.vary(),
        }
    }

    /// The encoders of all protocols.
    pub fn encoders(&self) -> &Arc<Encoders> {
        &self.encoders
    }

    fn admit(&self, request: Request<'_>) -> (Action, Option<Arc<Caller>>) {
        // Without a body its fields mean nothing.
        let passage = match self.pass(&request, !request.body.is_empty()) {
            Ok(passage) => passage,
            Err(Stop::Refused(response)) => return (Action::Respond(response), None),
            Err(Stop::AwaitingKeys(response)) => {
                return (Action::AwaitKeys(response, request.body), None);
            }
        };
        let request = Request {
            headers: passage.covered.as_deref().map_or(request.headers, Headers),
            ..request
        };
        let caller = passage.rights.caller().cloned();
        let admitted = Admitted {
            path: passage.path.as_str(),
            method: request.method,
            rights: passage.rights,
        };
        (self.route(request, &admitted), caller)
    }

    fn admit_head(&self, request: &Request<'_>) -> Result<Option<Arc<Caller>>, Response> {
        let passage = match self.pass(request, true) {
            Ok(passage) => passage,
            Err(Stop::Refused(response)) => return Err(response),
            // The keys may be there when the body is. Until then it is the body of a client without credentials.
            Err(Stop::AwaitingKeys(_)) => return Ok(None),
        };
        let headers = passage.covered.as_deref().map_or(request.headers, Headers);
        let caller = passage.rights.caller().cloned();
        let admitted = Admitted {
            path: passage.path.as_str(),
            method: request.method,
            rights: passage.rights,
        };
        self.authorise(request, headers, &admitted)?;
        Ok(caller)
    }

    /// The origin that the response to a request names as its reader, if the request is refused before it is routed.
    pub fn reader(&self, request: &Request<'_>) -> OriginReader {
        self.gate.reader(request)
    }

    /// Whether a request, if it is served, opens a stream of events.
    pub fn opens_events(&self, path: &str, query: Option<&str>) -> bool {
        self.mounts.opens_events(path, query)
    }

    /// Lets a request through to its protocol, by its head: its path, its credentials, the page that sends it and the fields of its body.
    fn pass<'a>(&self, request: &Request<'a>, has_body: bool) -> Result<Passage<'a>, Stop> {
        // A preflight request has no credentials, and the answer says nothing but what a browser may ask.
        if request.method == "OPTIONS" {
            return Err(Stop::Refused(preflight(request.headers)));
        }
        let path = CanonicalPath::parse(request.path)
            .map_err(|why| Stop::Refused(bad_path(request.path, &why)))?;
        let passed = self.gate.resolve(request, &path)?;
        let (covered, rights) = self
            .rights(request, path.as_str(), passed)
            .map_err(Stop::Refused)?;
        if has_body {
            content::check_content(request.headers).map_err(Stop::Refused)?;
        }
        Ok(Passage {
            path,
            covered,
            rights,
        })
    }

    /// Refuses a request whose caller may not make it, by its head alone. What it needs elsewhere than at its own path, such as at the
    /// source of a fork, its protocol asks for.
    fn authorise(
        &self,
        request: &Request<'_>,
        headers: Headers<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<(), Response> {
        let path = admitted.path;
        self.serves(request, path)?;
        match self.mounts.find(path) {
            Mount::Stream(name) => self.streams.check_name(name)?,
            Mount::Events => return events::check_method(request.method),
            Mount::Admin => self.admin.authorise(request, admitted)?,
            Mount::Pools(_) => {}
        }
        let needed = self.mounts.requirements(RequestLine {
            method: request.method,
            path,
            query: request.query,
            headers,
        })?;
        needed
            .first()
            .map_or(Ok(()), |needed| admitted.meet(needed))
    }

    /// Refuses a request at the address for operators that is for clients.
    fn serves(&self, request: &Request<'_>, path: &str) -> Result<(), Response> {
        if !request.caller.operator || self.admin.serves(path) {
            return Ok(());
        }
        let why = "at this address there are only /healthz, /readyz, /metrics and /v1/admin/";
        Err(refused(request, error(404, "not_found", why), "not_here"))
    }

    /// The rights of a request's caller, and the header fields that a signed URL covers, if it has one.
    fn rights<'a>(
        &self,
        request: &Request<'a>,
        path: &str,
        passed: Passed,
    ) -> Result<(Option<CoveredFields<'a>>, Rights), Response> {
        misspelled::check_fields(request.headers)?;
        let changes = self.mounts.changes(request.method, path);
        self.gate.check_site(request, changes)?;
        match passed {
            Passed::With(rights) => Ok((None, rights)),
            Passed::SignedUrl {
                caller,
                conceals,
                fields,
            } => {
                let (covered, signed) = self.signed_request(request, path, fields)?;
                let rights = Rights::Caller {
                    caller,
                    conceals,
                    signed: Some(signed),
                };
                Ok((Some(covered), rights))
            }
        }
    }

    /// The header fields that a request with a signed URL brings to its protocol, and what was signed.
    fn signed_request<'a>(
        &self,
        request: &Request<'a>,
        path: &str,
        fields: SignedFields,
    ) -> Result<(CoveredFields<'a>, SignedRequest), Response> {
        let known = self.mounts.find(path).known_fields();
        let covered = covered_fields(request, known, &fields)
            .map_err(|name| unsigned_field(request, name))?;
        let needs = self.mounts.requirements(RequestLine {
            method: request.method,
            path,
            query: request.query,
            headers: Headers(&covered),
        })?;
        let needs = needs.into_iter().map(Requirement::into_owned).collect();
        Ok((covered, SignedRequest { fields, needs }))
    }

    fn route(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let path = admitted.path;
        if let Err(refused) = self.serves(&request, path) {
            return Action::Respond(refused);
        }
        match self.mounts.find(path) {
            Mount::Events => self.events.request(&request, admitted),
            Mount::Stream(name) => self.durable_streams.request(request, name, admitted),
            Mount::Pools(below) => self.pools.request(request, below, admitted),
            Mount::Admin => self
                .admin
                .request(&request, admitted, self.access(), &self.streams),
        }
    }
}

/// What a request passes the gate with.
struct Passage<'a> {
    path: CanonicalPath<'a>,
    covered: Option<CoveredFields<'a>>,
    rights: Rights,
}

/// The header fields of a request that a signed URL covers.
type CoveredFields<'a> = Vec<(&'a str, &'a [u8])>;
