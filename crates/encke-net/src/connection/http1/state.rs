//! What HTTP/1.1 knows of a connection, and how it refuses requests.

use std::io::Write;

use encke_protocol::Response;

use super::writer::Http1Writer;
use crate::buffers::Buffers;
use crate::clock::Monotonic;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::task::Task;
use crate::connection::exchange::writer::ResponseWriter;
use crate::connection::exchange::{ConnectionFacts, Exchange};
use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::connection::websocket::OpenedChannel;
use crate::http::Rejection;
use crate::http::body::{Incoming, too_late};
use crate::settings::NetSettings;

/// HTTP/1.1 on a connection.
#[derive(Debug)]
pub(crate) struct Http1 {
    pub(crate) exchange: Exchange,
    /// Received bytes that are not parsed yet.
    pub(super) input: Vec<u8>,
    /// The body that is being received, once the head is complete.
    pub(super) body: Option<Incoming>,
    /// When the body must be complete, if there is one.
    pub(super) body_until: Option<Monotonic>,
    /// The header of the PROXY protocol is still to come.
    pub(super) awaits_proxy: bool,
    /// The client has closed its side: it sends nothing more.
    pub(super) is_half_closed: bool,
}

/// What the wire shares with its connection.
#[derive(Debug)]
pub(crate) struct SharedWithWire<'a> {
    pub(crate) facts: &'a mut ConnectionFacts,
    /// Requests so far, as far as they can be counted.
    pub(crate) requests: &'a mut u16,
    /// The socket has not taken all output.
    pub(crate) is_blocked: bool,
}

/// What becomes of the connection behind its input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AfterInput {
    /// It goes on.
    Http1,
    /// These bytes and all that follow are HTTP/2.
    Http2(Vec<u8>),
    /// Its socket is with a handshake thread.
    Handshake,
}

impl Http1 {
    /// A connection between two requests. `awaits_proxy`: it begins with a header of the PROXY protocol.
    pub(crate) fn new(id: ExchangeId, awaits_proxy: bool) -> Self {
        let place = ExchangePlace {
            exchange: id,
            connection: id,
        };
        Http1 {
            exchange: Exchange::new(place),
            input: Vec::new(),
            body: None,
            body_until: None,
            awaits_proxy,
            is_half_closed: false,
        }
    }

    /// A subscription that was at rest.
    pub(crate) fn subscribed(id: ExchangeId, http_1_0: bool, keep_alive: bool) -> Self {
        let mut wire = Http1::new(id, false);
        wire.exchange = Exchange::subscribed(wire.exchange.place, http_1_0);
        wire.exchange.facts.keep_alive = keep_alive;
        wire
    }

    /// Whether the next request may be looked at.
    pub(crate) fn reads(&self, is_blocked: bool) -> bool {
        self.exchange.is_receiving() && !is_blocked
    }

    /// Whether the client has sent as much ahead as it may.
    pub(crate) fn has_enough(
        &self,
        is_blocked: bool,
        settings: &NetSettings,
        buffers: &Buffers,
    ) -> bool {
        if self.reads(is_blocked) || self.exchange.is_listener() {
            return false;
        }
        self.input.len() >= settings.pipeline_bytes_max
            || !self.input.is_empty() && buffers.are_crowded()
    }

    /// Whether nothing of a request has arrived, and nothing is being done.
    pub(crate) fn is_idle(&self) -> bool {
        self.exchange.is_receiving()
            && self.input.is_empty()
            && self.body.is_none()
            && !self.awaits_proxy
            && !self.is_half_closed
    }

    /// Whether nothing matters but that it is subscribed.
    pub(crate) fn is_only_subscribed(&self) -> bool {
        matches!(self.exchange.task, Task::Subscribed)
            && self.input.is_empty()
            && !self.is_half_closed
    }

    /// Whether another process can take it over: nothing is being done, and what was received can be looked at again.
    pub(crate) fn can_move(&self, is_blocked: bool) -> bool {
        let waits = match self.exchange.task {
            Task::Receiving | Task::Subscribed => true,
            // The client takes the response, and may send the next request behind it.
            Task::Responded => is_blocked && self.exchange.facts.keep_alive,
            _ => false,
        };
        waits && self.body.is_none() && !self.is_half_closed
    }

    /// What was received and not handled, and whether that has to begin with a header of the PROXY protocol.
    pub(crate) fn into_input(self) -> (Vec<u8>, bool) {
        (self.input, self.awaits_proxy)
    }

    /// The same with what was received in another process.
    pub(crate) fn with_input(self, input: Vec<u8>) -> Self {
        Http1 { input, ..self }
    }

