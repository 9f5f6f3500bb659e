//! HTTP/1.1 on a connection: one exchange at a time, the next when the response to the last one is out.

use encke_protocol::{Body, Response};

use super::close::CloseReason;
use super::context::{Context, ExchangePlace};
use super::effect::ConnectionEffect;
use super::exchange::task::Task;
use super::exchange::writer::{ResponseShape, ResponseWriter};
use super::exchange::{ConnectionFacts, Exchange, ExchangeEvent, no_place};
use super::exchange_id::ExchangeId;
use crate::buffers::Buffers;
use crate::clients::addresses::Denied;
use crate::clock::Monotonic;
use crate::http::Rejection;
use crate::http::body::Incoming;
use crate::http::framing::ResponseFraming;
use crate::http::head::{self, NO_FIELDS};
use crate::http::response::{Shape, encode};
use crate::http::take::{ParseStep, take};
use crate::http2::frames::{PREFACE, PREFACE_LINE};
use crate::proxy::{self, NotPreface};
use crate::settings::NetSettings;

/// HTTP/1.1 on a connection.
#[derive(Debug)]
pub(crate) struct Http1 {
    pub(crate) exchange: Exchange,
    /// Received bytes that are not parsed yet.
    input: Vec<u8>,
    /// The body that is being received, once the head is complete.
    body: Option<Incoming>,
    /// When the body must be complete, if there is one.
    body_until: Option<Monotonic>,
    /// The header of the PROXY protocol is still to come.
    awaits_proxy: bool,
    /// The client has closed its side: it sends nothing more.
    is_half_closed: bool,
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
    pub(crate) fn subscribed(id: ExchangeId, http_1_0: bool) -> Self {
        let mut wire = Http1::new(id, false);
        wire.exchange = Exchange::subscribed(wire.exchange.place, http_1_0);
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

    /// Handles received bytes. `full`: the socket holds more.
    pub(crate) fn received(
        &mut self,
        bytes: &[u8],
        full: bool,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        if self.reads(shared.is_blocked) {
            self.exchange.begin(shared.facts);
            return self.take_input(bytes, shared, cx);
        }
        if self.exchange.is_listener() {
            // A subscriber has no reason to send this much.
            if full {
                cx.push(ConnectionEffect::Close(CloseReason::Talkative));
            }
        } else {
            // Most other clients read the response only after they have sent everything.
            self.input.extend_from_slice(bytes);
        }
        AfterInput::Http1
    }

    /// The client has closed its side. It gets the responses to its earlier requests; for a subscriber it is a hang-up.
    pub(crate) fn half_closed(&mut self, cx: &mut Context<'_>) {
        let is_waiting = match &self.exchange.task {
            Task::AwaitingDispatch { .. } => !self.exchange.waits_long(),
            Task::AwaitingCommit(_)
            | Task::AwaitingLoad(_)
            | Task::AwaitingKeys(_)
            | Task::AwaitingOrder(_)
            | Task::AwaitingRead(_)
            | Task::AwaitingCompression(_)
            | Task::Streaming { .. }
            | Task::Responded => true,
            Task::Receiving | Task::AwaitingRecord(_) | Task::Working { .. } | Task::Subscribed => {
                false
            }
        };
        if !is_waiting {
            return cx.push(ConnectionEffect::Close(CloseReason::HangUp));
        }
        self.is_half_closed = true;
        if self.input.is_empty() {
            self.exchange.facts.keep_alive = false;
        }
    }

    /// Handles an event of the exchange.
    pub(crate) fn on(
        &mut self,
        event: ExchangeEvent,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) {
        let mut writer = self.writer(shared);
        self.exchange.on(event, &mut writer, cx);
        self.notice_half_close(cx);
    }

    /// The socket has taken everything: the next part or the next request follows.
    pub(crate) fn drained(
        &mut self,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        self.exchange.end_wait_for_client(cx);
        if self.exchange.is_streaming() {
            let mut writer = self.writer(shared);
            self.exchange.on(ExchangeEvent::Drained, &mut writer, cx);
        }
        if !cx.effects.output.is_empty() {
            return AfterInput::Http1;
        }
        if self.exchange.is_receiving() {
            // An invitation to send the body was taken: what came meanwhile is looked at, and the rest has a deadline again.
            return self.next_request(shared, cx);
        }
        if !self.exchange.task.is_over() {
            return AfterInput::Http1;
        }
        cx.requests.complete_request(self.exchange.place.exchange);
        if !self.exchange.facts.keep_alive {
            cx.push(ConnectionEffect::Close(last_reason(*shared.requests, cx)));
            return AfterInput::Http1;
        }
        self.exchange.begin(shared.facts);
        self.next_request(shared, cx)
    }

    /// Keeps a quiet worker's connection alive.
    pub(crate) fn beat(&mut self, cx: &mut Context<'_>) {
        if let Some(beat) = self.exchange.worker_heartbeat() {
            let id = self.exchange.place.exchange;
            let mut writer = Http1Writer::new(id, self.exchange.facts.http_1_0, false);
            writer.part(beat, false, cx);
        }
    }

    /// Refuses a request that was not complete in time.
    pub(crate) fn time_out(&mut self, shared: &SharedWithWire<'_>, cx: &mut Context<'_>) {
        if shared.facts.turned_away {
            return self.refuse(&no_place(), cx);
        }
        let now = cx.clock.monotonic();
        let rejection = if self.body_until.is_some_and(|until| now >= until) {
            Rejection::new(408, "body_timeout", "the request's body took too long")
        } else {
            Rejection::new(408, "timeout", "the request took too long to arrive")
        };
        self.refuse(&rejection, cx);
    }

    /// Refuses a request whose end is not known: responds, then discards what still arrives, so that the response is not lost
    /// in a reset.
    pub(crate) fn refuse(&mut self, rejection: &Rejection, cx: &mut Context<'_>) {
        let place = self.exchange.place;
        // What came of its head. The input is not needed any more.
        let input = std::mem::take(&mut self.input);
        cx.requests.begin_refused_request(place, &input, cx.peer);
        let response = cx.rejection(place, rejection);
        self.answer_last(&response, cx);
    }

    /// The same, with the response of a protocol.
    fn refuse_with(&mut self, response: &Response, cx: &mut Context<'_>) {
        cx.note_refusal(self.exchange.place, response);
        self.answer_last(response, cx);
    }

    fn answer_last(&mut self, response: &Response, cx: &mut Context<'_>) {
        self.body = None;
        let mut writer = Http1Writer::new(self.exchange.place.exchange, false, false);
        self.exchange.answer_last(response, &mut writer, cx);
        // Nothing follows it, and what the socket does not take now is not worth waiting for.
        self.exchange.task = Task::Receiving;
        cx.push(ConnectionEffect::Linger);
    }

    /// Continues with input that was left in the buffers while a request was in work.
    fn next_request(
        &mut self,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        let next = self.take_input(&[], shared, cx);
        if next == AfterInput::Http1 && self.exchange.is_receiving() {
            cx.push(ConnectionEffect::Receive);
        }
        self.notice_half_close(cx);
        next
    }

    /// The client has closed its side before: looks at what that means for what the connection does now.
    fn notice_half_close(&mut self, cx: &mut Context<'_>) {
        if self.is_half_closed {
            self.half_closed(cx);
        }
    }

    /// Takes requests off the input until one must wait.
    fn take_input(
        &mut self,
        new: &[u8],
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        let mut kept = std::mem::take(&mut self.input);
        if !kept.is_empty() {
            kept.extend_from_slice(new);
        }
        let mut rest = if kept.is_empty() { new } else { &kept[..] };
        while !rest.is_empty() && self.reads(shared.is_blocked) {
            match self.take_step(&mut rest, shared, cx) {
                Ok(Step::Taken) => {}
                Ok(Step::More) => break,
                Ok(Step::Discard) => return AfterInput::Http1,
                Ok(Step::Leave(next)) => return next,
                Err(rejection) => {
                    self.refuse(&rejection, cx);
                    return AfterInput::Http1;
                }
            }
        }
        if !rest.is_empty() {
            self.input = rest.to_vec();
        }
        if self.reads(shared.is_blocked) {
            self.await_rest(cx);
        }
        AfterInput::Http1
    }

    /// Sets the deadline for the rest of a request.
    fn await_rest(&mut self, cx: &mut Context<'_>) {
        let exchange = self.exchange.place.exchange;
        let timer = &mut self.exchange.timer;
        if self.body.is_none() && self.input.is_empty() {
            if !self.awaits_proxy {
                timer.deadline = None;
            }
            return;
        }
        let now = cx.clock.monotonic();
        let deadline = now.after(cx.settings.request_timeout);
        // A head has one deadline, so that single bytes do not extend it. A body has a new one with each part, because it may be
        // large.
        if self.body.is_some() {
            let until = now.after(cx.settings.body_timeout);
            let until = *self.body_until.get_or_insert(until);
            timer.deadline = Some(deadline.min(until));
        } else {
            timer.deadline.get_or_insert(deadline);
        }
        cx.push(ConnectionEffect::Remind(exchange));
        cx.push(ConnectionEffect::Grow(exchange));
    }

    /// Takes one step: a complete request, its head, or a part of its body.
    fn take_step(
        &mut self,
        rest: &mut &[u8],
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Step, Rejection> {
        if self.awaits_proxy {
            return self.take_proxy_header(rest, shared, cx);
        }
        let mut body = self.body.take();
        if *shared.requests == 0 && body.is_none() {
            if rest.len() < PREFACE.len() && PREFACE.starts_with(rest) {
                return Ok(Step::More);
            }
            if rest.starts_with(PREFACE_LINE) {
                // What is no preface behind its first line is a violation of HTTP/2, to which it says so.
                return Ok(Step::Leave(AfterInput::Http2(rest.to_vec())));
            }
        }
        let before = *rest;
        let limits = cx.settings.request_limits();
        let is_admitted = body.is_some();
        let step = take(&mut body, rest, limits, |head, fields, content| {
            self.body_until = None;
            let keep_alive = count_request(shared.requests, cx);
            let mut writer = self.writer(shared);
            let facts = *shared.facts;
            let how = (is_admitted, keep_alive);
            self.exchange
                .ask(head, fields, content, how, &facts, &mut writer, cx);
        });
        let step = match step {
            Ok(step) => step,
            Err(rejection) => {
                let place = self.exchange.place;
                cx.requests.begin_refused_request(place, before, cx.peer);
                return Err(rejection);
            }
        };
        self.body = body;
        if let ParseStep::Head { invites } = step {
            if let Err(response) = self.admit_head(shared, cx) {
                // What comes of the body is discarded.
                self.refuse_with(&response, cx);
                return Ok(Step::Discard);
            }
            if invites {
                let invitation = b"HTTP/1.1 100 Continue\r\n\r\n";
                cx.effects.output.extend_from_slice(invitation);
            }
        }
        Ok(match step {
            ParseStep::More => Step::More,
            ParseStep::Head { .. } | ParseStep::Request => Step::Taken,
        })
    }

    /// A head is complete whose body is still to come.
    fn admit_head(
        &mut self,
        shared: &SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Box<Response>> {
        let Some(body) = &self.body else {
            return Ok(());
        };
        let mut fields = NO_FIELDS;
        // It was parsed before it was kept.
        let Ok(Some((head, count))) = head::parse(&body.head, &mut fields) else {
            return Ok(());
        };
        // Its time counts from now on.
        let place = self.exchange.place;
        let fields = &fields[..count];
        cx.requests.begin_request(place, &head, fields, cx.peer);
        self.exchange.admit_head(&head, fields, shared.facts, cx)
    }

    /// Takes the header of the PROXY protocol off the input.
    fn take_proxy_header(
        &mut self,
        rest: &mut &[u8],
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Step, Rejection> {
        let header = match proxy::parse(rest) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Step::More),
            Err(NotPreface(why)) => return Err(Rejection::new(400, "proxy_protocol", why)),
        };
        *rest = &rest[header.bytes..];
        self.awaits_proxy = false;
        shared.facts.tls = header.tls;
        // A request has time of its own.
        self.exchange.timer.deadline = None;
        let connection = self.exchange.place.connection;
        if let Some(client) = header.client {
            cx.requests.keep_client(connection, client);
            let named = cx.clients.name(connection, client, cx.clock.now());
            named.map_err(Denied::refused)?;
        }
        if cx.makes_handshakes {
            let received = std::mem::take(rest).to_vec();
            cx.push(ConnectionEffect::Handshake(received, header.client));
            return Ok(Step::Leave(AfterInput::Handshake));
        }
        Ok(Step::Taken)
    }

    fn writer(&self, shared: &SharedWithWire<'_>) -> Http1Writer {
        Http1Writer::new(
            self.exchange.place.exchange,
            self.exchange.facts.http_1_0,
            shared.is_blocked,
        )
    }
}

/// Counts a request of a connection. Whether another one may follow.
pub(crate) fn count_request(requests: &mut u16, cx: &Context<'_>) -> bool {
    *requests = requests.saturating_add(1);
    last_reason(*requests, cx) == CloseReason::Done
}

/// The reason for closing a connection after a response.
pub(crate) fn last_reason(requests: u16, cx: &Context<'_>) -> CloseReason {
    let requests_max = cx.settings.requests_per_connection;
    match requests_max > 0 && requests >= requests_max {
        true => CloseReason::RequestsPerConnection,
        false => CloseReason::Done,
    }
}

/// What a step through the input led to.
enum Step {
    /// Something was taken, and more may follow.
    Taken,
    /// More must come.
    More,
    /// Nothing that follows is looked at.
    Discard,
    /// What follows is not for this wire.
    Leave(AfterInput),
}

/// Writes responses as HTTP/1.1.
struct Http1Writer {
    exchange: ExchangeId,
    framing: ResponseFraming,
    /// The socket has not taken what was written before.
    is_blocked: bool,
}

impl Http1Writer {
    fn new(exchange: ExchangeId, http_1_0: bool, is_blocked: bool) -> Self {
        Http1Writer {
            exchange,
            framing: framing(http_1_0),
            is_blocked,
        }
    }
}

impl ResponseWriter for Http1Writer {
    fn begin(&mut self, response: &Response, shape: ResponseShape<'_>, cx: &mut Context<'_>) {
        self.framing = framing(shape.http_1_0);
        let request = cx.requests.get_mut(self.exchange);
        let request_id = request.and_then(|request| request.text.request_id());
        let request_id = request_id.and_then(|id| std::str::from_utf8(id).ok());
        let shape = Shape {
            head_only: shape.head_only,
            keep_alive: shape.keep_alive,
            cross_origin: cx.router.cross_origin(shape.reader),
            hsts: cx.hsts.filter(|_| shape.tls),
            framing: self.framing,
            request_id,
        };
        let date = cx.clock.date();
        let head_bytes = encode(response, shape, date, &mut cx.effects.output);
        cx.requests
            .begin_response(self.exchange, response.status, head_bytes);
    }

    fn part(&mut self, part: &[u8], is_last: bool, cx: &mut Context<'_>) {
        let out = &mut cx.effects.output;
        self.framing.part(part, out);
        if is_last {
            self.framing.end(out);
        }
    }

    fn is_blocked(&self, cx: &Context<'_>) -> bool {
        self.is_blocked || !cx.effects.output.is_empty()
    }

    fn awaits_window(&mut self, _: &mut Context<'_>) -> bool {
        false
    }

    fn grant_read(&mut self, wanted: usize) -> usize {
        wanted
    }

    fn read_arrived(&mut self) {}

    fn leave(&mut self, _: &mut Context<'_>) {}
}

fn framing(http_1_0: bool) -> ResponseFraming {
    match http_1_0 {
        true => ResponseFraming::Connection,
        false => ResponseFraming::Chunks,
    }
}

/// Whether the length of a response's body is known when it begins.
pub(crate) fn is_sized(response: &Response) -> bool {
    !matches!(response.body, Body::Open(_) | Body::Parts(_))
}
