//! Where a request carries credentials.

use std::borrow::Cow;
use std::net::IpAddr;

use encke_clock::WallTime;

use crate::denied::AccessDenied;
use crate::path::{CanonicalPath, percent_decode};
use crate::signed_fields::SignedFields;

/// What of a request says who makes it.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The method.
    pub method: &'a str,
    /// The canonical path.
    pub path: &'a CanonicalPath<'a>,
    /// What follows the path's `?`, as sent.
    pub query: Option<&'a str>,
    /// All header fields.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The verified certificate of the client, if its connection has one.
    pub client_certificate: Option<&'a ClientCertificate>,
    /// The address to which limits apply; `None` if there are none for it.
    pub address: Option<IpAddr>,
    /// The parameters that a signed URL does not sign, unless it signs one of them.
    pub free_parameters: &'a [&'a str],
}

/// A client certificate that TLS has verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Its common name and its alternative names.
    pub names: Vec<String>,
    /// When it is not valid any more, or one of those that vouch for it is not.
    pub ends_at: WallTime,
}

impl ClientCertificate {
    /// Whether it has ended. A connection outlives its handshake, and a resumed session the one in which the certificate was verified.
    pub fn has_ended(&self, now: WallTime) -> bool {
        now >= self.ends_at
    }
}

/// The one credential of a request.
#[derive(Debug)]
pub(crate) enum Presented<'a> {
    Nothing,
    /// From the field `Authorization`.
    Bearer(&'a str),
    /// From the configured cookie.
    Cookie(&'a str),
    Url(SignedQuery<'a>),
}

/// The parameters of a signed URL.
#[derive(Debug)]
pub(crate) struct SignedQuery<'a> {
    pub(crate) expires: Cow<'a, str>,
    pub(crate) kid: Cow<'a, str>,
    pub(crate) signature: Cow<'a, str>,
    pub(crate) fields: SignedFields,
    pub(crate) stream: Option<Cow<'a, str>>,
    /// All parameters but the signature, in the order sent.
    pub(crate) signed: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Credentials<'a> {
    /// Finds the credential. The same token in `Authorization` and in the cookie is one credential.
    pub(crate) fn presented(&self, cookie: Option<&str>) -> Result<Presented<'a>, AccessDenied> {
        let bearer = self.bearer()?;
        let cookie = match cookie {
            Some(name) => self.cookie(name)?,
            None => None,
        };
        let url = signed_query(self.query)?;
        match (bearer, cookie, url) {
            (None, None, None) => Ok(Presented::Nothing),
            (Some(bearer), None, None) => Ok(Presented::Bearer(bearer)),
            (Some(bearer), Some(cookie), None) if bearer == cookie => Ok(Presented::Bearer(bearer)),
            (None, Some(cookie), None) => Ok(Presented::Cookie(cookie)),
            (None, None, Some(url)) => Ok(Presented::Url(url)),
            (Some(_), Some(_), None) => Err(AccessDenied::Conflicting(
                "the cookie and the field Authorization hold different tokens",
            )),
            (Some(_), _, Some(_)) => Err(AccessDenied::Conflicting(
                "the URL is signed, and there is a field Authorization",
            )),
            (None, Some(_), Some(_)) => Err(AccessDenied::Conflicting(
                "the URL is signed, and there is a cookie with a token",
            )),
        }
    }

    fn bearer(&self) -> Result<Option<&'a str>, AccessDenied> {
        let mut fields = self.fields("authorization");
        let Some(value) = fields.next() else {
            return Ok(None);
        };
        if fields.next().is_some() {
            return Err(AccessDenied::Conflicting("two fields Authorization"));
        }
        let value = std::str::from_utf8(value)
            .map_err(|_| AccessDenied::Malformed("the field Authorization is no text"))?;
        let (scheme, token) = value
            .trim_matches([' ', '\t'])
            .split_once(' ')
            .unwrap_or((value, ""));
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(AccessDenied::Malformed(
                "the scheme of the field Authorization must be Bearer",
            ));
        }
        let token = token.trim_start_matches(' ');
        if token.is_empty() || !token.bytes().all(is_token_byte) {
            return Err(AccessDenied::Malformed(
                "the field Authorization holds no token",
            ));
        }
        Ok(Some(token))
    }

    fn cookie(&self, name: &str) -> Result<Option<&'a str>, AccessDenied> {
        let mut found = None;
        for value in self.fields("cookie") {
            for pair in value.split(|byte| *byte == b';') {
                let mut parts = pair.splitn(2, |byte| *byte == b'=');
                let is_it = parts
                    .next()
                    .is_some_and(|own| own.trim_ascii() == name.as_bytes());
                if !is_it {
                    continue;
                }
                // Another host of the domain could have set the other one.
                if found.is_some() {
                    return Err(AccessDenied::Conflicting("two cookies of the same name"));
                }
                let token = parts.next().unwrap_or_default().trim_ascii();
                let token = std::str::from_utf8(token).ok();
                let token = token
                    .filter(|token| !token.is_empty() && token.bytes().all(is_token_byte))
                    .ok_or(AccessDenied::Malformed("the cookie holds no token"))?;
                found = Some(token);
            }
        }
        Ok(found)
    }

    fn fields(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        let of_name = |(field, _): &&(&str, &[u8])| field.eq_ignore_ascii_case(name);
        self.headers.iter().filter(of_name).map(|(_, value)| *value)
    }
}

