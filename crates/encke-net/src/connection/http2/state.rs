//! HTTP/2 on a connection, and its exchanges.

use foldhash::{HashMap, HashMapExt};

use super::input::StreamInput;
use super::stream::{Stream, mark_dirty};
use crate::buffers::BufferShare;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::{ConnectionFacts, Exchange};
use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::connection::outbound::Outbound;
use crate::connection::timer::Timer;
use crate::http2::frames::Http2Frames;

/// HTTP/2 on a connection.
#[derive(Debug)]
pub(crate) struct Http2 {
    pub(super) id: ExchangeId,
    pub(super) facts: ConnectionFacts,
    pub(super) frames: Http2Frames,
    pub(super) streams: HashMap<ExchangeId, Box<Stream>>,
    /// The streams in the order in which they are looked at.
    pub(super) order: Vec<ExchangeId>,
    /// Channels with messages that go out with the next poll.
    pub(super) unsent: Vec<ExchangeId>,
    /// Requests so far, as far as they can be counted.
    pub(super) requests: u16,
}

impl Http2 {
    /// A connection of which nothing was received. One that was turned away refuses its requests, and the client may send them again.
    pub(crate) fn new(id: ExchangeId, facts: ConnectionFacts, cx: &mut Context<'_>) -> Self {
        let mut frames = Http2Frames::new(cx.settings, cx.clock.now_s());
        if facts.turned_away.is_some() {
            frames.begin_leaving();
        }
        cx.counts.http2_connections += 1;
        Http2 {
            id,
            facts,
            frames,
            streams: HashMap::new(),
            order: Vec::new(),
            unsent: Vec::new(),
            requests: 0,
        }
    }

    /// Sends bytes of the feed of an exchange; with `ends` they are its last. Returns how many its windows and the socket take.
    pub(crate) fn send(
        &mut self,
        id: ExchangeId,
        bytes: &[u8],
        ends: bool,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) -> usize {
        let Some(stream) = self.streams.get_mut(&id) else {
            return bytes.len();
        };
        match stream.channel_mut() {
            Some(_) => self.send_messages(id, bytes, is_blocked, cx),
            None => stream.send(bytes, ends, &mut self.frames, is_blocked, cx),
        }
    }

    /// Sends messages of a channel. Returns how many bytes are taken.
    pub(super) fn send_messages(
        &mut self,
        id: ExchangeId,
        bytes: &[u8],
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) -> usize {
        let Some(stream) = self.streams.get_mut(&id) else {
            return bytes.len();
        };
        let had_unsent = stream.has_unsent();
        let sent = stream.send_messages(bytes, &mut self.frames, is_blocked, cx);
        if !had_unsent && stream.has_unsent() {
            self.unsent.push(id);
        }
        sent
    }

