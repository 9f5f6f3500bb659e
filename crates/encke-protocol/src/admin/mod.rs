//! What operators use: liveness, readiness, metrics, the page at `/admin`, and the API below `/v1/admin/`.
//!
//! Questions of the API are answered beside the shards ([`Action::Inspect`]); `inquiry` has them, and `questions` their bounds. `revoke` ends
//! credentials, and `page` has the files of the page. Streams and pools have their own APIs, which the page uses as any client does.

mod explain;
pub(crate) mod inquiry;
mod page;
mod questions;
mod revoke;

use std::sync::Arc;

use encke_access::{Access, Operation};
use serde::Deserialize;

use crate::action::Action;
use crate::encoder::Encoders;
use crate::gate::Admitted;
use crate::health_probe::HealthProbe;
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::problem::{check_method, error};
use crate::protocol::Protocol;
use crate::request::{Headers, Request};
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;
use crate::streams::StreamAccess;
use crate::unknown_path::not_found;

pub use self::inquiry::{
    ConnectionName, ConnectionQuery, ExplainedRequest, GroupKind, GroupQuery, Inquiry,
    ListPosition, OperatorQuestion, StreamOrder, StreamQuery,
};
pub use self::revoke::REVOCATIONS;
use self::revoke::Revoker;

/// The sources of the answers. They run on a shard's thread, so they must not block.
#[derive(Clone)]
pub struct Probes {
    /// Whether the server is ready.
    pub readiness: Arc<dyn Fn() -> ReadyState + Send + Sync>,
    /// All metrics in the Prometheus text format.
    pub metrics: Arc<dyn Fn() -> Vec<u8> + Send + Sync>,
}

/// Whether the server is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyState {
    /// It is.
    Ready,
    /// It is not, for this reason.
    NotReady(String),
    /// A probe is in work. When it is over, requests that are parked are asked about again ([`Action::Park`]).
    Probing,
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probes")
    }
}

/// The sources of the endpoints for operators.
#[derive(Clone, Debug)]
pub struct Admin {
    probes: Probes,
}

impl Admin {
    /// The sources.
    pub fn new(probes: Probes) -> Self {
        Admin { probes }
    }
}

/// The endpoints `/healthz`, `/readyz`, `/metrics`, `/admin` and `/v1/admin/`.
#[derive(Debug)]
pub(crate) struct AdminApi {
    mounts: [Mount; 6],
    probes: Probes,
    revoker: Revoker,
    health_probe: HealthProbe,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Liveness,
    Readiness,
    Metrics,
    /// A file of the page.
    Page,
    /// An endpoint of the API.
    Api(Endpoint),
    Nothing,
}

/// An endpoint of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Overview,
    Connections,
    Groups,
    CloseConnection,
    Streams,
    Refusals,
    Explain,
    Revoke,
    History,
    Configuration,
    Doctor,
    Fleet,
    Usage,
}

/// The body of a request that closes a connection.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToClose {
    /// Its name in the list of connections.
    connection: String,
}

impl AdminApi {
    /// The endpoints over their sources. `access`: the access control, if there is one.
    pub(crate) fn new(
        admin: Admin,
        access: Option<Arc<Access>>,
        streams: StreamAccess,
        encoders: &mut Encoders,
    ) -> Self {
        let Admin { probes } = admin;
        AdminApi {
            mounts: [
                Mount::at(HEALTHZ).public().for_operators(),
                Mount::at(READYZ).public().for_operators(),
                Mount::at(METRICS).for_operators(),
                Mount::below(ADMIN).for_operators(),
                Mount::at(page::PAGE).public().for_operators(),
                Mount::below(page::FILES_BELOW).public().for_operators(),
            ],
            probes,
            health_probe: HealthProbe::new(streams.clone(), encoders),
            revoker: Revoker { access, streams },
        }
    }

    /// The response to a request that changes nothing and asks nobody.
    fn show(&self, place: Place, admitted: &Admitted<'_>) -> Result<Response, Response> {
        let path = admitted.path;
        Ok(match place {
            Place::Liveness => Response::plain_text(200).body("ok\n"),
            Place::Metrics => Response::new(200)
                .field("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                .field("Cache-Control", "no-store")
                .body((self.probes.metrics)()),
            Place::Page => page::file(path).ok_or_else(|| not_found(path))?,
            Place::Readiness | Place::Api(_) | Place::Nothing => not_found(path),
        })
    }

    /// `GET /readyz`: waits for a probe if there is no fresh outcome of one.
    fn ready(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        match (self.probes.readiness)() {
            ReadyState::Ready => Action::Respond(Response::plain_text(200).body("ready\n")),
            // The reasons name files and devices.
            ReadyState::NotReady(_) if !admitted.may_at(Operation::Admin, READYZ) => {
                Action::Respond(Response::plain_text(503).body("not ready\n"))
            }
            ReadyState::NotReady(why) => {
                Action::Respond(Response::plain_text(503).body(format!("not ready: {why}\n")))
            }
            ReadyState::Probing => {
                let crowded =
                    "not known: the probe has no outcome yet, or too many requests wait for it\n";
                Action::Park(Response::plain_text(503).body(crowded), request.body)
            }
        }
    }

    /// What to do for a request to the API.
    fn inspect(
        &self,
        endpoint: Endpoint,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let query = request.query;
        let mut note = None;
        let question = match endpoint {
            Endpoint::Connections => OperatorQuestion::Connections(ConnectionQuery::parse(query)?),
            Endpoint::Groups => OperatorQuestion::Groups(GroupQuery::parse(query)?),
            Endpoint::Streams => OperatorQuestion::Streams(StreamQuery::parse(query)?),
            Endpoint::Refusals => OperatorQuestion::Refusals(questions::refusals(query)?),
            Endpoint::Revoke => return self.revoker.revoke(request, admitted),
            Endpoint::Usage => {
                questions::no_parameters(query)?;
                OperatorQuestion::Usage
            }
            Endpoint::Explain => {
                if self.revoker.access.is_none() {
                    let why = "there is nothing to explain: no access control is configured, and requests need no credentials";
                    return Err(error(409, "no_access_control", why));
                }
                OperatorQuestion::Explain(ExplainedRequest::parse(&request.body)?)
            }
            Endpoint::CloseConnection => {
                note = Some(admitted.note("admin", "close_connection"));
                OperatorQuestion::Disconnect(connection_to_close(&request.body)?)
            }
            plain => {
                questions::no_parameters(query)?;
                match plain {
                    Endpoint::History => OperatorQuestion::History,
                    Endpoint::Configuration => OperatorQuestion::Configuration,
                    Endpoint::Doctor => OperatorQuestion::Doctor,
                    Endpoint::Fleet => OperatorQuestion::Fleet,
                    _ => OperatorQuestion::Overview,
                }
            }
        };
        Ok(Action::Inspect(Box::new(Inquiry { question, note })))
    }
}

impl Protocol for AdminApi {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        &["GET", "HEAD", "POST"]
    }

