//! The head of a request, as the protocols read it.

use h2::RecvStream;
use h2::ext::Protocol;
use http::header::COOKIE;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method};

use crate::http::Rejection;
use crate::http::head::{FIELDS_MAX, Framing, Head, HeadFacts, too_many_fields};
use crate::http::take::head_too_large;
use crate::http::target::{self, Scheme};
use crate::websocket::handshake;

/// Marks a request whose `:path` has a fragment, which is not in its URI any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasFragment;

/// The head of a request on a stream.
#[derive(Debug)]
pub(crate) struct Http2Request(Parts);

impl Http2Request {
    /// The head of a request, and its body.
    pub(crate) fn of(request: http::Request<RecvStream>) -> (Self, RecvStream) {
        let (parts, body) = request.into_parts();
        (Http2Request::new(parts), body)
    }

    fn new(mut parts: Parts) -> Self {
        join_cookies(&mut parts.headers);
        Http2Request(parts)
    }

    /// What it takes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let fields = self.0.headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
        let target = self.0.uri.path().len() + self.0.uri.query().map_or(0, str::len);
        size_of::<Self>() + target + fields.sum::<usize>()
    }

    /// The head in the form of HTTP/1.1, for the access log also of a request that is refused.
    pub(crate) fn head(&self) -> Head<'_> {
        let uri = &self.0.uri;
        Head {
            method: self.0.method.as_str(),
            path: uri.path(),
            query: uri.query(),
            protocol: self.protocol(),
            framing: Framing::None,
            version: HTTP_2,
            keep_alive: false,
            expects_continue: false,
            bytes: 0,
        }
    }

    /// What an extended CONNECT asks for (RFC 8441, section 4).
    fn protocol(&self) -> Option<&str> {
        self.0.extensions.get::<Protocol>().map(Protocol::as_str)
    }

    /// The fields. The authority is the first one, as Host.
    pub(crate) fn fields(&self) -> Vec<(&str, &[u8])> {
        let authority = self.0.uri.authority();
        let host = authority.map(|authority| ("host", authority.as_str().as_bytes()));
        let fields = self.0.headers.iter();
        let fields = fields
            .filter(|(name, _)| authority.is_none() || **name != http::header::HOST)
            // Blanks around a value are no part of it, and `h2` lets them pass.
            .map(|(name, value)| (name.as_str(), trim_blanks(value.as_bytes())));
        host.into_iter().chain(fields).collect()
    }

    /// Checks the head by the rules of HTTP/1.1, beside those that `h2` has checked. Returns the length of the body if the client gives one.
    pub(crate) fn check(
        &self,
        fields: &[(&str, &[u8])],
        head_bytes_max: usize,
    ) -> Result<Option<u64>, Rejection> {
        let Parts {
            method,
            uri,
            headers,
            ..
        } = &self.0;
        if method == Method::CONNECT {
            let protocol = self
                .protocol()
                .ok_or_else(|| target::bad_target("no tunnels are opened here"))?;
            if !handshake::is_websocket(protocol) {
                return Err(unknown_protocol());
            }
        }
        // As it was sent: an empty path would be given as a slash.
        let sent = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let is_server_wide = sent == "*" && method == Method::OPTIONS;
        if !sent.starts_with('/') && !is_server_wide {
            return Err(target::bad_target(
                "the :path of a request begins with a slash, or is * for OPTIONS",
            ));
        }
        if self.0.extensions.get::<HasFragment>().is_some() {
            return Err(target::no_fragment());
        }
        target::check_text(sent)?;
        let scheme = match uri.scheme_str() {
            Some("http") => Scheme::Http,
            // Without an authority `h2` does not say.
            Some("https") | None => Scheme::Https,
            Some(_) => {
                let why = "the :scheme of a request is http or https";
                return Err(target::bad_target(why));
            }
        };
        let bytes = fields.iter().map(|(name, value)| list_bytes(name, value));
        if sent.len() + bytes.sum::<usize>() > head_bytes_max {
            return Err(head_too_large(head_bytes_max));
        }
        if fields.len() > FIELDS_MAX {
            return Err(too_many_fields());
        }
        if let Some(authority) = uri.authority() {
            for host in headers.get_all(http::header::HOST) {
                target::check_same_host(scheme, authority.as_str(), host.as_bytes())?;
            }
        }
        let mut facts = HeadFacts::default();
        for (name, value) in fields {
            facts.take(name, value)?;
        }
        facts.check_host(HTTP_2)?;
        match facts.length() {
            // What follows is no body, and has no length.
            Some(_) if method == Method::CONNECT => Err(target::bad_target(
                "an extended CONNECT has no Content-Length",
            )),
            length => Ok(length),
        }
    }
}

/// The size of a field in a list (RFC 9113, section 6.5.2).
fn list_bytes(name: &str, value: &[u8]) -> usize {
    name.len() + value.len() + 32
}