    /// Keeps what the window of an exchange has not taken.
    pub(crate) fn block(&mut self, id: ExchangeId, outbound: Outbound, cx: &mut Context<'_>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.block(outbound, cx);
            self.settle(id, cx);
        }
    }

    /// Whether a response of an exchange goes on when its window opens: nothing is read for it before.
    pub(crate) fn awaits_window(
        &mut self,
        id: ExchangeId,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        if stream.outbound.is_some() {
            return true;
        }
        let awaits = stream.awaits_window(&mut self.frames, is_blocked);
        if awaits {
            stream.block(Outbound::default(), cx);
            self.settle(id, cx);
        }
        awaits
    }

    /// How much of `wanted` may be read for an exchange now, in bytes.
    pub(crate) fn grant_read(&mut self, id: ExchangeId, wanted: usize) -> usize {
        match self.streams.get_mut(&id) {
            Some(stream) => self.frames.read_ahead.grant(&mut stream.read_ahead, wanted),
            None => wanted,
        }
    }

    /// What was read for an exchange has arrived.
    pub(crate) fn read_arrived(&mut self, id: ExchangeId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            self.frames.read_ahead.arrived(&mut stream.read_ahead);
        }
    }

    /// Notes what an exchange holds in memory. Returns it, and what it holds that is counted elsewhere; `more` is held for its feed.
    /// `None`: what it holds is counted with its channel.
    pub(crate) fn weigh(&mut self, id: ExchangeId, more: usize) -> Option<(usize, usize)> {
        let stream = self.streams.get_mut(&id)?;
        let ahead = stream.bytes_ahead() + more;
        let read_ahead = &mut self.frames.read_ahead;
        read_ahead.hold(&mut stream.read_ahead, ahead);
        Some((stream.bytes(), stream.bytes_elsewhere()))
    }

    /// Ends an exchange: behind a complete response with its end, otherwise with a reset.
    pub(crate) fn end_exchange(
        &mut self,
        id: ExchangeId,
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let is_complete = stream.is_complete();
        if !is_complete && reason != CloseReason::HangUp {
            // A reset discards what `h2` has not written yet, such as the last event.
            self.poll(cx);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.end(is_complete, reason, cx);
        }
        mark_dirty(&mut self.frames, cx);
        self.forget(id, reason, cx);
        if self.order.is_empty() {
            self.order = Vec::new();
            self.frames.idle_since_s = cx.clock.now_s();
        }
    }

    /// Accepts no more requests, and closes behind the last one.
    pub(crate) fn leave(&mut self, cx: &mut Context<'_>) {
        self.frames.begin_leaving();
        mark_dirty(&mut self.frames, cx);
    }

    /// The connection is closed: gives up what its exchanges have elsewhere.
    pub(crate) fn forget_all(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        for id in std::mem::take(&mut self.order) {
            self.forget(id, reason, cx);
        }
    }

    /// Something waits for a window that may be open: it is looked at before the shard waits.
    pub(crate) fn starve(&mut self, cx: &mut Context<'_>) {
        self.frames.starved = true;
        mark_dirty(&mut self.frames, cx);
    }

    /// Whether something waits for the socket or for a window.
    pub(crate) fn is_starved(&self) -> bool {
        self.frames.starved || self.frames.dirty
    }

    /// The share of an exchange of the memory of all connections.
    pub(crate) fn share_mut(&mut self, id: ExchangeId) -> Option<&mut BufferShare> {
        Some(&mut self.streams.get_mut(&id)?.memory)
    }

    /// Whether it has no requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.order.is_empty()
    }

    /// What it holds beside its exchanges, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.frames.bytes()
    }

    /// The names of its exchanges.
    pub(crate) fn exchanges(&self) -> &[ExchangeId] {
        &self.order
    }

    /// Whether what one of its requests changes is being stored.
    pub(crate) fn awaits_outcome(&self) -> bool {
        self.streams.values().any(|stream| match &stream.input {
            StreamInput::Channel(channel) => channel.websocket.awaits_outcome(),
            _ => {
                let exchange = stream.exchange.as_deref();
                exchange.is_some_and(|exchange| exchange.task.awaits_outcome())
            }
        })
    }

    pub(crate) fn exchange(&self, id: ExchangeId) -> Option<&Exchange> {
        self.streams.get(&id)?.exchange.as_deref()
    }

    pub(crate) fn exchange_mut(&mut self, id: ExchangeId) -> Option<&mut Exchange> {
        let connection = self.id;
        let stream = self.streams.get_mut(&id)?;
        Some(stream.activate(connection))
    }

    /// The deadlines of an exchange.
    pub(crate) fn timer(&self, id: ExchangeId) -> Timer {
        self.streams
            .get(&id)
            .map_or(Timer::default(), |stream| stream.timer())
    }

    pub(crate) fn timer_mut(&mut self, id: ExchangeId) -> Option<&mut Timer> {
        Some(self.streams.get_mut(&id)?.timer_mut(self.id))
    }

    pub(crate) fn outbound(&self, id: ExchangeId) -> Option<&Outbound> {
        self.streams.get(&id)?.outbound.as_deref()
    }

    /// Sends the last bytes to a subscriber, behind what was not taken.
    pub(crate) fn dismiss(&mut self, id: ExchangeId, farewell: &[u8], reason: CloseReason) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.dismiss(farewell, reason);
        }
    }

    /// Whether the request of an exchange is not complete.
    pub(crate) fn is_receiving(&self, id: ExchangeId) -> bool {
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| stream.is_receiving())
    }

    /// Polls the frames: what was written goes out.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let output = self.frames.poll();
        cx.effects.output.extend_from_slice(&output);
        if self.frames.has_news() {
            mark_dirty(&mut self.frames, cx);
        }
    }

    /// Ends an exchange whose response is out, bounds the time of one whose client does not take it, and lets one rest of which
    /// nothing matters but its feed.
    pub(super) fn settle(&mut self, id: ExchangeId, cx: &mut Context<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.is_over() {
            cx.requests.complete_request(id);
            return self.end_exchange(id, CloseReason::Done, cx);
        }
        stream.bound_wait(self.id, cx);
        stream.rest();
    }

    /// Removes an exchange, without a word to the client.
    pub(super) fn forget(&mut self, id: ExchangeId, reason: CloseReason, cx: &mut Context<'_>) {
        if let Some(place) = self.order.iter().position(|other| *other == id) {
            self.order.swap_remove(place);
        }
        let Some(mut stream) = self.streams.remove(&id) else {
            return;
        };
        self.frames.read_ahead.forget(stream.read_ahead);
        if let Some(channel) = stream.channel_mut() {
            channel.websocket.forget_all(reason, cx);
            self.frames.channel_ended();
        }
        if let Some(exchange) = &mut stream.exchange {
            exchange.end_wait_for_client(cx);
            exchange.leave_note(cx);
            if let Some(request) = exchange.dispatch_request() {
                cx.push(ConnectionEffect::AbandonDispatch(id, request));
            }
        }
        cx.counts.http2_streams -= 1;
        cx.push(ConnectionEffect::Ended(id, reason));
    }

    pub(super) fn place(&self, id: ExchangeId) -> ExchangePlace {
        ExchangePlace {
            exchange: id,
            connection: self.id,
        }
    }
}
