//! The requests of a shard that are open: what their lines in the access log need.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use encke_trace::{CommandTrace, RequestTrace, TraceId, Tracer};

use super::{AccessEntry, AccessLogSender, RequestIds, RequestText};
use crate::by_slot::BySlot;
use crate::connection::exchange_id::ExchangeId;
use crate::metrics::Metrics;

/// Open requests by the numbers of their connections' slots. A request is in the table if it is logged or traced, or until its
/// response has begun if the client gave it an id. It is empty while nothing is logged or traced and no client sends ids.
#[derive(Debug)]
pub(crate) struct OpenRequests {
    open: BySlot<OpenRequest>,
    count: usize,
    /// Clients that the PROXY protocol named, by slot.
    clients: BySlot<IpAddr>,
    ids: RequestIds,
    /// Where entries go; `None` while there is no access log.
    log: Option<AccessLogSender>,
    /// What decides which requests are traced; `None` if none are.
    tracer: Option<Tracer>,
    ended: Vec<(Box<AccessEntry>, usize)>,
}

/// A request that is open.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) began: Instant,
    pub(crate) client: Option<IpAddr>,
    pub(crate) trace: Option<TraceId>,
    pub(crate) version: Option<u8>,
    /// 0 before the response begins.
    pub(crate) status: u16,
    /// Bytes of the response's head.
    pub(crate) head_bytes: u32,
    /// Bytes of the response that the kernel has taken.
    pub(crate) sent_bytes: u64,
    /// It gets a line; otherwise only its id or its span matters.
    pub(crate) logged: bool,
    /// Its span, if it is traced.
    pub(crate) span: Option<Box<RequestTrace>>,
    pub(crate) text: RequestText,
}

// What the access log costs for each subscriber, beside the texts.
const _: () = assert!(size_of::<OpenRequest>() <= 128);

impl OpenRequests {
    pub(crate) fn new(
        ids: RequestIds,
        log: Option<AccessLogSender>,
        tracer: Option<Tracer>,
    ) -> OpenRequests {
        OpenRequests {
            open: BySlot::default(),
            count: 0,
            clients: BySlot::default(),
            ids,
            log,
            tracer,
            ended: Vec::new(),
        }
    }

    /// Whether there is an access log.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// The span of a request, if it is traced.
    pub(crate) fn span_mut(&mut self, exchange: ExchangeId) -> Option<&mut RequestTrace> {
        self.get_mut(exchange)?.span.as_deref_mut()
    }

    /// Another thread begins to do something for a request.
    pub(crate) fn begin_part(&mut self, exchange: ExchangeId, name: &'static str) {
        if let Some(span) = self.span_mut(exchange) {
            span.begin_part(name);
        }
    }

    /// What another thread did for a request is done.
    pub(crate) fn end_part(&mut self, exchange: ExchangeId) {
        if let Some(span) = self.span_mut(exchange) {
            span.end_part();
        }
    }

    /// The span of a command that a request hands over now, if the request is traced.
    pub(crate) fn trace_command(&mut self, exchange: ExchangeId) -> Option<Arc<CommandTrace>> {
        self.span_mut(exchange).map(|span| span.command())
    }

    pub(crate) fn get_mut(&mut self, exchange: ExchangeId) -> Option<&mut OpenRequest> {
        // Mostly none is open unless there is a log.
        if self.count == 0 {
            return None;
        }
        self.open.get_mut(exchange.slot())
    }

    /// The id of a request, which its response repeats.
    pub(crate) fn request_id(&self, exchange: ExchangeId) -> Option<&str> {
        if self.count == 0 {
            return None;
        }
        let id = self.open.get(exchange.slot())?.text.request_id()?;
        std::str::from_utf8(id).ok()
    }

    pub(crate) fn begin(&mut self, exchange: ExchangeId, request: OpenRequest) {
        self.count += 1;
        self.open.insert(exchange.slot(), request);
    }

    pub(crate) fn take(&mut self, exchange: ExchangeId) -> Option<Box<OpenRequest>> {
        if self.count == 0 {
            return None;
        }
        let request = self.open.remove(exchange.slot())?;
        self.count -= 1;
        Some(request)
    }

    /// The kernel has taken this number of bytes of a connection's output.
    pub(crate) fn sent(&mut self, exchange: ExchangeId, bytes: usize) {
        // Before the response there may be a 100 (Continue), which belongs to no response.
        if let Some(request) = self.get_mut(exchange)
            && request.status > 0
        {
            request.sent_bytes += bytes as u64;
        }
    }

    pub(crate) fn new_id(&mut self) -> String {
        self.ids.next()
    }

    /// The client that the PROXY protocol named for a connection.
    pub(crate) fn client(&self, exchange: ExchangeId) -> Option<IpAddr> {
        self.clients.get(exchange.slot()).copied()
    }

    pub(crate) fn set_client(&mut self, exchange: ExchangeId, client: IpAddr) {
        self.clients.insert(exchange.slot(), client);
    }

    /// A connection is closed.
    pub(crate) fn forget_client(&mut self, exchange: ExchangeId) {
        self.clients.remove(exchange.slot());
    }

    /// Keeps an entry for the log until the turn ends.
    pub(crate) fn log(&mut self, entry: AccessEntry) {
        if self.log.is_some() {
            let bytes = size_of::<AccessEntry>() + entry.text.bytes();
            self.ended.push((Box::new(entry), bytes));
        }
    }

    /// Hands the turn's entries to the writer. Those for which it has no room are dropped and counted.
    pub(crate) fn hand_over(&mut self, metrics: &Metrics) {
        if let Some(log) = &self.log
            && !self.ended.is_empty()
        {
            log.send(&mut self.ended, metrics);
        }
    }
}
