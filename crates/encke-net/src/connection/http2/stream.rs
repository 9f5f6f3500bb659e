//! A stream of an HTTP/2 connection: an exchange, whose request and response are frames. In place of the socket's buffer it has
//! the windows of the stream and of its connection.

use encke_protocol::Response;
use h2::Reason;

use super::input::{StreamChannel, StreamInput};
use crate::buffers::BufferShare;
use crate::clock::Monotonic;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::Exchange;
use crate::connection::exchange::task::Task;
use crate::connection::exchange::writer::{ResponseShape, ResponseWriter, is_sized};
use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::connection::outbound::Outbound;
use crate::connection::timer::Timer;
use crate::http::Rejection;
use crate::http::body::too_late;
use crate::http2::frames::{Http2Frames, SEND_BYTES_MAX};
use crate::http2::read_ahead::StreamReadAhead;
use crate::http2::response::{self, HeadShape};
use crate::http2::stream::Http2Stream;

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    id: ExchangeId,
    pub(super) sender: Http2Stream,
    /// `None` while it only delivers a feed, and the client takes it.
    pub(super) exchange: Option<Box<Exchange>>,
    pub(super) input: StreamInput,
    /// What its windows have not taken.
    pub(super) outbound: Option<Box<Outbound>>,
    pub(super) read_ahead: StreamReadAhead,
    /// Its share of the memory of all connections.
    pub(super) memory: BufferShare,
    /// Everything of the response is written.
    is_written: bool,
}

impl Stream {
    pub(super) fn new(id: ExchangeId, sender: Http2Stream) -> Self {
        Stream {
            id,
            sender,
            exchange: None,
            input: StreamInput::None,
            outbound: None,
            read_ahead: StreamReadAhead::default(),
            memory: BufferShare::default(),
            is_written: false,
        }
    }

    /// The exchange, which is subscribed if nothing else is known of it.
    pub(super) fn take_exchange(&mut self, connection: ExchangeId) -> Box<Exchange> {
        let place = ExchangePlace {
            exchange: self.id,
            connection,
        };
        let exchange = self.exchange.take();
        exchange.unwrap_or_else(|| subscribed(place))
    }

    pub(super) fn activate(&mut self, connection: ExchangeId) -> &mut Exchange {
        let exchange = self.take_exchange(connection);
        self.exchange.insert(exchange)
    }

    /// The channel that it is, if it is one.
    pub(super) fn channel_mut(&mut self) -> Option<&mut StreamChannel> {
        match &mut self.input {
            StreamInput::Channel(channel) => Some(channel),
            _ => None,
        }
    }

    pub(super) fn timer(&self) -> Timer {
        match (&self.input, &self.exchange) {
            (StreamInput::Channel(channel), _) => channel.timer,
            (_, Some(exchange)) => exchange.timer,
            (_, None) => Timer::default(),
        }
    }

    pub(super) fn timer_mut(&mut self, connection: ExchangeId) -> &mut Timer {
        match &mut self.input {
            StreamInput::Channel(channel) => &mut channel.timer,
            _ => {
                let place = ExchangePlace {
                    exchange: self.id,
                    connection,
                };
                let exchange = self.exchange.get_or_insert_with(|| subscribed(place));
                &mut exchange.timer
            }
        }
    }

    /// The deadline that there is when everything was taken.
    fn deadline_at_rest(&self) -> Option<Monotonic> {
        match &self.input {
            StreamInput::Channel(channel) => channel.websocket.deadline(),
            _ => None,
        }
    }

    /// Gives up the exchange if only its feed matters.
    pub(super) fn rest(&mut self) {
        if self.outbound.is_none() && self.is_subscribed() {
            self.exchange = None;
        }
    }

    pub(super) fn is_subscribed(&self) -> bool {
        match &self.exchange {
            _ if matches!(self.input, StreamInput::Channel(_)) => false,
            None => true,
            Some(exchange) => matches!(exchange.task, Task::Subscribed),
        }
    }

    /// Whether its request is not complete.
    pub(super) fn is_receiving(&self) -> bool {
        matches!(self.input, StreamInput::Body(_))
    }

    /// Whether the response is out to the end, as far as there is one.
    pub(super) fn is_over(&self) -> bool {
        let exchange = self.exchange.as_ref();
        self.outbound.is_none() && exchange.is_some_and(|exchange| exchange.task.is_over())
    }

