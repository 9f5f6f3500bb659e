//! The exchanges of an HTTP/2 connection.

use encke_protocol::Headers;
use encke_stream::Offset;
use h2::Reason;

use super::input::StreamInput;
use super::state::Http2;
use super::stream::{Stream, mark_dirty};
use crate::clock::Monotonic;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::task::Task;
use crate::connection::exchange::writer::ResponseWriter;
use crate::connection::exchange::{Exchange, ExchangeEvent};
use crate::connection::exchange_id::ExchangeId;
use crate::connection::request_count::count_request;
use crate::http::Rejection;
use crate::http::body::too_large;
use crate::http2::frames::AcceptedStream;
use crate::http2::request::Http2Request;
use crate::http2::stream::{BodyStep, ChannelInput, Http2Stream, IncomingBody};

impl Http2 {
    /// Handles an event of an exchange.
    pub(crate) fn on(
        &mut self,
        id: ExchangeId,
        event: ExchangeEvent,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if matches!(event, ExchangeEvent::TimedOut) && stream.time_out(&mut self.frames, cx) {
            return self.settle(id, cx);
        }
        if stream.channel_mut().is_some() {
            return match event {
                ExchangeEvent::Queued => {
                    self.with_channel(id, is_blocked, cx, |websocket, takes_nothing, cx| {
                        websocket.on(id, event, takes_nothing, cx);
                    });
                }
                _ => self.channel_timed_out(id, is_blocked, cx),
            };
        }
        let mut exchange = stream.take_exchange(self.id);
        let mut writer = stream.writer(&mut self.frames, is_blocked);
        exchange.on(event, &mut writer, cx);
        stream.exchange = Some(exchange);
        self.open_channel(id, is_blocked, cx);
    }

    /// Begins an exchange: its request is answered now, or when its body is complete.
    pub(super) fn begin_exchange(
        &mut self,
        accepted: AcceptedStream,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let (request, mut respond) = accepted;
        if self.frames.leaving {
            // The client may send the request again on another connection.
            respond.send_reset(Reason::REFUSED_STREAM);
            return mark_dirty(&mut self.frames, cx);
        }
        let id = cx.ids.begin(self.id);
        let place = self.place(id);
        let mut stream = Stream::new(id, Http2Stream::new(respond));
        let mut exchange = Box::new(Exchange::new(place));
        exchange.begin(&self.facts);
        self.order.push(id);
        cx.counts.http2_streams += 1;
        cx.clients.begin(id, self.id);
        if !count_request(&mut self.requests, cx) {
            self.leave(cx);
        }
        let (request, body) = Http2Request::of(request);
        let (head, fields) = (request.head(), request.fields());
        cx.requests.begin_request(place, &head, &fields, cx.peer);
        exchange.facts.head_only = head.method == "HEAD";
        let bytes_max = cx.settings.request_limits().body_bytes_max(head.method);
        let head_bytes_max = cx.settings.request_limits().head_bytes_max;
        let checked = request.check(&fields, head_bytes_max);
        let checked = checked.and_then(|length| match length {
            Some(length) if length > bytes_max as u64 => Err(too_large(bytes_max)),
            length => Ok(length),
        });
        let mut writer = stream.writer(&mut self.frames, is_blocked);
        match checked {
            Err(rejection) => {
                exchange.name_reader(&fields, &self.facts, cx);
                exchange.reject(&rejection, &mut writer, cx);
            }
            Ok(_) if head.protocol.is_some() || body.is_end_stream() => {
                let how = (false, false);
                exchange.ask(
                    &head,
                    &fields,
                    Vec::new(),
                    how,
                    &self.facts,
                    &mut writer,
                    cx,
                );
                if head.protocol.is_some() {
                    stream.input = StreamInput::Handshake(ChannelInput::new(body));
                }
            }
            Ok(length) => match exchange.admit_head(&head, &fields, &self.facts, cx) {
                Err(response) => exchange.respond(&response, &mut writer, cx),
                Ok(()) => {
                    // The only expectation that passes the checks.
                    if Headers(&fields).first("Expect").is_some() {
                        stream.sender.invite();
                        mark_dirty(&mut self.frames, cx);
                    }
                    drop(fields);
                    let until = cx.clock.monotonic().after(cx.settings.body_timeout);
                    let body = IncomingBody::new(request, body, length, until);
                    stream.input = StreamInput::Body(Box::new(body));
                    await_body(&mut exchange, until, cx);
                    cx.push(ConnectionEffect::Grow(id));
                }
            },
        }
        let is_receiving = stream.is_receiving();
        stream.exchange = Some(exchange);
        self.streams.insert(id, Box::new(stream));
        if is_receiving {
            self.receive_body(id, is_blocked, cx);
        } else {
            self.open_channel(id, is_blocked, cx);
        }
    }

    /// Looks at a stream after frames have arrived.
    pub(super) fn receive_on_stream(
        &mut self,
        id: ExchangeId,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.sender.is_reset() {
            self.end_exchange(id, CloseReason::HangUp, cx);
        } else {
            self.receive_body(id, is_blocked, cx);
            self.receive_on_channel(id, is_blocked, cx);
        }
    }

