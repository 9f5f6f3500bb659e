//! Endpoints for operators: liveness, readiness, metrics, and the revocation of credentials.

use std::sync::Arc;

use encke_access::{Access, Operation, Revocation};
use encke_stream::{Append, Command, Data, Outcome, Target};

use crate::action::{Action, OnCommit};
use crate::gate::Admitted;
use crate::problem::{error, unexpected};
use crate::request::Request;
use crate::response::{AuditNote, Response};

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

/// The endpoints `/healthz`, `/readyz`, `/metrics` and `/v1/admin/`, and an overview at `/`.
#[derive(Clone, Debug)]
pub struct Admin {
    probes: Probes,
}

/// Waits until a revocation is in the log.
#[derive(Debug)]
struct Revoked {
    access: Arc<Access>,
    revocation: Revocation,
    note: Box<AuditNote>,
}

impl Admin {
    /// The endpoints over their sources.
    pub fn new(probes: Probes) -> Self {
        Admin { probes }
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
    ) -> Action {
        let action = match admitted.path {
            REVOKE => revoke(request, admitted, control),
            path => self.show(request, admitted, path).map(Action::Respond),
        };
        action.unwrap_or_else(Action::Respond)
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
                Some(_) if !admitted.may_at(Operation::Admin, path) => {
                    plain(503, "not ready\n")
                }
                Some(why) => text(503).body(format!("not ready: {why}\n")),
            },
            "/metrics" => {
                admitted.require(Operation::Admin)?;
                Response::new(200)
                    .field("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                    .field("Cache-Control", "no-store")
                    .body((self.probes.metrics)())
            }
            path => {
                let why = format!(
                    "there is nothing at {path}: a stream is /v1/stream/NAME, a pool /v1/pool/NAME, several streams are /v1/events"
                );
                error(404, "not_found", why)
            }
        })
    }
}

/// `POST /v1/admin/revoke`: ends credentials, by the id of a token, its subject, or the name of a key.
fn revoke(
    request: &Request<'_>,
    admitted: &Admitted<'_>,
    control: Option<&Arc<Access>>,
) -> Result<Action, Response> {
    admitted.require(Operation::Admin)?;
    only(request.method, &["POST"])?;
    let Some(control) = control else {
        let why = "there is nothing to revoke: no access control is configured";
        return Err(error(409, "no_access_control", why));
    };
    let bad = |why: String| error(400, "bad_revocation", why);
    let revocation = Revocation::from_json(&request.body, request.now_ms);
    let revocation = revocation.map_err(|why| bad(why.to_string()))?;
    control
        .check_room_for(&revocation)
        .map_err(|why| error(507, "revocations_max", why.to_string()))?;
    let command = Command::Append(Append {
        target: Target::Named(REVOCATIONS.into()),
        content_type: None,
        producer: None,
        writer_seq: None,
        closes: false,
        ack: None,
        data: Data {
            bytes: revocation.to_json().into_bytes(),
            units: 1,
        },
    });
    let revoked = Revoked {
        access: Arc::clone(control),
        revocation,
        note: admitted.note("admin", "revoke"),
    };
    Ok(Action::Commit(command, Box::new(revoked)))
}

impl OnCommit for Revoked {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        let response = match outcome {
            Outcome::Appended { .. } => {
                self.access.revoke(self.revocation);
                Response::new(204).field("Cache-Control", "no-store")
            }
            other => unexpected(&other),
        };
        response.audited(Some(self.note))
    }
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

const ADMIN: &str = "/v1/admin/";
const REVOKE: &str = "/v1/admin/revoke";

const WELCOME: &str = "This is Encke, a real-time push server.\n\
    \n\
    Streams      PUT, POST, GET, HEAD, DELETE  /v1/stream/{name}\n\
    Follow one   GET /v1/stream/{name}?offset=-1&live=sse    (EventSource)\n\
    Poll one     GET /v1/stream/{name}?offset={offset}&live=long-poll\n\
    Follow many  GET /v1/events?stream={name}&stream={name}\n\
    Pools        PUT, POST, GET, DELETE  /v1/pool/{name}\n\
    Work for one GET /v1/pool/{name}/work?worker={worker}\n\
    Health       /healthz  /readyz  /metrics\n";
