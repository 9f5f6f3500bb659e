//! New connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{SendFlags, SocketAddrAny, send};

use super::Shard;
use crate::acceptor::Accepted;
use crate::addresses::Denied;
use crate::connection::close::CloseReason;
use crate::connection::owners::Owner;
use crate::connection::slot::Flags;
use crate::http::Rejection;
use crate::listener_places::NoPlace;
use crate::operators::OperatorListener;

impl Shard {
    /// Accepts one connection, unless none waits or the rate is used up.
    pub(super) fn accept(&mut self) {
        let first = self.acceptor.accepted() == 0;
        if let Some(handshakes) = &self.context.handshakes
            && !handshakes.have_room()
        {
            // Others wait in the kernel's queue, where they cost nothing.
            if self.acceptor.hold(&self.poller, self.clock.monotonic()) {
                self.context.metrics.handshakes.held.inc();
            }
            return self.acceptor.stop();
        }
        let (now, now_us) = (self.clock.monotonic(), self.clock.now_us());
        match self.acceptor.accept(&self.poller, now, now_us) {
            Accepted::Connection(socket, peer) => self.admit_connection(socket, peer, first),
            Accepted::Aborted | Accepted::NoneWaiting => {}
            Accepted::RateReached => self.context.metrics.accepts_held.inc(),
            Accepted::OutOfDescriptors => self.count_refused("descriptors"),
        }
    }

    /// Accepts the connections of operators that wait.
    pub(super) fn accept_operators(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        while let Some((socket, address)) =
            self.operators.as_ref().and_then(OperatorListener::accept)
        {
            let index = self.connections.add(socket, self.clock.now_s());
            self.connections.slots[index]
                .flags
                .set(Flags::OPERATOR, true);
            self.counts.accepted += 1;
            self.counts.connections += 1;
            let token = self.connections.slots.token(index);
            let entered = self.operators.as_mut().map_or(Err(NoPlace), |operators| {
                operators.enter(token, address, &self.connections)
            });
            match entered {
                Ok(None) => {}
                Ok(Some(other)) => {
                    if let Some(other) = self.connections.find(other) {
                        self.close(other, CloseReason::OperatorPlaces);
                    }
                }
                Err(NoPlace) => {
                    self.count_refused("operator_places");
                    self.close(index, CloseReason::OperatorPlaces);
                    continue;
                }
            }
            self.newcomer = Some(index);
            self.read_newcomer(index);
        }
    }

    /// Ends a turn in which connections were accepted.
    pub(super) fn end_accepting(&mut self, batch: bool) {
        let used = self.connections.slots.used();
        let now_us = self.clock.now_us();
        let gathered = self.acceptor.end_turn(&self.poller, batch, used, now_us);
        let metric = &self.context.metrics.accepts_gathered;
        metric.inc_by(gathered as u64);
    }

    /// Makes epoll report when a socket is writable. Requested only when output waits, because epoll would report each new
    /// socket at once. False: epoll refused, and the connection is closed.
    pub(super) fn watch_output(&mut self, index: u32) -> bool {
        let token = self.connections.slots.token(index);
        let slot = &mut self.connections.slots[index];
        if slot.flags.has(Flags::OUTPUT_WATCHED) {
            return true;
        }
        slot.flags.set(Flags::OUTPUT_WATCHED, true);
        if self.newcomer == Some(index) {
            return true;
        }
        let Some(fd) = slot.fd() else {
            return true;
        };
        let watched = self.poller.watch_output(fd, token).is_ok();
        if !watched {
            self.cut(index, CloseReason::Epoll);
        }
        watched
    }