    /// Whether the client has the whole response, or gets it with what is written already.
    pub(super) fn is_complete(&self) -> bool {
        self.is_written && self.outbound.is_none()
    }

    pub(super) fn writer<'a>(
        &'a mut self,
        frames: &'a mut Http2Frames,
        is_blocked: bool,
    ) -> StreamWriter<'a> {
        StreamWriter {
            stream: self,
            frames,
            is_blocked,
        }
    }

    /// Sends bytes; with `ends` they are the last. Returns how many the windows and the socket take.
    pub(super) fn send(
        &mut self,
        bytes: &[u8],
        ends: bool,
        frames: &mut Http2Frames,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) -> usize {
        self.is_written = ends;
        if bytes.is_empty() && !ends {
            // What its windows allow stays reserved for what is read next: to ask for nothing gives it to the other streams.
            return 0;
        }
        let waiting = frames.unflushed + cx.effects.output.len();
        let room = SEND_BYTES_MAX.saturating_sub(waiting);
        if !bytes.is_empty() && (is_blocked || room == 0) {
            frames.starved = true;
            if !is_blocked {
                mark_dirty(frames, cx);
            }
            return 0;
        }
        let part = &bytes[..bytes.len().min(room)];
        let is_last = ends && part.len() == bytes.len();
        let Ok(count) = self.sender.send(part, is_last) else {
            cx.push(ConnectionEffect::Fail(self.id, CloseReason::HangUp));
            return bytes.len();
        };
        frames.sent_data(count);
        mark_dirty(frames, cx);
        if count > 0 {
            cx.ids.note_active(self.id);
            cx.requests.sent(self.id, count);
        }
        if count < bytes.len() {
            self.is_written = false;
            frames.starved = true;
        }
        count
    }

    /// Keeps what was not taken.
    pub(super) fn block(&mut self, outbound: Outbound, cx: &mut Context<'_>) {
        if let (StreamInput::Channel(_), Some(before)) = (&self.input, &mut self.outbound) {
            // Other messages.
            before.append(outbound.rest());
            return cx.push(ConnectionEffect::Weigh(self.id));
        }
        // The response ends behind it.
        self.is_written = outbound.close.is_some();
        self.outbound = Some(Box::new(outbound));
        cx.push(ConnectionEffect::Weigh(self.id));
    }

    /// Adds the last words to a subscriber, and the end of the response.
    pub(super) fn dismiss(&mut self, farewell: &[u8], reason: CloseReason) {
        let outbound = self.outbound.get_or_insert_default();
        outbound.dismiss(farewell, reason);
        self.is_written = true;
    }

    /// Bounds the time that the client has for what was not taken.
    pub(super) fn bound_wait(&mut self, connection: ExchangeId, cx: &mut Context<'_>) {
        let Some(outbound) = &self.outbound else {
            return;
        };
        let is_empty = outbound.rest().is_empty();
        let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
        let timer = self.timer_mut(connection);
        if timer.deadline.is_some() {
            return;
        }
        timer.deadline = Some(deadline);
        if let Some(exchange) = &mut self.exchange {
            exchange.wait_for_client(cx);
        }
        cx.push(ConnectionEffect::Remind(self.id));
        cx.push(ConnectionEffect::Weigh(self.id));
        if !is_empty && !cx.buffers.have_room() {
            cx.push(ConnectionEffect::Fail(self.id, CloseReason::BuffersMax));
        }
    }

    /// Sends what was not taken. Returns it when all of it is out.
    pub(super) fn continue_outbound(
        &mut self,
        frames: &mut Http2Frames,
        is_blocked: bool,
        connection: ExchangeId,
        cx: &mut Context<'_>,
    ) -> Option<Box<Outbound>> {
        let mut outbound = self.outbound.take()?;
        let ends = self.is_written;
        let sent = self.send(outbound.rest(), ends, frames, is_blocked, cx);
        self.is_written = ends;
        outbound.take(sent);
        let is_dismissal = outbound.is_dismissal();
        let is_out = outbound.rest().is_empty();
        let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
        let at_rest = self.deadline_at_rest();
        let timer = self.timer_mut(connection);
        if is_out {
            timer.deadline = at_rest;
            if let Some(exchange) = &mut self.exchange {
                exchange.end_wait_for_client(cx);
            }
            return Some(outbound);
        }
        // A subscriber that was sent a farewell gets no more time.
        if sent > 0 && !is_dismissal {
            timer.deadline = at_rest.or(Some(deadline));
        }
        self.outbound = Some(outbound);
        None
    }

    /// Whether its windows let it send.
    pub(super) fn has_capacity(&mut self) -> bool {
        self.sender.has_capacity()
    }

    /// Whether nothing would be taken now.
    pub(super) fn awaits_window(&mut self, frames: &mut Http2Frames, is_blocked: bool) -> bool {
        if !is_blocked && self.has_capacity() {
            return false;
        }
        frames.starved = true;
        true
    }

    /// What it holds for its client, in bytes: a part of what the streams of the connection may read ahead. What a channel holds
    /// of its client's messages is none of that.
    pub(super) fn bytes_ahead(&self) -> usize {
        match self.input {
            StreamInput::Channel(_) => self.outbound_bytes(),
            _ => self.bytes() + self.bytes_elsewhere(),
        }
    }

    /// What it holds in memory, beside its own size and [`Self::bytes_elsewhere`].
    pub(super) fn bytes(&self) -> usize {
        let outbound = self.outbound_bytes();
        let input = match &self.input {
            StreamInput::None | StreamInput::Handshake(_) => 0,
            StreamInput::Body(body) => body.held(),
            StreamInput::Channel(channel) => channel.bytes(),
        };
        let exchange = self.exchange.as_ref();
        let exchange = exchange.map_or(0, |exchange| exchange.bytes());
        match outbound + input + exchange {
            0 => 0,
            bytes => bytes + size_of::<Stream>() + size_of::<Exchange>(),
        }
    }

    /// What it holds and has a share of its own for.
    pub(super) fn bytes_elsewhere(&self) -> usize {
        let exchange = self.exchange.as_ref();
        exchange.map_or(0, |exchange| exchange.bytes_elsewhere())
    }

    fn outbound_bytes(&self) -> usize {
        let outbound = self.outbound.as_ref();
        outbound.map_or(0, |outbound| outbound.capacity())
    }

    /// Ends its output: nothing is written behind what is.
    pub(super) fn end_output(&mut self, frames: &mut Http2Frames, cx: &mut Context<'_>) {
        self.is_written = true;
        if self.outbound.is_none() {
            // Fails for one that is reset meanwhile, which the next look finds.
            let _ = self.sender.send(&[], true);
            mark_dirty(frames, cx);
        }
    }

    /// Ends it: with the end of its response, or with a reset.
    pub(super) fn end(&mut self, is_complete: bool, reason: CloseReason, cx: &Context<'_>) {
        if is_complete {
            // Nothing, if the end went out with the last bytes.
            let _ = self.sender.send(&[], true);
        } else if reason != CloseReason::HangUp {
            self.sender.reset(self.reset_code(reason));
            if let Some(label) = reason.label() {
                let cut = &cx.metrics.http2_streams_cut;
                cut.with_label_values(&[label]).inc();
            }
        }
    }

    /// A deadline has passed. False: that is the exchange's own.
    pub(super) fn time_out(&mut self, frames: &mut Http2Frames, cx: &mut Context<'_>) -> bool {
        let task = self.exchange.as_ref().map(|exchange| &exchange.task);
        if matches!(task, Some(Task::AwaitingRecord(..))) {
            return false;
        }
        if let Some(outbound) = &self.outbound {
            cx.push(ConnectionEffect::Fail(self.id, outbound.time_out_reason()));
            return true;
        }
        let StreamInput::Body(body) = &self.input else {
            return false;
        };
        let rejection = too_late(cx.clock.monotonic() >= body.until);
        let connection = self
            .exchange
            .as_ref()
            .map(|exchange| exchange.place.connection);
        if let Some(connection) = connection {
            self.refuse(&rejection, frames, false, connection, cx);
        }
        true
    }

    /// Refuses a request that is not complete. The end of the stream is known: what still arrives for it is discarded.
    pub(super) fn refuse(
        &mut self,
        rejection: &Rejection,
        frames: &mut Http2Frames,
        is_blocked: bool,
        connection: ExchangeId,
        cx: &mut Context<'_>,
    ) {
        self.input = StreamInput::None;
        let mut exchange = self.take_exchange(connection);
        exchange.timer.deadline = None;
        let mut writer = self.writer(frames, is_blocked);
        exchange.reject(rejection, &mut writer, cx);
        self.exchange = Some(exchange);
    }

    /// What it is reset with. A request that was not looked at may be sent again as it is.
    fn reset_code(&self, reason: CloseReason) -> Reason {
        match reason {
            CloseReason::Stopping if self.is_receiving() => Reason::REFUSED_STREAM,
            CloseReason::Http2Violation => Reason::PROTOCOL_ERROR,
            // Node 26 takes CANCEL and NO_ERROR for the end of the body.
            _ => Reason::INTERNAL_ERROR,
        }
    }
}

