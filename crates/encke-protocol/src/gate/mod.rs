//! What a request passes before a protocol sees it: its path in one form, the host and the origin that it names, and its caller.
//!
//! The path that is authorised is the path that is routed. `hosts` and `origins` have the rules against web pages that misuse a
//! browser, `rights` the one question that protocols ask.

mod hosts;
mod origins;
mod preflight;
mod rights;
mod signed;

use std::sync::Arc;

use encke_access::{Access, AccessDenied, Caller, CanonicalPath, Credentials, SignedFields};

use self::origins::RequestOrigin;
use self::rights::UNSIGNED_FIELD;
use crate::problem::error;
use crate::request::Request;
use crate::response::{AuditNote, REFUSED, Response};

pub use self::hosts::{HostList, Hosts, NotHosts};
pub use self::origins::{NotOrigins, OriginReader, Origins};
pub(crate) use self::preflight::{AllowedRequests, joined};
pub(crate) use self::rights::{Admitted, Rights, SignedRequest};
pub(crate) use self::signed::covered_fields;

/// The rules of the gate.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Who may do what.
    pub access: Policy,
    /// The hosts that requests may name.
    pub hosts: Hosts,
    /// The hosts that requests may name at the address for operators.
    pub operator_hosts: Hosts,
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

/// What the credentials of a request allow.
pub(crate) enum Passed {
    /// All that these rights are good for.
    With(Rights),
    /// A signed URL: the request that was signed, with these fields, and nothing else that the caller may do.
    SignedUrl {
        caller: Arc<Caller>,
        conceals: bool,
        fields: SignedFields,
    },
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
        // No page of another origin may use this address, whatever is allowed at the other one.
        if request.caller.operator {
            return OriginReader::Unnamed;
        }
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
        let operator = request.caller.operator;
        let host = request.host();
        let hosts = match operator {
            true => &self.operator_hosts,
            false => &self.hosts,
        };
        if !hosts.allow(host) {
            let why = format!(
                "this server is not {:?}: {}",
                host.unwrap_or_default(),
                hosts.described()
            );
            return Err(refused(
                request,
                error(421, "wrong_host", why),
                "wrong_host",
            ));
        }
        let controlled = matches!(self.access, Policy::Controlled(_));
        // With access control a page gets no more than its user's credentials allow, and reads no response; see `resolve`. Operators
        // need none: no page of another site is one of them.
        // A preflight request does nothing, and its answer names no origin that is not allowed.
        let acts = request.method != "OPTIONS";
        let is_foreign = match operator {
            true => !is_of_operator(request),
            false => !controlled && self.origin(request) == RequestOrigin::Foreign,
        };
        if acts && is_foreign {
            return Err(foreign_origin(request));
        }
        Ok(())
    }

    /// Refuses a request that changes something if a browser sends it for a page of another site, such as for an image or a form of
    /// that page. `changes` is what the request's protocol says.
    pub(crate) fn check_site(&self, request: &Request<'_>, changes: bool) -> Result<(), Response> {
        match changes && self.is_cross_site(request) {
            true => Err(foreign_origin(request)),
            false => Ok(()),
        }
    }

    /// Whether a browser says that a page of another site has caused the request, and that page is of no allowed origin (Fetch
    /// Metadata, section 2.3).
    fn is_cross_site(&self, request: &Request<'_>) -> bool {
        names_another_site(request) && !matches!(self.origin(request), RequestOrigin::Allowed(_))
    }

    /// Determines what a request's credentials allow. `is_public`: its path needs none.
    pub(crate) fn resolve(
        &self,
        request: &Request<'_>,
        path: &CanonicalPath<'_>,
        is_public: bool,
    ) -> Result<Passed, Stop> {
        if request.caller.operator {
            return Ok(Passed::With(Rights::Operator));
        }
        let certificate = request.caller.certificate;
        let has_ended = certificate.is_some_and(|one| one.has_ended(request.now.wall_ms));
        let access = match &self.access {
            // It was let in by a certificate.
            Policy::Local | Policy::Open if has_ended => {
                return Err(self.denied(request, &AccessDenied::Expired("client certificate")));
            }
            // The clients of a proxy are not programs of this machine.
            Policy::Local if request.caller.forwarded => {
                return Ok(Passed::With(Rights::EverythingButAdmin));
            }
            Policy::Local => return Ok(Passed::With(Rights::Everything)),
            Policy::Open => return Ok(Passed::With(Rights::EverythingButAdmin)),
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
            Err(AccessDenied::NoCredentials) if is_public => {
                return Ok(Passed::With(Rights::Nobody));
            }
            Err(denied) => return Err(self.denied(request, &denied)),
        };
        // A browser sends its cookies with the requests of any page.
        if resolved.by_cookie && self.origin(request) == RequestOrigin::Foreign {
            return Err(Stop::Refused(foreign_origin(request)));
        }
        let (caller, conceals) = (resolved.caller, access.conceals());
        Ok(match resolved.signed_url {
            None => Passed::With(Rights::Caller {
                caller,
                conceals,
                signed: None,
            }),
            Some(fields) => Passed::SignedUrl {
                caller,
                conceals,
                fields,
            },
        })
    }

    fn origin<'a>(&self, request: &Request<'a>) -> RequestOrigin<'a> {
        self.origins
            .of_request(request.headers.all("Origin"), request.host())
    }

    fn denied(&self, request: &Request<'_>, denied: &AccessDenied) -> Stop {
        let retry_s = match denied {
            AccessDenied::KeysUnavailable { retry_s } => *retry_s,
            _ => RETRY_AFTER_S,
        };
        let response = error(denied.status(), denied.reason(), denied.to_string());
        let response = match denied.status() {
            401 => response.field("WWW-Authenticate", denied.challenge()),
            503 => response.field("Retry-After", retry_s),
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

/// Whether no page, or a page of the address for operators itself, has sent the request. Origins that are allowed elsewhere are not
/// allowed there.
fn is_of_operator(request: &Request<'_>) -> bool {
    let named = request.headers.all("Origin");
    Origins::None.of_request(named, request.host()).is_own() && !names_another_site(request)
}

/// Whether a browser says that a page of another site has caused the request.
fn names_another_site(request: &Request<'_>) -> bool {
    let mut sites = request.headers.all("Sec-Fetch-Site");
    sites.any(|site| !matches!(site.trim_ascii(), b"same-origin" | b"none"))
}

/// The refusal of a field that a signed URL would have to sign.
pub(crate) fn unsigned_field(request: &Request<'_>, name: &str) -> Response {
    let why = format!(
        "the URL does not sign the field {name}, which changes what the request does; encke sign --field signs it"
    );
    refused(request, error(403, UNSIGNED_FIELD, why), UNSIGNED_FIELD)
}

fn foreign_origin(request: &Request<'_>) -> Response {
    let why = "pages of this origin may not use the server; cors-origins lists those that may";
    refused(request, error(403, "origin", why), "origin")
}

/// Seconds after which a request may be tried again whose keys are missing.
const RETRY_AFTER_S: u64 = 1;
