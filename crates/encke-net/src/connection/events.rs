//! Events of a connection and of its exchanges: each is handled by its wire, or ends something.

use std::time::Duration;

use encke_protocol::{OnRecord, Response};

use super::close::CloseReason;
use super::context::Context;
use super::effect::ConnectionEffect;
use super::exchange::task::Task;
use super::exchange::{ExchangeEvent, end_of_caller};
use super::exchange_id::ExchangeId;
use super::http1::{AfterInput, Http1, SharedWithWire};
use super::http2::Http2;
use super::state::{Connection, Wire};
use crate::clients::addresses::Denied;
use crate::clients::callers::CallerEnd;
use crate::http::Rejection;

/// Something that happened to a connection.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// Bytes have arrived. `full`: the socket holds more.
    Received { bytes: &'a [u8], full: bool },
    /// The client sends nothing more.
    HalfClosed,
    /// The socket has taken all output.
    Drained,
    /// The turn is over in which the connection wanted to be asked again.
    Flush,
    /// The handshake is over. `http2`: it has chosen HTTP/2.
    Handshaken { http2: bool },
    /// The server stops.
    Stopping,
    /// The node does not follow its fleet: subscribers are to connect to another one.
    OutOfFleet,
    /// An operator closes it.
    Disconnect,
    /// The memory of all connections runs short, and this exchange holds the most.
    Shed(ExchangeId),
    /// There is no memory for the request of an exchange.
    NoMemory(ExchangeId),
    /// An exchange can't go on.
    Fail(ExchangeId, CloseReason),
    /// The close frame of a channel is written.
    CloseChannel(ExchangeId, CloseReason),
    /// Nothing was sent for an exchange for a while.
    Quiet(ExchangeId),
    /// The sweep over all connections comes by. It may be kept for so long without a request.
    Swept(Duration),
}

impl Connection {
    /// Handles an event of the connection.
    pub(crate) fn on(&mut self, event: Event<'_>, cx: &mut Context<'_>) {
        match event {
            Event::Received { bytes, full } => self.received(bytes, full, cx),
            Event::HalfClosed => match &mut self.wire {
                Wire::Http1(http1) => http1.half_closed(self.outbound.is_some(), cx),
                Wire::WebSocket(websocket) => websocket.half_closed(self.outbound.is_some(), cx),
                _ => cx.push(ConnectionEffect::Close(CloseReason::HangUp)),
            },
            Event::Drained => self.drained(cx),
            Event::Flush => {
                let is_blocked = self.outbound.is_some();
                if let Wire::Http2(http2) = &mut self.wire {
                    http2.flush(is_blocked, cx);
                }
            }
            Event::Handshaken { http2 } => {
                self.facts.tls = true;
                self.wire = match http2 {
                    true => Wire::Http2(Box::new(Http2::new(self.id, self.facts, cx))),
                    false => Wire::Http1(Http1::new(self.id, false)),
                };
            }
            Event::Stopping => self.stop(cx),
            Event::OutOfFleet => self.leave_fleet(cx),
            Event::Disconnect => self.disconnect(cx),
            Event::Shed(id) => self.shed(id, cx),
            Event::NoMemory(id) => self.refuse(id, &no_room(), cx),
            Event::Fail(id, reason) => self.fail(id, reason, cx),
            Event::CloseChannel(id, reason) => self.close_channel(id, reason, cx),
            Event::Quiet(id) => self.beat(id, cx),
            Event::Swept(idle_timeout) => {
                if let Wire::Http2(http2) = &mut self.wire {
                    http2.check_idle(idle_timeout, cx);
                }
            }
        }
        self.set_channel_deadline(cx);
    }

