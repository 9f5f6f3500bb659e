//! What a caller may do: the one question that protocols ask.

use std::sync::Arc;

use encke_access::{Caller, CallerKind, Operation};

use crate::problem::error;
use crate::response::{AuditNote, Response};

/// The rights of a request's caller.
#[derive(Clone, Debug)]
pub(crate) enum Rights {
    /// Without access control, for programs of this machine: everything.
    Everything,
    /// Without access control, where other machines may connect: everything but what operators do.
    EverythingButAdmin,
    /// At the address for operators: what operators do.
    Operator,
    /// With access control, without credentials where none are needed.
    Nobody,
    /// With access control: what the caller was granted.
    Caller {
        caller: Arc<Caller>,
        /// What the caller may not read is reported as missing.
        conceals: bool,
    },
}

/// A request that may reach a protocol: its path as it is authorised, and the rights of its caller.
#[derive(Clone, Debug)]
pub(crate) struct Admitted<'a> {
    /// The path, decoded once.
    pub(crate) path: &'a str,
    pub(crate) method: &'a str,
    pub(crate) rights: Rights,
}

impl Admitted<'_> {
    /// Refuses the request unless its caller may do this at its path.
    pub(crate) fn require(&self, operation: Operation) -> Result<(), Response> {
        self.require_at(operation, self.path)
    }

    /// Refuses the request unless its caller may do this at a path.
    pub(crate) fn require_at(&self, operation: Operation, path: &str) -> Result<(), Response> {
        match self.rights.may(operation, path) {
            true => Ok(()),
            false => Err(self.refusal(operation, path)),
        }
    }

    /// Refuses the request unless its caller may do this at all paths below a prefix, which ends with a slash.
    pub(crate) fn require_below(&self, operation: Operation, prefix: &str) -> Result<(), Response> {
        let may = match &self.rights {
            Rights::Caller { caller, .. } => caller.may_below(operation, prefix),
            other => other.may(operation, prefix),
        };
        match may {
            true => Ok(()),
            false => Err(self.refusal(operation, &format!("{prefix}*"))),
        }
    }

    /// Whether the caller may do this at a path.
    pub(crate) fn may_at(&self, operation: Operation, path: &str) -> bool {
        self.rights.may(operation, path)
    }

    /// Whether a cache may give the response to others.
    pub(crate) fn is_public(&self) -> bool {
        match &self.rights {
            Rights::Caller { caller, .. } => is_anonymous(caller),
            _ => true,
        }
    }

    /// What the audit log says of the request.
    pub(crate) fn note(&self, event: &'static str, reason: &'static str) -> Box<AuditNote> {
        Box::new(AuditNote {
            event,
            reason,
            caller: self.rights.caller_name().into(),
            method: self.method.into(),
            path: self.path.into(),
        })
    }

    fn refusal(&self, operation: Operation, path: &str) -> Response {
        let (response, reason) = match &self.rights {
            // The same whether there is something or not.
            Rights::Caller { caller, .. } if is_anonymous(caller) => {
                (unauthenticated(operation, path), "no_credentials")
            }
            Rights::Caller { caller, conceals } => {
                match *conceals && !caller.may(Operation::Read, path) {
                    true => (missing(), "concealed"),
                    false => (forbidden(caller.name(), operation, path), "forbidden"),
                }
            }
            _ => (elsewhere(), "not_here"),
        };
        Response {
            audit: Some(self.note(REFUSED, reason)),
            ..response
        }
    }
}

impl Rights {
    fn may(&self, operation: Operation, path: &str) -> bool {
        match self {
            Rights::Everything => true,
            Rights::EverythingButAdmin => operation != Operation::Admin,
            Rights::Operator => operation == Operation::Admin,
            Rights::Nobody => false,
            Rights::Caller { caller, .. } => caller.may(operation, path),
        }
    }

    /// The caller, with access control.
    pub(crate) fn caller(&self) -> Option<&Arc<Caller>> {
        match self {
            Rights::Caller { caller, .. } => Some(caller),
            _ => None,
        }
    }

    fn caller_name(&self) -> &str {
        match self {
            Rights::Everything | Rights::EverythingButAdmin => "anyone",
            Rights::Operator => "operator",
            Rights::Nobody => "",
            Rights::Caller { caller, .. } => caller.name(),
        }
    }
}

fn is_anonymous(caller: &Caller) -> bool {
    caller.kind() == CallerKind::Anonymous
}

/// The word for a refusal in the audit log.
pub(super) const REFUSED: &str = "refused";

fn unauthenticated(operation: Operation, path: &str) -> Response {
    let why = format!(
        "without credentials a client may not {operation} {path}; send a token as `Authorization: Bearer TOKEN`"
    );
    error(401, "no_credentials", why).field("WWW-Authenticate", "Bearer")
}

fn forbidden(name: &str, operation: Operation, path: &str) -> Response {
    let why = format!("{name:?} may not {operation} {path}");
    error(403, "forbidden", why)
}

/// The same as for a stream that does not exist.
fn missing() -> Response {
    crate::problem::refused(&encke_stream::Refusal::NotFound)
}

fn elsewhere() -> Response {
    error(
        403,
        "not_here",
        "this is for operators, at the address of admin-listen or with a token that grants admin",
    )
}