    /// Ends what an exchange does because the server stops.
    pub(super) fn on_stop(&mut self, id: ExchangeId, is_blocked: bool, cx: &mut Context<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let task = stream.exchange.as_ref().map(|exchange| &exchange.task);
        if matches!(task, Some(Task::AwaitingRecord(..))) {
            self.on(id, ExchangeEvent::TimedOut, is_blocked, cx);
        }
    }

    /// Takes what has arrived of a body, and asks the protocols when it is complete.
    pub(super) fn receive_body(&mut self, id: ExchangeId, is_blocked: bool, cx: &mut Context<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let StreamInput::Body(body) = &mut stream.input else {
            return;
        };
        let limits = cx.settings.request_limits();
        let until = body.until;
        let bytes_max = limits.body_bytes_max(body.method());
        let step = body.receive(bytes_max);
        if step != (BodyStep::More { grown: false }) {
            // The windows are open again.
            mark_dirty(&mut self.frames, cx);
        }
        match step {
            BodyStep::More { grown: false } => {}
            BodyStep::More { grown: true } => {
                if let Some(exchange) = &mut stream.exchange {
                    await_body(exchange, until, cx);
                }
                cx.push(ConnectionEffect::Grow(id));
            }
            BodyStep::TooLarge => self.refuse(id, &too_large(bytes_max), is_blocked, cx),
            BodyStep::Reset => self.end_exchange(id, CloseReason::HangUp, cx),
            BodyStep::Complete if self.frames.take_malformed_trailers(stream.sender.number()) => {
                self.end_exchange(id, CloseReason::Http2Violation, cx);
            }
            BodyStep::Complete => {
                let input = std::mem::replace(&mut stream.input, StreamInput::None);
                let StreamInput::Body(body) = input else {
                    return;
                };
                let (request, bytes) = body.into_parts();
                let (head, fields) = (request.head(), request.fields());
                let mut exchange = stream.take_exchange(self.id);
                let mut writer = stream.writer(&mut self.frames, is_blocked);
                let how = (true, false);
                exchange.ask(&head, &fields, bytes, how, &self.facts, &mut writer, cx);
                stream.exchange = Some(exchange);
                cx.push(ConnectionEffect::Weigh(id));
                self.settle(id, cx);
            }
        }
    }

    /// Refuses a request that is not complete.
    pub(crate) fn refuse(
        &mut self,
        id: ExchangeId,
        rejection: &Rejection,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.channel_mut().is_some() {
            // A message of the client has grown too large for the memory that is left.
            return self.end_exchange(id, CloseReason::BuffersMax, cx);
        }
        stream.refuse(rejection, &mut self.frames, is_blocked, self.id, cx);
        self.settle(id, cx);
    }

    /// The window of an exchange has opened: what it holds is sent, and it goes on.
    pub(super) fn writable(&mut self, id: ExchangeId, is_blocked: bool, cx: &mut Context<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let outbound = stream.continue_outbound(&mut self.frames, is_blocked, self.id, cx);
        let Some(outbound) = outbound else {
            return self.settle(id, cx);
        };
        let is_channel = stream.channel_mut().is_some();
        if let Some(reason) = outbound.close {
            return match is_channel {
                true => {
                    self.end_channel(id, reason, cx);
                    // Its side may have ended before.
                    self.receive_on_channel(id, is_blocked, cx);
                }
                false => self.end_exchange(id, reason, cx),
            };
        }
        cx.push(ConnectionEffect::Weigh(id));
        if is_channel {
            return self.channel_drained(id, is_blocked, cx);
        }
        self.resume(id, outbound.reached, is_blocked, cx);
    }

    /// An exchange takes output again.
    pub(super) fn resume(
        &mut self,
        id: ExchangeId,
        reached: Option<Offset>,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.is_subscribed() {
            cx.push(ConnectionEffect::Deliver(id, reached));
            return self.settle(id, cx);
        }
        self.on(id, ExchangeEvent::Drained, is_blocked, cx);
    }

    /// Keeps a quiet worker's exchange alive.
    pub(crate) fn beat(&mut self, id: ExchangeId, is_blocked: bool, cx: &mut Context<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let takes_nothing = stream.outbound.is_some();
        if stream.channel_mut().is_some() {
            if !takes_nothing {
                self.with_channel(id, is_blocked, cx, |websocket, _, cx| websocket.beat(cx));
            }
            return;
        }
        let exchange = stream.exchange.as_ref();
        let beat = exchange.and_then(|exchange| exchange.worker_heartbeat());
        if let Some(beat) = beat
            && stream.outbound.is_none()
        {
            stream
                .writer(&mut self.frames, is_blocked)
                .part(beat, false, cx);
            self.settle(id, cx);
        }
    }
}

/// Sets the deadline for the next part of a body.
fn await_body(exchange: &mut Exchange, until: Monotonic, cx: &mut Context<'_>) {
    let timeout = cx.settings.request_timeout;
    let deadline = cx.clock.monotonic().after(timeout).min(until);
    exchange.timer.deadline = Some(deadline);
    cx.push(ConnectionEffect::Remind(exchange.place.exchange));
}
