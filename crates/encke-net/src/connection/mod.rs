//! Connections without I/O: events and time in, effects out.
//!
//! A [`Connection`] knows no descriptor, no epoll and no shard. It is given what its socket has received ([`Event`]) and what
//! came of its earlier wishes ([`ExchangeEvent`]), and says what it wants done ([`effect::ConnectionEffect`]). Everything else that it uses,
//! the time, the protocols and the limits, is in the [`Context`].
//!
//! A connection speaks HTTP/1.1 (`http1`), with one exchange at a time, or HTTP/2 (`http2`), with many. An [`exchange`] is one
//! request and its response, the same on both wires. A connection that only waits is at [`rest`]: a few bytes, which another
//! process could take over.
//!
//! The one invariant: **what a connection does depends on its events and on the time in its context only.**

pub(crate) mod close;
pub(crate) mod context;
pub(crate) mod effect;
mod ending;
pub(crate) mod exchange;
pub(crate) mod exchange_id;
mod http1;
mod http2;
pub(crate) mod outbound;
pub(crate) mod rest;
pub(crate) mod timer;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use encke_protocol::OnRecord;

use crate::buffers::{BufferShare, Buffers};
use crate::clients::callers::CallerEnd;
use crate::clock::Monotonic;
use crate::http::Rejection;
use crate::http2::frames::SEND_BYTES_MAX;
use crate::settings::NetSettings;
use close::CloseReason;
use context::{Context, ExchangePlace};
use effect::ConnectionEffect;
use exchange::task::Task;
use exchange::{ConnectionFacts, Exchange, ExchangeEvent, end_of_caller, no_place};
use exchange_id::ExchangeId;
use http1::{AfterInput, Http1, SharedWithWire};
use http2::Http2;
use outbound::Outbound;
use rest::{Rest, Resting};
use timer::Timer;

/// A connection that does something.
#[derive(Debug)]
pub(crate) struct Connection {
    id: ExchangeId,
    facts: ConnectionFacts,
    /// Requests so far, as far as they can be counted.
    requests: u16,
    wire: Wire,
    /// What the socket has not taken.
    outbound: Option<Box<Outbound>>,
    /// The deadlines of the connection itself; those of exchanges are theirs.
    timer: Timer,
    /// Its share of the memory of all connections.
    memory: BufferShare,
}

// What an active connection costs, beside what it holds.
const _: () = assert!(size_of::<Connection>() <= 320);

/// What a connection speaks.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most connections speak HTTP/1.1, and each is boxed"
)]
enum Wire {
    /// Its socket is with a handshake thread.
    Handshaking,
    Http1(Http1),
    Http2(Box<Http2>),
    /// Refused: further input is discarded until it closes.
    Lingering,
}

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
    /// The memory of all connections runs short, and this exchange holds the most.
    Shed(ExchangeId),
    /// There is no memory for the request of an exchange.
    NoMemory(ExchangeId),
    /// An exchange can't go on.
    Fail(ExchangeId, CloseReason),
    /// Nothing was sent for an exchange for a while.
    Quiet(ExchangeId),
    /// The sweep over all connections comes by. It may be kept for so long without a request.
    Swept(Duration),
}

impl Connection {
    /// A new connection. `awaits_proxy`: it begins with a header of the PROXY protocol.
    pub(crate) fn new(
        id: ExchangeId,
        facts: ConnectionFacts,
        awaits_proxy: bool,
        cx: &mut Context<'_>,
    ) -> Self {
        let mut http1 = Http1::new(id, awaits_proxy);
        if awaits_proxy {
            http1.await_proxy(cx);
        }
        Connection::with_wire(id, facts, 0, Wire::Http1(http1))
    }

    /// A new connection whose socket is with a handshake thread.
    pub(crate) fn handshaking(id: ExchangeId, facts: ConnectionFacts) -> Self {
        Connection::with_wire(id, facts, 0, Wire::Handshaking)
    }

    /// A connection that was at rest.
    pub(crate) fn from_rest(id: ExchangeId, rest: Rest) -> Self {
        let http1 = match rest.doing {
            Resting::Idle => Http1::new(id, false),
            Resting::Subscribed { http_1_0 } => Http1::subscribed(id, http_1_0),
        };
        Connection::with_wire(id, rest.facts, rest.requests, Wire::Http1(http1))
    }

