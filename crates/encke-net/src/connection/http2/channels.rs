//! The channels of an HTTP/2 connection (RFC 8441): each has a stream, which carries its frames in both directions. What its client does
//! not take blocks it alone, and so does what the client sends ahead.

use super::input::{StreamChannel, StreamInput};
use super::state::Http2;
use super::stream::mark_dirty;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::outbound::Outbound;
use crate::connection::timer::{LINGER, Timer};
use crate::connection::websocket::{OpenedChannel, WebSocket};
use crate::http2::stream::InputStep;

impl Http2 {
    /// Gives something to the channel of a stream, and whether its client takes nothing now; sends what it writes. False: the stream
    /// has none.
    pub(crate) fn with_channel(
        &mut self,
        id: ExchangeId,
        is_blocked: bool,
        cx: &mut Context<'_>,
        give: impl FnOnce(&mut WebSocket, bool, &mut Context<'_>),
    ) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        let takes_nothing = stream.outbound.is_some();
        let Some(channel) = stream.channel_mut() else {
            return false;
        };
        if channel.closed.is_some() {
            return true;
        }
        let websocket = &mut channel.websocket;
        let ((), written) = collect(cx, |cx| give(websocket, takes_nothing, cx));
        let is_released = channel.input.release(websocket.input_bytes());
        if !takes_nothing {
            channel.websocket.set_deadline(&mut channel.timer, cx);
        }
        if is_released {
            mark_dirty(&mut self.frames, cx);
        }
        self.write(id, &written, is_blocked, cx);
        true
    }

    /// The feeds of the channel of a stream.
    pub(crate) fn feeds_of(&self, id: ExchangeId) -> Vec<ExchangeId> {
        match self.streams.get(&id).map(|stream| &stream.input) {
            Some(StreamInput::Channel(channel)) => channel.websocket.feeds(),
            _ => Vec::new(),
        }
    }

    /// The feed of a channel of which a message is sent in fragments.
    pub(crate) fn long_feed_of(&self, id: ExchangeId) -> Option<ExchangeId> {
        match self.streams.get(&id).map(|stream| &stream.input) {
            Some(StreamInput::Channel(channel)) => channel.websocket.long_feed(),
            _ => None,
        }
    }

    /// The number by which messages name a channel.
    pub(crate) fn channel_number(&self, id: ExchangeId) -> Option<u64> {
        match self.streams.get(&id).map(|stream| &stream.input) {
            Some(StreamInput::Channel(channel)) => channel.websocket.number(),
            _ => None,
        }
    }

    /// The close frame of a channel is written: its stream ends behind that.
    pub(crate) fn close_channel(
        &mut self,
        id: ExchangeId,
        reason: CloseReason,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let Some(channel) = stream.channel_mut() else {
            return;
        };
        channel.closed = Some(reason);
        stream.write_unsent(&mut self.frames, is_blocked, cx);
        match &mut stream.outbound {
            Some(outbound) => outbound.close = Some(reason),
            None => self.end_channel(id, reason, cx),
        }
        self.settle(id, cx);
    }

    /// Opens the channel of a stream if its handshake is accepted, or looks at what else has become of its exchange.
    pub(super) fn open_channel(&mut self, id: ExchangeId, is_blocked: bool, cx: &mut Context<'_>) {
        let place = self.place(id);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let Some(mut exchange) = stream.exchange.take_if(|exchange| exchange.opens_channel())
        else {
            return self.settle(id, cx);
        };
        let mut writer = stream.writer(&mut self.frames, is_blocked);
        let opening = exchange.accept_channel(&mut writer, cx);
        let input = std::mem::replace(&mut stream.input, StreamInput::None);
        let (Some(opening), StreamInput::Handshake(input)) = (opening, input) else {
            return self.end_exchange(id, CloseReason::Internal, cx);
        };
        let opened = OpenedChannel {
            opening,
            deflate: exchange.facts.deflate.is_some(),
            input: Vec::new(),
        };
        let (websocket, written) = collect(cx, |cx| WebSocket::new(place, opened, cx));
        let mut channel = StreamChannel {
            websocket,
            input,
            unsent: Vec::new(),
            timer: Timer::default(),
            is_half_closed: false,
            closed: None,
        };
        channel.websocket.set_deadline(&mut channel.timer, cx);
        stream.input = StreamInput::Channel(Box::new(channel));
        self.frames.channel_opened();
        self.write(id, &written, is_blocked, cx);
        if cx.stopping {
            self.leave_channel(id, is_blocked, cx);
        }
        self.receive_on_channel(id, is_blocked, cx);
    }

