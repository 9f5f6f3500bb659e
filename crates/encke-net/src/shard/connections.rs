//! The connections of a shard and their sockets: gives events to connections, sends their output, and collects what they want
//! done.
//!
//! A connection that only waits is a slot. One that does something is in the table beside the slots, and only as long as it does.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_protocol::Router;
use rustix::io::Errno;
use rustix::net::{Shutdown, getpeername, shutdown, sockopt};

use crate::access_log::OpenRequests;
use crate::audit::AuditSender;
use crate::buffers::Buffers;
use crate::by_slot::BySlot;
use crate::clients::Clients;
use crate::clients::holdings::Holdings;
use crate::clock::ShardClock;
use crate::compression::Compressors;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::{ConnectionEffect, Effects};
use crate::connection::exchange::ConnectionFacts;
use crate::connection::exchange_id::{ExchangeId, ExchangeIds, ExchangePlace};
use crate::connection::rest::{Rest, Resting};
use crate::connection::{Connection, Event};
use crate::feed::slot::{Flags, Slot, SlotState, Slots, Token};
use crate::listener_places::Doing;
use crate::metrics::{Metrics, ShardCounts};
use crate::poller::Poller;
use crate::settings::NetSettings;
use crate::transport::tls::{ReadOutcome, TlsFault};
use crate::transport::{Transports, plain};

/// The connections of a shard.
pub(super) struct Connections {
    pub(super) slots: Slots,
    active: BySlot<Connection>,
    pub(super) transports: Transports,
    pub(super) poller: Poller,
    /// A connection that was just accepted, and is not in epoll yet.
    pub(super) newcomer: Option<u32>,
    pub(super) clients: Clients,
    pub(super) holdings: Holdings,
    pub(super) requests: OpenRequests,
    pub(super) clock: ShardClock,
    pub(super) counts: ShardCounts,
    pub(super) shared: SharedParts,
    /// Since when the shard is stopping.
    pub(super) stopping: Option<Instant>,
    effects: Effects,
    /// What connections want done, by their slots.
    wishes: VecDeque<(u32, ConnectionEffect)>,
    /// The content of records of TLS.
    content: Vec<u8>,
    /// Closed in this turn.
    closed: Vec<u32>,
    /// The value of Strict-Transport-Security in responses over TLS.
    hsts: Option<Box<str>>,
}

/// What the connections of all shards share.
pub(super) struct SharedParts {
    pub(super) settings: Arc<NetSettings>,
    pub(super) router: Router,
    pub(super) metrics: Metrics,
    pub(super) audit: AuditSender,
    pub(super) buffers: Arc<Buffers>,
    pub(super) compressors: Arc<Compressors>,
    pub(super) makes_handshakes: bool,
}

/// What a read of a socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes; `drained`: the socket held no more.
    Bytes { count: usize, drained: bool },
    /// So many bytes, and the client has ended its side behind them.
    Last { count: usize },
    /// Nothing: the socket is empty.
    Nothing,
    /// The connection is to be closed.
    Failed(CloseReason),
}

impl Connections {
    /// No connections.
    pub(super) fn new(
        shared: SharedParts,
        poller: Poller,
        clients: Clients,
        requests: OpenRequests,
    ) -> Self {
        let settings = &shared.settings;
        let hsts = settings.hsts_max_age;
        Connections {
            slots: Slots::default(),
            active: BySlot::default(),
            transports: Transports::default(),
            poller,
            newcomer: None,
            clients,
            holdings: Holdings::new(settings.buffers_per_client_max),
            requests,
            clock: ShardClock::start(),
            counts: ShardCounts::default(),
            stopping: None,
            effects: Effects::default(),
            wishes: VecDeque::new(),
            content: Vec::new(),
            closed: Vec::new(),
            hsts: hsts.map(|age| format!("max-age={}", age.as_secs()).into()),
            shared,
        }
    }

