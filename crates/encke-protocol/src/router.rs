//! From a request's path to its protocol.

use std::sync::Arc;

use arc_swap::ArcSwap;
use encke_access::{Access, Caller, CallersIn, CanonicalPath, SignedUrl};
use encke_presence::NewMember;
use encke_stream::Views;

use crate::action::{Action, Channel};
use crate::admin::Admin;
use crate::caller_needs::CallerNeeds;
use crate::content;
use crate::cross_origin::CrossOriginFields;
use crate::encoder::Encoders;
use crate::gate::{
    Gate, GatedRoute, OriginReader, Origins, Passed, Rights, SignedRequest, Stop,
    WithoutCredentials, covered_fields, refused, unsigned_field,
};
use crate::misspelled;
use crate::mount::AtOperators;
use crate::moved_channel::MovedChannel;
use crate::presence::PresenceStreams;
use crate::problem::{check_method, error};
use crate::protocols::{Destination, ProtocolSettings, Protocols};
use crate::pusher::PusherSettings;
use crate::request::{Headers, Request, UNVERIFIED_BODY_BYTES_MAX};
use crate::requirement::Requirement;
use crate::response::{AuditNote, Response};
use crate::unknown_path::{bad_path, not_found};

/// All protocols over the same streams.
#[derive(Clone, Debug)]
pub struct Router {
    /// [`Router::set_gate`] replaces it for all clones.
    gate: Arc<ArcSwap<Gate>>,
    access: Option<Arc<Access>>,
    views: Arc<Views>,
    presence: Arc<PresenceStreams>,
    pusher: PusherSettings,
    protocols: Arc<Protocols>,
    encoders: Arc<Encoders>,
}

/// What becomes of a request.
#[derive(Debug)]
pub struct Routed {
    /// What the reactor does for it.
    pub action: Action,
    /// Who made it, with access control: what lasts longer than the caller's credentials ends with them.
    pub caller: Option<Arc<Caller>>,
    /// What the request needs of the caller for as long as it lasts. `None`: it ends soon, or it is a channel, which asks for each
    /// message.
    pub needs: Option<CallerNeeds>,
    /// Who a subscriber is among the members of a stream. `None`: nobody, or no stream has members.
    pub member: Option<Box<NewMember>>,
    /// The origin that the response names as its reader.
    pub reader: OriginReader,
    /// What the audit log says of the request when it is answered, if an operator changes something by it.
    pub note: Option<Box<AuditNote>>,
}

/// For whom a body is received.
#[derive(Clone, Debug)]
pub enum BodyOwner {
    /// A client that is known by its connection only.
    Unknown,
    /// A caller, with access control.
    Caller(Arc<Caller>),
    /// The servers of an app, whose secret has signed the request. The number tells apps apart.
    App(u32),
}

impl Router {
    /// The protocols over the committed streams, behind a gate.
    pub fn new(views: Arc<Views>, settings: ProtocolSettings, gate: Gate, admin: Admin) -> Self {
        let mut encoders = Encoders::default();
        let access = gate.access.control().cloned();
        let protocols = Protocols::new(Arc::clone(&views), &settings, admin, access, &mut encoders);
        Router {
            pusher: settings.pusher,
            ..Router::over(protocols, (views, settings.presence), gate, encoders)
        }
    }

    fn over(
        protocols: Protocols,
        (views, presence): (Arc<Views>, Arc<PresenceStreams>),
        gate: Gate,
        encoders: Encoders,
    ) -> Self {
        Router {
            views,
            presence,
            pusher: PusherSettings::default(),
            access: gate.access.control().cloned(),
            gate: Arc::new(ArcSwap::from_pointee(gate)),
            protocols: Arc::new(protocols),
            encoders: Arc::new(encoders),
        }
    }

    /// What to do for a request.
    pub fn request(&self, request: Request<'_>) -> Routed {
        let gate = self.gate.load();
        let reader = gate.reader(request.headers, request.caller.operator);
        let routed = |action| Routed {
            action,
            caller: None,
            needs: None,
            member: None,
            reader,
            note: None,
        };
        match gate.check(&request, || self.judges_origins(&request)) {
            Ok(()) => self.admit(&gate, request, routed),
            Err(response) => routed(Action::Respond(response)),
        }
    }

