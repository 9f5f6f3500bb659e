//! Endpoints for operators: liveness, readiness, metrics, and the revocation of credentials.

use std::sync::Arc;

use encke_access::{Access, Operation, RevocationTarget};
use encke_stream::{AckLevel, Append, Command, Data, Outcome, Target};

use crate::action::{Action, OnCommit};
use crate::gate::Admitted;
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::problem::{check_method, error, unexpected};
use crate::protocol::Protocol;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
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

/// The sources of the endpoints for operators.
#[derive(Clone, Debug)]
pub struct Admin {
    probes: Probes,
    /// The log removes old records of all streams.
    evicts_records: bool,
}

impl Admin {
    /// The sources. `evicts_records`: the log removes old records of all streams.
    pub fn new(probes: Probes, evicts_records: bool) -> Self {
        Admin {
            probes,
            evicts_records,
        }
    }
}

/// The endpoints `/healthz`, `/readyz`, `/metrics` and `/v1/admin/`.
#[derive(Debug)]
pub(crate) struct AdminApi {
    mounts: [Mount; 4],
    admin: Admin,
    /// The access control, if there is one.
    access: Option<Arc<Access>>,
    streams: StreamAccess,
}

/// Waits until a revocation is in the log.
#[derive(Debug)]
struct Revoked {
    note: Box<AuditNote>,
}

impl AdminApi {
    /// The endpoints over their sources. `access`: the access control, if there is one.
    pub(crate) fn new(admin: Admin, access: Option<Arc<Access>>, streams: StreamAccess) -> Self {
        AdminApi {
            mounts: [
                Mount::at(HEALTHZ).public().for_operators(),
                Mount::at(READYZ).public().for_operators(),
                Mount::at(METRICS).for_operators(),
                Mount::below(ADMIN).for_operators(),
            ],
            admin,
            access,
            streams,
        }
    }

    fn show(&self, method: &str, admitted: &Admitted<'_>) -> Result<Response, Response> {
        let path = admitted.path;
        if matches!(path, HEALTHZ | READYZ | METRICS) {
            check_method(method, &["GET", "HEAD"])?;
        }
        Ok(match path {
            HEALTHZ => Response::plain_text(200).body("ok\n"),
            READYZ => match (self.admin.probes.unready)() {
                None => Response::plain_text(200).body("ready\n"),
                // The reasons name files and devices.
                Some(_) if !admitted.may_at(Operation::Admin, path) => {
                    Response::plain_text(503).body("not ready\n")
                }
                Some(why) => Response::plain_text(503).body(format!("not ready: {why}\n")),
            },
            METRICS => {
                admitted.require(Operation::Admin)?;
                Response::new(200)
                    .field("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                    .field("Cache-Control", "no-store")
                    .body((self.admin.probes.metrics)())
            }
            path => not_found(path),
        })
    }

    /// `POST /v1/admin/revoke`: ends credentials, by the id of a token, its subject, or the name of a key.
    fn revoke(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<Action, Response> {
        admitted.require(Operation::Admin)?;
        check_method(request.method, &["POST"])?;
        let Some(control) = &self.access else {
            let why = "there is nothing to revoke: no access control is configured";
            return Err(error(409, "no_access_control", why));
        };
        if self.admin.evicts_records {
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
        let Some(_known) = self.streams.known(REVOCATIONS) else {
            return Ok(load(REVOCATIONS, request.body.clone()));
        };
        let stream = self.streams.find(REVOCATIONS, request.now)?;
        // In force before it is durable: what is refused must not go on because a disk is slow.
        let revocation = control
            .revoke(target, request.now.wall)
            .map_err(|why| error(507, "revocations_max", why.to_string()))?;
        let record = serde_json::to_vec(&revocation);
        let record = record.map_err(|why| error(500, "internal", why.to_string()))?;
        let command = Command::Append(Append {
            ack: Some(AckLevel::Synced),
            data: Data {
                bytes: record,
                units: 1,
            },
            ..Append::to(Target::Known(stream))
        });
        let revoked = Revoked {
            note: admitted.note("admin", "revoke"),
        };
        Ok(Action::Commit(command, Box::new(revoked)))
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
        "Health       /healthz  /readyz  /metrics\n"
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        let is_restricted = matches!(head.path, METRICS | REVOKE);
        let needed = is_restricted.then(|| Requirement::at(Operation::Admin, head.path));
        Ok(needed.into_iter().collect())
    }

    fn authorise(&self, head: &RequestHead<'_>, admitted: &Admitted<'_>) -> Result<(), Response> {
        match admitted.path {
            REVOKE => {
                admitted.require(Operation::Admin)?;
                check_method(head.method, &["POST"])
            }
            _ => match self.show(head.method, admitted)? {
                response if response.status >= 400 => Err(response),
                _ => Ok(()),
            },
        }
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = match admitted.path {
            REVOKE => self.revoke(&request, admitted),
            _ => self.show(request.method, admitted).map(Action::Respond),
        };
        action.unwrap_or_else(Action::Respond)
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

/// The stream of revocations: its name is none that clients can use.
pub const REVOCATIONS: &str = "\u{1}revocations";

const HEALTHZ: &str = "/healthz";
const READYZ: &str = "/readyz";
const METRICS: &str = "/metrics";
const ADMIN: &str = "/v1/admin/";
const REVOKE: &str = "/v1/admin/revoke";
