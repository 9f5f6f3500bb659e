//! Endpoints for operators: liveness, readiness, metrics, and the revocation of credentials.

use std::sync::Arc;

use encke_access::{Access, Operation, RevocationTarget};
use encke_stream::{AckLevel, Append, Command, Data, Outcome, Target};

use crate::action::{Action, OnCommit};
use crate::gate::Admitted;
use crate::problem::{error, unexpected};
use crate::request::Request;
use crate::requirement::Requirement;
use crate::response::{AuditNote, Response};
use crate::streams::{StreamAccess, load};
use crate::unknown_path::not_found;

/// The sources of the answers. They run on a shard's thread, so they must not block.
#[derive(Clone)]
pub struct Probes {
    /// Why the server is not ready; `None` if it is.
    pub unready: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// All metrics in the Prometheus text format.
    pub metrics: Arc<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probes")
    }
}

/// What a request for a path of operators needs. `None`: nothing.
pub(crate) fn requirement(path: &str) -> Option<Requirement<'_>> {
    matches!(path, METRICS | REVOKE).then(|| Requirement::at(Operation::Admin, path))
}

/// The endpoints `/healthz`, `/readyz`, `/metrics` and `/v1/admin/`, and an overview at `/`.
#[derive(Clone, Debug)]
pub struct Admin {
    probes: Probes,
    /// The log removes old records of all streams.
    forgets: bool,
}

/// Waits until a revocation is in the log.
#[derive(Debug)]
struct Revoked {
    note: Box<AuditNote>,
}

impl Admin {
    /// The endpoints over their sources. `forgets`: the log removes old records of all streams.
    pub fn new(probes: Probes, forgets: bool) -> Self {
        Admin { probes, forgets }
    }

    /// Whether a path is for operators.
    pub(crate) fn serves(&self, path: &str) -> bool {
        matches!(path, "/healthz" | "/readyz" | "/metrics") || path.starts_with(ADMIN)
    }

    /// What to do for a request that is for no other protocol. `control`: the access control, if there is one.
    pub(crate) fn request(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
        control: Option<&Arc<Access>>,
        streams: &StreamAccess,
    ) -> Action {
        let action = match admitted.path {
            REVOKE => self.revoke(request, admitted, control, streams),
            path => self.show(request, admitted, path).map(Action::Respond),
        };
        action.unwrap_or_else(Action::Respond)
    }

