//! Tokens that do not come in `Authorization`: in the handshake of a channel, and in a message of it.

use std::net::IpAddr;

use encke_access::{Access, AccessDenied, CanonicalPath, ClientCertificate, Credentials};
use encke_clock::Now;

use super::rights::Rights;
use crate::problem::error;
use crate::request::Headers;
use crate::response::Response;
use crate::subprotocol::{BadOffer, SubprotocolOffer};

/// The rights of the client of a channel that sends a token in a message. `certificate` is the one of its connection, `address` the one to
/// which limits apply.
pub(crate) fn resolve_token(
    access: &Access,
    token: &str,
    (certificate, address): (Option<&ClientCertificate>, Option<IpAddr>),
    now: Now,
) -> Result<Rights, AccessDenied> {
    let no_path = || AccessDenied::Malformed("there is no path");
    let path = CanonicalPath::parse("/").map_err(|_| no_path())?;
    let bearer = format!("Bearer {token}");
    let credentials = Credentials {
        method: "GET",
        path: &path,
        query: None,
        headers: &[("Authorization", bearer.as_bytes())],
        client_certificate: certificate,
        address,
        free_parameters: &[],
    };
    let resolved = access.resolve(&credentials, now);
    let resolved = resolved.map_err(|denied| match denied {
        AccessDenied::Malformed(_) => AccessDenied::Malformed("the member \"token\" is no token"),
        denied => denied,
    })?;
    Ok(Rights::Caller {
        caller: resolved.caller,
        conceals: resolved.conceals,
        signed: None,
    })
}

/// The token that the handshake of a channel offers.
pub(super) fn offered_token(headers: Headers<'_>) -> Result<Option<String>, AccessDenied> {
    match SubprotocolOffer::parse(headers) {
        Ok(offer) => Ok(offer.token),
        Err(BadOffer::Encoding) => Err(AccessDenied::Malformed(
            "the token in Sec-WebSocket-Protocol is not in base64url without padding",
        )),
        Err(BadOffer::TwoTokens) => Err(AccessDenied::Conflicting(
            "two tokens in Sec-WebSocket-Protocol",
        )),
    }
}

/// Whether the client of a handshake speaks the protocol of channels.
pub(super) fn offers_channels(headers: Headers<'_>) -> bool {
    SubprotocolOffer::parse(headers).is_ok_and(|offer| offer.has_channels)
}

/// The response to credentials that are refused.
pub(crate) fn denial(denied: &AccessDenied) -> Response {
    let retry_s = match denied {
        AccessDenied::KeysUnavailable { retry_s } | AccessDenied::TooManyFailures { retry_s } => {
            *retry_s
        }
        _ => RETRY_AFTER_S,
    };
    let response = error(denied.status(), denied.reason(), denied.to_string());
    match denied.status() {
        401 => response.field("WWW-Authenticate", denied.challenge()),
        429 | 503 => response.field("Retry-After", retry_s),
        _ => response,
    }
}

/// Seconds after which a request may be tried again whose keys are missing.
const RETRY_AFTER_S: u64 = 1;
