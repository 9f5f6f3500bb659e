//! Connections at rest: plain data, for which a slot has room.

use super::exchange::ConnectionFacts;
use super::exchange_id::ExchangeId;
use super::http1::Http1;
use super::state::{Connection, Wire};
use super::websocket::{RestingChannel, WebSocket};

/// What there is to know of a connection that does nothing but wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) facts: ConnectionFacts,
    /// Requests so far, as far as they can be counted.
    pub(crate) requests: u16,
    pub(crate) doing: Resting,
}

/// What a connection at rest waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resting {
    /// The next request.
    Idle,
    /// The messages of its channel, which is kept beside the slot.
    Channel,
    /// The records of its feed; `http_1_0`: the client speaks HTTP/1.0. `keep_alive`: a request may follow behind the feed's end.
    Subscribed { http_1_0: bool, keep_alive: bool },
}

impl Connection {
    /// A connection that was at rest. `channel` is what was kept of it, if it has one.
    pub(crate) fn from_rest(id: ExchangeId, rest: Rest, channel: Option<RestingChannel>) -> Self {
        let wire = match (rest.doing, channel) {
            (_, Some(channel)) => Wire::WebSocket(Box::new(WebSocket::from_rest(id, channel))),
            (Resting::Idle | Resting::Channel, None) => Wire::Http1(Http1::new(id, false)),
            (
                Resting::Subscribed {
                    http_1_0,
                    keep_alive,
                },
                None,
            ) => Wire::Http1(Http1::subscribed(id, http_1_0, keep_alive)),
        };
        Connection::with_wire(id, rest.facts, rest.requests, wire)
    }

    /// What is left of it while it only waits; `None` while something else of it matters.
    pub(crate) fn rest(&self) -> Option<Rest> {
        // A slot has no room for the reason of a refusal.
        if self.outbound.is_some() || self.facts.turned_away.is_some() {
            return None;
        }
        let doing = match &self.wire {
            Wire::Http1(http1) if http1.is_idle() => Resting::Idle,
            Wire::Http1(http1) if http1.is_only_subscribed() => {
                let facts = &http1.exchange.facts;
                Resting::Subscribed {
                    http_1_0: facts.http_1_0,
                    keep_alive: facts.keep_alive,
                }
            }
            Wire::WebSocket(websocket) if websocket.is_idle() && self.timer.first().is_none() => {
                Resting::Channel
            }
            _ => return None,
        };
        Some(Rest {
            facts: self.facts,
            requests: self.requests,
            doing,
        })
    }

    /// The channel of a connection that goes to rest with one.
    pub(crate) fn into_channel(self) -> Option<RestingChannel> {
        match self.wire {
            Wire::WebSocket(websocket) => Some(websocket.into_rest()),
            Wire::Http1(_) | Wire::Http2(_) | Wire::Handshaking | Wire::Lingering => None,
        }
    }
}