    /// What it holds in memory, beside its own size.
    pub(crate) fn bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, Incoming::bytes);
        self.input.capacity() + body + self.exchange.bytes()
    }

    /// A connection begins that has to name its client first.
    pub(crate) fn await_proxy(&mut self, cx: &mut Context<'_>) {
        let timeout = cx.settings.request_timeout;
        self.exchange.timer.deadline = Some(cx.clock.monotonic().after(timeout));
        cx.push(ConnectionEffect::Remind(self.exchange.place.exchange));
    }

    /// Whether its request opens a channel.
    pub(crate) fn opens_channel(&self) -> bool {
        self.exchange.opens_channel()
    }

    /// Answers the request that opens a channel.
    pub(crate) fn into_channel(self, cx: &mut Context<'_>) -> Option<OpenedChannel> {
        let Task::Opened(opening) = self.exchange.task else {
            return None;
        };
        let accept = self.exchange.facts.accept;
        let out = &mut cx.effects.output;
        let start = out.len();
        out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ");
        out.extend_from_slice(accept.as_ref().map_or(&[], |accept| &accept[..]));
        out.extend_from_slice(b"\r\n");
        if let Some(deflate) = self.exchange.facts.deflate {
            // Writing to a vector does not fail.
            let _ = write!(
                out,
                "Sec-WebSocket-Extensions: {}\r\n",
                deflate.field_value()
            );
        }
        out.extend_from_slice(&opening.response.fields);
        out.extend_from_slice(b"\r\n");
        let head_bytes = out.len() - start;
        let exchange = self.exchange.place.exchange;
        cx.requests.begin_response(exchange, 101, head_bytes);
        Some(OpenedChannel {
            opening: *opening,
            deflate: self.exchange.facts.deflate.is_some(),
            input: self.input,
        })
    }

    /// Keeps a quiet worker's connection alive.
    pub(crate) fn beat(&mut self, cx: &mut Context<'_>) {
        if let Some(beat) = self.exchange.worker_heartbeat() {
            let id = self.exchange.place.exchange;
            let mut writer = Http1Writer::new(id, self.exchange.facts.http_1_0, false, false);
            writer.part(beat, false, cx);
        }
    }

    /// Refuses a request that was not complete in time.
    pub(crate) fn time_out(&mut self, shared: &SharedWithWire<'_>, cx: &mut Context<'_>) {
        let now = cx.clock.monotonic();
        let rejection = match shared.facts.turned_away {
            Some(denied) => denied.refused(),
            None => too_late(self.body_until.is_some_and(|until| now >= until)),
        };
        self.refuse(&rejection, shared.facts, cx);
    }

    /// Refuses a request whose end is not known: responds, then discards what still arrives, so that the response is not lost
    /// in a reset.
    pub(crate) fn refuse(
        &mut self,
        rejection: &Rejection,
        facts: &ConnectionFacts,
        cx: &mut Context<'_>,
    ) {
        // What came of its head. The input is not needed any more.
        let input = std::mem::take(&mut self.input);
        if self.exchange.is_receiving() && self.body.is_none() {
            self.exchange.name_reader_of_input(&input, facts, cx);
        }
        self.refuse_named(&input, rejection, cx);
    }

    /// The same for a request of which is known who may read the response.
    pub(super) fn refuse_named(
        &mut self,
        input: &[u8],
        rejection: &Rejection,
        cx: &mut Context<'_>,
    ) {
        let place = self.exchange.place;
        cx.requests.begin_refused_request(place, input, cx.peer);
        let response = cx.rejection(place, rejection);
        self.answer_last(&response, cx);
    }

    /// The same, with the response of a protocol.
    pub(super) fn refuse_with(&mut self, response: &Response, cx: &mut Context<'_>) {
        cx.note_response(self.exchange.place, response, None);
        self.answer_last(response, cx);
    }

    pub(super) fn answer_last(&mut self, response: &Response, cx: &mut Context<'_>) {
        self.body = None;
        let mut writer = Http1Writer::new(self.exchange.place.exchange, false, false, false);
        self.exchange.answer_last(response, &mut writer, cx);
        // Nothing follows it, and what the socket does not take now is not worth waiting for.
        self.exchange.task = Task::Receiving;
        cx.push(ConnectionEffect::Linger);
    }

    pub(super) fn writer(&self, shared: &SharedWithWire<'_>) -> Http1Writer {
        Http1Writer::new(
            self.exchange.place.exchange,
            self.exchange.facts.http_1_0,
            shared.is_blocked,
            !shared.facts.tls,
        )
    }
}
