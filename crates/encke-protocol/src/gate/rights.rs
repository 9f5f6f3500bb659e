//! What a caller may do: the one question that protocols ask.

use std::sync::Arc;

use encke_access::{Caller, CallerKind, Operation, SignedUrl};
use encke_presence::NewMember;
use encke_stream::{StreamNo, Viewer};
use serde::de::IgnoredAny;

use crate::problem::error;
use crate::query;
use crate::request::Request;
use crate::requirement::{Paths, RequestHead, Requirement};
use crate::response::{AuditNote, REFUSED, Response};

/// The rights of a request's caller.
#[derive(Clone, Debug)]
pub(crate) enum Rights {
    /// Without access control, for programs of this machine: everything.
    Everything,
    /// Without access control, where other machines may connect: everything but what operators do.
    EverythingButAdmin,
    /// At the address for operators: what operators do.
    Operator,
    /// With access control, without credentials where none are needed, or with those that only the protocol knows.
    Nobody,
    /// With access control, on a channel whose client has yet to send a token: nothing.
    Unidentified,
    /// With access control: what the caller was granted.
    Caller {
        caller: Arc<Caller>,
        /// What the caller may not read is reported as missing.
        conceals: bool,
        /// With a signed URL: what was signed.
        signed: Option<Arc<SignedRequest>>,
    },
}

/// What a request says of its member.
#[derive(Debug, Default)]
struct AskedMember {
    id: Option<Box<str>>,
    /// JSON.
    data: Option<Box<str>>,
}

impl AskedMember {
    fn parse(query: Option<&str>) -> Result<Self, Response> {
        let mut asked = AskedMember::default();
        // What is no parameter is refused by its protocol.
        for (name, value) in query::parameters(query).flatten() {
            match &*name {
                "member" if !value.is_empty() => asked.id = Some((*value).into()),
                "member-data" if serde_json::from_str::<IgnoredAny>(&value).is_ok() => {
                    asked.data = Some((*value).into());
                }
                "member" | "member-data" => {
                    let why = "member is a name, and member-data is JSON";
                    return Err(error(400, "bad_parameter", why));
                }
                _ => {}
            }
        }
        Ok(asked)
    }
}

/// The request that a signed URL is good for.
#[derive(Clone, Debug)]
pub(crate) struct SignedRequest {
    /// What the URL covers of it.
    pub(crate) url: SignedUrl,
    /// What it needs: its caller has these rights and no others, whatever the signing key may grant.
    pub(crate) needs: Vec<Requirement<'static>>,
}

/// A request that may reach a protocol: its path as it is authorised, and the rights of its caller.
#[derive(Clone, Debug)]
pub(crate) struct Admitted<'a> {
    /// The path, decoded once.
    pub(crate) path: &'a str,
    /// The part of the path that the `**` of its protocol's mount stands for; empty if the mount is a single path.
    pub(crate) below: &'a str,
    pub(crate) method: &'a str,
    pub(crate) rights: Rights,
}

