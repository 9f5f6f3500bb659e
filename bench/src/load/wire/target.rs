//! The server's address, the names of the streams, and the requests for them.

use super::http2;
use super::transport::ClientTls;
use super::websocket;
use crate::BenchError;
use crate::load::args::TrustArgs;
use crate::load::kinds::SubscriberKind;
use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};

/// A server and the path under which its streams live.
#[derive(Debug, Clone)]
pub(crate) struct ServerUrl {
    /// Where to connect to.
    pub(crate) address: SocketAddr,
    /// The `Host` header.
    host: String,
    /// The path of all streams, without a slash at the end.
    root: String,
    /// What clients need for `https://`; `None` for `http://`.
    pub(crate) tls: Option<ClientTls>,
}

impl ServerUrl {
    /// Parses `http://host[:port][/path]`, or the same with `https`, and resolves the host.
    pub(crate) fn parse(url: &str, trust: &TrustArgs) -> Result<Self, BenchError> {
        let bad = |reason| BenchError::BadUrl {
            url: url.to_owned(),
            reason,
        };
        let (rest, port) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (rest, 80),
            (None, Some(rest)) => (rest, 443),
            (None, None) => return Err(bad("only http:// and https:// can be measured")),
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if host.is_empty() || host.contains(['@', '?', '#']) {
            return Err(bad("it needs a host, and no user or query"));
        }
        if !path.bytes().all(|b| b.is_ascii_graphic()) || path.contains(['?', '#']) {
            return Err(bad("its path must be plain and without a query"));
        }
        let has_port = host.rfind(':') > host.rfind(']');
        let with_port = if has_port {
            host.to_owned()
        } else {
            format!("{host}:{port}")
        };
        let mut addresses = with_port
            .to_socket_addrs()
            .map_err(|source| BenchError::Resolve {
                host: host.to_owned(),
                source,
            })?
            .collect::<Vec<_>>();
        // IPv4 first: only there can one machine have many source addresses without being asked.
        addresses.sort_by_key(SocketAddr::is_ipv6);
        let address = *addresses
            .first()
            .ok_or_else(|| bad("its host has no address"))?;
        let name = match host.rfind(':').filter(|_| has_port) {
            Some(end) => &host[..end],
            None => host,
        };
        let tls = match port {
            443 => Some(ClientTls::new(name, trust)?),
            _ => None,
        };
        Ok(Self {
            tls,
            address,
            host: host.to_owned(),
            root: path.trim_end_matches('/').to_owned(),
        })
    }

    /// GET: read the stream `name` from `offset`.
    pub(crate) fn read(&self, name: &str, offset: &str, out: &mut Vec<u8>) {
        write(out, format_args!("GET {}/", self.root));
        encode(name.as_bytes(), b"/", out);
        out.extend_from_slice(b"?offset=");
        encode(offset.as_bytes(), b"", out);
        write(
            out,
            format_args!(" HTTP/1.1\r\nHost: {}\r\n\r\n", self.host),
        );
    }
}

/// The streams of a run: one, or many that are numbered.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    name: String,
    count: u32,
    numbered: bool,
}

impl Streams {
    /// A single stream.
    pub(crate) fn one(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            count: 1,
            numbered: false,
        }
    }

    /// `prefix0` to `prefix{count-1}`.
    pub(crate) fn numbered(prefix: &str, count: u32) -> Self {
        Self {
            name: prefix.to_owned(),
            count,
            numbered: true,
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The name of stream `index`.
    pub(crate) fn name(&self, index: u32) -> String {
        if self.numbered {
            format!("{}{index}", self.name)
        } else {
            self.name.clone()
        }
    }
}

/// Writes requests for the streams of a run. All that stays the same is prepared once.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    path: Vec<u8>,
    numbered: bool,
    host: String,
    is_https: bool,
    content_type: String,
    /// More header fields of creations, each with the end of its line.
    creation_fields: String,
}

