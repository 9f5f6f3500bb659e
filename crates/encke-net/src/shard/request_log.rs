//! What the access log and the debug log say about requests: from a request's head to the last byte of its response.

use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use encke_protocol::{AuditNote, Headers};
use rustix::net::getpeername;

use super::Shard;
use crate::access_log::{
    AccessEntry, COMPLETE, NO_RESPONSE, OpenRequest, RequestText, hex_escaped, request_id, trace_id,
};
use crate::audit::AuditEntry;
use crate::connection::close::CloseReason;
use crate::http::head::{self, Head, NO_FIELDS};

impl Shard {
    /// A request's head is complete. Nothing is kept for a request that is not logged and has no id.
    pub(super) fn begin_request(&mut self, index: u32, head: &Head<'_>, fields: &[(&str, &[u8])]) {
        let headers = Headers(fields);
        let id = request_id(headers);
        let logged = self.logs_requests();
        if !logged && id.is_none() || self.requests.get_mut(index).is_some() {
            // It began when its head was complete; now its body is.
            return;
        }
        let id = id.unwrap_or_default().as_bytes();
        let request = match logged {
            false => OpenRequest {
                text: RequestText::new(b"", (b"", None), b"", b"", id),
                ..OpenRequest::unknown(false)
            },
            true => OpenRequest {
                client: self.client_address(index),
                trace: trace_id(headers),
                version: Some(head.version),
                text: RequestText::new(
                    head.method.as_bytes(),
                    (head.path.as_bytes(), head.query.map(str::as_bytes)),
                    headers.first("User-Agent").unwrap_or_default(),
                    headers.first("Referer").unwrap_or_default(),
                    id,
                ),
                ..OpenRequest::unknown(true)
            },
        };
        self.requests.begin(index, request);
    }

    /// A request is refused that has perhaps no complete head: what came of it gets a line as well.
    pub(super) fn begin_refused_request(&mut self, index: u32, input: &[u8]) {
        if !self.logs_requests() {
            return;
        }
        let mut fields = NO_FIELDS;
        if let Ok(Some((head, count))) = head::parse(input, &mut fields) {
            self.begin_request(index, &head, &fields[..count]);
        }
        if self.requests.get_mut(index).is_some() {
            return;
        }
        let mut request = OpenRequest {
            client: self.client_address(index),
            ..OpenRequest::unknown(true)
        };
        let line = input.split(|byte| *byte == b'\n').next();
        let words: Vec<&[u8]> = line
            .unwrap_or_default()
            .trim_ascii_end()
            .split(|byte| *byte == b' ')
            .collect();
        if let [method, target, version] = words[..]
            && version.starts_with(b"HTTP/")
        {
            request.version = match version {
                b"HTTP/1.0" => Some(0),
                b"HTTP/1.1" => Some(1),
                _ => None,
            };
            let (path, query) = match memchr::memchr(b'?', target) {
                Some(at) => (&target[..at], Some(&target[at + 1..])),
                None => (target, None),
            };
            request.text = RequestText::new(method, (path, query), b"", b"", b"");
        }
        self.requests.begin(index, request);
    }

    /// The PROXY protocol names the client of a connection.
    pub(super) fn keep_client(&mut self, index: u32, client: IpAddr) {
        if self.logs_requests() {
            self.requests.set_client(index, client);
        }
    }

    /// A trusted proxy names the client of a request.
    pub(super) fn set_request_client(&mut self, index: u32, client: Option<IpAddr>) {
        if let Some(client) = client
            && let Some(request) = self.requests.get_mut(index)
        {
            request.client = Some(client);
        }
    }

    /// The head of a response is encoded; its bytes are sent next.
    pub(super) fn begin_response(&mut self, index: u32, status: u16, head_bytes: usize) {
        match self.requests.get_mut(index) {
            Some(request) if request.logged => {
                request.status = status;
                request.head_bytes = head_bytes as u32;
            }
            // The id is in the response: no more is to be kept of it.
            Some(_) => drop(self.requests.take(index)),
            None => {}
        }
    }

    /// A response is complete: the kernel has its last byte.
    pub(super) fn complete_request(&mut self, index: u32) {
        self.end_request(index, COMPLETE);
    }

    /// A connection is closed. If a request is open, its response is not complete.
    pub(super) fn abandon_request(&mut self, index: u32, reason: CloseReason) {
        self.end_request(index, reason.name());
        self.requests.forget_client(index);
    }

    fn end_request(&mut self, index: u32, end: &'static str) {
        let Some(request) = self.requests.take(index) else {
            return;
        };
        if !request.logged {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut entry = AccessEntry {
            ended_us: now.map_or(0, |since| since.as_micros() as u64),
            duration_us: request.began.elapsed().as_micros() as u64,
            client: request.client,
            status: match request.status {
                0 => NO_RESPONSE,
                status => status,
            },
            body_bytes: request
                .sent_bytes
                .saturating_sub(u64::from(request.head_bytes)),
            version: request.version,
            trace: request.trace,
            end,
            text: request.text,
        };
        if entry.text.request_id().is_none() {
            entry.text.set_request_id(&self.requests.new_id());
        }
        log_debug(&entry);
        self.requests.log(entry);
    }

    /// Adds a line to the audit log.
    pub(super) fn audit(&mut self, index: u32, note: &AuditNote, status: u16) {
        // A trusted proxy names the client of each request; it is kept while the request is logged.
        let named = self
            .requests
            .get_mut(index)
            .and_then(|request| request.client);
        self.context.audit.send(AuditEntry {
            at_ms: self.clock.now_ms(),
            client: match named {
                Some(client) => client.to_string().into(),
                None => self.client_name(index).into(),
            },
            status,
            note: Box::new(note.clone()),
        });
    }

    fn logs_requests(&self) -> bool {
        self.requests.has_log() || debugs_requests()
    }

    /// The address of a connection's client, as far as it is known without a request.
    fn client_address(&self, index: u32) -> Option<IpAddr> {
        let index = self.socket_of(index);
        self.requests.client(index).or_else(|| {
            let fd = self.connections.slots[index].fd()?;
            let peer = SocketAddr::try_from(getpeername(fd).ok()??).ok()?;
            Some(peer.ip().to_canonical())
        })
    }
}

impl OpenRequest {
    /// A request that begins now, of which nothing is known.
    fn unknown(logged: bool) -> OpenRequest {
        OpenRequest {
            began: Instant::now(),
            client: None,
            trace: None,
            version: None,
            status: 0,
            head_bytes: 0,
            sent_bytes: 0,
            logged,
            text: RequestText::default(),
        }
    }
}

/// Whether the filter of the log shows requests.
fn debugs_requests() -> bool {
    tracing::enabled!(target: DEBUG_TARGET, tracing::Level::DEBUG)
}

fn log_debug(entry: &AccessEntry) {
    if !debugs_requests() {
        return;
    }
    let escaped = |text: Option<&[u8]>| {
        let mut out = Vec::new();
        hex_escaped(text.unwrap_or(b"-"), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    tracing::debug!(
        target: DEBUG_TARGET,
        client = entry.client.map(tracing::field::display),
        method = %escaped(entry.text.method()),
        path = %escaped(entry.text.target()),
        status = entry.status,
        bytes = entry.body_bytes,
        duration_ms = entry.duration_us as f64 / 1e3,
        end = entry.end,
        request_id = %escaped(entry.text.request_id()),
        trace_id = entry.trace.map(tracing::field::display),
        "request"
    );
}

/// The target of the debug log's lines about requests.
const DEBUG_TARGET: &str = "encke_net::request";