    /// For whom the body of a request is received that is still to come.
    ///
    /// # Errors
    /// The response to a request that is refused for its head alone, before memory is spent on its body.
    pub fn head(&self, request: &Request<'_>) -> Result<BodyOwner, Box<Response>> {
        let gate = self.gate.load();
        let checked = gate.check(request, || self.judges_origins(request));
        let admitted = checked.and_then(|()| self.admit_head(&gate, request));
        admitted.map_err(Box::new)
    }

    /// The access control, if there is one.
    pub fn access(&self) -> Option<&Arc<Access>> {
        self.access.as_ref()
    }

    /// Who is subscribed to what.
    pub fn presence(&self) -> &Arc<PresenceStreams> {
        &self.presence
    }

    /// The apps of the Pusher protocol.
    pub fn pusher(&self) -> &PusherSettings {
        &self.pusher
    }

    /// The streams, of which some have accounts.
    pub fn views(&self) -> &Views {
        &self.views
    }

    /// Sets other rules of the gate while the server runs. Who may do what stays as it is: [`Access::reload`] changes that.
    pub fn set_gate(&self, gate: Gate) {
        let access = self.gate.load().access.clone();
        self.gate.store(Arc::new(Gate { access, ..gate }));
    }

    /// What responses say to pages of other origins; `reader` is the one that the request named.
    pub fn cross_origin<'a>(&self, reader: &'a OriginReader) -> CrossOriginFields<'a> {
        let gate = self.gate.load();
        CrossOriginFields {
            reader,
            any: gate.origins == Origins::Any,
            vary: gate.origins.vary(),
        }
    }

    /// Takes a channel over from another process.
    ///
    /// # Errors
    /// Why it can't be, for the log.
    pub fn move_in(
        &self,
        channel: &MovedChannel,
        callers: &CallersIn,
    ) -> Result<Box<dyn Channel>, String> {
        match self.protocols.move_in(channel, callers) {
            Some(Ok(channel)) => Ok(channel),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("no protocol has channels of this kind".to_owned()),
        }
    }

    /// The encoders of all protocols.
    pub fn encoders(&self) -> &Arc<Encoders> {
        &self.encoders
    }

    fn admit(
        &self,
        gate: &Gate,
        request: Request<'_>,
        routed: impl FnOnce(Action) -> Routed,
    ) -> Routed {
        // Without a body its fields mean nothing.
        let passage = match self.pass(gate, &request, !request.body.is_empty()) {
            Ok(passage) => passage,
            Err(Stop::Refused(response)) => return routed(Action::Respond(response)),
            Err(Stop::AwaitingKeys(response)) => {
                return routed(Action::Park(response, request.body));
            }
        };
        let Passage {
            path,
            destination,
            covered,
            rights,
        } = passage;
        let request = Request {
            headers: covered.as_deref().map_or(request.headers, Headers),
            ..request
        };
        let caller = rights.caller().cloned();
        let admitted = destination.admitted(request.method, path.as_str(), rights);
        let (method, query, headers) = (request.method, request.query, request.headers);
        let is_operation = request.caller.operator
            && destination.at_operators() == AtOperators::ByGrant
            && destination.changes(request.method, admitted.path);
        let note = is_operation.then(|| admitted.note("admin", "change"));
        let member = match self.presence.has_rules() && method == "GET" {
            true => admitted.rights.member(query),
            false => Ok(None),
        };
        let served = self.serves(&request, admitted.path, destination);
        let (member, served) = match member {
            Ok(member) => (member, served),
            Err(refused) => (None, Err(refused)),
        };
        let action = match served {
            Err(refused) => Action::Respond(refused),
            Ok(()) => match destination.protocol() {
                Some(protocol) => protocol.request(request, &admitted),
                None => Action::Respond(not_found(admitted.path)),
            },
        };
        let needs = (caller.is_some() && action.lasts()).then(|| {
            let head = destination.head(method, admitted.path, query, headers);
            // A request that is refused for what it needs has led to a response.
            CallerNeeds::of(&destination.requirements(&head).unwrap_or_default())
        });
        Routed {
            caller,
            needs,
            member,
            note,
            ..routed(action)
        }
    }

    fn admit_head(&self, gate: &Gate, request: &Request<'_>) -> Result<BodyOwner, Response> {
        let passage = match self.pass(gate, request, true) {
            Ok(passage) => passage,
            Err(Stop::Refused(response)) => return Err(response),
            // The keys may be there when the body is. Until then it is the body of a client that has only claimed to have a token.
            Err(Stop::AwaitingKeys(response)) => {
                return match request.headers.announces_at_most(UNVERIFIED_BODY_BYTES_MAX) {
                    true => Ok(BodyOwner::Unknown),
                    false => Err(response),
                };
            }
        };
        let Passage {
            path,
            destination,
            covered,
            rights,
        } = passage;
        let caller = rights.caller().cloned();
        let admitted = destination.admitted(request.method, path.as_str(), rights);
        self.serves(request, admitted.path, destination)?;
        let Some(protocol) = destination.protocol() else {
            return Err(not_found(admitted.path));
        };
        check_method(request.method, protocol.methods())?;
        let request = Request {
            headers: covered.as_deref().map_or(request.headers, Headers),
            body: Vec::new(),
            ..*request
        };
        protocol.authorise(&request, &admitted)?;
        Ok(match (caller, protocol.signing_app(admitted.below)) {
            (Some(caller), _) => BodyOwner::Caller(caller),
            (None, Some(app)) => BodyOwner::App(app),
            (None, None) => BodyOwner::Unknown,
        })
    }

    /// The origin that the response to a request names as its reader, if the request is refused before it is routed.
    pub fn reader(&self, headers: Headers<'_>, operator: bool) -> OriginReader {
        self.gate.load().reader(headers, operator)
    }

    /// The origin that a response names as its reader if the origin of its request has not arrived: all, where all are allowed.
    pub fn reader_of_any(&self) -> OriginReader {
        match self.gate.load().origins {
            Origins::Any => OriginReader::Any,
            Origins::None | Origins::Loopback | Origins::Listed(_) => OriginReader::Unnamed,
        }
    }

    /// Whether the protocol of a request judges itself which pages may open a channel.
    fn judges_origins(&self, request: &Request<'_>) -> bool {
        let path = CanonicalPath::parse(request.path).ok();
        let path = path.and_then(|path| self.protocols.resolve(path).ok());
        path.is_some_and(|path| {
            let path = path.as_str();
            self.protocols.find(path).judges_origins(path)
        })
    }

    /// Whether a request, if it is served, opens a stream of events.
    pub fn opens_events(&self, path: &str, query: Option<&str>) -> bool {
        self.protocols.find(path).opens_events(path, query)
    }

    /// The pattern of paths that serves a path, such as `/v1/stream/**`, for statistics; empty if nothing does.
    pub fn route(&self, path: &str) -> String {
        let path = CanonicalPath::parse(path).and_then(|path| self.protocols.resolve(path));
        let path = path.ok();
        let found = path.as_ref().map(|path| self.protocols.find(path.as_str()));
        found.map(|found| found.route()).unwrap_or_default()
    }

    /// Lets a request through to its protocol, by its head: its path, its credentials, the page that sends it and the fields of its body.
    fn pass<'a>(
        &'a self,
        gate: &Gate,
        request: &Request<'a>,
        has_body: bool,
    ) -> Result<Passage<'a>, Stop> {
        // A preflight request has no credentials, and the answer says nothing but what a browser may ask.
        if request.method == "OPTIONS" {
            let allowed = self.protocols.allowed();
            return Err(Stop::Refused(allowed.preflight(request.headers)));
        }
        let path = CanonicalPath::parse(request.path)
            .and_then(|path| self.protocols.resolve(path))
            .map_err(|why| Stop::Refused(bad_path(request.path, &why)))?;
        let destination = self.protocols.find(path.as_str());
        let opens_channel = request.upgrade && opens_channel(request, path.as_str(), destination);
        let without = match destination.is_public() {
            true => WithoutCredentials::Passes,
            false if opens_channel => WithoutCredentials::OpensChannel,
            false => WithoutCredentials::Refused,
        };
        let route = GatedRoute {
            without,
            free_parameters: destination.free_parameters(request.method, path.as_str()),
            has_own_credentials: destination.has_own_credentials(request.method, path.as_str()),
            by_grant: destination.at_operators() == AtOperators::ByGrant,
        };
        let passed = gate.resolve(request, &path, route)?;
        let (covered, rights) = self
            .rights(gate, request, (path.as_str(), destination), passed)
            .map_err(Stop::Refused)?;
        if has_body {
            content::check_content(request.headers).map_err(Stop::Refused)?;
        }
        Ok(Passage {
            path,
            destination,
            covered,
            rights,
        })
    }

    /// Refuses a request at the address for operators that is for clients, and one for a channel where there is none.
    fn serves(
        &self,
        request: &Request<'_>,
        path: &str,
        destination: Destination<'_>,
    ) -> Result<(), Response> {
        if !request.caller.operator || destination.at_operators() != AtOperators::Missing {
            let is_missing = destination.protocol().is_some()
                && request.upgrade
                && !opens_channel(request, path, destination);
            return match is_missing {
                true => Err(error(400, "no_websocket", NO_WEBSOCKET)),
                false => Ok(()),
            };
        }
        let why = format!(
            "at this address there are only {}",
            self.protocols.for_operators()
        );
        Err(refused(request, error(404, "not_found", why), "not_here"))
    }

    /// The rights of a request's caller, and the header fields that a signed URL covers, if it has one.
    fn rights<'a>(
        &self,
        gate: &Gate,
        request: &Request<'a>,
        (path, destination): (&str, Destination<'_>),
        passed: Passed,
    ) -> Result<(Option<CoveredFields<'a>>, Rights), Response> {
        misspelled::check_fields(request.headers, self.protocols.own_fields())?;
        // Other methods may be repeated.
        if request.method == "POST" {
            misspelled::check_idempotency_fields(request.headers, destination.request_fields())?;
        }
        let changes = destination.changes(request.method, path);
        gate.check_site(request, changes)?;
        match passed {
            Passed::With(rights) => Ok((None, rights)),
            Passed::SignedUrl {
                caller,
                conceals,
                url,
            } => {
                let (covered, signed) = signed_request(request, (path, destination), url)?;
                let rights = Rights::Caller {
                    caller,
                    conceals,
                    signed: Some(Arc::new(signed)),
                };
                Ok((Some(covered), rights))
            }
        }
    }
}