impl<'a> Admitted<'a> {
    /// The head of the request.
    pub(crate) fn head(&self, request: &Request<'a>) -> RequestHead<'a> {
        RequestHead {
            method: request.method,
            path: self.path,
            below: self.below,
            query: request.query,
            headers: request.headers,
        }
    }

    /// Refuses the request unless its caller may do this at its path.
    pub(crate) fn require(&self, operation: Operation) -> Result<(), Response> {
        self.require_at(operation, self.path)
    }

    /// Refuses the request unless its caller may do this at a path.
    pub(crate) fn require_at(&self, operation: Operation, path: &str) -> Result<(), Response> {
        self.meet(&Requirement::at(operation, path))
    }

    /// Refuses the request unless its caller has this right.
    pub(crate) fn meet(&self, needed: &Requirement<'_>) -> Result<(), Response> {
        let mut alternatives = needed.alternatives();
        match alternatives.any(|operation| self.rights.may(operation, &needed.paths)) {
            true => Ok(()),
            false => Err(self.refusal(needed)),
        }
    }

    /// Whether the caller may do this at a path.
    pub(crate) fn may_at(&self, operation: Operation, path: &str) -> bool {
        self.rights.may(operation, &Paths::One(path.into()))
    }

    /// Whether its client has yet to send a token, on a channel.
    pub(crate) fn is_unidentified(&self) -> bool {
        matches!(self.rights, Rights::Unidentified)
    }

    /// Whether the request may name with a field a position to go on from that its URL does not allow. A URL that was signed for
    /// records from a position on is not good for those before it.
    pub(crate) fn may_go_on_anywhere(&self) -> bool {
        match &self.rights {
            Rights::Caller {
                signed: Some(signed),
                ..
            } => signed.url.fields.covers("Last-Event-ID"),
            _ => true,
        }
    }

    /// Whether the parameters that say how something is read are those of the client, and not of a signed URL.
    pub(crate) fn leaves_parameters(&self) -> bool {
        match &self.rights {
            Rights::Caller {
                signed: Some(signed),
                ..
            } => signed.url.leaves_parameters,
            _ => true,
        }
    }

    /// The refusal of a position to go on from, see [`Self::may_go_on_anywhere`].
    pub(crate) fn goes_on_elsewhere(&self) -> Response {
        let why = "the URL does not sign the field Last-Event-ID, and is not good for the position in it: sign a URL that begins at an offset, \
                   which allows all positions behind it, or the field, with encke sign --field Last-Event-ID";
        error(403, UNSIGNED_FIELD, why).audited(Some(self.note(REFUSED, UNSIGNED_FIELD)))
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

    fn refusal(&self, needed: &Requirement<'_>) -> Response {
        let Requirement {
            operation, paths, ..
        } = needed;
        let (response, reason) = match &self.rights {
            // The same whether there is something or not.
            Rights::Caller { caller, .. } if is_anonymous(caller) => {
                (unauthenticated(*operation, paths), "no_credentials")
            }
            Rights::Caller {
                caller, conceals, ..
            } => match *conceals && !self.rights.may(Operation::Read, paths) {
                true => (missing(), "concealed"),
                false => (forbidden(caller.name(), *operation, paths), "forbidden"),
            },
            Rights::Unidentified => (unidentified(*operation, paths), "no_credentials"),
            Rights::Operator => (remote_operator(*operation, paths), "not_here"),
            _ => (elsewhere(), "not_here"),
        };
        Response {
            audit: Some(self.note(REFUSED, reason)),
            ..response
        }
    }
}

impl Rights {
    fn may(&self, operation: Operation, paths: &Paths<'_>) -> bool {
        match self {
            Rights::Everything => true,
            Rights::EverythingButAdmin => operation != Operation::Admin,
            Rights::Operator => operation == Operation::Admin,
            Rights::Nobody | Rights::Unidentified => false,
            Rights::Caller { caller, signed, .. } => {
                signed
                    .as_ref()
                    .is_none_or(|signed| signed.allows(operation, paths))
                    && paths.allow(&**caller, operation)
            }
        }
    }

    /// Whose streams at these paths the caller may use. A signed URL is good for those that its key may use.
    pub(crate) fn viewer(&self, paths: &Paths<'_>) -> Viewer {
        match self {
            Rights::Everything | Rights::EverythingButAdmin => Viewer::All,
            Rights::Caller { caller, .. } if paths.allow(&**caller, Operation::Own) => Viewer::All,
            Rights::Caller { caller, .. } => Viewer::Of(caller.identity().map(Into::into)),
            Rights::Operator | Rights::Nobody | Rights::Unidentified => Viewer::Of(None),
        }
    }

    /// Who the caller is among the members of a stream. Without access control a request says it itself.
    ///
    /// # Errors
    /// What it says is no member.
    pub(crate) fn member(&self, query: Option<&str>) -> Result<Option<Box<NewMember>>, Response> {
        let asked = AskedMember::parse(query)?;
        match self {
            Rights::Caller { caller, .. } => {
                if asked.id.is_some() {
                    let why = "the caller is the member: the parameter member says it where there is no access control";
                    return Err(error(400, "bad_parameter", why));
                }
                let member = caller.identity().map(|key| NewMember {
                    key: key.into(),
                    id: caller.name().into(),
                    data: asked.data,
                });
                Ok(member.map(Box::new))
            }
            Rights::Everything | Rights::EverythingButAdmin => {
                let member = asked.id.map(|id| NewMember {
                    key: id.clone(),
                    id,
                    data: asked.data,
                });
                Ok(member.map(Box::new))
            }
            Rights::Operator | Rights::Nobody | Rights::Unidentified => Ok(None),
        }
    }

    /// The number of the only stream that the caller may use, if a signed URL names one.
    pub(crate) fn only_stream(&self) -> Option<StreamNo> {
        match self {
            Rights::Caller {
                signed: Some(signed),
                ..
            } => signed.url.stream,
            _ => None,
        }
    }

    /// Whether they are those of a signed URL.
    pub(crate) fn is_signed(&self) -> bool {
        matches!(
            self,
            Rights::Caller {
                signed: Some(_),
                ..
            }
        )
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
            Rights::Nobody | Rights::Unidentified => "",
            Rights::Caller { caller, .. } => caller.name(),
        }
    }
}

impl SignedRequest {
    fn allows(&self, operation: Operation, paths: &Paths<'_>) -> bool {
        let is_it = |needed: &Requirement<'_>| {
            needed.paths == *paths && needed.alternatives().any(|one| one == operation)
        };
        self.needs.iter().any(is_it)
    }
}

fn is_anonymous(caller: &Caller) -> bool {
    caller.kind() == CallerKind::Anonymous
}

pub(super) const UNSIGNED_FIELD: &str = "unsigned_field";

fn unauthenticated(operation: Operation, path: &Paths<'_>) -> Response {
    let why = format!(
        "without credentials a client may not {operation} {path}; send a token as `Authorization: Bearer TOKEN`"
    );
    error(401, "no_credentials", why).field("WWW-Authenticate", "Bearer")
}

fn unidentified(operation: Operation, path: &Paths<'_>) -> Response {
    let why = format!(
        "without credentials a client may not {operation} {path}; send a message of the type authenticate first, with a token"
    );
    error(401, "no_credentials", why)
}

fn forbidden(name: &str, operation: Operation, path: &Paths<'_>) -> Response {
    let why = format!("{name:?} may not {operation} {path}");
    error(403, "forbidden", why)
}

/// The same as for a stream that does not exist.
fn missing() -> Response {
    crate::problem::refused(&encke_stream::Refusal::NotFound)
}

fn remote_operator(operation: Operation, path: &Paths<'_>) -> Response {
    let why = format!(
        "without access control only programs of the server's machine may {operation} {path}, and other machines reach this address"
    );
    error(403, "not_here", why)
}

fn elsewhere() -> Response {
    error(
        403,
        "not_here",
        "this is for operators, at the address of admin-listen or with a token that grants admin",
    )
}
