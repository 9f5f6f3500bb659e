//! New connections.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use encke_protocol::Router;
use rustix::net::{SendFlags, SocketAddrAny, send};

use super::state::Shard;
use crate::acceptor::Accepted;
use crate::clients::addresses::Denied;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, Token};
use crate::http::framing::ResponseFraming;
use crate::http::response::{Shape, encode};
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

    /// Begins with a new connection, or refuses it.
    pub(super) fn admit_connection(
        &mut self,
        socket: OwnedFd,
        peer: Option<SocketAddrAny>,
        first: bool,
    ) {
        let client = peer
            .clone()
            .and_then(|peer| SocketAddr::try_from(peer).ok());
        let (owner, turned_away) = match self.admission.enter(
            peer,
            &self.connections.clients,
            self.connections.clock.now(),
        ) {
            Ok(entered) => entered,
            Err(denied) => {
                self.connections.count_refused(denied.reason());
                let date = self.connections.clock.date();
                let response = unread_refusal(denied, &self.context.router, date);
                // A fresh socket's buffer takes these few bytes, or the client is gone.
                let _ = send(
                    &socket,
                    &response,
                    SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
                );
                return;
            }
        };
        let index = self.connections.add(socket);
        self.connections.counts.accepted += 1;
        self.connections.counts.connections += 1;
        let id = ExchangeId::new(index);
        self.connections.clients.set_owner(id, owner);
        if turned_away.is_some() {
            let flags = &mut self.connections.slots[index].flags;
            flags.set(Flags::TURNED_AWAY, true);
            let token = self.connections.slots.token(index);
            let now = self.connections.clock.monotonic();
            self.admission.await_request(token, now);
        }
        if first {
            // A client that asks for the metrics is counted in them.
            self.connections.counts.add_up(&self.context.metrics);
        }
        self.welcome(index, client.map(|client| client.ip()), turned_away);
    }

    /// Reads a new connection's request if it has arrived, which saves a turn, and adds the connection to epoll.
    fn welcome(&mut self, index: u32, client: Option<IpAddr>, turned_away: Option<Denied>) {
        self.connections.newcomer = Some(index);
        let awaits_proxy = self.context.settings.proxy_protocol;
        if awaits_proxy || turned_away.is_some() && self.context.handshakes.is_none() {
            self.connections.begin(index, turned_away, awaits_proxy);
            self.do_wishes();
        } else if self.context.handshakes.is_some() {
            self.connections.begin_handshake(index, turned_away);
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
}

/// The response to a connection that is refused before its request is read. `date` is the Date field's value.
fn unread_refusal(denied: Denied, router: &Router, date: &str) -> Vec<u8> {
    let reader = router.reader_of_any();
    let shape = Shape {
        head_only: false,
        keep_alive: false,
        hsts: None,
        cross_origin: router.cross_origin(&reader),
        framing: ResponseFraming::Chunks,
        request_id: None,
    };
    let mut bytes = Vec::new();
    encode(&denied.refused().response(), shape, date, &mut bytes);
    bytes
}