/// The characters of a token (RFC 6750, section 2.1).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)
}

fn signed_query(query: Option<&str>) -> Result<Option<SignedQuery<'_>>, AccessDenied> {
    let query = query.unwrap_or_default();
    // Most queries are not signed; a name that is written with escapes is found as well.
    if !query.contains("signature") && !query.contains('%') {
        return Ok(None);
    }
    let (mut expires, mut kid, mut signature) = (None, None, None);
    let (mut fields, mut stream) = (None, None);
    let mut signed = Vec::new();
    let mut malformed = false;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (raw, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (percent_decode(raw), percent_decode(value)) else {
            malformed = true;
            continue;
        };
        // No encoder writes these letters otherwise, and what looks for signatures in logs must find each.
        malformed |= name != raw && SIGNING_PARAMETERS.contains(&&*name);
        let place = match &*name {
            EXPIRES => Some(&mut expires),
            KID => Some(&mut kid),
            SIGNATURE => Some(&mut signature),
            FIELDS => Some(&mut fields),
            STREAM => Some(&mut stream),
            _ => None,
        };
        let is_signature = name == SIGNATURE;
        if let Some(place) = place
            && place.replace(value.clone()).is_some()
        {
            malformed = true;
        }
        if !is_signature && name != LAST_EVENT_ID {
            signed.push((name, value));
        }
    }
    let Some(signature) = signature else {
        return Ok(None);
    };
    match (expires, kid) {
        (Some(expires), Some(kid)) if !malformed => Ok(Some(SignedQuery {
            expires,
            kid,
            signature,
            fields: match fields {
                Some(list) => SignedFields::parse(&list)?,
                None => SignedFields::default(),
            },
            stream,
            signed,
        })),
        _ => Err(AccessDenied::Malformed(
            "a signed URL has the parameters expires, kid and signature once each, and signed-fields and signed-stream at most once, with their names as they are here, and all of its parameters are percent-encoded UTF-8",
        )),
    }
}

/// The parameter by which a client that resumes names its last event if it can't send the field `Last-Event-ID`. It adds it to the URL
/// that it was given, so a signature does not cover it: it is good for what the field is good for.
pub const LAST_EVENT_ID: &str = "lastEventId";

pub(crate) const EXPIRES: &str = "expires";
pub(crate) const KID: &str = "kid";
pub(crate) const FIELDS: &str = "signed-fields";
pub(crate) const STREAM: &str = "signed-stream";
pub(crate) const SIGNATURE: &str = "signature";

/// The parameters that signing adds to a URL. They mean nothing to protocols.
pub const SIGNING_PARAMETERS: [&str; 5] = [EXPIRES, KID, FIELDS, STREAM, SIGNATURE];
