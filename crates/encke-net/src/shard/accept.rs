//! New connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{SendFlags, SocketAddrAny, send};

use super::state::Shard;
use crate::acceptor::Accepted;
use crate::clients::addresses::Denied;
use crate::clients::owners::Owner;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, Token};
use crate::listener_places::NoPlace;
use crate::operators::OperatorListener;
use crate::transport::tls::{Established, Handshaken};

impl Shard {
    /// Accepts one connection, unless none waits or the rate is used up.
    pub(super) fn accept(&mut self) {
        let first = self.acceptor.accepted() == 0;
        if let Some(handshakes) = &self.context.handshakes
            && !handshakes.have_room()
        {
            // Others wait in the kernel's queue, where they cost nothing.
            if self
                .acceptor
                .hold(&self.connections.poller, self.connections.clock.monotonic())
            {
                self.context.metrics.handshakes.held.inc();
            }
            return self.acceptor.stop();
        }
        let clock = &self.connections.clock;
        let (now, now_us) = (clock.monotonic(), clock.now_us());
        match self.acceptor.accept(&self.connections.poller, now, now_us) {
            Accepted::Connection(socket, peer) => self.admit_connection(socket, peer, first),
            Accepted::Aborted | Accepted::NoneWaiting => {}
            Accepted::RateReached => self.context.metrics.accepts_held.inc(),
            Accepted::OutOfDescriptors => self.connections.count_refused("descriptors"),
        }
    }

    /// Accepts the connections of operators that wait.
    pub(super) fn accept_operators(&mut self) {
        if self.connections.stopping.is_some() {
            return;
        }
        while let Some((socket, address)) =
            self.operators.as_ref().and_then(OperatorListener::accept)
        {
            let index = self.connections.add(socket);
            self.connections.slots[index]
                .flags
                .set(Flags::OPERATOR, true);
            self.connections.counts.accepted += 1;
            self.connections.counts.connections += 1;
            let token = self.connections.slots.token(index);
            let entered = self.operators.as_mut().map_or(Err(NoPlace), |operators| {
                operators.enter(token, address, |other| self.connections.doing(other))
            });
            match entered {
                Ok(None) => {}
                Ok(Some(other)) => {
                    if let Some(other) = self.connections.slots.find(other) {
                        self.close(other, CloseReason::OperatorPlaces);
                    }
                }
                Err(NoPlace) => {
                    self.connections.count_refused("operator_places");
                    self.close(index, CloseReason::OperatorPlaces);
                    continue;
                }
            }
            self.connections.newcomer = Some(index);
            self.read_newcomer(index);
        }
    }

    /// Ends a turn in which connections were accepted.
    pub(super) fn end_accepting(&mut self, batch: bool) {
        let used = self.connections.slots.used();
        let now_us = self.connections.clock.now_us();
        let poller = &self.connections.poller;
        let gathered = self.acceptor.end_turn(poller, batch, used, now_us);
        let metric = &self.context.metrics.accepts_gathered;
        metric.inc_by(gathered as u64);
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
                self.connections.count_refused(reason);
                // A fresh socket's buffer takes these few bytes, or the client is gone.
                let _ = send(&socket, response, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                return;
            }
        };
        let index = self.connections.add(socket);
        self.connections.counts.accepted += 1;
        self.connections.counts.connections += 1;
        let id = ExchangeId::new(index);
        self.connections.clients.set_owner(id, owner);
        if turned_away {
            let flags = &mut self.connections.slots[index].flags;
            flags.set(Flags::TURNED_AWAY, true);
            let until = self.connections.clock.monotonic().after(TURNED_AWAY_WAIT);
            let token = self.connections.slots.token(index);
            self.turned_away.push_back((until, token));
        }
        if first {
            // A client that asks for the metrics is counted in them.
            self.connections.counts.add_up(&self.context.metrics);
        }
        self.welcome(index, client.map(|client| client.ip()));
    }

    /// Reads a new connection's request if it has arrived, which saves a turn, and adds the connection to epoll.
    fn welcome(&mut self, index: u32, client: Option<IpAddr>) {
        self.connections.newcomer = Some(index);
        if self.context.settings.proxy_protocol {
            self.connections.begin(index, true);
            self.do_wishes();
        } else if self.context.handshakes.is_some() {
            self.connections.begin_handshake(index);
            self.begin_handshake(index, Vec::new(), client);
            self.connections.newcomer = None;
            return;
        }
        self.read_newcomer(index);
    }

    /// A handshake thread gives a connection's socket back. If the connection was closed meanwhile, dropping the socket ends it.
    pub(super) fn handshaken(&mut self, token: Token, ended: Handshaken) {
        let Some(index) = self.connections.slots.find(token) else {
            return;
        };
        let Handshaken { socket, outcome } = ended;
        self.connections.slots[index].set_socket(socket);
        let established = match outcome {
            Ok(established) => established,
            Err(reason) => {
                let client = self.connections.client_name(index);
                tracing::debug!(client, reason = reason.label(), "a handshake failed");
                return self.close(index, CloseReason::Handshake);
            }
        };
        let now_s = self.connections.clock.now_s();
        let slot = &mut self.connections.slots[index];
        slot.active_s = now_s;
        slot.flags.set(Flags::ENCRYPTED, true);
        let Established {
            session,
            content,
            certificate,
            http2,
            ..
        } = established;
        let id = ExchangeId::new(index);
        let transports = &mut self.connections.transports;
        transports.enter(id, session, certificate);
        self.connections.newcomer = Some(index);
        self.connections.counts.bytes_in += content.len() as u64;
        // Until its first request it is idle, and is closed as such.
        self.on(index, Event::Handshaken { http2 });
        if !content.is_empty() || http2 {
            let bytes = &content[..];
            self.on(index, Event::Received { bytes, full: false });
        }
        self.read_newcomer(index);
    }

    /// Refuses connections that were turned away and have not been refused in time, whatever they have sent meanwhile.
    pub(super) fn end_turned_away(&mut self) {
        let now = self.connections.clock.monotonic();
        while let Some(&(until, token)) = self.turned_away.front()
            && until <= now
        {
            self.turned_away.pop_front();
            if let Some(index) = self.connections.slots.find(token) {
                self.act(index, |connection, cx| connection.turn_away(cx));
            }
        }
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
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let now = self.connections.clock.now();
            let admitted = self
                .connections
                .clients
                .admit(peer.map(|peer| peer.ip()), now);
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
