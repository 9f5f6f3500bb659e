//! Connections that another process takes over: those that wait, with what they have received and not handled, and what their sockets have
//! not taken.

use encke_stream::Offset;

use super::context::Context;
use super::exchange::task::Task;
use super::exchange::{ConnectionFacts, ExchangeEvent};
use super::exchange_id::ExchangeId;
use super::http1::Http1;
use super::outbound::Outbound;
use super::rest::Resting;
use super::state::{Connection, Wire};
use super::websocket::{RestingChannel, WebSocket};

/// What is to be known of a connection that moves, beside its socket, its client and its feeds.
#[derive(Debug)]
pub(crate) struct MovingParts {
    pub(crate) facts: ConnectionFacts,
    /// Requests so far, as far as they can be counted.
    pub(crate) requests: u16,
    pub(crate) doing: Resting,
    pub(crate) channel: Option<RestingChannel>,
    /// It has to name its client first, in a header of the PROXY protocol.
    pub(crate) awaits_proxy: bool,
    /// What was received and not handled.
    pub(crate) input: Vec<u8>,
    /// What the socket has not taken, and the position of a subscriber behind it.
    pub(crate) unsent: Option<(Vec<u8>, Option<Offset>)>,
}

impl Connection {
    /// Whether it only waits: nothing of it is lost if another process takes it over.
    pub(crate) fn can_move(&self) -> bool {
        let waits = match &self.wire {
            Wire::Http1(http1) => http1.can_move(self.outbound.is_some()),
            Wire::WebSocket(websocket) => websocket.is_idle() && self.has_no_deadline(),
            Wire::Http2(_) | Wire::Handshaking | Wire::Lingering => false,
        };
        let outbound = self.outbound.as_deref();
        waits && self.facts.turned_away.is_none() && outbound.is_none_or(Outbound::can_move)
    }

    /// Whether what one of its requests changes is being stored.
    pub(crate) fn awaits_outcome(&self) -> bool {
        match &self.wire {
            Wire::Http1(http1) => http1.exchange.task.awaits_outcome(),
            Wire::Http2(http2) => http2.awaits_outcome(),
            Wire::WebSocket(websocket) => websocket.awaits_outcome(),
            Wire::Handshaking | Wire::Lingering => false,
        }
    }

    /// Why it would be closed if the server moved now, for people. Requests in work are finished before.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        match &self.wire {
            _ if self.facts.turned_away.is_some() => Some("waiting to be refused"),
            Wire::Http2(_) => Some("HTTP/2"),
            Wire::Http1(http1) if matches!(http1.exchange.task, Task::Working { .. }) => {
                Some("workers")
            }
            Wire::WebSocket(_) if !self.can_move() => Some("WebSocket in the middle of a message"),
            Wire::Http1(_) | Wire::WebSocket(_) | Wire::Handshaking | Wire::Lingering => None,
        }
    }

    /// Its parts, if [`Self::can_move`].
    pub(crate) fn into_moving(self) -> Option<MovingParts> {
        if !self.can_move() {
            return None;
        }
        let outbound = self.outbound.as_deref();
        let unsent = outbound.map(|outbound| (outbound.rest().to_vec(), outbound.reached));
        let mut parts = MovingParts {
            facts: self.facts,
            requests: self.requests,
            doing: Resting::Idle,
            channel: None,
            awaits_proxy: false,
            input: Vec::new(),
            unsent,
        };
        match self.wire {
            Wire::Http1(http1) => {
                let facts = &http1.exchange.facts;
                if let Task::Subscribed = http1.exchange.task {
                    parts.doing = Resting::Subscribed {
                        http_1_0: facts.http_1_0,
                        keep_alive: facts.keep_alive,
                    };
                }
                (parts.input, parts.awaits_proxy) = http1.into_input();
            }
            Wire::WebSocket(websocket) => {
                parts.doing = Resting::Channel;
                parts.channel = Some(websocket.into_rest());
            }
            Wire::Http2(_) | Wire::Handshaking | Wire::Lingering => return None,
        }
        Some(parts)
    }

    /// The connection of these parts. What it has received is looked at with [`Event::Drained`](super::Event::Drained).
    pub(crate) fn arrive(id: ExchangeId, parts: MovingParts, cx: &mut Context<'_>) -> Self {
        let wire = match (parts.doing, parts.channel) {
            (_, Some(channel)) => Wire::WebSocket(Box::new(WebSocket::from_rest(id, channel))),
            (
                Resting::Subscribed {
                    http_1_0,
                    keep_alive,
                },
                None,
            ) => {
                let http1 = Http1::subscribed(id, http_1_0, keep_alive);
                Wire::Http1(http1.with_input(parts.input))
            }
            (Resting::Idle | Resting::Channel, None) => {
                let mut http1 = Http1::new(id, parts.awaits_proxy);
                if parts.awaits_proxy {
                    http1.await_proxy(cx);
                }
                Wire::Http1(http1.with_input(parts.input))
            }
        };
        let mut connection = Connection::with_wire(id, parts.facts, parts.requests, wire);
        if let Some((bytes, reached)) = parts.unsent {
            let mut outbound = Outbound::new(bytes);
            outbound.reached = reached;
            connection.block(outbound, cx);
        }
        connection
    }

    /// The server moves to another process: ends what can't move, in the way of its protocol. Requests in work go on.
    pub(crate) fn prepare_move(&mut self, cx: &mut Context<'_>) {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http1(http1) if matches!(http1.exchange.task, Task::AwaitingRecord(..)) => {
                self.on_exchange(self.id, ExchangeEvent::TimedOut, cx);
            }
            Wire::Http2(http2) => http2.stop(is_blocked, cx),
            Wire::Http1(_) | Wire::WebSocket(_) | Wire::Handshaking | Wire::Lingering => {}
        }
    }

    fn has_no_deadline(&self) -> bool {
        // That of output which waits for its client begins anew.
        self.outbound.is_some() || self.timer.first().is_none()
    }
}

impl Outbound {
    /// Whether it is bytes behind which the connection goes on.
    fn can_move(&self) -> bool {
        !self.has_file() && !self.has_sent_file && self.close.is_none() && !self.is_dismissal()
    }
}