/// The header fields that a request with a signed URL brings to its protocol, and what was signed.
fn signed_request<'a>(
    request: &Request<'a>,
    (path, destination): (&str, Destination<'_>),
    url: SignedUrl,
) -> Result<(CoveredFields<'a>, SignedRequest), Response> {
    let known = destination.request_fields();
    let covered = covered_fields(request, known, &url.fields)
        .map_err(|name| unsigned_field(request, name))?;
    let head = destination.head(request.method, path, request.query, Headers(&covered));
    let needs = destination.requirements(&head)?;
    let needs = needs.into_iter().map(Requirement::into_owned).collect();
    Ok((covered, SignedRequest { url, needs }))
}

/// Whether a request is one for a channel, where there is one.
fn opens_channel(request: &Request<'_>, path: &str, destination: Destination<'_>) -> bool {
    request.method == "GET" && destination.opens_channel(path, request.query)
}

/// Where channels are.
const NO_WEBSOCKET: &str = "there is no WebSocket here; GET /v1/events has one, and so has a stream with live=websocket in its query";

/// What a request passes the gate with.
struct Passage<'a> {
    path: CanonicalPath<'a>,
    destination: Destination<'a>,
    covered: Option<CoveredFields<'a>>,
    rights: Rights,
}

/// The header fields of a request that a signed URL covers.
type CoveredFields<'a> = Vec<(&'a str, &'a [u8])>;

#[cfg(test)]
mod bodies;
#[cfg(test)]
mod tests;
