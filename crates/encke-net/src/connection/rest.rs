//! Connections at rest: plain data, for which a slot has room.

use super::exchange::ConnectionFacts;
use super::exchange_id::ExchangeId;
use super::http1::Http1;
use super::state::{Connection, Wire};

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
    /// The records of its feed; `http_1_0`: the client speaks HTTP/1.0.
    Subscribed { http_1_0: bool },
}

impl Connection {
    /// A connection that was at rest.
    pub(crate) fn from_rest(id: ExchangeId, rest: Rest) -> Self {
        let http1 = match rest.doing {
            Resting::Idle => Http1::new(id, false),
            Resting::Subscribed { http_1_0 } => Http1::subscribed(id, http_1_0),
        };
        Connection::with_wire(id, rest.facts, rest.requests, Wire::Http1(http1))
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
}