    fn with_wire(id: ExchangeId, facts: ConnectionFacts, requests: u16, wire: Wire) -> Self {
        Connection {
            id,
            facts,
            requests,
            wire,
            outbound: None,
            timer: Timer::default(),
            memory: BufferShare::default(),
        }
    }

    /// What is left of it while it only waits; `None` while something else of it matters.
    pub(crate) fn rest(&self) -> Option<Rest> {
        let Wire::Http1(http1) = &self.wire else {
            return None;
        };
        if self.outbound.is_some() {
            return None;
        }
        let doing = if http1.is_idle() {
            Resting::Idle
        } else if http1.is_only_subscribed() {
            let http_1_0 = http1.exchange.facts.http_1_0;
            Resting::Subscribed { http_1_0 }
        } else {
            return None;
        };
        Some(Rest {
            facts: self.facts,
            requests: self.requests,
            doing,
        })
    }

    /// Handles an event of the connection.
    pub(crate) fn on(&mut self, event: Event<'_>, cx: &mut Context<'_>) {
        match event {
            Event::Received { bytes, full } => self.received(bytes, full, cx),
            Event::HalfClosed => match &mut self.wire {
                Wire::Http1(http1) => http1.half_closed(cx),
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
            Event::Shed(id) => self.shed(id, cx),
            Event::NoMemory(id) => self.refuse(id, &no_room(), cx),
            Event::Fail(id, reason) => self.fail(id, reason, cx),
            Event::Quiet(id) => self.beat(id, cx),
            Event::Swept(idle_timeout) => {
                if let Wire::Http2(http2) = &mut self.wire {
                    http2.check_idle(idle_timeout, cx);
                }
            }
        }
    }

    /// Handles an event of one of its exchanges.
    pub(crate) fn on_exchange(
        &mut self,
        id: ExchangeId,
        event: ExchangeEvent,
        cx: &mut Context<'_>,
    ) {
        if matches!(event, ExchangeEvent::TimedOut) && id == self.id && self.time_out(cx) {
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
            Wire::Handshaking | Wire::Http1(_) | Wire::Lingering => {}
        }
    }

    /// The socket has taken the first `sent` bytes of its output; the connection keeps the rest.
    pub(crate) fn keep_output(&mut self, rest: &[u8], cx: &mut Context<'_>) {
        match &mut self.outbound {
            Some(outbound) => outbound.append(rest),
            None => self.block(Outbound::new(rest.to_vec()), cx),
        }
        cx.push(ConnectionEffect::Weigh(self.id));
    }

    /// Keeps what was not taken of the output of its own exchange.
    pub(crate) fn block(&mut self, outbound: Outbound, cx: &mut Context<'_>) {
        if !outbound.rest().is_empty() && !cx.buffers.have_room() {
            return cx.push(ConnectionEffect::Cut(CloseReason::BuffersMax));
        }
        self.outbound = Some(Box::new(outbound));
        if let Wire::Http1(http1) = &mut self.wire {
            http1.exchange.wait_for_client(cx);
        }
        let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
        self.timer_mut(self.id).deadline = Some(deadline);
        cx.push(ConnectionEffect::Weigh(self.id));
        cx.push(ConnectionEffect::Remind(self.id));
    }

    /// What the socket takes next.
    pub(crate) fn outbound(&self) -> Option<&Outbound> {
        self.outbound.as_deref()
    }

    /// The socket has taken so much more of what was kept. Returns the kept output when all of it is out, unless `is_cut`: a part
    /// of a record of TLS is still to be sent.
    pub(crate) fn took_outbound(
        &mut self,
        sent: usize,
        is_cut: bool,
        cx: &mut Context<'_>,
    ) -> Option<Box<Outbound>> {
        let outbound = self.outbound.as_mut()?;
        outbound.take(sent);
        if outbound.rest().is_empty() && !is_cut {
            self.timer_mut(self.id).deadline = None;
            return self.outbound.take();
        }
        // A subscriber that was sent a farewell gets no more time.
        if sent > 0 && !outbound.is_dismissal() {
            let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
            self.timer_mut(self.id).deadline = Some(deadline);
        }
        None
    }

    /// Drops what the socket has not taken, and reads no more requests: the client may read what was sent last for a while.
    pub(crate) fn linger(&mut self, cx: &mut Context<'_>) {
        if let Wire::Http2(_) = self.wire {
            cx.counts.http2_connections -= 1;
        }
        self.wire = Wire::Lingering;
        self.outbound = None;
        self.timer = Timer {
            deadline: Some(cx.clock.monotonic().after(LINGER)),
            ..Timer::default()
        };
        cx.push(ConnectionEffect::Weigh(self.id));
        cx.push(ConnectionEffect::Remind(self.id));
    }

    /// The connection is closed: gives up what it has elsewhere.
    pub(crate) fn close(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        match &mut self.wire {
            Wire::Http1(http1) => {
                http1.exchange.end_wait_for_client(cx);
                if let Some(request) = http1.exchange.dispatch_request() {
                    cx.push(ConnectionEffect::AbandonDispatch(self.id, request));
                }
            }
            Wire::Http2(http2) => {
                http2.forget_all(reason, cx);
                cx.counts.http2_connections -= 1;
            }
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    /// Closes it behind what the socket has not taken. `None`: there is nothing of that kind, and it is to be closed now.
    pub(crate) fn close_behind(&mut self, reason: CloseReason) -> Option<()> {
        let outbound = self.outbound.as_mut()?;
        outbound.close.get_or_insert(reason);
        Some(())
    }

    /// Whether it has something to do while its socket takes output. `has_sent`: output was taken just now.
    pub(crate) fn goes_on(&self, has_sent: bool) -> bool {
        match &self.wire {
            Wire::Http1(http1) => {
                http1.exchange.task.is_over() || has_sent && http1.exchange.is_streaming()
            }
            Wire::Http2(http2) => has_sent && http2.is_starved(),
            Wire::Handshaking | Wire::Lingering => false,
        }
    }

    /// Whether so much waits that nothing is read from the socket.
    pub(crate) fn has_enough(&self, settings: &NetSettings, buffers: &Buffers) -> bool {
        match &self.wire {
            Wire::Http1(http1) => http1.has_enough(self.outbound.is_some(), settings, buffers),
            Wire::Http2(_) => {
                let outbound = self.outbound.as_ref();
                outbound.is_some_and(|outbound| outbound.rest().len() >= SEND_BYTES_MAX)
            }
            Wire::Handshaking | Wire::Lingering => false,
        }
    }

    /// Whether it only gets something, and has nothing to say.
    pub(crate) fn is_listener(&self) -> bool {
        matches!(&self.wire, Wire::Http1(http1) if http1.exchange.is_listener())
    }

    /// Whether its client speaks HTTP/1.0.
    pub(crate) fn is_http_1_0(&self) -> bool {
        matches!(&self.wire, Wire::Http1(http1) if http1.exchange.facts.http_1_0)
    }

    /// Whether an exchange takes nothing now.
    pub(crate) fn is_blocked(&self, id: ExchangeId) -> bool {
        self.outbound_of(id).is_some()
    }

    /// Whether an exchange has only its farewell to send.
    pub(crate) fn is_dismissed(&self, id: ExchangeId) -> bool {
        self.outbound_of(id).is_some_and(Outbound::is_dismissal)
    }

    /// The output of an exchange that was not taken.
    pub(crate) fn outbound_of(&self, id: ExchangeId) -> Option<&Outbound> {
        match &self.wire {
            Wire::Http2(http2) if id != self.id => http2.outbound(id),
            _ => self.outbound.as_deref(),
        }
    }

    /// Sends the last bytes to a subscriber: they go behind what was not taken, and end the exchange. The body is cut: it has no end.
    pub(crate) fn dismiss(
        &mut self,
        id: ExchangeId,
        farewell: &[u8],
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        let place = ExchangePlace {
            exchange: id,
            connection: self.id,
        };
        tracing::debug!(
            client = %cx.client_name(place),
            reason = reason.label(),
            "closing a subscriber before the end of its stream"
        );
        let outbound = match &mut self.wire {
            Wire::Http2(http2) if id != self.id => match http2.outbound_mut(id) {
                Some(outbound) => outbound,
                None => return,
            },
            _ => &mut self.outbound,
        };
        let outbound = outbound.get_or_insert_default();
        outbound.append(farewell);
        outbound.close = Some(reason);
        cx.push(ConnectionEffect::Weigh(id));
        // The client has one stall timeout to read it.
        let deadline = cx.clock.monotonic().after(cx.settings.stall_timeout);
        self.timer_mut(id).deadline = Some(deadline);
        cx.push(ConnectionEffect::Remind(id));
        if let Wire::Http2(http2) = &mut self.wire {
            http2.starve(cx);
        }
    }

    /// Sends bytes of the feed of one of several exchanges; with `ends` they are its last. Returns how many are taken.
    pub(crate) fn send_on(
        &mut self,
        id: ExchangeId,
        bytes: &[u8],
        ends: bool,
        cx: &mut Context<'_>,
    ) -> usize {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http2(http2) => http2.send(id, bytes, ends, is_blocked, cx),
            _ => bytes.len(),
        }
    }

    /// Keeps what was not taken of the output of one of several exchanges.
    pub(crate) fn block_on(&mut self, id: ExchangeId, outbound: Outbound, cx: &mut Context<'_>) {
        match &mut self.wire {
            Wire::Http2(http2) if id != self.id => http2.block(id, outbound, cx),
            _ => self.block(outbound, cx),
        }
    }

    /// Whether nothing would be taken of what is read for an exchange. Then it is blocked until that changes.
    pub(crate) fn awaits_window(&mut self, id: ExchangeId, cx: &mut Context<'_>) -> bool {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http2(http2) => http2.awaits_window(id, is_blocked, cx),
            _ => false,
        }
    }

    /// How much of `wanted` may be read for an exchange now, in bytes.
    pub(crate) fn grant_read(&mut self, id: ExchangeId, wanted: usize) -> usize {
        match &mut self.wire {
            Wire::Http2(http2) => http2.grant_read(id, wanted),
            _ => wanted,
        }
    }

    /// What was read for the feed of an exchange has arrived.
    pub(crate) fn read_arrived(&mut self, id: ExchangeId) {
        if let Wire::Http2(http2) = &mut self.wire {
            http2.read_arrived(id);
        }
    }

    /// The continuation of a long poll, which is answered with what it says.
    pub(crate) fn take_poll(&mut self, id: ExchangeId) -> Option<Box<dyn OnRecord>> {
        self.exchange_mut(id)?.take_poll()
    }

    /// Whether an exchange waits for events of the dispatcher about the request with that number.
    pub(crate) fn awaits_dispatch(&self, id: ExchangeId, number: u32) -> bool {
        let exchange = self.exchange(id);
        exchange.is_some_and(|exchange| exchange.awaits_dispatch(number))
    }

    /// The deadlines of an exchange, or of the connection.
    pub(crate) fn timer(&self, id: ExchangeId) -> Timer {
        match &self.wire {
            Wire::Http2(_) | Wire::Handshaking | Wire::Lingering if id == self.id => self.timer,
            _ => self
                .exchange(id)
                .map_or(Timer::default(), |exchange| exchange.timer),
        }
    }

    /// The same, to be changed.
    pub(crate) fn timer_mut(&mut self, id: ExchangeId) -> &mut Timer {
        match &mut self.wire {
            Wire::Http1(http1) => &mut http1.exchange.timer,
            Wire::Http2(http2) if id != self.id => match http2.exchange_mut(id) {
                Some(exchange) => &mut exchange.timer,
                None => &mut self.timer,
            },
            _ => &mut self.timer,
        }
    }

    /// Since when a long body has waited for its client, if it does.
    pub(crate) fn blocked_since(&self, id: ExchangeId) -> Option<Monotonic> {
        self.exchange(id)?.blocked_since()
    }

    /// Updates its share of the memory of all connections. Returns what an exchange holds, with what is counted elsewhere; `more`
    /// is held for its feed.
    pub(crate) fn weigh(&mut self, id: ExchangeId, more: usize, buffers: &Arc<Buffers>) -> usize {
        let mut own = self
            .outbound
            .as_ref()
            .map_or(0, |outbound| outbound.capacity());
        let mut elsewhere = 0;
        match &mut self.wire {
            Wire::Http1(http1) => {
                own += http1.bytes();
                elsewhere = http1.exchange.bytes_elsewhere();
            }
            Wire::Http2(http2) if id != self.id => {
                let bytes = http2.weigh(id, more) + more;
                let share = http2.share_mut(id);
                if let Some(share) = share {
                    share.set(bytes, buffers);
                }
                return bytes;
            }
            Wire::Http2(http2) => own += http2.bytes(),
            Wire::Handshaking | Wire::Lingering => {}
        }
        let bytes = match own + more {
            0 => 0,
            bytes => bytes + size_of::<Connection>(),
        };
        self.memory.set(bytes, buffers);
        bytes + elsewhere
    }

    /// What it is doing, for the address for operators, where those that do nothing give their places to others.
    pub(crate) fn doing(&self) -> Doing {
        match &self.wire {
            _ if self.outbound.is_some() => Doing::Stalling,
            Wire::Lingering => Doing::Nothing,
            Wire::Http1(http1) if http1.exchange.is_receiving() => Doing::Nothing,
            Wire::Http2(http2) if http2.is_idle() => Doing::Nothing,
            // Requests are answered at once there. An exchange that is still there has no window for its response.
            Wire::Http2(_) => Doing::Stalling,
            Wire::Http1(_) | Wire::Handshaking => Doing::Working,
        }
    }

    /// Whether it has begun something that the client must not take for the whole when the server stops.
    pub(crate) fn is_cut_by_stop(&self) -> bool {
        let is_streaming = match &self.wire {
            Wire::Http1(http1) => http1.exchange.is_streaming(),
            Wire::Http2(http2) => {
                let mut exchanges = http2.exchanges().iter();
                exchanges.any(|id| self.exchange(*id).is_some_and(Exchange::is_streaming))
            }
            Wire::Handshaking | Wire::Lingering => false,
        };
        self.outbound.is_some() || is_streaming
    }

    /// There is no room for the connection: its request is refused, if it can still be.
    pub(crate) fn turn_away(&mut self, cx: &mut Context<'_>) {
        match &self.wire {
            // It was refused, and has a moment to read that.
            Wire::Lingering => {}
            Wire::Http1(http1) if http1.reads(self.outbound.is_some()) => {
                self.refuse(self.id, &no_place(), cx);
            }
            _ => cx.push(ConnectionEffect::Close(CloseReason::ConnectionsMax)),
        }
    }

    /// The time of the caller of one of its exchanges is over.
    pub(crate) fn end_caller(&mut self, id: ExchangeId, end: CallerEnd, cx: &mut Context<'_>) {
        match self.exchange(id) {
            Some(_) => self.on_exchange(id, ExchangeEvent::CallerEnded(end), cx),
            // An exchange of which only its feed matters.
            None if id != self.id => cx.push(ConnectionEffect::Dismiss(id, end_of_caller(end, cx))),
            None => {}
        }
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
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    /// The connection goes on as its input says.
    fn go_to(&mut self, next: AfterInput, cx: &mut Context<'_>) {
        match next {
            AfterInput::Http1 => {}
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
            && matches!(http1.exchange.task, Task::AwaitingRecord(_))
        {
            return false;
        }
        if let Wire::Lingering = self.wire {
            cx.push(ConnectionEffect::Close(CloseReason::Lingered));
        } else if let Some(outbound) = &self.outbound {
            let dismissed = outbound.close.filter(|reason| reason.is_dismissal());
            cx.push(ConnectionEffect::Cut(
                dismissed.unwrap_or(CloseReason::Stalled),
            ));
        } else if let Wire::Http1(http1) = &mut self.wire
            && http1.exchange.is_receiving()
        {
            let shared = SharedWithWire {
                facts: &mut self.facts,
                requests: &mut self.requests,
                is_blocked: false,
            };
            http1.time_out(&shared, cx);
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
            Wire::Lingering => return,
        };
        http1.exchange.facts.keep_alive = false;
        match &http1.exchange.task {
            Task::AwaitingRecord(_) => self.on_exchange(self.id, ExchangeEvent::TimedOut, cx),
            // Subscribers are always left between two events: the last one says where to continue.
            Task::Receiving | Task::Subscribed => {
                cx.push(ConnectionEffect::CloseBehind(CloseReason::Stopping));
            }
            // The dispatcher ends its own, and responses are completed.
            _ => {}
        }
    }

    fn leave_fleet(&mut self, cx: &mut Context<'_>) {
        match &self.wire {
            Wire::Http1(http1) => match &http1.exchange.task {
                Task::Subscribed => {
                    cx.push(ConnectionEffect::Dismiss(self.id, CloseReason::OutOfFleet));
                }
                Task::AwaitingRecord(_) => {
                    self.on_exchange(self.id, ExchangeEvent::TimedOut, cx);
                }
                _ => {}
            },
            Wire::Http2(http2) => {
                for id in http2.exchanges().to_vec() {
                    match self.exchange(id).map(|exchange| &exchange.task) {
                        None | Some(Task::Subscribed) => {
                            cx.push(ConnectionEffect::Dismiss(id, CloseReason::OutOfFleet));
                        }
                        Some(Task::AwaitingRecord(_)) => {
                            self.on_exchange(id, ExchangeEvent::TimedOut, cx);
                        }
                        Some(_) => {}
                    }
                }
            }
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    /// Gives back what an exchange holds: refuses a request that is not complete, and closes any other.
    fn shed(&mut self, id: ExchangeId, cx: &mut Context<'_>) {
        let is_request = match &self.wire {
            Wire::Http1(http1) => matches!(
                http1.exchange.task,
                Task::Receiving
                    | Task::AwaitingLoad(_)
                    | Task::AwaitingKeys(_)
                    | Task::AwaitingOrder(_)
            ),
            Wire::Http2(http2) if id != self.id => {
                http2.is_receiving(id)
                    || matches!(
                        http2.exchange(id).map(|exchange| &exchange.task),
                        Some(
                            Task::AwaitingLoad(_) | Task::AwaitingKeys(_) | Task::AwaitingOrder(_)
                        )
                    )
            }
            Wire::Http2(_) | Wire::Handshaking | Wire::Lingering => false,
        };
        match is_request && !self.is_blocked(id) {
            true => self.refuse(id, &no_room(), cx),
            false => self.fail(id, CloseReason::BuffersMax, cx),
        }
    }

    fn refuse(&mut self, id: ExchangeId, rejection: &Rejection, cx: &mut Context<'_>) {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http1(http1) => http1.refuse(rejection, cx),
            Wire::Http2(http2) => http2.refuse(id, rejection, is_blocked, cx),
            Wire::Handshaking | Wire::Lingering => {}
        }
    }

    fn fail(&mut self, id: ExchangeId, reason: CloseReason, cx: &mut Context<'_>) {
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
            Wire::Http1(_) | Wire::Handshaking | Wire::Lingering => {}
        }
    }

    fn exchange(&self, id: ExchangeId) -> Option<&Exchange> {
        match &self.wire {
            Wire::Http1(http1) if id == self.id => Some(&http1.exchange),
            Wire::Http2(http2) => http2.exchange(id),
            _ => None,
        }
    }

    fn exchange_mut(&mut self, id: ExchangeId) -> Option<&mut Exchange> {
        match &mut self.wire {
            Wire::Http1(http1) if id == self.id => Some(&mut http1.exchange),
            Wire::Http2(http2) => http2.exchange_mut(id),
            _ => None,
        }
    }
}

/// What a connection is doing, as far as it matters for its place at a listener that has few.
pub(crate) use crate::listener_places::Doing;

/// The response to a request for which there is no memory.
fn no_room() -> Rejection {
    let rejection = Rejection::new(
        503,
        "buffers_max",
        "partly received requests use too much of the server's memory; try again",
    );
    rejection.retry(1)
}

/// How long a refused client may continue to send before it is closed.
const LINGER: Duration = Duration::from_secs(2);