    fn fields(&self) -> &'static KnownFields {
        &KnownFields::NONE
    }

    fn overview(&self) -> &'static str {
        "Health       /healthz  /readyz  /metrics\nOperators    /admin\n"
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        let is_restricted = matches!(Place::of(head.path), Place::Metrics | Place::Api(_));
        let needed = is_restricted.then(|| Requirement::at(Operation::Admin, head.path));
        Ok(needed.into_iter().collect())
    }

    fn authorise(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<(), Response> {
        let place = Place::of(admitted.path);
        if matches!(place, Place::Metrics | Place::Api(_)) {
            admitted.require(Operation::Admin)?;
        }
        place.check(request.method, request.headers, admitted.path)
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        if request.caller.probe && admitted.path == PROBE {
            return self.health_probe.request(&request);
        }
        let place = Place::of(admitted.path);
        let action = self
            .authorise(&request, admitted)
            .and_then(|()| match place {
                Place::Api(endpoint) => self.inspect(endpoint, &request, admitted),
                Place::Readiness => Ok(self.ready(request, admitted)),
                place => self.show(place, admitted).map(Action::Respond),
            });
        action.unwrap_or_else(Action::Respond)
    }
}

impl Place {
    fn of(path: &str) -> Place {
        match path {
            HEALTHZ => Place::Liveness,
            READYZ => Place::Readiness,
            METRICS => Place::Metrics,
            path if path == page::PAGE || path.starts_with(page::FILES_BELOW) => Place::Page,
            path => match path.strip_prefix(ADMIN).and_then(Endpoint::of) {
                Some(endpoint) => Place::Api(endpoint),
                None => Place::Nothing,
            },
        }
    }

    /// Refuses a method or a body that is not one of this place.
    fn check(self, method: &str, headers: Headers<'_>, path: &str) -> Result<(), Response> {
        match self {
            Place::Nothing => Err(not_found(path)),
            Place::Api(endpoint) if endpoint.is_posted() => {
                check_method(method, &["POST"])?;
                // A page of any site can send text and forms without asking.
                let content_type = headers.text("Content-Type").ok().flatten();
                match content_type.is_some_and(is_json) {
                    true => Ok(()),
                    false => {
                        let why = "the Content-Type of this request is application/json";
                        Err(error(415, "content_type", why))
                    }
                }
            }
            _ => check_method(method, &["GET", "HEAD"]),
        }
    }
}

impl Endpoint {
    fn of(below: &str) -> Option<Endpoint> {
        Some(match below {
            "overview" => Endpoint::Overview,
            "connections" => Endpoint::Connections,
            "connections/groups" => Endpoint::Groups,
            "connections/close" => Endpoint::CloseConnection,
            "streams" => Endpoint::Streams,
            "refusals" => Endpoint::Refusals,
            "explain" => Endpoint::Explain,
            "revoke" => Endpoint::Revoke,
            "history" => Endpoint::History,
            "configuration" => Endpoint::Configuration,
            "doctor" => Endpoint::Doctor,
            "fleet" => Endpoint::Fleet,
            "usage" => Endpoint::Usage,
            _ => return None,
        })
    }

    /// Whether its requests have a body: those that change something, and those that hold a secret, which no URL may.
    fn is_posted(self) -> bool {
        matches!(
            self,
            Endpoint::CloseConnection | Endpoint::Explain | Endpoint::Revoke
        )
    }
}

/// The connection that the body of a request names.
fn connection_to_close(body: &[u8]) -> Result<ConnectionName, Response> {
    let bad = |why: String| error(400, "bad_connection", why);
    let ToClose { connection } = serde_json::from_slice(body).map_err(|why| {
        bad(format!(
            "the body is JSON with one member, such as {{\"connection\":\"0-1f\"}}: {why}"
        ))
    })?;
    connection.parse().map_err(|_| {
        bad("connection is a name as the list of connections has it, such as 0-1f".to_owned())
    })
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

const HEALTHZ: &str = "/healthz";
const READYZ: &str = "/readyz";
const METRICS: &str = "/metrics";
const ADMIN: &str = "/v1/admin/";

/// Where the health probe of the server itself sends its requests. For others there is nothing.
pub const PROBE: &str = "/v1/admin/probe";