impl Requests {
    /// Requests to `target` about `streams` that have `content_type`.
    pub(crate) fn new(
        target: &ServerUrl,
        streams: &Streams,
        content_type: &str,
    ) -> Result<Self, BenchError> {
        if content_type.is_empty()
            || !content_type
                .bytes()
                .all(|b| b == b' ' || b.is_ascii_graphic())
        {
            return Err(BenchError::Option(format!(
                "bad content type {content_type:?}"
            )));
        }
        let mut path = target.root.clone().into_bytes();
        path.push(b'/');
        encode(streams.name.as_bytes(), b"/", &mut path);
        Ok(Self {
            path,
            numbered: streams.numbered,
            host: target.host.clone(),
            is_https: target.tls.is_some(),
            content_type: content_type.to_owned(),
            creation_fields: String::new(),
        })
    }

    /// With more header fields in creations, each with the end of its line.
    pub(crate) fn creating_with(self, fields: &str) -> Self {
        Self {
            creation_fields: fields.to_owned(),
            ..self
        }
    }

    /// PUT: create the stream.
    pub(crate) fn create(&self, stream: u32, out: &mut Vec<u8>) {
        self.start("PUT", stream, b"", out);
        write(
            out,
            format_args!(
                "Content-Type: {}\r\n{}Content-Length: 0\r\n\r\n",
                self.content_type, self.creation_fields
            ),
        );
    }

    /// POST: append `body`.
    pub(crate) fn append(&self, stream: u32, body: &[u8], out: &mut Vec<u8>) {
        self.post(stream, format_args!(""), body, out);
    }

    /// POST: append `body` as request `sequence`, from 0, of the only producer of the stream: a repetition changes nothing.
    pub(crate) fn append_once(&self, stream: u32, sequence: u64, body: &[u8], out: &mut Vec<u8>) {
        let fields = format_args!(
            "Producer-Id: encke-bench\r\nProducer-Epoch: 0\r\nProducer-Seq: {sequence}\r\n"
        );
        self.post(stream, fields, body, out);
    }

    /// POST: close the stream.
    pub(crate) fn close(&self, stream: u32, out: &mut Vec<u8>) {
        self.post(stream, format_args!("Stream-Closed: true\r\n"), b"", out);
    }

    fn post(&self, stream: u32, fields: std::fmt::Arguments<'_>, body: &[u8], out: &mut Vec<u8>) {
        self.start("POST", stream, b"", out);
        let (content_type, length) = (&self.content_type, body.len());
        write(
            out,
            format_args!(
                "Content-Type: {content_type}\r\n{fields}Content-Length: {length}\r\n\r\n"
            ),
        );
        out.extend_from_slice(body);
    }

    /// What a subscriber sends on a new connection to get the messages behind `offset`.
    pub(crate) fn subscribe(
        &self,
        kind: SubscriberKind,
        stream: u32,
        offset: &str,
        out: &mut Vec<u8>,
    ) {
        match kind {
            SubscriberKind::Http1 => self.read(stream, offset, "&live=sse", out),
            SubscriberKind::Http2 => {
                let mut target = Vec::new();
                self.target(stream, &query(offset, "&live=sse"), &mut target);
                http2::write_request(&self.host, &target, self.is_https, out);
            }
            SubscriberKind::Websocket => {
                self.start("GET", stream, &query(offset, "&live=websocket"), out);
                out.extend_from_slice(websocket::HANDSHAKE_FIELDS);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// GET: read from `offset`; `extra` is more of the query, such as `&live=sse`.
    pub(crate) fn read(&self, stream: u32, offset: &str, extra: &str, out: &mut Vec<u8>) {
        self.start("GET", stream, &query(offset, extra), out);
        out.extend_from_slice(b"\r\n");
    }

    /// The path and the query of a read from `offset`, with more of the query.
    pub(crate) fn read_target(&self, stream: u32, offset: &str, extra: &str, out: &mut Vec<u8>) {
        self.target(stream, &query(offset, extra), out);
    }

    fn start(&self, method: &str, stream: u32, query: &[u8], out: &mut Vec<u8>) {
        write(out, format_args!("{method} "));
        self.target(stream, query, out);
        write(out, format_args!(" HTTP/1.1\r\nHost: {}\r\n", self.host));
    }

    fn target(&self, stream: u32, query: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.path);
        if self.numbered {
            write(out, format_args!("{stream}"));
        }
        out.extend_from_slice(query);
    }
}

fn query(offset: &str, extra: &str) -> Vec<u8> {
    let mut query = b"?offset=".to_vec();
    encode(offset.as_bytes(), b"", &mut query);
    query.extend_from_slice(extra.as_bytes());
    query
}

fn encode(bytes: &[u8], also_plain: &[u8], out: &mut Vec<u8>) {
    for &b in bytes {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) || also_plain.contains(&b) {
            out.push(b);
        } else {
            write(out, format_args!("%{b:02X}"));
        }
    }
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a vector can't fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_or_refused_with_a_reason() {
        let target =
            ServerUrl::parse("http://127.0.0.1:4437/v1/stream/", &TrustArgs::default()).unwrap();
        assert_eq!(target.address, "127.0.0.1:4437".parse().unwrap());
        assert_eq!(target.root, "/v1/stream");
        let target = ServerUrl::parse("http://[::1]", &TrustArgs::default()).unwrap();
        assert_eq!(target.address, "[::1]:80".parse().unwrap());
        for bad in [
            "ftp://127.0.0.1/",
            "127.0.0.1:4437",
            "http://",
            "http:///v1",
            "http://u@127.0.0.1/",
            "http://127.0.0.1/a?b",
            "http://127.0.0.1/a b",
        ] {
            let error = ServerUrl::parse(bad, &TrustArgs::default()).unwrap_err();
            assert!(matches!(error, BenchError::BadUrl { .. }), "{bad}: {error}");
        }
        let error = ServerUrl::parse("http://127.0.0.1:99999/", &TrustArgs::default()).unwrap_err();
        assert!(matches!(error, BenchError::Resolve { .. }), "{error}");
    }