fn subscribed(place: ExchangePlace) -> Box<Exchange> {
    Box::new(Exchange::subscribed(place, false))
}

/// Writes the response of an exchange as frames of its stream.
pub(super) struct StreamWriter<'a> {
    stream: &'a mut Stream,
    frames: &'a mut Http2Frames,
    is_blocked: bool,
}

impl StreamWriter<'_> {
    fn write(&mut self, bytes: &[u8], ends: bool, cx: &mut Context<'_>) {
        let stream = &mut *self.stream;
        if let Some(outbound) = &mut stream.outbound {
            outbound.append(bytes);
            stream.is_written = ends;
            return cx.push(ConnectionEffect::Weigh(stream.id));
        }
        let sent = stream.send(bytes, ends, self.frames, self.is_blocked, cx);
        if sent < bytes.len() {
            stream.is_written = ends;
            let rest = Outbound::new(bytes[sent..].to_vec());
            stream.outbound = Some(Box::new(rest));
        }
    }
}

impl ResponseWriter for StreamWriter<'_> {
    fn begin(&mut self, response: &Response, shape: ResponseShape<'_>, cx: &mut Context<'_>) {
        let id = self.stream.id;
        let is_sized = is_sized(response);
        let bodiless = shape.head_only || matches!(response.status, 204 | 304);
        let body: &[u8] = match bodiless {
            true => &[],
            false => response.body.as_ref(),
        };
        let is_written = is_sized || bodiless;
        let head_shape = HeadShape {
            head_only: shape.head_only,
            cross_origin: cx.router.cross_origin(shape.reader),
            hsts: cx.hsts.filter(|_| shape.tls),
            request_id: cx.requests.request_id(id),
        };
        let head = response::head(response, head_shape, cx.clock.date());
        cx.requests.begin_response(id, response.status, 0);
        let ends = is_written && body.is_empty();
        match head {
            // One that is reset meanwhile is ended after the next poll.
            Some(head) => drop(self.stream.sender.respond(head, ends)),
            None => self.stream.sender.reset(Reason::INTERNAL_ERROR),
        }
        mark_dirty(self.frames, cx);
        self.write(body, is_written, cx);
    }

    fn part(&mut self, part: &[u8], is_last: bool, cx: &mut Context<'_>) {
        self.write(part, is_last, cx);
    }

    fn is_blocked(&self, _: &Context<'_>) -> bool {
        self.stream.outbound.is_some()
    }

    fn awaits_window(&mut self, _: &mut Context<'_>) -> bool {
        let awaits = self.stream.awaits_window(self.frames, self.is_blocked);
        if awaits {
            self.stream.outbound = Some(Box::default());
        }
        awaits
    }

    fn grant_read(&mut self, wanted: usize) -> usize {
        let read_ahead = &mut self.frames.read_ahead;
        read_ahead.grant(&mut self.stream.read_ahead, wanted)
    }

    fn read_arrived(&mut self) {
        let read_ahead = &mut self.frames.read_ahead;
        read_ahead.arrived(&mut self.stream.read_ahead);
    }

    fn leave(&mut self, cx: &mut Context<'_>) {
        self.frames.begin_leaving();
        mark_dirty(self.frames, cx);
    }
}

/// Has the frames polled before the shard waits.
pub(super) fn mark_dirty(frames: &mut Http2Frames, cx: &mut Context<'_>) {
    frames.dirty = true;
    // Each poll clears the mark, and what it leads to sets it again: one place in the list is enough.
    if !std::mem::replace(&mut frames.queued, true) {
        cx.push(ConnectionEffect::Flush);
    }
}