    /// Handles an event of one of its exchanges.
    pub(crate) fn on_exchange(
        &mut self,
        id: ExchangeId,
        event: ExchangeEvent,
        cx: &mut Context<'_>,
    ) {
        if matches!(event, ExchangeEvent::TimedOut) && id == self.id && self.time_out(cx) {
            return self.set_channel_deadline(cx);
        }
        if let Some(channel) = cx.ids.channel_of(id) {
            self.with_channel(channel, cx, |websocket, is_blocked, cx| {
                websocket.on(id, event, is_blocked, cx);
            });
            return;
        }
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http1(http1) if id == self.id => {
                let mut shared = SharedWithWire {
                    facts: &mut self.facts,
                    requests: &mut self.requests,
                    is_blocked,
                };
                http1.on(event, &mut shared, cx);
            }
            Wire::Http2(http2) => http2.on(id, event, is_blocked, cx),
            Wire::WebSocket(websocket) => websocket.on(id, event, is_blocked, cx),
            Wire::Handshaking | Wire::Http1(_) | Wire::Lingering => {}
        }
        self.open_channel(cx);
    }

    /// The time of the caller of one of its exchanges is over.
    pub(crate) fn end_caller(&mut self, id: ExchangeId, end: CallerEnd, cx: &mut Context<'_>) {
        if self.with_channel(id, cx, |websocket, _, cx| websocket.end_caller(end, cx)) {
            return;
        }
        match self.exchange(id) {
            Some(_) => self.on_exchange(id, ExchangeEvent::CallerEnded(end), cx),
            // An exchange of which only its feed matters.
            None if id != self.id => cx.push(ConnectionEffect::Dismiss(id, end_of_caller(end, cx))),
            None => {}
        }
    }

    /// The caller of one of its exchanges is granted something else. What the exchange itself does was judged before; a channel judges
    /// its subscriptions.
    pub(crate) fn regrant_caller(&mut self, id: ExchangeId, cx: &mut Context<'_>) {
        self.with_channel(id, cx, |websocket, _, cx| websocket.regrant(cx));
    }

    /// The caller of a channel has no room for one of its feeds.
    pub(crate) fn refuse_feed(
        &mut self,
        (channel, feed): (ExchangeId, ExchangeId),
        refused: Response,
        cx: &mut Context<'_>,
    ) {
        self.with_channel(channel, cx, |websocket, _, cx| {
            websocket.refuse_feed(feed, refused, cx);
        });
    }

    /// There is no room for the connection: its request is refused, if it can still be.
    pub(crate) fn turn_away(&mut self, cx: &mut Context<'_>) {
        match &self.wire {
            // It was refused, and has a moment to read that.
            Wire::Lingering => {}
            Wire::Http1(http1) if http1.reads(self.outbound.is_some()) => {
                let denied = self.facts.turned_away.unwrap_or(Denied::NoPlace);
                self.refuse(self.id, &denied.refused(), cx);
            }
            _ => cx.push(ConnectionEffect::Close(CloseReason::ConnectionsMax)),
        }
    }

    /// The connection is closed: gives up what it has elsewhere.
    pub(crate) fn close(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        match &mut self.wire {
            Wire::Http1(http1) => {
                http1.exchange.end_wait_for_client(cx);
                http1.exchange.leave_note(cx);
                if let Some(request) = http1.exchange.dispatch_request() {
                    cx.push(ConnectionEffect::AbandonDispatch(self.id, request));
                }
            }
            Wire::Http2(http2) => {
                http2.forget_all(reason, cx);
                cx.counts.http2_connections -= 1;
            }
            Wire::WebSocket(websocket) => websocket.forget_all(reason, cx),
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    /// The continuation of a long poll, which is answered with what it says.
    pub(crate) fn take_poll(&mut self, id: ExchangeId) -> Option<Box<dyn OnRecord>> {
        self.exchange_mut(id)?.take_poll()
    }

    fn received(&mut self, bytes: &[u8], full: bool, cx: &mut Context<'_>) {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http1(http1) => {
                let mut shared = SharedWithWire {
                    facts: &mut self.facts,
                    requests: &mut self.requests,
                    is_blocked,
                };
                let next = http1.received(bytes, full, &mut shared, cx);
                self.go_to(next, cx);
            }
            Wire::Http2(http2) => http2.received(bytes, is_blocked, cx),
            Wire::WebSocket(websocket) => websocket.received(bytes, is_blocked, cx),
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    fn drained(&mut self, cx: &mut Context<'_>) {
        match &mut self.wire {
            Wire::Http1(http1) => {
                let mut shared = SharedWithWire {
                    facts: &mut self.facts,
                    requests: &mut self.requests,
                    is_blocked: false,
                };
                let next = http1.drained(&mut shared, cx);
                self.go_to(next, cx);
            }
            Wire::Http2(http2) => {
                http2.flush(false, cx);
                cx.push(ConnectionEffect::Receive);
            }
            Wire::WebSocket(websocket) => websocket.drained(cx),
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    /// Its feed has ended, and everything of it is out.
    pub(crate) fn feed_ended(&mut self, cx: &mut Context<'_>) {
        let Wire::Http1(http1) = &mut self.wire else {
            return cx.push(ConnectionEffect::Close(CloseReason::Ended));
        };
        let mut shared = SharedWithWire {
            facts: &mut self.facts,
            requests: &mut self.requests,
            is_blocked: false,
        };
        let next = http1.feed_ended(&mut shared, cx);
        self.go_to(next, cx);
    }

    /// The connection goes on as its input says.
    fn go_to(&mut self, next: AfterInput, cx: &mut Context<'_>) {
        match next {
            AfterInput::Http1 => self.open_channel(cx),
            AfterInput::Handshake => self.wire = Wire::Handshaking,
            AfterInput::Http2(input) => {
                let mut http2 = Http2::new(self.id, self.facts, cx);
                http2.received(&input, self.outbound.is_some(), cx);
                self.wire = Wire::Http2(Box::new(http2));
            }
        }
    }

    /// A deadline of the connection has passed. False: it is one of its exchange.
    fn time_out(&mut self, cx: &mut Context<'_>) -> bool {
        if let Wire::Http1(http1) = &self.wire
            && matches!(http1.exchange.task, Task::AwaitingRecord(..))
        {
            return false;
        }
        self.timer.deadline = None;
        if let Wire::Lingering = self.wire {
            cx.push(ConnectionEffect::Close(CloseReason::Lingered));
        } else if let Some(outbound) = &self.outbound {
            cx.push(ConnectionEffect::Cut(outbound.time_out_reason()));
        } else if let Wire::Http1(http1) = &mut self.wire
            && http1.exchange.is_receiving()
        {
            let shared = SharedWithWire {
                facts: &mut self.facts,
                requests: &mut self.requests,
                is_blocked: false,
            };
            http1.time_out(&shared, cx);
        } else if let Wire::WebSocket(websocket) = &mut self.wire {
            websocket.time_out(cx);
        }
        true
    }

    fn stop(&mut self, cx: &mut Context<'_>) {
        let is_blocked = self.outbound.is_some();
        let http1 = match &mut self.wire {
            Wire::Http1(http1) => http1,
            Wire::Http2(http2) => return http2.stop(is_blocked, cx),
            // The handshake thread drops the socket when it finds the connection gone.
            Wire::Handshaking => return cx.push(ConnectionEffect::Close(CloseReason::Stopping)),
            Wire::WebSocket(websocket) => return websocket.leave(CloseReason::Stopping, cx),
            Wire::Lingering => return,
        };
        http1.exchange.facts.keep_alive = false;
        match &http1.exchange.task {
            Task::AwaitingRecord(..) => self.on_exchange(self.id, ExchangeEvent::TimedOut, cx),
            Task::Receiving => cx.push(ConnectionEffect::CloseBehind(CloseReason::Stopping)),
            // The last event says where to continue.
            Task::Subscribed => cx.push(ConnectionEffect::Dismiss(self.id, CloseReason::Stopping)),
            // The dispatcher ends its own, and responses are completed.
            _ => {}
        }
    }

    fn leave_fleet(&mut self, cx: &mut Context<'_>) {
        let reason = CloseReason::OutOfFleet;
        let ids = match &self.wire {
            Wire::Http1(_) | Wire::WebSocket(_) => vec![self.id],
            Wire::Http2(http2) => http2.exchanges().to_vec(),
            Wire::Handshaking | Wire::Lingering => Vec::new(),
        };
        for id in ids {
            if self.with_channel(id, cx, |websocket, _, cx| websocket.leave(reason, cx)) {
                continue;
            }
            match self.exchange(id).map(|exchange| &exchange.task) {
                None | Some(Task::Subscribed) => {
                    cx.push(ConnectionEffect::Dismiss(id, reason));
                }
                Some(Task::AwaitingRecord(..)) => self.on_exchange(id, ExchangeEvent::TimedOut, cx),
                Some(_) => {}
            }
        }
    }

    /// An operator closes it: subscriptions in the way of their protocols where the client takes something, and anything else at once.
    fn disconnect(&mut self, cx: &mut Context<'_>) {
        let reason = CloseReason::Disconnected;
        if self.is_cut_by_stop() {
            return cx.push(ConnectionEffect::Cut(reason));
        }
        match &mut self.wire {
            Wire::WebSocket(websocket) => websocket.leave(reason, cx),
            Wire::Http1(http1) if matches!(http1.exchange.task, Task::Subscribed) => {
                cx.push(ConnectionEffect::Dismiss(self.id, reason));
            }
            Wire::Http2(http2) => {
                for id in http2.exchanges().to_vec() {
                    let exchange = http2.exchange(id);
                    if exchange.is_some_and(|one| matches!(one.task, Task::Subscribed)) {
                        cx.push(ConnectionEffect::Dismiss(id, reason));
                    }
                }
                cx.push(ConnectionEffect::CloseBehind(reason));
            }
            Wire::Http1(_) | Wire::Handshaking | Wire::Lingering => {
                cx.push(ConnectionEffect::Close(reason));
            }
        }
    }

    /// Gives back what an exchange holds: refuses a request that is not complete, and closes any other.
    fn shed(&mut self, id: ExchangeId, cx: &mut Context<'_>) {
        let is_receiving = match &self.wire {
            Wire::Http1(http1) => http1.exchange.is_receiving(),
            Wire::Http2(http2) => http2.is_receiving(id),
            Wire::WebSocket(_) | Wire::Handshaking | Wire::Lingering => false,
        };
        let exchange = self.exchange(id);
        let is_request = is_receiving || exchange.is_some_and(|one| one.task.is_parked());
        match is_request && !self.is_blocked(id) {
            true => self.refuse(id, &no_room(), cx),
            false => self.fail(id, CloseReason::BuffersMax, cx),
        }
    }

    fn refuse(&mut self, id: ExchangeId, rejection: &Rejection, cx: &mut Context<'_>) {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http1(http1) => http1.refuse(rejection, &self.facts, cx),
            Wire::Http2(http2) => http2.refuse(id, rejection, is_blocked, cx),
            // A message of the client has grown too large for the memory that is left.
            Wire::WebSocket(_) => cx.push(ConnectionEffect::Cut(CloseReason::BuffersMax)),
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    fn fail(&mut self, id: ExchangeId, reason: CloseReason, cx: &mut Context<'_>) {
        if let Some(channel) = cx.ids.channel_of(id) {
            self.with_channel(channel, cx, |websocket, _, cx| {
                websocket.end_exchange(id, reason, cx);
            });
            return;
        }
        match &mut self.wire {
            Wire::Http2(http2) if id != self.id => http2.end_exchange(id, reason, cx),
            _ => cx.push(ConnectionEffect::Cut(reason)),
        }
    }

    /// Keeps a quiet worker's connection alive.
    fn beat(&mut self, id: ExchangeId, cx: &mut Context<'_>) {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http1(http1) if !is_blocked => http1.beat(cx),
            Wire::Http2(http2) => http2.beat(id, is_blocked, cx),
            Wire::WebSocket(websocket) if id == self.id && !is_blocked => websocket.beat(cx),
            Wire::WebSocket(_) | Wire::Http1(_) | Wire::Handshaking | Wire::Lingering => {}
        }
    }
}

/// The response to a request for which there is no memory.
fn no_room() -> Rejection {
    let rejection = Rejection::new(
        503,
        "buffers_max",
        "partly received requests use too much of the server's memory; try again",
    );
    rejection.retry(1)
}
