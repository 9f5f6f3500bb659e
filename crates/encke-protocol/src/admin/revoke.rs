//! `POST /v1/admin/revoke`: ends credentials, by the id of a token, its subject, or the name of a key.

use std::sync::Arc;

use encke_access::{Access, RevocationTarget};
use encke_clock::Now;
use encke_stream::{AckLevel, Append, Command, Create, Data, Lookup, Outcome, Target};

use crate::action::{Action, OnChange, OnCommit};
use crate::gate::Admitted;
use crate::problem::{error, unexpected};
use crate::request::Request;
use crate::response::{AuditNote, Response};
use crate::streams::{StreamAccess, load};

/// What revocations need.
#[derive(Debug)]
pub(super) struct Revoker {
    /// The access control, if there is one.
    pub(super) access: Option<Arc<Access>>,
    pub(super) streams: StreamAccess,
}

/// Waits until the stream is there for a revocation, the first one.
#[derive(Debug)]
struct StreamCreated {
    append: Append,
    revoked: Revoked,
}

/// Waits until a revocation is in the log.
#[derive(Debug)]
struct Revoked {
    note: Box<AuditNote>,
}

impl Revoker {
    /// Revokes what the body of a request names, which is JSON.
    pub(super) fn revoke(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let Some(control) = &self.access else {
            let why = "there is nothing to revoke: no access control is configured";
            return Err(error(409, "no_access_control", why));
        };
        let target: RevocationTarget = serde_json::from_slice(&request.body).map_err(|why| {
            let why = format!(
                "the body is JSON with one member: jti, sub or key, such as {{\"jti\":\"0b6c\"}}: {why}"
            );
            error(400, "bad_revocation", why)
        })?;
        let Some(known) = self.streams.known(REVOCATIONS) else {
            return Ok(load(REVOCATIONS, request.body.clone()));
        };
        // In force before it is durable: what is refused must not go on because a disk is slow.
        let revocation = control
            .revoke(target, request.now.wall)
            .map_err(|why| error(507, "revocations_max", why.to_string()))?;
        let record = serde_json::to_vec(&revocation);
        let record = record.map_err(|why| error(500, "internal", why.to_string()))?;
        let append = |target| Append {
            ack: Some(AckLevel::Synced),
            data: Data {
                bytes: record,
                units: 1,
            },
            ..Append::to(target)
        };
        let revoked = Revoked {
            note: admitted.note("admin", "revoke"),
        };
        match known {
            Lookup::Stream(stream) => Ok(revoked.append(append(Target::Known(stream)))),
            Lookup::Free(_) => {
                let create = Create {
                    content_type: Some("application/json".into()),
                    ack: Some(AckLevel::Synced),
                    known: vec![known],
                    ..Create::new(REVOCATIONS)
                };
                let append = append(Target::Named(REVOCATIONS.into()));
                let created = StreamCreated { append, revoked };
                Ok(Action::Change(Command::Create(create), Box::new(created)))
            }
        }
    }
}

impl OnChange for StreamCreated {
    fn changed(self: Box<Self>, outcome: Outcome, _now: Now) -> Action {
        match outcome {
            // Also if another request has created it meanwhile.
            Outcome::Created { .. } => self.revoked.append(self.append),
            other => Action::Respond(unexpected(&other).audited(Some(self.revoked.note))),
        }
    }
}

impl Revoked {
    fn append(self, append: Append) -> Action {
        Action::Commit(Command::Append(append), Box::new(self))
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

/// The stream of revocations: its name is none that clients can use.
pub const REVOCATIONS: &str = "\u{1}revocations";
