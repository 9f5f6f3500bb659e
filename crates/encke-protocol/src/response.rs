//! A response as a protocol gives it.

use std::fmt::Display;

use crate::coding::{CodingOffer, ContentCoding};

/// A response. The reactor adds the status line, the length, the date and the connection's fields.
#[derive(Debug, Default)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The fields, each ended by CRLF.
    pub fields: Vec<u8>,
    /// Whether scripts of other origins may read it.
    pub cross_origin: CrossOrigin,
    /// The body may be sent in a coding. The reactor decides whether it is, and says so with [`Response::coded`].
    pub coding: Option<CodingOffer>,
    /// What the audit log says about it, if it is a matter of that log.
    pub audit: Option<Box<AuditNote>>,
    /// The body.
    pub body: Body,
}

/// Whether scripts of other origins may read a response, and its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrossOrigin {
    /// They may not.
    #[default]
    Never,
    /// They may. The response says so when the request names its origin.
    WhenAsked,
    /// They may, and a cache may give the response to a request from another origin, or from none.
    Cacheable,
}

/// What the audit log says about a request that was refused, or that an operator made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditNote {
    /// `refused` or `admin`.
    pub event: &'static str,
    /// The code of the refusal, or what the operator did.
    pub reason: &'static str,
    /// The name of the caller; empty if it is not known.
    pub caller: Box<str>,
    /// The method.
    pub method: Box<str>,
    /// The path, without the query.
    pub path: Box<str>,
}

/// The word for a refusal in the audit log.
pub(crate) const REFUSED: &str = "refused";

impl AuditNote {
    /// Whether a request was refused.
    pub fn is_refusal(&self) -> bool {
        self.event == REFUSED
    }
}

/// A response's body.
#[derive(Debug, Default)]
pub enum Body {
    /// No bytes; the response has a length of 0 where the status allows one.
    #[default]
    Empty,
    /// These bytes.
    Bytes(Vec<u8>),
    /// These bytes, a part of the program.
    Static(&'static [u8]),
    /// The first bytes of a body without end: it ends with the subscription.
    Open(Vec<u8>),
    /// The first part of a long body.
    Parts(Vec<u8>),
    /// Several messages, on a channel.
    Messages(Vec<Vec<u8>>),
}

impl Response {
    /// A response without a body.
    pub fn new(status: u16) -> Self {
        Response {
            status,
            ..Response::default()
        }
    }

    /// Whether the request may be served later, or by another server (RFC 9110, section 15.6.4).
    pub fn is_unavailable(&self) -> bool {
        self.status == 503
    }

    /// A response with the fields that all protocols send: for browsers that read across origins, and against browsers that
    /// guess types (Durable Streams, section 12.7). What is stored is a client's: a browser that shows it as a page runs none of its
    /// scripts, and gives it no origin.
    pub(crate) fn shared(status: u16) -> Self {
        Response {
            cross_origin: CrossOrigin::WhenAsked,
            ..Response::new(status).fields(SHARED_FIELDS)
        }
    }

    /// A response of plain text about the server itself.
    pub(crate) fn plain_text(status: u16) -> Self {
        Response::new(status)
            .field("Content-Type", "text/plain; charset=utf-8")
            .field("Cache-Control", "no-store")
            .field("X-Content-Type-Options", "nosniff")
    }

    /// Says that a cache may keep the response.
    #[must_use]
    pub(crate) fn cacheable(self) -> Self {
        Response {
            cross_origin: CrossOrigin::Cacheable,
            ..self
        }
    }

    /// Adds a field. A value is cut at the first control character, because that would end the field.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Display) -> Self {
        self.push(name, value);
        self
    }

    /// Adds a field if there is a value.
    #[must_use]
    pub fn field_if(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// Says that the body is in that coding. Its bytes differ from those of the body as it is, so its tag becomes a weak one
    /// (RFC 9110, section 8.8.1).
    #[must_use]
    pub fn coded(mut self, coding: ContentCoding) -> Self {
        let strong = b"\r\nETag: \"";
        let tag = self
            .fields
            .windows(strong.len())
            .position(|at| at == strong);
        if let Some(tag) = tag {
            let quote = tag + strong.len() - 1;
            self.fields.splice(quote..quote, *b"W/");
        }
        self.field("Content-Encoding", coding.name())
    }

    /// Adds encoded fields, each ended by CRLF.
    #[must_use]
    fn fields(mut self, fields: &[u8]) -> Self {
        self.fields.extend_from_slice(fields);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets what the audit log says about it.
    #[must_use]
    pub(crate) fn audited(self, audit: Option<Box<AuditNote>>) -> Self {
        Response { audit, ..self }
    }

    fn push(&mut self, name: &str, value: impl Display) {
        use std::io::Write;
        let start = self.fields.len();
        // Writing to a vector does not fail.
        let _ = write!(self.fields, "{name}: {value}");
        // A client's input must neither begin a field nor break this one (RFC 9110, section 5.5).
        if let Some(end) = self.fields[start..]
            .iter()
            .position(|byte| byte.is_ascii_control() && *byte != b'\t')
        {
            self.fields.truncate(start + end);
        }
        self.fields.extend_from_slice(b"\r\n");
    }
}

const SHARED_FIELDS: &[u8] = b"X-Content-Type-Options: nosniff\r\n\
    Content-Security-Policy: default-src 'none'; sandbox\r\n\
    Cross-Origin-Resource-Policy: cross-origin\r\n";

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() {
            Body::Empty
        } else {
            Body::Bytes(bytes)
        }
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Body::Static(text.as_bytes())
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        match self {
            Body::Empty | Body::Messages(_) => &[],
            Body::Bytes(bytes) | Body::Open(bytes) | Body::Parts(bytes) => bytes,
            Body::Static(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coded_body_has_a_weak_tag() {
        let response = Response::shared(200).field("ETag", "\"a\"").field("A", "b");
        let fields = String::from_utf8(response.coded(ContentCoding::Gzip).fields).unwrap();
        assert!(fields.contains("\r\nETag: W/\"a\"\r\nA: b\r\n"), "{fields}");
        assert!(
            fields.ends_with("\r\nContent-Encoding: gzip\r\n"),
            "{fields}"
        );
    }

    #[test]
    fn a_value_cannot_start_another_field() {
        let response = Response::new(200).field("A", "x\r\nSet-Cookie: y");
        assert_eq!(response.fields, b"A: x\r\n");
        for control in (0..b' ').chain([0x7f]).filter(|byte| *byte != b'\t') {
            let value = format!("x{}y", char::from(control));
            let response = Response::new(200).field("A", value);
            assert_eq!(response.fields, b"A: x\r\n", "{control}");
        }
        let response = Response::new(200).field("A", "x\t y ä");
        assert_eq!(response.fields, "A: x\t y ä\r\n".as_bytes());
    }
}
