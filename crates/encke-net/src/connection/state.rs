//! The state of a connection, and questions about it. Nothing here handles an event.

use std::sync::Arc;

use super::context::Context;
use super::exchange::{ConnectionFacts, Exchange};
use super::exchange_id::ExchangeId;
use super::http1::Http1;
use super::http2::Http2;
use super::outbound::Outbound;
use super::timer::Timer;
use super::websocket::WebSocket;
use crate::buffers::{BufferShare, Buffers};
use crate::clock::Monotonic;
use crate::http2::frames::SEND_BYTES_MAX;
use crate::listener_places::Doing;
use crate::settings::NetSettings;

/// A connection that does something.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) id: ExchangeId,
    pub(super) facts: ConnectionFacts,
    /// Requests so far, as far as they can be counted.
    pub(super) requests: u16,
    pub(super) wire: Wire,
    /// What the socket has not taken.
    pub(super) outbound: Option<Box<Outbound>>,
    /// The deadlines of the connection itself; those of exchanges are theirs.
    pub(super) timer: Timer,
    /// Its share of the memory of all connections.
    pub(super) memory: BufferShare,
}

// What an active connection costs, beside what it holds.
const _: () = assert!(size_of::<Connection>() <= 320);

/// What a connection speaks.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most connections speak HTTP/1.1, and each is boxed"
)]
pub(super) enum Wire {
    /// Its socket is with a handshake thread.
    Handshaking,
    Http1(Http1),
    Http2(Box<Http2>),
    WebSocket(Box<WebSocket>),
    /// Refused: further input is discarded until it closes.
    Lingering,
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

    pub(super) fn with_wire(
        id: ExchangeId,
        facts: ConnectionFacts,
        requests: u16,
        wire: Wire,
    ) -> Self {
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

    /// What the socket takes next.
    pub(crate) fn outbound(&self) -> Option<&Outbound> {
        self.outbound.as_deref()
    }

    /// The output of an exchange that was not taken.
    pub(crate) fn outbound_of(&self, id: ExchangeId) -> Option<&Outbound> {
        match &self.wire {
            Wire::Http2(http2) if id != self.id => http2.outbound(id),
            _ => self.outbound.as_deref(),
        }
    }

    /// Whether it has something to do while its socket takes output. `has_sent`: output was taken just now.
    pub(crate) fn goes_on(&self, has_sent: bool) -> bool {
        match &self.wire {
            Wire::Http1(http1) => {
                http1.exchange.task.is_over() || has_sent && http1.exchange.is_streaming()
            }
            Wire::Http2(http2) => has_sent && http2.is_starved(),
            Wire::WebSocket(websocket) => has_sent && websocket.has_work(),
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
            Wire::WebSocket(websocket) => {
                websocket.has_enough(self.outbound.is_some(), settings.pipeline_bytes_max)
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

    /// Whether an exchange waits for events of the dispatcher about the request with that number.
    pub(crate) fn awaits_dispatch(&self, id: ExchangeId, number: u32) -> bool {
        let exchange = self.exchange(id);
        exchange.is_some_and(|exchange| exchange.awaits_dispatch(number))
    }

    /// Since when a long body has waited for its client, if it does.
    pub(crate) fn blocked_since(&self, id: ExchangeId) -> Option<Monotonic> {
        self.exchange(id)?.blocked_since()
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
            Wire::Http1(_) | Wire::WebSocket(_) | Wire::Handshaking => Doing::Working,
        }
    }

    /// Requests so far, as far as they can be counted.
    pub(crate) fn requests_so_far(&self) -> u16 {
        self.requests
    }

    /// What it speaks, and what an exchange of it is doing, in words for operators.
    pub(crate) fn described(&self, id: ExchangeId) -> (&'static str, &'static str) {
        let doing = self
            .exchange(id)
            .map_or("open", |exchange| exchange.doing());
        match &self.wire {
            Wire::Http1(_) => ("HTTP/1.1", doing),
            Wire::Http2(_) => ("HTTP/2", doing),
            Wire::WebSocket(_) => ("WebSocket", "channel"),
            Wire::Handshaking => ("TLS", "handshake"),
            Wire::Lingering => ("HTTP/1.1", "closing"),
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
            Wire::WebSocket(_) | Wire::Handshaking | Wire::Lingering => false,
        };
        self.outbound.is_some() || is_streaming
    }

    /// The deadlines of an exchange, or of the connection.
    pub(crate) fn timer(&self, id: ExchangeId) -> Timer {
        match &self.wire {
            Wire::Http2(_) | Wire::WebSocket(_) | Wire::Handshaking | Wire::Lingering
                if id == self.id =>
            {
                self.timer
            }
            Wire::Http2(http2) => http2.timer(id),
            _ => self
                .exchange(id)
                .map_or(Timer::default(), |exchange| exchange.timer),
        }
    }

    /// The same, to be changed.
    pub(crate) fn timer_mut(&mut self, id: ExchangeId) -> &mut Timer {
        match &mut self.wire {
            Wire::Http1(http1) => &mut http1.exchange.timer,
            Wire::Http2(http2) if id != self.id => match http2.timer_mut(id) {
                Some(timer) => timer,
                None => &mut self.timer,
            },
            _ => &mut self.timer,
        }
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
                let Some((own, elsewhere)) = http2.weigh(id, more) else {
                    return 0;
                };
                let bytes = own + more;
                let share = http2.share_mut(id);
                if let Some(share) = share {
                    share.set(bytes, buffers);
                }
                return bytes + elsewhere;
            }
            Wire::Http2(http2) => own += http2.bytes(),
            // What a feed holds is counted with its channel.
            Wire::WebSocket(_) if id != self.id => return 0,
            Wire::WebSocket(websocket) => own += websocket.bytes(),
            Wire::Handshaking | Wire::Lingering => {}
        }
        let bytes = match own + more {
            0 => 0,
            bytes => bytes + size_of::<Connection>(),
        };
        self.memory.set(bytes, buffers);
        bytes + elsewhere
    }

    pub(super) fn exchange(&self, id: ExchangeId) -> Option<&Exchange> {
        match &self.wire {
            Wire::Http1(http1) if id == self.id => Some(&http1.exchange),
            Wire::Http2(http2) => http2.exchange(id),
            _ => None,
        }
    }

    pub(super) fn exchange_mut(&mut self, id: ExchangeId) -> Option<&mut Exchange> {
        match &mut self.wire {
            Wire::Http1(http1) if id == self.id => Some(&mut http1.exchange),
            Wire::Http2(http2) => http2.exchange_mut(id),
            _ => None,
        }
    }
}
