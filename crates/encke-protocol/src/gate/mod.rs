//! What a request passes before a protocol sees it: its path in one form, the host and the origin that it names, and its caller.
//!
//! The path that is authorised is the path that is routed. `hosts` and `origins` have the rules against web pages that misuse a
//! browser, `rights` the one question that protocols ask.

mod hosts;
mod origins;
mod preflight;
mod rights;
mod signed;
mod token;

use std::sync::Arc;

use encke_access::{
    Access, AccessDenied, Caller, CallerKind, CanonicalPath, Credentials, SignedUrl,
};

use self::hosts::{is_loopback, without_port};
use self::rights::UNSIGNED_FIELD;
use self::token::offered_token;
use crate::problem::error;
use crate::request::{Headers, Request};
use crate::response::{AuditNote, REFUSED, Response};

pub use self::hosts::{HostList, Hosts, NotHosts};
pub(crate) use self::origins::RequestOrigin;
pub use self::origins::{NotOrigins, OriginReader, Origins};
pub(crate) use self::preflight::{AllowedRequests, joined};
pub(crate) use self::rights::{Admitted, Rights, SignedRequest};
pub(crate) use self::signed::covered_fields;
pub(crate) use self::token::{denial, resolve_token};

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
    /// Whether other machines reach the address for operators.
    pub operators_are_remote: bool,
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
        url: SignedUrl,
    },
}

/// What the gate knows of the place that a request is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedRoute {
    /// Whether a request needs credentials.
    pub(crate) without: WithoutCredentials,
    /// See [`Protocol::free_parameters`](crate::protocol::Protocol::free_parameters).
    pub(crate) free_parameters: &'static [&'static str],
    /// See [`Protocol::has_own_credentials`](crate::protocol::Protocol::has_own_credentials).
    pub(crate) has_own_credentials: bool,
    /// At the address for operators, whether a request needs the same grants as at that of clients.
    pub(crate) by_grant: bool,
}

/// What becomes of a request without credentials, with access control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutCredentials {
    /// It is refused, unless there are grants for requests without credentials.
    Refused,
    /// It passes: its path needs none.
    Passes,
    /// It passes if it opens a channel whose client says that it speaks the protocol of channels: a token may follow in a message.
    OpensChannel,
}