    /// Refuses a request that its caller may not make, by its head alone.
    pub(crate) fn authorise(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<(), Response> {
        match admitted.path {
            REVOKE => {
                admitted.require(Operation::Admin)?;
                only(request.method, &["POST"])
            }
            path => match self.show(request, admitted, path)? {
                response if response.status >= 400 => Err(response),
                _ => Ok(()),
            },
        }
    }

    fn show(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
        path: &str,
    ) -> Result<Response, Response> {
        if matches!(path, "/" | "/healthz" | "/readyz" | "/metrics") {
            only(request.method, &["GET", "HEAD"])?;
        }
        Ok(match path {
            "/" => plain(200, WELCOME),
            "/healthz" => plain(200, "ok\n"),
            "/readyz" => match (self.probes.unready)() {
                None => plain(200, "ready\n"),
                // The reasons name files and devices.
                Some(_) if !admitted.may_at(Operation::Admin, path) => plain(503, "not ready\n"),
                Some(why) => text(503).body(format!("not ready: {why}\n")),
            },
            METRICS => {
                admitted.require(Operation::Admin)?;
                Response::new(200)
                    .field("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                    .field("Cache-Control", "no-store")
                    .body((self.probes.metrics)())
            }
            path => not_found(path),
        })
    }
}

impl Admin {
    /// `POST /v1/admin/revoke`: ends credentials, by the id of a token, its subject, or the name of a key.
    fn revoke(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
        control: Option<&Arc<Access>>,
        streams: &StreamAccess,
    ) -> Result<Action, Response> {
        admitted.require(Operation::Admin)?;
        only(request.method, &["POST"])?;
        let Some(control) = control else {
            let why = "there is nothing to revoke: no access control is configured";
            return Err(error(409, "no_access_control", why));
        };
        if self.forgets {
            let why = "with retention-age or retention-size the log would forget a revocation: limit what single streams keep instead";
            return Err(error(409, "retention", why));
        }
        // A page of any site can send text and forms without asking.
        let content_type = request.headers.text("Content-Type").ok().flatten();
        if !content_type.is_some_and(is_json) {
            let why = "the Content-Type of this request is application/json";
            return Err(error(415, "content_type", why));
        }
        let target: RevocationTarget = serde_json::from_slice(&request.body).map_err(|why| {
            let why = format!(
                "the body is JSON with one member: jti, sub or key, such as {{\"jti\":\"0b6c\"}}: {why}"
            );
            error(400, "bad_revocation", why)
        })?;
        // Held until the action is decided, so that the stream stays in memory.
        let Some(_known) = streams.known(REVOCATIONS) else {
            return Ok(load(REVOCATIONS, request.body.clone()));
        };
        let stream = streams.find(REVOCATIONS, request.now)?;
        // In force before it is durable: what is refused must not go on because a disk is slow.
        let revocation = control
            .revoke(target, request.now.wall_ms)
            .map_err(|why| error(507, "revocations_max", why.to_string()))?;
        let record = serde_json::to_vec(&revocation);
        let record = record.map_err(|why| error(500, "internal", why.to_string()))?;
        let command = Command::Append(Append {
            target: Target::Known(stream),
            content_type: None,
            producer: None,
            writer_seq: None,
            closes: false,
            ack: Some(AckLevel::Synced),
            data: Data {
                bytes: record,
                units: 1,
            },
        });
        let revoked = Revoked {
            note: admitted.note("admin", "revoke"),
        };
        Ok(Action::Commit(command, Box::new(revoked)))
    }
}

impl OnCommit for Revoked {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        let response = match outcome {
            Outcome::Appended { .. } => Response::new(204).field("Cache-Control", "no-store"),
            other => unexpected(&other),
        };
        response.audited(Some(self.note))
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

fn only(method: &str, methods: &[&str]) -> Result<(), Response> {
    if methods.contains(&method) {
        return Ok(());
    }
    let methods = methods.join(", ");
    let why = format!("{method} is not allowed here, only {methods}");
    Err(error(405, "method_not_allowed", why).field("Allow", methods))
}

fn plain(status: u16, body: &'static str) -> Response {
    text(status).body(body)
}

fn text(status: u16) -> Response {
    Response::new(status)
        .field("Content-Type", "text/plain; charset=utf-8")
        .field("Cache-Control", "no-store")
        .field("X-Content-Type-Options", "nosniff")
}

/// The stream of revocations: its name is none that clients can use.
pub const REVOCATIONS: &str = "\u{1}revocations";

const METRICS: &str = "/metrics";
const ADMIN: &str = "/v1/admin/";
const REVOKE: &str = "/v1/admin/revoke";

const WELCOME: &str = "This is Encke, a real-time push server.\n\
    \n\
    Streams      PUT, POST, GET, HEAD, DELETE  /v1/stream/{name}\n\
    Follow one   GET /v1/stream/{name}?offset=-1&live=sse    (EventSource)\n\
    Poll one     GET /v1/stream/{name}?offset={offset}&live=long-poll\n\
    Follow many  GET /v1/events?stream={name}&stream=chat/**  (chat/* is every stream below chat/)\n\
    Pools        PUT, PATCH, POST, GET, DELETE  /v1/pool/{name}\n\
    Work for one POST /v1/pool/{name}/work?worker={worker}\n\
    Health       /healthz  /readyz  /metrics\n\
    \n\
    A browser opens at most six HTTP/1.1 connections to one origin, for all tabs together, and each EventSource takes one:\n\
    follow many streams over one connection. Programs use the same URLs, or an official Durable Streams client; poll where\n\
    connections cannot stay open, or through a cache.\n";