    /// Takes what has arrived for a channel.
    pub(super) fn receive_on_channel(
        &mut self,
        id: ExchangeId,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        while let Some(stream) = self.streams.get_mut(&id) {
            let takes_nothing = stream.outbound.is_some();
            let number = stream.sender.number();
            let Some(channel) = stream.channel_mut() else {
                return;
            };
            match channel.input.take() {
                InputStep::More => return,
                InputStep::Data(_) if channel.closed.is_some() => {
                    if channel.input.release(0) {
                        mark_dirty(&mut self.frames, cx);
                    }
                }
                InputStep::Data(data) => {
                    cx.ids.note_active(id);
                    self.with_channel(id, is_blocked, cx, |websocket, is_blocked, cx| {
                        websocket.received(&data, is_blocked, cx);
                    });
                }
                InputStep::End if self.frames.take_malformed_trailers(number) => {
                    return self.end_exchange(id, CloseReason::Http2Violation, cx);
                }
                // The close frame waits for the window.
                InputStep::End if channel.closed.is_some() && takes_nothing => return,
                // The client has closed its side, as it may behind a close frame, and gets the end of the other one.
                InputStep::End => {
                    if let Some(reason) = channel.closed {
                        return self.end_both(id, reason, is_blocked, cx);
                    }
                    if !std::mem::replace(&mut channel.is_half_closed, true) {
                        self.with_channel(id, is_blocked, cx, |websocket, is_blocked, cx| {
                            websocket.half_closed(is_blocked, cx);
                        });
                    }
                    return;
                }
                InputStep::Reset => return self.end_exchange(id, CloseReason::HangUp, cx),
            }
        }
    }

    /// The window of a channel has opened, and everything that waited for it is out.
    pub(super) fn channel_drained(
        &mut self,
        id: ExchangeId,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        self.with_channel(id, is_blocked, cx, |websocket, _, cx| websocket.drained(cx));
    }

    /// A deadline of a channel has passed.
    pub(super) fn channel_timed_out(
        &mut self,
        id: ExchangeId,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let stream = self.streams.get_mut(&id);
        let Some(channel) = stream.and_then(|stream| stream.channel_mut()) else {
            return;
        };
        channel.timer.deadline = None;
        if let Some(reason) = channel.closed {
            return self.end_exchange(id, reason, cx);
        }
        self.with_channel(id, is_blocked, cx, |websocket, _, cx| {
            websocket.time_out(cx);
        });
    }

    /// The server stops. False: the stream has no channel.
    pub(super) fn leave_channel(
        &mut self,
        id: ExchangeId,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) -> bool {
        self.with_channel(id, is_blocked, cx, |websocket, _, cx| {
            websocket.leave(CloseReason::Stopping, cx);
        })
    }

    /// Writes messages of a channel: behind those that its client has not taken, if there are some.
    fn write(&mut self, id: ExchangeId, bytes: &[u8], is_blocked: bool, cx: &mut Context<'_>) {
        let sent = self.send_messages(id, bytes, is_blocked, cx);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if sent < bytes.len() {
            stream.block(Outbound::new(bytes[sent..].to_vec()), cx);
        }
        self.settle(id, cx);
    }

    /// Ends a stream whose client has closed its side.
    fn end_both(
        &mut self,
        id: ExchangeId,
        reason: CloseReason,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.write_unsent(&mut self.frames, is_blocked, cx);
            stream.end_output(&mut self.frames, cx);
        }
        self.end_exchange(id, reason, cx);
    }

    /// The close frame of a channel is out: ends the stream, and gives the client a moment to end its side.
    pub(super) fn end_channel(
        &mut self,
        id: ExchangeId,
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.end_output(&mut self.frames, cx);
        let channel = stream.channel_mut();
        if channel.is_some_and(|channel| channel.is_half_closed) {
            return self.end_exchange(id, reason, cx);
        }
        let timer = stream.timer_mut(self.id);
        timer.deadline = Some(cx.clock.monotonic().after(LINGER));
        cx.push(ConnectionEffect::Remind(id));
        if let Some(label) = reason.label() {
            let cut = &cx.metrics.http2_streams_cut;
            cut.with_label_values(&[label]).inc();
        }
    }
}

/// Has something done, and collects what it writes.
fn collect<T>(cx: &mut Context<'_>, write: impl FnOnce(&mut Context<'_>) -> T) -> (T, Vec<u8>) {
    let before = std::mem::take(&mut cx.effects.output);
    let done = write(cx);
    let written = std::mem::replace(&mut cx.effects.output, before);
    (done, written)
}