    fn admit_connection(
        &mut self,
        socket: std::os::fd::OwnedFd,
        peer: Option<SocketAddrAny>,
        first: bool,
    ) {
        let client = peer
            .clone()
            .and_then(|peer| SocketAddr::try_from(peer).ok());
        let (owner, turned_away) = match self.enter(peer) {
            Ok(entered) => entered,
            Err((reason, response)) => {
                self.count_refused(reason);
                // A fresh socket's buffer takes these few bytes, or the client is gone.
                let _ = send(&socket, response, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                return;
            }
        };
        let index = self.connections.add(socket, self.clock.now_s());
        self.counts.accepted += 1;
        self.counts.connections += 1;
        self.owners.set(index, owner);
        if turned_away {
            let flags = &mut self.connections.slots[index].flags;
            flags.set(Flags::TURNED_AWAY, true);
            let until = self.clock.monotonic().after(TURNED_AWAY_WAIT);
            let token = self.connections.slots.token(index);
            self.turned_away.push_back((until, token));
        }
        if first {
            // A client that asks for the metrics is counted in them.
            self.counts.add_up(&self.context.metrics);
        }
        self.welcome(index, client.map(|client| client.ip()));
    }

    /// Reads a new connection's request if it has arrived, which saves a turn, and adds the connection to epoll.
    fn welcome(&mut self, index: u32, client: Option<IpAddr>) {
        self.newcomer = Some(index);
        if self.context.settings.proxy_protocol {
            self.await_preface(index);
        } else if self.context.handshakes.is_some() {
            self.begin_handshake(index, Vec::new(), client);
            self.newcomer = None;
            return;
        }
        self.read_newcomer(index);
    }

    /// Reads what has arrived of a connection that is not in epoll yet, and adds it.
    pub(super) fn read_newcomer(&mut self, index: u32) {
        self.readable(index, false);
        self.newcomer = None;
        if !self.connections.is_open(index) {
            return;
        }
        let token = self.connections.slots.token(index);
        let slot = &self.connections.slots[index];
        let output = slot.flags.has(Flags::OUTPUT_WATCHED);
        if let Some(fd) = slot.fd()
            && self.poller.add(fd, token, output).is_err()
        {
            self.close(index, CloseReason::Epoll);
        }
    }

    /// Refuses connections that were turned away and have not been refused in time, whatever they have sent meanwhile.
    pub(super) fn end_turned_away(&mut self) {
        let now = self.clock.monotonic();
        while let Some(&(until, token)) = self.turned_away.front()
            && until <= now
        {
            self.turned_away.pop_front();
            let Some(index) = self.connections.find(token) else {
                continue;
            };
            if self.is_lingering(index) {
                // It was refused, and has a moment to read that.
            } else if self.connections.reads(index) {
                self.refuse(index, &no_place());
            } else {
                self.close(index, CloseReason::ConnectionsMax);
            }
        }
    }

    /// Whether a connection is open only so that its first request is refused.
    pub(super) fn is_turned_away(&self, index: u32) -> bool {
        self.connections.slots[index].flags.has(Flags::TURNED_AWAY)
    }

    /// Counts a new connection and determines its owner, and whether it is turned away; why it is refused at once and the response,
    /// if it is.
    fn enter(
        &self,
        peer: Option<SocketAddrAny>,
    ) -> Result<(Owner, bool), (&'static str, &'static [u8])> {
        let context = &self.context;
        let count = context.connections.fetch_add(1, Ordering::Relaxed);
        let turned_away = count >= context.settings.connections_max;
        // Those that are turned away take no place of the others.
        let mut counter = &context.connections;
        let mut turned_away_before = 0;
        if turned_away {
            counter.fetch_sub(1, Ordering::Relaxed);
            counter = &context.turned_away;
            turned_away_before = counter.fetch_add(1, Ordering::Relaxed);
        }
        let entered = if turned_away_before >= TURNED_AWAY_MAX {
            Err(("connections_max", FULL))
        } else {
            let owner = self.admit(peer).map_err(|denied| {
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

    pub(super) fn count_refused(&self, reason: &str) {
        let refused = &self.context.metrics.refused;
        refused.with_label_values(&[reason]).inc();
    }
}

/// The response to a request of a connection for which there is no room.
pub(super) fn no_place() -> Rejection {
    let why = "the server has no room for clients";
    Rejection::new(503, "connections_max", why).retry(5)
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
