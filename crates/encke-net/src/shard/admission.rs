//! Whether a new connection has a place: the bound on the connections of all shards, and those that are refused for it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::SocketAddrAny;

use crate::clients::Clients;
use crate::clients::addresses::Denied;
use crate::clients::owners::Owner;
use crate::clock::Monotonic;
use crate::feed::slot::Token;

/// Counts the connections of all shards.
pub(crate) struct Admission {
    connections_max: usize,
    /// Connections of all shards.
    connections: Arc<AtomicUsize>,
    /// Connections of all shards that are open until they are refused.
    turned_away: Arc<AtomicUsize>,
    /// Those of this shard, and until when they have time for a request.
    waiting: VecDeque<(Monotonic, Token)>,
}

impl Admission {
    /// Counts in counters that all shards share.
    pub(crate) fn new(
        connections_max: usize,
        connections: Arc<AtomicUsize>,
        turned_away: Arc<AtomicUsize>,
    ) -> Self {
        Admission {
            connections_max,
            connections,
            turned_away,
            waiting: VecDeque::new(),
        }
    }

    /// Counts a new connection and determines its owner, and whether it is turned away; why it is refused at once and the response,
    /// if it is.
    pub(super) fn enter(
        &self,
        peer: Option<SocketAddrAny>,
        clients: &Clients,
        now: Instant,
    ) -> Result<(Owner, bool), (&'static str, &'static [u8])> {
        let count = self.connections.fetch_add(1, Ordering::Relaxed);
        let turned_away = count >= self.connections_max;
        // Those that are turned away take no place of the others.
        let mut counter = &self.connections;
        let mut turned_away_before = 0;
        if turned_away {
            counter.fetch_sub(1, Ordering::Relaxed);
            counter = &self.turned_away;
            turned_away_before = counter.fetch_add(1, Ordering::Relaxed);
        }
        let entered = if turned_away_before >= TURNED_AWAY_MAX {
            Err(("connections_max", FULL))
        } else {
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let admitted = clients.admit(peer.map(|peer| peer.ip()), now);
            let owner = admitted.map_err(|denied| {
                let response = match denied {
                    Denied::Untrusted => UNTRUSTED,
                    Denied::TooMany => TOO_MANY,
                    Denied::TooFast { .. } => TOO_FAST,
                    Denied::Full => FULL,
                };
                (denied.reason(), response)
            });
            owner.map(|owner| (owner, turned_away))
        };
        if entered.is_err() {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
        entered
    }

    /// Counts a connection that another process has given away, whatever the limits.
    pub(super) fn arrive(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection is closed that had entered.
    pub(super) fn leave(&self, turned_away: bool) {
        let counter = match turned_away {
            true => &self.turned_away,
            false => &self.connections,
        };
        counter.fetch_sub(1, Ordering::Relaxed);
    }

    /// A connection that is turned away has some time for the request that is refused.
    pub(super) fn await_request(&mut self, token: Token, now: Monotonic) {
        self.waiting.push_back((now.after(TURNED_AWAY_WAIT), token));
    }

    /// The next connection that was turned away and has not been refused in time.
    pub(super) fn next_overdue(&mut self, now: Monotonic) -> Option<Token> {
        let (until, token) = *self.waiting.front()?;
        if until > now {
            return None;
        }
        self.waiting.pop_front();
        Some(token)
    }
}

/// Connections beyond the maximum that are open until their first request is refused, so that the response is one for this
/// request. All others get a response that knows nothing of theirs.
const TURNED_AWAY_MAX: usize = 64;

/// How long such a request may take to arrive, with all that comes before it.
const TURNED_AWAY_WAIT: Duration = Duration::from_secs(1);

/// A response to a connection that has sent no request.
macro_rules! refusal {
    ($status:literal, $length:literal, $fields:literal, $why:literal) => {
        concat!(
            "HTTP/1.1 ",
            $status,
            "\r\nContent-Type: text/plain\r\nContent-Length: ",
            $length,
            "\r\n",
            $fields,
            "Connection: close\r\n\r\n",
            $why,
            "\n"
        )
        .as_bytes()
    };
}

const FULL: &[u8] = refusal!(
    "503 Service Unavailable",
    "35",
    "Retry-After: 5\r\n",
    "the server has no room for clients"
);

const UNTRUSTED: &[u8] = refusal!(
    "403 Forbidden",
    "46",
    "",
    "only trusted proxies may connect to this port"
);

const TOO_MANY: &[u8] = refusal!(
    "429 Too Many Requests",
    "46",
    "Retry-After: 5\r\n",
    "your address has too many connections already"
);

const TOO_FAST: &[u8] = refusal!(
    "429 Too Many Requests",
    "38",
    "Retry-After: 5\r\n",
    "your address exceeds its request rate"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_as_long_as_it_says() {
        for refusal in [FULL, UNTRUSTED, TOO_MANY, TOO_FAST] {
            let refusal = std::str::from_utf8(refusal).unwrap();
            let (head, body) = refusal.split_once("\r\n\r\n").unwrap();
            let (_, length) = head.split_once("Content-Length: ").unwrap();
            let (length, _) = length.split_once("\r\n").unwrap();
            assert_eq!(length.parse(), Ok(body.len()), "{refusal}");
        }
    }
}
