//! What the access log and the debug log say about requests: from a request's head to the last byte of its response.

use std::net::IpAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use encke_protocol::Headers;
use encke_trace::RequestOutcome;

use super::{
    AccessEntry, COMPLETE, NO_RESPONSE, OpenRequest, OpenRequests, RequestText, hex_escaped,
    request_id, trace_parent,
};
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::exchange_id::ExchangePlace;
use crate::http::head::{self, Head, NO_FIELDS};

/// Where the other end of a connection is.
type Peer<'a> = &'a dyn Fn() -> Option<IpAddr>;

impl OpenRequests {
    /// A request's head is complete. Nothing is kept for a request that is not logged and has no id.
    pub(crate) fn begin_request(
        &mut self,
        place: ExchangePlace,
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        peer: Peer<'_>,
    ) {
        let headers = Headers(fields);
        let id = request_id(headers);
        let logged = self.logs_requests();
        let is_nothing = !logged && id.is_none() && self.tracer().is_none();
        if is_nothing || self.get_mut(place.exchange).is_some() {
            // It began when its head was complete; now its body is.
            return;
        }
        let parent = trace_parent(headers);
        let span = self.tracer().and_then(|tracer| tracer.begin(parent));
        if !logged && id.is_none() && span.is_none() {
            return;
        }
        let id = id.unwrap_or_default().as_bytes();
        let request = match logged || span.is_some() {
            false => OpenRequest {
                text: RequestText::new(b"", (b"", None), b"", b"", id),
                ..OpenRequest::unknown(false)
            },
            true => OpenRequest {
                client: self.client_address(place, peer),
                trace: parent.map(|parent| parent.trace),
                version: Some(head.version),
                text: RequestText::new(
                    head.method.as_bytes(),
                    (head.path.as_bytes(), head.query.map(str::as_bytes)),
                    headers.first("User-Agent").unwrap_or_default(),
                    headers.first("Referer").unwrap_or_default(),
                    id,
                ),
                span: span.map(Box::new),
                ..OpenRequest::unknown(logged)
            },
        };
        self.begin(place.exchange, request);
    }

    /// A request is refused that has perhaps no complete head: what came of it gets a line as well.
    pub(crate) fn begin_refused_request(
        &mut self,
        place: ExchangePlace,
        input: &[u8],
        peer: Peer<'_>,
    ) {
        if !self.logs_requests() {
            return;
        }
        let mut fields = NO_FIELDS;
        if let Ok(Some((head, count))) = head::parse(input, &mut fields) {
            self.begin_request(place, &head, &fields[..count], peer);
        }
        if self.get_mut(place.exchange).is_some() {
            return;
        }
        let mut request = OpenRequest {
            client: self.client_address(place, peer),
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
        self.begin(place.exchange, request);
    }

    /// The PROXY protocol names the client of a connection.
    pub(crate) fn keep_client(&mut self, connection: ExchangeId, client: IpAddr) {
        if self.logs_requests() {
            self.set_client(connection, client);
        }
    }

    /// A trusted proxy names the client of a request.
    pub(crate) fn name_client(&mut self, exchange: ExchangeId, client: Option<IpAddr>) {
        if let Some(client) = client
            && let Some(request) = self.get_mut(exchange)
        {
            request.client = Some(client);
        }
    }

    /// The credentials of a request have named its caller.
    pub(crate) fn name_caller(&mut self, exchange: ExchangeId, caller: &str) {
        if let Some(request) = self.get_mut(exchange)
            && request.logged
        {
            request.text.set_caller(caller);
        }
    }

    /// The head of a response is encoded; its bytes are sent next.
    pub(crate) fn begin_response(&mut self, exchange: ExchangeId, status: u16, head_bytes: usize) {
        match self.get_mut(exchange) {
            Some(request) if request.logged || request.span.is_some() => {
                request.status = status;
                request.head_bytes = head_bytes as u32;
            }
            // The id is in the response: no more is to be kept of it.
            Some(_) => drop(self.take(exchange)),
            None => {}
        }
    }

    /// A response is complete: the kernel has its last byte.
    pub(crate) fn complete_request(&mut self, exchange: ExchangeId) {
        self.end_request(exchange, COMPLETE);
    }

    /// A subscriber has got the end of its feed.
    pub(crate) fn end_feed(&mut self, exchange: ExchangeId) {
        self.end_request(exchange, CloseReason::Ended.name());
    }

    /// A connection is closed. If a request is open, its response is not complete.
    pub(crate) fn abandon_request(&mut self, exchange: ExchangeId, reason: CloseReason) {
        self.end_request(exchange, reason.name());
        self.forget_client(exchange);
    }

    fn end_request(&mut self, exchange: ExchangeId, end: &'static str) {
        let Some(mut request) = self.take(exchange) else {
            return;
        };
        if let Some(span) = request.span.take() {
            span.end(outcome(&request, end));
        }
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
            body_bytes: request.body_bytes(),
            version: request.version,
            trace: request.trace,
            end,
            text: request.text,
        };
        if entry.text.request_id().is_none() {
            entry.text.set_request_id(&self.new_id());
        }
        log_debug(&entry);
        self.log(entry);
    }

    fn logs_requests(&self) -> bool {
        self.has_log() || debugs_requests()
    }

    /// The address of a connection's client, as far as it is known without a request.
    fn client_address(&self, place: ExchangePlace, peer: Peer<'_>) -> Option<IpAddr> {
        let named = self.client(place.connection);
        named.or_else(|| Some(peer()?.to_canonical()))
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
            span: None,
            text: RequestText::default(),
        }
    }

    /// Bytes of the body that the kernel took, with the frames of chunks.
    fn body_bytes(&self) -> u64 {
        self.sent_bytes.saturating_sub(u64::from(self.head_bytes))
    }
}

/// What the span of a request says of its end.
fn outcome<'a>(request: &'a OpenRequest, end: &'static str) -> RequestOutcome<'a> {
    let text =
        |text: Option<&'a [u8]>| std::str::from_utf8(text.unwrap_or_default()).unwrap_or_default();
    let target = text(request.text.target());
    RequestOutcome {
        method: text(request.text.method()),
        path: target.split('?').next().unwrap_or_default(),
        version: match request.version {
            Some(0) => "1.0",
            Some(2) => "2",
            _ => "1.1",
        },
        status: match request.status {
            0 => NO_RESPONSE,
            status => status,
        },
        body_bytes: request.body_bytes(),
        end,
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
        caller = %escaped(entry.text.caller()),
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
