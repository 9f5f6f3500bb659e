//! One connection, and a socket that takes as much as the test says.

use std::collections::VecDeque;
use std::time::Duration;

use super::server::TestServer;
use crate::compression::CompressedPiece;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::{ConnectionFacts, ExchangeEvent};
use crate::connection::exchange_id::ExchangeId;
use crate::connection::outbound::Outbound;
use crate::connection::{Connection, Event};
use crate::settings::NetSettings;

/// A connection, and what becomes of what it wants done.
pub(crate) struct Rig {
    pub(crate) server: TestServer,
    /// `None` once it is closed.
    pub(crate) connection: Option<Box<Connection>>,
    /// What the client has received.
    pub(crate) taken: Vec<u8>,
    /// How many bytes the socket takes before it is drained again.
    pub(crate) room: usize,
    /// Work for other threads waits until [`Self::release`].
    pub(crate) held: bool,
    /// Such work, and what is of no thread: it is for the test to say what comes of it.
    pub(crate) waiting: VecDeque<ConnectionEffect>,
    /// The rest of what the connection has wanted, which the rig does not do by itself.
    pub(crate) noted: Vec<ConnectionEffect>,
    /// Why it was closed.
    pub(crate) closed: Option<CloseReason>,
    /// It was closed with a reset.
    pub(crate) is_cut: bool,
    /// Nothing more is sent.
    pub(crate) lingers: bool,
    /// Exchanges that have ended.
    pub(crate) ended: Vec<(ExchangeId, CloseReason)>,
    wishes: VecDeque<ConnectionEffect>,
    /// What the connection has left in the socket, and whether the client's end is behind it.
    unread: Vec<u8>,
    is_end_unread: bool,
    queued: Vec<ExchangeId>,
    /// How often the connection has had its turn again.
    pub(crate) turns: usize,
    is_dirty: bool,
}

/// The connection, and its exchange if it has one at a time.
pub(crate) const ID: ExchangeId = ExchangeId::new(0);

impl Rig {
    /// A connection with the settings of a server that was not configured.
    pub(crate) fn new() -> Self {
        Self::with(NetSettings::default())
    }

    pub(crate) fn with(settings: NetSettings) -> Self {
        Self::of(TestServer::new(settings), ConnectionFacts::default())
    }

    /// A new connection of a server.
    pub(crate) fn of(mut server: TestServer, facts: ConnectionFacts) -> Self {
        let awaits_proxy = server.settings.proxy_protocol;
        let connection = server.with_context(|cx| Connection::new(ID, facts, awaits_proxy, cx));
        let mut rig = Rig {
            server,
            connection: Some(Box::new(connection)),
            taken: Vec::new(),
            room: usize::MAX,
            held: false,
            waiting: VecDeque::new(),
            noted: Vec::new(),
            closed: None,
            is_cut: false,
            lingers: false,
            ended: Vec::new(),
            wishes: VecDeque::new(),
            unread: Vec::new(),
            is_end_unread: false,
            queued: Vec::new(),
            turns: 0,
            is_dirty: false,
        };
        rig.settle();
        rig
    }

    /// Another connection to the same server.
    pub(crate) fn reconnect(self) -> Self {
        Self::of(self.server, ConnectionFacts::default())
    }

