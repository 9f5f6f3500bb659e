//! Signed URLs: a path and its parameters that may be used with one method until a time, by anyone who has the URL.
//!
//! What is signed, with HMAC-SHA256, is three lines: the method, the canonical path, and the parameters except `signature`. Each
//! parameter is `name=value` with every byte outside of `A-Z a-z 0-9 - . _ ~` percent-encoded in upper case; these texts are sorted
//! and joined with `&`. A line `name:value` follows for each header field whose value is signed, in the order of the parameter
//! `signed-fields` ([`crate::signed_fields`]). The lines are joined with a line feed. A URL for `GET` is also good for `HEAD`.
//! With the parameter `signed-stream` a URL is good for one stream, and not for a later one of the same name.
//!
//! Some parameters only say how a request reads what the URL is good for ([`Credentials::free_parameters`]). A URL that signs none of them
//! is good with any of them; one that signs some is good with these and no others.

use std::borrow::Cow;
use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use encke_clock::{WallSeconds, WallTime};

use crate::caller::{Authority, Caller, NEVER};
use crate::credentials::{
    Credentials, EXPIRES, FIELDS, KID, LAST_EVENT_ID, SIGNING_PARAMETERS, STREAM, SignedQuery,
};
use crate::denied::AccessDenied;
use crate::digest;
use crate::path::{CanonicalPath, percent_decode};
use crate::signed_fields::{SIGNED_FIELDS_MAX, SignedField, SignedFields, write_values};

/// A key that signs URLs.
#[derive(Debug)]
pub(crate) struct SigningKey {
    key: hmac::Key,
    authority: Arc<Authority>,
}

/// What a URL is to be good for.
#[derive(Clone, Copy, Debug)]
pub struct UrlToSign<'a> {
    /// The method; `GET` includes `HEAD`.
    pub method: &'a str,
    /// Its path and query, which the signed URL begins with.
    pub target: &'a str,
    /// The path that the server authorises for it.
    pub path: &'a CanonicalPath<'a>,
    /// The header fields that requests must have.
    pub fields: &'a [SignedField],
    /// The number of the one stream that it is good for. Without, it is good for each that has the path's name.
    pub stream: Option<u64>,
    /// When it ends, in seconds since 1970.
    pub expires_s: u64,
}

/// What a signed URL covers of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedUrl {
    /// The header fields that the request may have, beside those that change nothing.
    pub fields: SignedFields,
    /// It signs none of [`Credentials::free_parameters`].
    pub leaves_parameters: bool,
    /// The number of the one stream that it is good for, if it names one.
    pub stream: Option<u64>,
}

/// Why a URL can't be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// No key has that name.
    #[error("there is no signing key {0:?}")]
    UnknownKey(String),
    /// The query is not percent-encoded.
    #[error("the query is not percent-encoded UTF-8; % itself is written as %25")]
    Query,
    /// The query has a parameter that signing adds, or a client that resumes.
    #[error("the query must not have the parameter {0}: signing adds it, or a client that resumes")]
    Reserved(&'static str),
    /// The fields to sign can't be listed.
    #[error("a URL signs at most {SIGNED_FIELDS_MAX} different header fields")]
    Fields,
}

impl SigningKey {
    /// The key of that secret; it has the name of its authority.
    pub(crate) fn new(secret: &[u8], authority: Arc<Authority>) -> Self {
        SigningKey {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            authority,
        }
    }

    /// What signed URLs hold in their parameter `kid`.
    pub(crate) fn kid(&self) -> &str {
        &self.authority.name
    }