/// Why a request does not pass.
#[derive(Debug)]
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
    /// The origin that the response to a request names as its reader. `operator`: the request came to the address for operators.
    pub(crate) fn reader(&self, headers: Headers<'_>, operator: bool) -> OriginReader {
        // No page of another origin may use this address, whatever is allowed at the other one.
        if operator {
            return OriginReader::Unnamed;
        }
        match self.origins.of_request(headers.all("Origin"), None) {
            RequestOrigin::Allowed(_) if self.origins == Origins::Any => OriginReader::Any,
            RequestOrigin::Allowed(origin) => OriginReader::Origin(origin.into()),
            RequestOrigin::Unnamed | RequestOrigin::Own | RequestOrigin::Foreign => {
                OriginReader::Unnamed
            }
        }
    }

    /// Refuses a request for a host that this server is not, or of a page that may not use it. `judges_origins`: whether the protocol of
    /// the request judges its page.
    pub(crate) fn check(
        &self,
        request: &Request<'_>,
        judges_origins: impl Fn() -> bool,
    ) -> Result<(), Response> {
        if request.caller.probe {
            return Ok(());
        }
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
        // With access control a page gets no more than its user's credentials allow, and reads no response; see `resolve`. It would read
        // the messages of a channel: for browsers a handshake of WebSocket is no request that CORS protects. Operators need no
        // credentials: no page of another site is one of them.
        // A preflight request does nothing, and its answer names no origin that is not allowed.
        let acts = request.method != "OPTIONS";
        let is_foreign = match operator {
            true => !is_of_operator(request),
            false => {
                let is_checked = !controlled || request.upgrade;
                let has_certificate = request.upgrade && request.caller.certificate.is_some();
                // Without access control everyone may read who reaches the server, which pages of the internet may do only through
                // the browser of such a user.
                let is_public = controlled || self.origins == Origins::Any;
                is_checked && self.origin(request) == RequestOrigin::Foreign
                    || has_certificate && self.is_foreign_with_credentials(request)
                    || !is_public && self.is_embedded(request)
            }
        };
        let is_judged = || !operator && request.upgrade && judges_origins();
        if acts && is_foreign && !is_judged() {
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

    /// Whether a browser sends the request for an image, a script, a style sheet or a frame of a page that is of no allowed origin.
    /// Requests for these have no `Origin`. Handshakes of WebSocket have one, and a document that a link leads to is no part of the page.
    fn is_embedded(&self, request: &Request<'_>) -> bool {
        let is_document = || {
            request.headers.first("Sec-Fetch-Mode") == Some(b"navigate")
                && request.headers.first("Sec-Fetch-Dest") == Some(b"document")
        };
        // Pages of this machine may use a server of this machine, and have different origins of one site.
        let is_of_machine = || {
            let names_host = request
                .host()
                .is_some_and(|host| is_loopback(without_port(host)));
            let mut sites = request.headers.all("Sec-Fetch-Site");
            self.origins == Origins::Loopback
                && names_host
                && sites.all(|site| site == b"same-site")
        };
        !request.upgrade && self.is_cross_site(request) && !is_document() && !is_of_machine()
    }

    /// Determines what a request's credentials allow.
    pub(crate) fn resolve(
        &self,
        request: &Request<'_>,
        path: &CanonicalPath<'_>,
        route: GatedRoute,
    ) -> Result<Passed, Stop> {
        if request.caller.probe || request.caller.operator && !route.by_grant {
            return Ok(Passed::With(Rights::Operator));
        }
        let certificate = request.caller.certificate;
        let has_ended = certificate.is_some_and(|one| one.has_ended(request.now.wall));
        let access = match &self.access {
            // It was let in by a certificate.
            Policy::Local | Policy::Open if has_ended => {
                return Err(self.denied(request, &AccessDenied::Expired("client certificate")));
            }
            // The clients of a proxy are not programs of this machine.
            Policy::Local if request.caller.forwarded => {
                return Ok(Passed::With(Rights::EverythingButAdmin));
            }
            // The address of clients is for programs of this machine, and what they may do is not for others.
            Policy::Local if request.caller.operator && self.operators_are_remote => {
                return Ok(Passed::With(Rights::Operator));
            }
            Policy::Local => return Ok(Passed::With(Rights::Everything)),
            Policy::Open => return Ok(Passed::With(Rights::EverythingButAdmin)),
            Policy::Controlled(_) if route.has_own_credentials => {
                return Ok(Passed::With(Rights::Nobody));
            }
            Policy::Controlled(access) => access,
        };
        let offered = match request.upgrade {
            true => offered_token(request.headers),
            false => Ok(None),
        };
        let offered = offered.map_err(|denied| self.denied(request, &denied))?;
        let bearer = offered.as_ref().map(|token| format!("Bearer {token}"));
        let with_offered: Vec<_>;
        let headers = match &bearer {
            None => request.headers.0,
            Some(bearer) => {
                let field = ("Authorization", bearer.as_bytes());
                let sent = request.headers.0.iter().copied();
                with_offered = sent.chain([field]).collect();
                &with_offered
            }
        };
        let credentials = Credentials {
            method: request.method,
            path,
            query: request.query,
            headers,
            client_certificate: request.caller.certificate,
            address: request.caller.address,
            free_parameters: route.free_parameters,
        };
        let resolved = match access.resolve(&credentials, request.now) {
            Ok(resolved) => resolved,
            Err(AccessDenied::NoCredentials) => match route.without {
                // What balances load has no credentials.
                WithoutCredentials::Passes => return Ok(Passed::With(Rights::Nobody)),
                WithoutCredentials::OpensChannel if token::offers_channels(request.headers) => {
                    return Ok(Passed::With(Rights::Unidentified));
                }
                _ => return Err(self.denied(request, &AccessDenied::NoCredentials)),
            },
            Err(denied) => return Err(self.denied(request, &denied)),
        };
        // A browser adds its cookies and certificates to the requests of any page.
        let by_browser = resolved.by_cookie || resolved.caller.kind() == CallerKind::Certificate;
        let is_foreign = || self.is_foreign_with_credentials(request) || self.is_embedded(request);
        if by_browser && is_foreign() {
            return Err(Stop::Refused(foreign_origin(request)));
        }
        let (caller, conceals) = (resolved.caller, resolved.conceals);
        Ok(match resolved.signed_url {
            None => Passed::With(Rights::Caller {
                caller,
                conceals,
                signed: None,
            }),
            Some(url) => Passed::SignedUrl {
                caller,
                conceals,
                url,
            },
        })
    }

    fn origin<'a>(&self, request: &Request<'a>) -> RequestOrigin<'a> {
        self.origins
            .of_request(request.headers.all("Origin"), request.host())
    }

    /// Whether a page has sent the request that may not use the credentials that its browser adds to it. If any origin is allowed, it is
    /// without those.
    fn is_foreign_with_credentials(&self, request: &Request<'_>) -> bool {
        let named = request.headers.all("Origin");
        let origin = match self.origins == Origins::Any {
            true => Origins::None.of_request(named, request.host()),
            false => self.origins.of_request(named, request.host()),
        };
        origin == RequestOrigin::Foreign
    }

    fn denied(&self, request: &Request<'_>, denied: &AccessDenied) -> Stop {
        let response = refused(request, denial(denied), denied.reason());
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