    #[test]
    fn requests_are_encoded() {
        let target = ServerUrl::parse("http://127.0.0.1:1/v1", &TrustArgs::default()).unwrap();
        let text = |make: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            make(&mut out);
            String::from_utf8(out).unwrap()
        };
        let many = Requests::new(&target, &Streams::numbered("a b/", 9), "text/plain").unwrap();
        assert_eq!(
            text(&|out| many.create(7, out)),
            "PUT /v1/a%20b/7 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Type: text/plain\r\n\
             Content-Length: 0\r\n\r\n"
        );
        let one = Requests::new(&target, &Streams::one("ü"), "application/json").unwrap();
        assert_eq!(
            text(&|out| one.read(0, "1_2+", "&live=sse", out)),
            "GET /v1/%C3%BC?offset=1_2%2B&live=sse HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"
        );
        assert_eq!(
            text(&|out| many.clone().creating_with("X-A: 1\r\n").create(7, out)),
            "PUT /v1/a%20b/7 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Type: text/plain\r\nX-A: 1\r\n\
             Content-Length: 0\r\n\r\n"
        );
        assert_eq!(
            text(&|out| many.append_once(7, 41, b"x", out)),
            "POST /v1/a%20b/7 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Type: text/plain\r\n\
             Producer-Id: encke-bench\r\nProducer-Epoch: 0\r\nProducer-Seq: 41\r\nContent-Length: 1\r\n\r\nx"
        );
        assert_eq!(
            text(&|out| many.close(7, out)),
            "POST /v1/a%20b/7 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Type: text/plain\r\n\
             Stream-Closed: true\r\nContent-Length: 0\r\n\r\n"
        );
        assert_eq!(
            text(&|out| many.read_target(7, "-1", "&live=sse", out)),
            "/v1/a%20b/7?offset=-1&live=sse"
        );
        let handshake = text(&|out| many.subscribe(SubscriberKind::Websocket, 7, "now", out));
        assert!(
            handshake.starts_with(
                "GET /v1/a%20b/7?offset=now&live=websocket HTTP/1.1\r\nHost: 127.0.0.1:1\r\nUpgrade: websocket\r\n"
            ) && handshake.ends_with("\r\n\r\n"),
            "{handshake}"
        );
        assert_eq!(
            text(&|out| one.append(0, b"{}", out)),
            "POST /v1/%C3%BC HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Type: application/json\r\n\
             Content-Length: 2\r\n\r\n{}"
        );
        assert_eq!(
            text(&|out| target.read("a b/7", "-1", out)),
            "GET /v1/a%20b/7?offset=-1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"
        );
    }
}