    /// Takes a slot for a new connection.
    pub(super) fn add(&mut self, socket: OwnedFd) -> u32 {
        self.slots.add(socket, self.clock.now_s())
    }

    /// Begins with a new connection. `awaits_proxy`: it has to begin with a header of the PROXY protocol.
    pub(super) fn begin(&mut self, index: u32, awaits_proxy: bool) {
        if awaits_proxy {
            self.enter(index, |id, facts, cx| Connection::new(id, facts, true, cx));
        }
    }

    /// A new connection's socket goes to a handshake thread.
    pub(super) fn begin_handshake(&mut self, index: u32) {
        self.enter(index, |id, facts, _| Connection::handshaking(id, facts));
    }

    fn enter(
        &mut self,
        index: u32,
        connection: impl FnOnce(ExchangeId, ConnectionFacts, &mut Context<'_>) -> Connection,
    ) {
        let id = ExchangeId::new(index);
        let facts = rest_of(&self.slots[index]).facts;
        let mut entered = None;
        self.with_context(index, |cx| entered = Some(connection(id, facts, cx)));
        if let Some(connection) = entered {
            self.slots[index].state = SlotState::Active;
            self.active.insert(index, connection);
        }
        self.collect(index);
    }

    /// Whether a connection or an exchange has not been closed in this turn.
    pub(super) fn is_open(&self, index: u32) -> bool {
        !matches!(self.slots[index].state, SlotState::Closed | SlotState::Free)
    }

    /// A connection that does something.
    pub(super) fn get(&self, index: u32) -> Option<&Connection> {
        match self.slots[index].state {
            SlotState::Active => self.active.get(index),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        match self.slots[index].state {
            SlotState::Active => self.active.get_mut(index),
            _ => None,
        }
    }

    /// The connection of an exchange, if it does something.
    pub(super) fn of_exchange(&self, index: u32) -> Option<&Connection> {
        self.get(self.slots.connection_of(index))
    }

    /// Whether an exchange takes nothing now.
    pub(super) fn is_blocked(&self, index: u32) -> bool {
        match self.slots[index].state {
            SlotState::Active | SlotState::Exchange => {
                let connection = self.of_exchange(index);
                connection.is_some_and(|one| one.is_blocked(ExchangeId::new(index)))
            }
            _ => false,
        }
    }

    /// Gives something to a connection, sends what it writes, and collects what it wants done.
    pub(super) fn handle(
        &mut self,
        index: u32,
        give: impl FnOnce(&mut Connection, &mut Context<'_>),
    ) {
        let Some(mut connection) = self.take(index) else {
            return;
        };
        self.with_context(index, |cx| give(&mut connection, cx));
        let mut failed = None;
        loop {
            let has_sent = match self.send_output(index, &mut connection) {
                Ok(has_sent) => has_sent,
                Err(reason) => {
                    failed = Some(reason);
                    break;
                }
            };
            if connection.outbound().is_some() || !connection.goes_on(has_sent) {
                break;
            }
            self.with_context(index, |cx| connection.on(Event::Drained, cx));
            if self.effects.output.is_empty() {
                break;
            }
        }
        let is_blocked = connection.outbound().is_some();
        self.put(index, connection);
        self.collect(index);
        if let Some(reason) = failed {
            self.wish(index, ConnectionEffect::Close(reason));
        } else if is_blocked && !self.watch_output(index) {
            self.wish(index, ConnectionEffect::Cut(CloseReason::Epoll));
        }
    }

    /// Sends what the socket of a connection has not taken before.
    pub(super) fn send_outbound(&mut self, index: u32) {
        if self.slots[index].state != SlotState::Active {
            return;
        }
        let connection = self.active.get(index);
        let Some(outbound) = connection.and_then(Connection::outbound) else {
            return;
        };
        let slot = &self.slots[index];
        let sent = send(slot, &mut self.transports, index, outbound.rest());
        let sent = match sent {
            Ok(sent) => sent,
            Err(fault) => return self.end_session(index, &fault),
        };
        self.note_sent(index, sent);
        let is_cut = self.has_unsent_record(index);
        let mut taken = None;
        self.handle(index, |connection, cx| {
            taken = connection.took_outbound(sent, is_cut, cx);
            if let Some(outbound) = &taken {
                if let Some(reason) = outbound.close {
                    cx.push(ConnectionEffect::Close(reason));
                } else {
                    connection.on(Event::Drained, cx);
                }
            }
        });
        let Some(outbound) = taken else {
            return;
        };
        if outbound.close.is_none() {
            let id = ExchangeId::new(index);
            self.wish(index, ConnectionEffect::Deliver(id, outbound.reached));
        }
    }

    /// Sends bytes of a feed directly through the socket of its connection. Returns how many the socket took.
    pub(super) fn send_direct(&mut self, index: u32, bytes: &[u8]) -> Result<usize, CloseReason> {
        match send(&self.slots[index], &mut self.transports, index, bytes) {
            Ok(sent) => {
                self.note_sent(index, sent);
                Ok(sent)
            }
            Err(fault) => {
                let reason = self.session_ended(index, &fault);
                Err(reason)
            }
        }
    }

    /// Receives bytes of the application.
    pub(super) fn receive(&mut self, index: u32, scratch: &mut [u8]) -> Received {
        let slot = &self.slots[index];
        if slot.flags.has(Flags::ENCRYPTED) {
            return self.receive_encrypted(index, scratch);
        }
        let Some(fd) = slot.fd() else {
            return Received::Nothing;
        };
        match plain::receive(fd, scratch) {
            Ok(0) => Received::Last { count: 0 },
            Ok(count) => Received::Bytes {
                count,
                drained: count < scratch.len(),
            },
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::Failed(CloseReason::HangUp),
        }
    }

    /// Whether so much waits that nothing is read from the socket.
    pub(super) fn has_enough(&self, index: u32) -> bool {
        let SharedParts {
            settings, buffers, ..
        } = &self.shared;
        let connection = self.get(index);
        connection.is_some_and(|connection| connection.has_enough(settings, buffers))
    }

    /// Has something done for a connection.
    pub(super) fn wish(&mut self, index: u32, effect: ConnectionEffect) {
        self.wishes.push_back((index, effect));
    }

    /// The next thing that a connection wants done, and its slot.
    pub(super) fn next_wish(&mut self) -> Option<(u32, ConnectionEffect)> {
        self.wishes.pop_front()
    }

    /// Makes epoll report when a socket is writable. Requested only when output waits, because epoll would report each new
    /// socket at once. False: epoll refused.
    pub(super) fn watch_output(&mut self, index: u32) -> bool {
        let token = self.slots.token(index);
        let slot = &mut self.slots[index];
        if slot.flags.has(Flags::OUTPUT_WATCHED) {
            return true;
        }
        slot.flags.set(Flags::OUTPUT_WATCHED, true);
        if self.newcomer == Some(index) {
            return true;
        }
        match slot.fd() {
            Some(fd) => self.poller.watch_output(fd, token).is_ok(),
            None => true,
        }
    }

    /// Lets the client of a connection read what was sent last, and nothing else.
    pub(super) fn linger(&mut self, index: u32) {
        self.requests.complete_request(ExchangeId::new(index));
        self.close_session(index);
        self.handle(index, |connection, cx| connection.linger(cx));
        let slot = &mut self.slots[index];
        slot.flags.set(Flags::OUTPUT_WATCHED, false);
        if let Some(fd) = slot.fd() {
            // A client that is gone already is noticed by the next event.
            let _ = shutdown(fd, Shutdown::Write);
        }
    }

    /// Has the socket of a connection closed with a reset: the client must not take the beginning for the whole, and the kernel
    /// discards what was never read.
    pub(super) fn reset(&mut self, index: u32) {
        // An end of the session would say that nothing is missing.
        self.transports.remove(ExchangeId::new(index));
        if let Some(fd) = self.slots[index].fd() {
            // Where it fails the connection is gone already.
            let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        }
    }

    /// Ends this side of a session of TLS properly, as far as the socket takes it.
    pub(super) fn close_session(&mut self, index: u32) {
        let slot = &self.slots[index];
        if slot.flags.has(Flags::ENCRYPTED)
            && let (Some(session), Some(fd)) =
                (self.transports.session(ExchangeId::new(index)), slot.fd())
        {
            session.close(fd);
        }
    }

    /// Gives back the memory that the session of a quiet connection does not need.
    pub(super) fn rest_session(&mut self, index: u32) {
        if self.slots[index].flags.has(Flags::ENCRYPTED)
            && let Some(session) = self.transports.session(ExchangeId::new(index))
        {
            session.rest();
        }
    }

    /// Removes a connection or an exchange: its slot and its socket are kept until [`Self::free_closed`].
    pub(super) fn remove(&mut self, index: u32, reason: CloseReason) {
        if let Some(mut connection) = self.take(index) {
            self.with_context(index, |cx| connection.close(reason, cx));
            self.collect(index);
        }
        let id = ExchangeId::new(index);
        self.requests.abandon_request(id, reason);
        self.clients.end(id, self.clock.now());
        self.holdings.remove(id);
        self.transports.remove(id);
        self.slots.mark_closed(index);
        self.closed.push(index);
    }

    /// Closes the sockets of the connections that were closed in this turn, and frees their slots.
    pub(super) fn free_closed(&mut self) {
        for index in self.closed.drain(..) {
            self.slots.remove(index);
        }
    }

    /// What a connection is doing.
    pub(super) fn doing(&self, token: Token) -> Doing {
        let Some(index) = self.slots.find(token) else {
            return Doing::Nothing;
        };
        match self.slots[index].state {
            SlotState::Active => self.get(index).map_or(Doing::Nothing, Connection::doing),
            SlotState::Subscribed => Doing::Working,
            _ => Doing::Nothing,
        }
    }

    /// A client, as logs show it.
    pub(super) fn client_name(&mut self, index: u32) -> String {
        let place = ExchangePlace {
            exchange: ExchangeId::new(index),
            connection: ExchangeId::new(self.slots.connection_of(index)),
        };
        let mut name = String::new();
        self.with_context(place.connection.slot(), |cx| name = cx.client_name(place));
        name
    }

    /// Counts something that is refused.
    pub(super) fn count_refused(&self, reason: &str) {
        let refused = &self.shared.metrics.refused;
        refused.with_label_values(&[reason]).inc();
    }

    /// How long a connection may be kept without a request.
    pub(super) fn idle_timeout(&self, index: u32) -> Duration {
        let timeout = self.shared.settings.idle_timeout;
        match self.slots[index].flags.has(Flags::OPERATOR) {
            true => timeout.min(crate::operators::OPERATOR_IDLE_TIMEOUT),
            false => timeout,
        }
    }

    fn note_sent(&mut self, index: u32, sent: usize) {
        if sent > 0 {
            self.counts.bytes_out += sent as u64;
            self.slots[index].active_s = self.clock.now_s();
            self.requests.sent(ExchangeId::new(index), sent);
        }
    }

    /// Sends what a connection has written. Whether there was something, and the socket took all of it.
    fn send_output(
        &mut self,
        index: u32,
        connection: &mut Connection,
    ) -> Result<bool, CloseReason> {
        if self.effects.output.is_empty() {
            return Ok(false);
        }
        let output = self.effects.take_output();
        let sent = match connection.outbound() {
            Some(_) => Ok(0),
            None => self.send_direct(index, &output),
        };
        if let Ok(sent) = sent
            && sent < output.len()
        {
            self.with_context(index, |cx| connection.keep_output(&output[sent..], cx));
        }
        let is_out = sent.map(|sent| sent == output.len());
        self.effects.give_back_output(output);
        is_out
    }

    /// Takes a connection out of the table, or wakes it where it was at rest.
    fn take(&mut self, index: u32) -> Option<Box<Connection>> {
        match self.slots[index].state {
            SlotState::Active => self.active.remove(index),
            SlotState::Idle | SlotState::Subscribed => {
                let rest = rest_of(&self.slots[index]);
                Some(Box::new(Connection::from_rest(
                    ExchangeId::new(index),
                    rest,
                )))
            }
            SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => None,
        }
    }

    /// Puts a connection where it belongs: beside its slot, or into it if it only waits.
    fn put(&mut self, index: u32, connection: Box<Connection>) {
        let slot = &mut self.slots[index];
        match connection.rest() {
            Some(rest) => {
                slot.requests = rest.requests;
                slot.flags.set(Flags::TLS, rest.facts.tls);
                slot.state = match rest.doing {
                    Resting::Idle => SlotState::Idle,
                    Resting::Subscribed { http_1_0 } => {
                        slot.flags.set(Flags::HTTP_1_0, http_1_0);
                        SlotState::Subscribed
                    }
                };
                self.holdings.remove(ExchangeId::new(index));
            }
            None => {
                slot.flags.set(Flags::HTTP_1_0, connection.is_http_1_0());
                slot.state = SlotState::Active;
                self.active.insert_boxed(index, connection);
            }
        }
    }

    fn with_context(&mut self, index: u32, give: impl FnOnce(&mut Context<'_>)) {
        let id = ExchangeId::new(index);
        let certificate = match self.slots[index].flags.has(Flags::ENCRYPTED) {
            true => self.transports.certificate(id),
            false => None,
        };
        // The peer is asked for while new exchanges may take slots.
        let socket = self.slots[index].take_socket();
        let peer = || {
            let peer = getpeername(socket.as_ref()?.as_fd()).ok()??;
            SocketAddr::try_from(peer).ok().map(|peer| peer.ip())
        };
        let shared = &self.shared;
        let mut ids = SlotIds {
            slots: &mut self.slots,
            now_s: self.clock.now_s(),
        };
        let mut cx = Context {
            settings: &shared.settings,
            router: &shared.router,
            clock: &self.clock,
            metrics: &shared.metrics,
            counts: &mut self.counts,
            clients: &mut self.clients,
            requests: &mut self.requests,
            audit: &shared.audit,
            buffers: &shared.buffers,
            compressors: &shared.compressors,
            ids: &mut ids,
            effects: &mut self.effects,
            hsts: self.hsts.as_deref(),
            makes_handshakes: shared.makes_handshakes,
            stopping: self.stopping.is_some(),
            certificate,
            peer: &peer,
        };
        give(&mut cx);
        if let Some(socket) = socket {
            self.slots[index].set_socket(socket);
        }
    }

    fn collect(&mut self, index: u32) {
        let mut effects = self.effects.take();
        self.wishes
            .extend(effects.drain(..).map(|effect| (index, effect)));
        self.effects.give_back(effects);
    }

    /// Receives records into `scratch`, and replaces them there by their content.
    fn receive_encrypted(&mut self, index: u32, scratch: &mut [u8]) -> Received {
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        let id = ExchangeId::new(index);
        let (Some(session), Some(fd)) = (self.transports.session(id), self.slots[index].fd())
        else {
            return Received::Failed(CloseReason::Internal);
        };
        let outcome = session.read(fd, scratch, &mut content);
        let partial = session.partial_input();
        session.weigh(&self.shared.buffers);
        // Records are longer than their content.
        let count = content.len().min(scratch.len());
        scratch[..count].copy_from_slice(&content[..count]);
        self.content = content;
        match outcome {
            Ok(ReadOutcome::Read { drained }) => match self.holds_too_much(index, partial) {
                Some(reason) => Received::Failed(reason),
                None => Received::Bytes { count, drained },
            },
            Ok(ReadOutcome::Nothing) => Received::Nothing,
            Ok(ReadOutcome::Ended) => Received::Last { count },
            // Without the end of a session what came before may be a part of what the client has sent.
            Ok(ReadOutcome::Truncated) => Received::Failed(CloseReason::HangUp),
            Err(fault) => Received::Failed(self.session_ended(index, &fault)),
        }
    }

    /// Why a connection is closed that holds too much of a record that is not complete.
    fn holds_too_much(&self, index: u32, partial: usize) -> Option<CloseReason> {
        let listens = match self.slots[index].state {
            SlotState::Subscribed => true,
            _ => self.get(index).is_some_and(Connection::is_listener),
        };
        if partial > LISTENER_RECORD_BYTES_MAX && listens {
            // A subscriber has no reason to send this much.
            return Some(CloseReason::Talkative);
        }
        (partial > 0 && !self.shared.buffers.have_room()).then_some(CloseReason::BuffersMax)
    }

    /// Whether a record is out in part only, so that nothing else may be sent and the connection not be closed.
    fn has_unsent_record(&mut self, index: u32) -> bool {
        self.slots[index].flags.has(Flags::ENCRYPTED)
            && self
                .transports
                .session(ExchangeId::new(index))
                .is_some_and(|session| session.has_unsent())
    }

    fn end_session(&mut self, index: u32, fault: &TlsFault) {
        let reason = self.session_ended(index, fault);
        self.wish(index, ConnectionEffect::Close(reason));
    }

    /// A socket or a session can't go on: tells the client why, where that is possible. The reason for closing the connection.
    fn session_ended(&mut self, index: u32, fault: &TlsFault) -> CloseReason {
        let id = ExchangeId::new(index);
        if let (Some(session), Some(fd)) = (self.transports.session(id), self.slots[index].fd()) {
            session.end_with(fd, fault);
        }
        // Nothing is sent behind the alert.
        self.transports.remove(id);
        match fault {
            TlsFault::Socket(_) | TlsFault::Alert(_) => CloseReason::HangUp,
            _ => {
                let client = self.client_name(index);
                tracing::debug!(client, %fault, "a session of TLS failed");
                CloseReason::Tls
            }
        }
    }
}

/// What a slot says of a connection at rest.
fn rest_of(slot: &Slot) -> Rest {
    let flags = slot.flags;
    Rest {
        facts: ConnectionFacts {
            tls: flags.has(Flags::TLS),
            operator: flags.has(Flags::OPERATOR),
            turned_away: flags.has(Flags::TURNED_AWAY),
        },
        requests: slot.requests,
        doing: match slot.state {
            SlotState::Subscribed => Resting::Subscribed {
                http_1_0: flags.has(Flags::HTTP_1_0),
            },
            _ => Resting::Idle,
        },
    }
}

/// Sends bytes through a socket, encrypted where it is. Returns how many it took.
fn send(
    slot: &Slot,
    transports: &mut Transports,
    index: u32,
    bytes: &[u8],
) -> Result<usize, TlsFault> {
    let Some(fd) = slot.fd() else {
        return Err(TlsFault::Socket(Errno::NOTCONN));
    };
    if !slot.flags.has(Flags::ENCRYPTED) {
        return Ok(plain::send(fd, bytes)?);
    }
    match transports.session(ExchangeId::new(index)) {
        Some(session) => session.write(fd, bytes),
        None => Err(TlsFault::Socket(Errno::NOTCONN)),
    }
}

/// Names exchanges by slots.
struct SlotIds<'a> {
    slots: &'a mut Slots,
    now_s: u32,
}

impl ExchangeIds for SlotIds<'_> {
    fn begin(&mut self, connection: ExchangeId) -> ExchangeId {
        ExchangeId::new(self.slots.add_exchange(connection.slot(), self.now_s))
    }

    fn note_sent(&mut self, exchange: ExchangeId) {
        self.slots[exchange.slot()].active_s = self.now_s;
    }
}

/// Bytes of a record that a subscriber may have sent in part.
const LISTENER_RECORD_BYTES_MAX: usize = 1 << 10;
