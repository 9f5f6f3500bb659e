//! What a request passes before a protocol sees it: its path in one form, the host and the origin that it names, and its caller.
//!
//! The path that is authorised is the path that is routed. `hosts` and `origins` have the rules against web pages that misuse a
//! browser, `rights` the one question that protocols ask.

mod hosts;
mod origins;
mod rights;

use std::sync::Arc;

use encke_access::{Access, AccessDenied, CanonicalPath, Credentials};

use self::origins::RequestOrigin;
use self::rights::REFUSED;
use crate::problem::error;
use crate::request::Request;
use crate::response::{AuditNote, Response};

pub use self::hosts::{HostList, Hosts, NotHosts};
pub use self::origins::{NotOrigins, OriginReader, Origins};
pub(crate) use self::rights::{Admitted, Rights};

/// The rules of the gate.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Who may do what.
    pub access: Policy,
    /// The hosts that requests may name.
    pub hosts: Hosts,
    /// The origins whose scripts are allowed, beside the server's own.
    pub origins: Origins,
}

/// Who may do what.
#[derive(Clone, Debug, Default)]
pub enum Policy {
    /// There is no access control, and only programs of this machine can connect.
    #[default]
    Local,
    /// There is no access control, and the operator has said so.
    Open,
    /// Each request has a caller, with grants.
    Controlled(Arc<Access>),
}

/// Why a request does not pass.
pub(crate) enum Stop {
    /// It gets this response.
    Refused(Response),
    /// The keys of its token's issuer are being fetched. It may be asked about again when they are there.
    AwaitingKeys(Response),
}

impl Policy {
    /// The access control, if there is one.
    pub(crate) fn control(&self) -> Option<&Arc<Access>> {
        match self {
            Policy::Controlled(access) => Some(access),
            Policy::Local | Policy::Open => None,
        }
    }
}

impl Gate {
    /// The origin that the response to a request names as its reader.
    pub(crate) fn reader(&self, request: &Request<'_>) -> OriginReader {
        match self.origin(request) {
            RequestOrigin::Allowed(_) if self.origins == Origins::Any => OriginReader::Any,
            RequestOrigin::Allowed(origin) => OriginReader::Origin(origin.into()),
            RequestOrigin::Unnamed | RequestOrigin::Own | RequestOrigin::Foreign => {
                OriginReader::Unnamed
            }
        }
    }

    /// Refuses a request for a host that this server is not, or of a page that may not use it.
    pub(crate) fn check(&self, request: &Request<'_>) -> Result<(), Response> {
        let host = request.host();
        if !self.hosts.allow(host) {
            let why = format!(
                "this server is not {:?}: without access control it serves localhost, loopback addresses and the names in tuning.hosts",
                host.unwrap_or_default()
            );
            return Err(refused(
                request,
                error(421, "wrong_host", why),
                "wrong_host",
            ));
        }
        let controlled = matches!(self.access, Policy::Controlled(_));
        // With access control a page gets no more than its user's credentials allow, and reads no response; see `resolve`.
        // A preflight request does nothing, and its answer names no origin that is not allowed.
        let acts = request.method != "OPTIONS";
        if !controlled && acts && self.origin(request) == RequestOrigin::Foreign {
            return Err(foreign_origin(request));
        }
        Ok(())
    }

    /// Determines the rights of a request's caller.
    pub(crate) fn resolve(
        &self,
        request: &Request<'_>,
        path: &CanonicalPath<'_>,
    ) -> Result<Rights, Stop> {
        if request.caller.operator {
            return Ok(Rights::Operator);
        }
        let access = match &self.access {
            // The clients of a proxy are not programs of this machine.
            Policy::Local if request.caller.forwarded => return Ok(Rights::EverythingButAdmin),
            Policy::Local => return Ok(Rights::Everything),
            Policy::Open => return Ok(Rights::EverythingButAdmin),
            Policy::Controlled(access) => access,
        };
        let credentials = Credentials {
            method: request.method,
            path,
            query: request.query,
            headers: request.headers.0,
            client_certificate: request.caller.certificate,
        };
        let resolved = match access.resolve(&credentials, request.now.wall_ms) {
            Ok(resolved) => resolved,
            // What balances load has no credentials.
            Err(AccessDenied::NoCredentials) if PUBLIC.contains(&path.as_str()) => {
                return Ok(Rights::Nobody);
            }
            Err(denied) => return Err(self.denied(request, &denied)),
        };
        // A browser sends its cookies with the requests of any page.
        if resolved.by_cookie && self.origin(request) == RequestOrigin::Foreign {
            return Err(Stop::Refused(foreign_origin(request)));
        }
        Ok(Rights::Caller {
            caller: resolved.caller,
            conceals: access.conceals(),
        })
    }

    fn origin<'a>(&self, request: &Request<'a>) -> RequestOrigin<'a> {
        self.origins
            .of_request(request.headers.all("Origin"), request.host())
    }

    fn denied(&self, request: &Request<'_>, denied: &AccessDenied) -> Stop {
        let response = error(denied.status(), denied.reason(), denied.to_string());
        let response = match denied.status() {
            401 => response.field("WWW-Authenticate", denied.challenge()),
            503 => response.field("Retry-After", RETRY_AFTER_S),
            _ => response,
        };
        let response = refused(request, response, denied.reason());
        match denied {
            AccessDenied::KeysUnknown { .. } => Stop::AwaitingKeys(response),
            _ => Stop::Refused(response),
        }
    }
}

/// A response that the audit log mentions. The caller is not known, and the path is as it was sent.
pub(crate) fn refused(request: &Request<'_>, response: Response, reason: &'static str) -> Response {
    Response {
        audit: Some(Box::new(AuditNote {
            event: REFUSED,
            reason,
            caller: "".into(),
            method: request.method.into(),
            path: request.path.into(),
        })),
        ..response
    }
}

fn foreign_origin(request: &Request<'_>) -> Response {
    let why = "pages of this origin may not use the server; cors-origins lists those that may";
    refused(request, error(403, "origin", why), "origin")
}

/// The response to a browser's preflight request: what scripts of other origins may send. The reactor adds which origins.
pub(crate) fn preflight() -> Response {
    Response::shared(204)
        .field("Access-Control-Allow-Methods", METHODS)
        .field("Access-Control-Allow-Headers", REQUEST_FIELDS)
        .field("Access-Control-Max-Age", "86400")
}

/// Paths that need no credentials: they say no more than that there is a server, and whether it is ready.
const PUBLIC: [&str; 3] = ["/", "/healthz", "/readyz"];

/// Seconds after which a request may be tried again whose keys are missing.
const RETRY_AFTER_S: u32 = 1;

/// The methods of all protocols.
const METHODS: &str = "GET, HEAD, PUT, POST, DELETE, OPTIONS";

/// The fields of requests that scripts of other origins may set.
const REQUEST_FIELDS: &str = "Content-Type, Authorization, If-None-Match, Last-Event-ID, \
    Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, Stream-Forked-From, \
    Stream-Fork-Offset, Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq, \
    Encke-Ack, Encke-Retention, Encke-Truncate, X-Request-Id, Traceparent, Tracestate";