    /// The path and query of a URL with the parameters that sign it.
    pub(crate) fn sign(&self, url: &UrlToSign<'_>) -> Result<String, SignError> {
        let UrlToSign { target, fields, .. } = *url;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, query),
            None => (target, ""),
        };
        let expires = url.expires_s.to_string();
        let list = SignedFields::of(fields).map_err(|_| SignError::Fields)?;
        let list = list.to_string();
        let mut parameters = vec![
            (Cow::Borrowed(EXPIRES), Cow::Borrowed(&*expires)),
            (Cow::Borrowed(KID), Cow::Borrowed(self.kid())),
        ];
        // A URL that signs no fields has the form that it had before there were any.
        let mut own = format!("expires={expires}&kid={}", encoded(self.kid()));
        if !list.is_empty() {
            parameters.push((Cow::Borrowed(FIELDS), Cow::Borrowed(&*list)));
            own.push_str(&format!("&{FIELDS}={list}"));
        }
        if let Some(stream) = url.stream {
            let stream = stream.to_string();
            own.push_str(&format!("&{STREAM}={stream}"));
            parameters.push((Cow::Borrowed(STREAM), Cow::Owned(stream)));
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = percent_decode(name).ok_or(SignError::Query)?;
            let mut reserved = SIGNING_PARAMETERS.into_iter().chain([LAST_EVENT_ID]);
            if let Some(name) = reserved.find(|one| *one == name) {
                return Err(SignError::Reserved(name));
            }
            parameters.push((name, percent_decode(value).ok_or(SignError::Query)?));
        }
        let mut text = signed_text(url.method, url.path, &parameters);
        write_values(fields, &mut text);
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, &text));
        let join = if query.is_empty() { "" } else { "&" };
        Ok(format!("{path}?{query}{join}{own}&signature={signature}"))
    }

    pub(crate) fn resolve(
        &self,
        request: &Credentials<'_>,
        query: SignedQuery<'_>,
        now: WallTime,
    ) -> Result<(Arc<Caller>, SignedUrl), AccessDenied> {
        let signature = URL_SAFE_NO_PAD
            .decode(&*query.signature)
            .unwrap_or_default();
        let is_of = |parameters: &[(Cow<'_, str>, Cow<'_, str>)]| {
            let mut text = signed_text(request.method, request.path, parameters);
            query.fields.write_values(request.headers, &mut text)?;
            let expected = hmac::sign(&self.key, &text);
            Ok(digest::same(&signature, expected.as_ref()))
        };
        let is_free = |name: &str| request.free_parameters.contains(&name);
        let (free, signed): (Vec<_>, Vec<_>) = query
            .signed
            .iter()
            .cloned()
            .partition(|(name, _)| is_free(name));
        // Without any of them, what is signed is the same either way.
        let leaves_parameters = is_of(&signed)?;
        if !leaves_parameters && (free.is_empty() || !is_of(&query.signed)?) {
            return Err(AccessDenied::Signature);
        }
        let expires = Some(&*query.expires)
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse::<u32>().ok())
            .map(WallSeconds::from_s)
            .filter(|expires| *expires < NEVER);
        let ends_at = expires.ok_or(AccessDenied::Malformed(
            "the parameter expires must be a time in seconds since 1970",
        ))?;
        if now >= ends_at.start() {
            return Err(AccessDenied::Expired("signed URL"));
        }
        let stream = query.stream.as_deref().map(str::parse).transpose();
        let stream = stream.map_err(|_| {
            AccessDenied::Malformed("the parameter signed-stream must be the number of a stream")
        })?;
        let caller = Arc::new(Caller {
            authority: Arc::clone(&self.authority),
            subject: None,
            claims: None,
            token_id: None,
            ends_at,
            issued_at: WallSeconds::default(),
        });
        let url = SignedUrl {
            fields: query.fields,
            leaves_parameters,
            stream,
        };
        Ok((caller, url))
    }
}

fn signed_text(
    method: &str,
    path: &CanonicalPath<'_>,
    parameters: &[(Cow<'_, str>, Cow<'_, str>)],
) -> Vec<u8> {
    let method = if method == "HEAD" { "GET" } else { method };
    let mut texts: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    texts.sort_unstable();
    format!("{method}\n{path}\n{}", texts.join("&")).into_bytes()
}

fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(byte.into());
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
