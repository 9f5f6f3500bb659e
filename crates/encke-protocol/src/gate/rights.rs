//! What a caller may do: the one question that protocols ask.

use std::sync::Arc;

use encke_access::{Action, Caller};

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
    pub(crate) fn require(&self, action: Action) -> Result<(), Response> {
        self.require_at(action, self.path)
    }

    /// Refuses the request unless its caller may do this at a path.
    pub(crate) fn require_at(&self, action: Action, path: &str) -> Result<(), Response> {
        match self.rights.may(action, path) {
            true => Ok(()),
            false => Err(self.refusal(action, path)),
        }
    }

    /// Refuses the request unless its caller may do this at all paths below a prefix, which ends with a slash.
    pub(crate) fn require_below(&self, action: Action, prefix: &str) -> Result<(), Response> {
        let may = match &self.rights {
            Rights::Caller { caller, .. } => caller.may_below(action, prefix),
            other => other.may(action, prefix),
        };
        match may {
            true => Ok(()),
            false => Err(self.refusal(action, &format!("{prefix}*"))),
        }
    }

    /// Whether the caller may do this at a path.
    pub(crate) fn may_at(&self, action: Action, path: &str) -> bool {
        self.rights.may(action, path)
    }

    /// Whether a cache may give the response to others.
    pub(crate) fn is_public(&self) -> bool {
        match &self.rights {
            Rights::Caller { caller, .. } => caller.is_anonymous(),
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

    fn refusal(&self, action: Action, path: &str) -> Response {
        let (response, reason) = match &self.rights {
            // The same whether there is something or not.
            Rights::Caller { caller, .. } if caller.is_anonymous() => {
                (unauthenticated(action, path), "no_credentials")
            }
            Rights::Caller { caller, conceals } => {
                match *conceals && !caller.may(Action::Read, path) {
                    true => (missing(), "concealed"),
                    false => (forbidden(caller.name(), action, path), "forbidden"),
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
    fn may(&self, action: Action, path: &str) -> bool {
        match self {
            Rights::Everything => true,
            Rights::EverythingButAdmin => action != Action::Admin,
            Rights::Operator => action == Action::Admin,
            Rights::Caller { caller, .. } => caller.may(action, path),
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
            Rights::Caller { caller, .. } => caller.name(),
        }
    }
}

/// The word for a refusal in the audit log.
pub(super) const REFUSED: &str = "refused";

fn unauthenticated(action: Action, path: &str) -> Response {
    let why = format!(
        "without credentials a client may not {action} {path}; send a token as `Authorization: Bearer TOKEN`"
    );
    error(401, "no_credentials", why).field("WWW-Authenticate", "Bearer")
}

fn forbidden(name: &str, action: Action, path: &str) -> Response {
    let why = format!("{name:?} may not {action} {path}");
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