/// The response to an extended CONNECT for something else than WebSocket (RFC 9220, section 3).
fn unknown_protocol() -> Rejection {
    let why = "the only :protocol of an extended CONNECT is websocket";
    Rejection::new(501, "unknown_protocol", why)
}

fn trim_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Joins the fields with cookies to one, as everything behind HTTP/2 expects it: clients send one for each cookie, which compresses
/// better (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.nth(1).is_none() {
        return;
    }
    let cookies: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    // Values with a delimiter between them are a value.
    if let Ok(mut joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        joined.set_sensitive(true);
        headers.insert(COOKIE, joined);
    }
}

/// The version of HTTP/2 in [`Head`], where HTTP/1 has its minor version.
pub(crate) const HTTP_2: u8 = 2;

/// What a field takes in memory beside its bytes: its places in the map.
const FIELD_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(request: http::request::Builder) -> Result<Option<u64>, &'static str> {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let request = Http2Request::new(parts);
        let checked = request.check(&request.fields(), 64 << 10);
        checked.map_err(|rejection| rejection.reason)
    }

    fn get(uri: &str) -> http::request::Builder {
        http::Request::builder().uri(uri)
    }

    #[test]
    fn the_authority_is_the_host() {
        let request = get("http://x:1/a?b").header("host", "x:1").header("A", "b");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let request = Http2Request::new(parts);
        let fields = [("host", &b"x:1"[..]), ("a", b"b")];
        assert_eq!(request.fields(), fields);
        let head = request.head();
        assert_eq!((head.path, head.query), ("/a", Some("b")));
        assert_eq!(check(get("/a").header("host", "x")), Ok(None));
    }

    #[test]
    fn what_two_readers_could_read_in_two_ways_is_refused() {
        for (request, reason) in [
            (get("http://x/").header("host", "y"), "host"),
            (
                get("http://x/").header("host", "x").header("host", "y"),
                "host",
            ),
            (get("/").header("host", "x").header("host", "x"), "host"),
            (get("/"), "host"),
            (get("/").header("host", "u@x"), "host"),
            (get("http://u@x/"), "host"),
            (get("http://x/").method("CONNECT"), "bad_target"),
            (get("*").header("host", "x"), "bad_target"),
            (get("/a?`").header("host", "x"), "bad_target"),
            (get("ftp://x/"), "bad_target"),
            (
                get("http://x/")
                    .header("content-length", "1")
                    .header("content-length", "1"),
                "two_lengths",
            ),
            (get("http://x/").header("expect", "miracles"), "expectation"),
        ] {
            assert_eq!(check(request), Err(reason), "{reason}");
        }
        let many = (0..FIELDS_MAX).fold(get("http://x/"), |request, _| request.header("a", "b"));
        assert_eq!(check(many), Err("too_many_fields"));
    }

    #[test]
    fn an_extended_connect_is_for_websocket_only() {
        let connect = |protocol: &'static str| {
            let protocol = Protocol::from_static(protocol);
            get("http://x/a").method("CONNECT").extension(protocol)
        };
        assert_eq!(check(connect("websocket")), Ok(None));
        assert_eq!(check(connect("connect-udp")), Err("unknown_protocol"));
        for (request, reason) in [
            (connect("websocket").header("host", "y"), "host"),
            (
                connect("websocket").header("content-length", "1"),
                "bad_target",
            ),
            (connect("websocket").uri("ftp://x/"), "bad_target"),
        ] {
            assert_eq!(check(request), Err(reason));
        }
    }

    #[test]
    fn cookies_are_one_field() {
        let cookies = |count: usize| (0..count).map(|number| format!("c{number}=v{number}"));
        let request = |count: usize| {
            let request = get("http://x/").header("a", "b");
            let request =
                cookies(count).fold(request, |request, cookie| request.header("cookie", cookie));
            let (parts, ()) = request.header("d", "e").body(()).unwrap().into_parts();
            Http2Request::new(parts)
        };
        for count in [1, 2, FIELDS_MAX, 5 * FIELDS_MAX] {
            let request = request(count);
            let fields = request.fields();
            let joined = cookies(count).collect::<Vec<_>>().join("; ");
            assert_eq!(
                fields,
                [
                    ("host", &b"x"[..]),
                    ("a", b"b"),
                    ("cookie", joined.as_bytes()),
                    ("d", b"e"),
                ]
            );
            assert_eq!(request.check(&fields, 64 << 10), Ok(None), "{count}");
        }
    }

    #[test]
    fn a_length_is_found() {
        let request = get("http://x/").header("content-length", "12");
        assert_eq!(check(request), Ok(Some(12)));
        let request = get("*").method("OPTIONS").header("host", "x");
        assert_eq!(check(request), Ok(None));
    }
}