    /// The client sends bytes.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        self.read_socket();
        self.settle();
    }

    /// The client sends a request, and the connection does all of it. Returns what the client receives meanwhile.
    pub(crate) fn request(&mut self, bytes: &str) -> String {
        let before = self.taken.len();
        self.receive(bytes.as_bytes());
        String::from_utf8_lossy(&self.taken[before..]).into_owned()
    }

    /// Whether the connection has left something in the socket.
    pub(crate) fn is_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// The client ends its side.
    pub(crate) fn half_close(&mut self) {
        self.is_end_unread = true;
        self.read_socket();
        self.settle();
    }

    /// The socket takes up to `bytes` more.
    pub(crate) fn drain(&mut self, bytes: usize) {
        self.room = self.room.saturating_add(bytes);
        self.send_outbound();
        self.settle();
    }

    /// Time passes, and deadlines with it.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.server.clock.pass(time);
        let mut ids = vec![ID];
        ids.extend(&self.server.ids.open);
        for id in ids {
            let Some(connection) = &self.connection else {
                return;
            };
            let now = self.server.clock.monotonic();
            let timer = connection.timer(id);
            if timer.cut_off.is_some_and(|at| at <= now) {
                self.on(Event::Fail(id, CloseReason::Expired));
            } else if timer.deadline.is_some_and(|at| at <= now) {
                self.on_exchange(id, ExchangeEvent::TimedOut);
            }
        }
    }

    /// Other threads do what waits for them.
    pub(crate) fn release(&mut self) {
        self.held = false;
        for effect in std::mem::take(&mut self.waiting) {
            self.execute_elsewhere(effect);
        }
        self.settle();
    }

    /// Another thread does the first thing that waits; what follows waits too. False: nothing waits.
    pub(crate) fn step(&mut self) -> bool {
        let Some(effect) = self.waiting.pop_front() else {
            return false;
        };
        self.execute_elsewhere(effect);
        self.settle();
        true
    }

    /// Other threads have no room for the first thing that waits for them.
    pub(crate) fn refuse_waiting(&mut self) {
        let Some(effect) = self.waiting.pop_front() else {
            return;
        };
        match effect {
            ConnectionEffect::Submit(id, ..) => self.on_exchange(id, ExchangeEvent::NotSubmitted),
            ConnectionEffect::LoadName(id, _)
            | ConnectionEffect::Read(id, _)
            | ConnectionEffect::List(id, _) => {
                self.on_exchange(id, ExchangeEvent::NotRead);
            }
            ConnectionEffect::Park(id) => {
                self.on_exchange(id, ExchangeEvent::NotParked);
            }
            ConnectionEffect::Compress(id, compressor) => {
                self.on_exchange(id, ExchangeEvent::NotCompressed(compressor));
            }
            _ => {}
        }
    }

    /// Something happens to the connection.
    pub(crate) fn on(&mut self, event: Event<'_>) {
        self.give(|connection, cx| connection.on(event, cx));
        self.settle();
    }

    /// Something happens to an exchange.
    pub(crate) fn on_exchange(&mut self, id: ExchangeId, event: ExchangeEvent) {
        self.give(|connection, cx| connection.on_exchange(id, event, cx));
        self.settle();
    }

    /// The shard does something with the connection.
    pub(crate) fn act(&mut self, give: impl FnOnce(&mut Connection, &mut Context<'_>)) {
        self.give(give);
        self.settle();
    }

    /// The feed of the connection has bytes. `outbound` makes what is kept of those that the socket does not take.
    pub(crate) fn deliver(&mut self, bytes: &[u8], outbound: impl FnOnce(Vec<u8>) -> Outbound) {
        let sent = bytes.len().min(self.room);
        self.take(&bytes[..sent]);
        if sent < bytes.len() {
            let outbound = outbound(bytes[sent..].to_vec());
            self.give(|connection, cx| connection.block_on(ID, outbound, cx));
        }
        self.settle();
    }

    /// The shard has a farewell for a subscriber.
    pub(crate) fn dismiss(&mut self, farewell: &[u8], reason: CloseReason) {
        self.give(|connection, cx| connection.dismiss(ID, farewell, reason, cx));
        self.send_outbound();
        self.settle();
    }

    /// Closes the connection from outside.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        self.close_now(reason);
        self.settle();
    }

    /// What the connection and its exchanges hold in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.server.buffers.bytes()
    }

    /// What the client has received, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.taken).into_owned()
    }

    /// The number of effects that the connection wanted and the rig has not done.
    pub(crate) fn count_noted(&self, is_one: impl Fn(&ConnectionEffect) -> bool) -> usize {
        self.noted.iter().filter(|effect| is_one(effect)).count()
    }

    /// Gives something to the connection, as a shard does.
    fn give(&mut self, give: impl FnOnce(&mut Connection, &mut Context<'_>)) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        self.server.with_context(|cx| give(&mut connection, cx));
        loop {
            let has_sent = self.send_output(&mut connection);
            if connection.outbound().is_some() || !connection.goes_on(has_sent) {
                break;
            }
            self.server
                .with_context(|cx| connection.on(Event::Drained, cx));
            if self.server.effects.output.is_empty() {
                break;
            }
        }
        // Plain data is enough of one that only waits.
        let connection = match connection.rest() {
            Some(rest) => Box::new(Connection::from_rest(ID, rest, connection.into_channel())),
            None => connection,
        };
        self.connection = Some(connection);
        self.wishes.extend(self.server.effects.take());
    }

    /// Does what is wanted, until nothing is.
    fn settle(&mut self) {
        loop {
            self.wishes.extend(self.server.effects.take());
            if let Some(effect) = self.wishes.pop_front() {
                if self.connection.is_some() || effect.outlives_its_connection() {
                    self.execute(effect);
                }
            } else if std::mem::take(&mut self.is_dirty) {
                self.give(|connection, cx| connection.on(Event::Flush, cx));
            } else if let Some(id) = self.queued.pop() {
                self.turns += 1;
                self.give(|connection, cx| connection.on_exchange(id, ExchangeEvent::Queued, cx));
            } else {
                return;
            }
        }
    }

    fn execute(&mut self, effect: ConnectionEffect) {
        match effect {
            effect @ (ConnectionEffect::Submit(..)
            | ConnectionEffect::LoadName(..)
            | ConnectionEffect::Read(..)
            | ConnectionEffect::List(..)
            | ConnectionEffect::Compress(..)) => match self.held {
                true => self.waiting.push_back(effect),
                false => self.execute_elsewhere(effect),
            },
            effect @ (ConnectionEffect::Park(_) | ConnectionEffect::Dispatch(..)) => {
                self.waiting.push_back(effect);
            }
            effect => self.execute_here(effect),
        }
    }

    /// Does what is for other threads.
    fn execute_elsewhere(&mut self, effect: ConnectionEffect) {
        let event = match effect {
            ConnectionEffect::Submit(id, command, _) => {
                (id, ExchangeEvent::Committed(self.server.commit(command)))
            }
            ConnectionEffect::LoadName(id, name) => {
                (id, ExchangeEvent::NameLoaded(Ok(self.server.load(&name))))
            }
            ConnectionEffect::Read(id, fetch) => {
                (id, ExchangeEvent::PieceRead(Ok(self.server.read(&fetch))))
            }
            ConnectionEffect::Compress(id, mut compressor) => {
                let out = compressor.step();
                let piece = CompressedPiece { compressor, out };
                (id, ExchangeEvent::Compressed(piece))
            }
            effect => return self.waiting.push_back(effect),
        };
        let (id, event) = event;
        self.give(|connection, cx| connection.on_exchange(id, event, cx));
    }

    /// Does what concerns the connection only.
    fn execute_here(&mut self, effect: ConnectionEffect) {
        match effect {
            ConnectionEffect::Broadcast { id, .. } => {
                self.noted.push(effect);
                self.give(|connection, cx| {
                    connection.on_exchange(id, ExchangeEvent::Broadcast(Ok(())), cx);
                });
            }
            ConnectionEffect::Weigh(id) => self.weigh(id),
            ConnectionEffect::Grow(id) => {
                self.weigh(id);
                self.noted.push(ConnectionEffect::Grow(id));
            }
            ConnectionEffect::Dismiss(id, reason) => {
                self.noted.push(ConnectionEffect::Dismiss(id, reason));
                // What the feed would say.
                self.give(|connection, cx| connection.dismiss(id, b"bye", reason, cx));
                self.send_outbound();
            }
            ConnectionEffect::Queue(id) => self.queued.push(id),
            ConnectionEffect::Flush => self.is_dirty = true,
            ConnectionEffect::Receive => self.read_socket(),
            ConnectionEffect::CloseChannel(id, reason) => {
                self.give(|connection, cx| connection.on(Event::CloseChannel(id, reason), cx));
            }
            ConnectionEffect::Fail(id, reason) => {
                self.give(|connection, cx| connection.on(Event::Fail(id, reason), cx));
            }
            ConnectionEffect::Ended(id, reason) => self.end_exchange(id, reason),
            ConnectionEffect::Linger => self.linger(),
            ConnectionEffect::Close(reason) => self.close_now(reason),
            ConnectionEffect::CloseBehind(reason) => {
                if !self.closes_behind(reason) {
                    self.close_now(reason);
                }
            }
            ConnectionEffect::CloseGently(reason) => {
                if !self.closes_behind(reason) {
                    self.linger();
                }
            }
            ConnectionEffect::Cut(reason) => {
                self.is_cut = true;
                self.close_now(reason);
            }
            effect => self.noted.push(effect),
        }
    }

    /// Gives the connection what is in the socket, as far as it reads on.
    fn read_socket(&mut self) {
        let settings = &self.server.settings;
        let buffers = &self.server.buffers;
        let Some(connection) = &self.connection else {
            return;
        };
        if connection.has_enough(settings, buffers) {
            return;
        }
        let unread = std::mem::take(&mut self.unread);
        if !unread.is_empty() {
            let bytes = &unread[..];
            let full = false;
            self.give(|connection, cx| connection.on(Event::Received { bytes, full }, cx));
        }
        if std::mem::take(&mut self.is_end_unread) {
            self.settle();
            self.give(|connection, cx| connection.on(Event::HalfClosed, cx));
        }
        self.weigh(ID);
    }

    /// The socket takes what is written, as far as it has room. Whether it took all of something.
    fn send_output(&mut self, connection: &mut Connection) -> bool {
        let output = self.server.effects.take_output();
        if output.is_empty() {
            return false;
        }
        let sent = match connection.outbound() {
            Some(_) => 0,
            None => output.len().min(self.room),
        };
        self.take(&output[..sent]);
        if sent < output.len() {
            self.server
                .with_context(|cx| connection.keep_output(&output[sent..], cx));
        }
        sent == output.len()
    }

    /// Sends what the socket has not taken before.
    fn send_outbound(&mut self) {
        let connection = self.connection.as_deref();
        let Some(outbound) = connection.and_then(Connection::outbound) else {
            return;
        };
        let sent = outbound.rest().len().min(self.room);
        let bytes = outbound.rest()[..sent].to_vec();
        self.take(&bytes);
        let mut taken = None;
        self.give(|connection, cx| {
            taken = connection.took_outbound(sent, false, cx);
            if let Some(outbound) = &taken {
                match outbound.close {
                    Some(CloseReason::Ended) => connection.feed_ended(cx),
                    Some(reason) => cx.push(ConnectionEffect::Close(reason)),
                    None => connection.on(Event::Drained, cx),
                }
            }
        });
        if let Some(outbound) = taken
            && outbound.close.is_none()
        {
            let deliver = ConnectionEffect::Deliver(ID, outbound.reached);
            self.wishes.push_back(deliver);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        assert!(
            bytes.is_empty() || !self.lingers,
            "something is sent behind the end"
        );
        self.taken.extend_from_slice(bytes);
        if self.room != usize::MAX {
            self.room -= bytes.len();
        }
    }

    fn weigh(&mut self, id: ExchangeId) {
        if let Some(connection) = &mut self.connection {
            connection.weigh(id, 0, &self.server.buffers);
        }
    }

    fn closes_behind(&mut self, reason: CloseReason) -> bool {
        let connection = self.connection.as_mut();
        connection.is_some_and(|connection| connection.close_behind(reason).is_some())
    }

    fn linger(&mut self) {
        self.server.requests.complete_request(ID);
        self.give(|connection, cx| connection.linger(cx));
        self.lingers = true;
    }

    fn close_now(&mut self, reason: CloseReason) {
        if let Some(mut connection) = self.connection.take() {
            self.server.with_context(|cx| connection.close(reason, cx));
            self.wishes.extend(self.server.effects.take());
            self.end_exchange(ID, reason);
            self.ended.pop();
            self.closed = Some(reason);
        }
    }

    fn end_exchange(&mut self, id: ExchangeId, reason: CloseReason) {
        self.server.requests.abandon_request(id, reason);
        self.server.clients.end(id, self.server.clock.now());
        self.server.ids.open.retain(|open| *open != id);
        self.ended.push((id, reason));
    }
}
