//! Does what connections want done.
//!
//! What a connection writes is sent at once; everything else is collected and done in order, also what comes of that. So no
//! effect happens inside another.

use encke_jobs::{DispatchClient, DispatcherMessage};
use encke_protocol::DispatchRequest;
use encke_stream::{Command, Fetch, Offset, Submission, Submitter};

use super::state::Shard;
use crate::compression::Compressor;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::{Connection, Event};
use crate::feed::slot::{Flags, SlotFeed, SlotState};
use crate::http::framing::ResponseFraming;
use crate::readers::CompressTask;

impl Shard {
    /// Gives an event to a connection, and does what it wants done.
    pub(super) fn on(&mut self, index: u32, event: Event<'_>) {
        self.act(index, |connection, cx| connection.on(event, cx));
    }

    /// Gives an event to an exchange, and does what it wants done.
    pub(super) fn on_exchange(&mut self, index: u32, event: ExchangeEvent) {
        let id = ExchangeId::new(index);
        let connection = self.connections.slots.connection_of(index);
        self.act(connection, |connection, cx| {
            connection.on_exchange(id, event, cx);
        });
    }

    /// Gives something to a connection, and does what it wants done.
    pub(super) fn act(&mut self, index: u32, give: impl FnOnce(&mut Connection, &mut Context<'_>)) {
        self.connections.handle(index, give);
        self.do_wishes();
    }

    /// Does what connections want done. What comes of that is done by the call that has begun: a client that pipelines requests
    /// decides how much that is, and must not decide how deep the stack gets.
    pub(super) fn do_wishes(&mut self) {
        if std::mem::replace(&mut self.does_wishes, true) {
            return;
        }
        while let Some((index, effect)) = self.connections.next_wish() {
            if self.connections.is_open(index) || effect.outlives_its_connection() {
                self.execute(index, effect);
            }
        }
        self.does_wishes = false;
    }

    /// Closes a connection, or ends an exchange of one.
    pub(super) fn close(&mut self, index: u32, reason: CloseReason) {
        self.connections
            .wish(index, ConnectionEffect::Close(reason));
        self.do_wishes();
    }

    /// Queues a connection or an exchange that has more to do than one turn allows.
    pub(super) fn queue(&mut self, index: u32) {
        let flags = &mut self.connections.slots[index].flags;
        if !flags.has(Flags::QUEUED) {
            flags.set(Flags::QUEUED, true);
            self.deferred.queue(ExchangeId::new(index));
        }
    }

    /// Counts what an exchange holds in memory now.
    pub(super) fn weigh(&mut self, index: u32) {
        if !self.connections.is_open(index) {
            return;
        }
        let id = ExchangeId::new(index);
        let connection = self.connections.slots.connection_of(index);
        let more = self.feeds.bytes(index, &self.connections.slots);
        let buffers = &self.context.buffers;
        let mut bytes = 0;
        if let Some(connection) = self.connections.get_mut(connection) {
            bytes += connection.weigh(id, more, buffers);
        }
        if self.connections.slots[index].flags.has(Flags::ENCRYPTED)
            && let Some(session) = self.connections.transports.session(id)
        {
            bytes += session.weigh(buffers);
        }
        let connection = ExchangeId::new(connection);
        let holder = self.connections.clients.holder(id, connection);
        self.connections.holdings.set(id, holder, bytes);
    }

    /// Closes a subscriber with the reason, as soon as its connection takes it.
    pub(super) fn dismiss(&mut self, index: u32, reason: CloseReason) {
        let id = ExchangeId::new(index);
        let connection = self.connections.slots.connection_of(index);
        let known = self.connections.get(connection);
        if known.is_some_and(|known| known.is_dismissed(id)) {
            return;
        }
        let outbound = known.and_then(|known| known.outbound_of(id));
        let is_blocked = outbound.is_some();
        let pending = outbound.and_then(|outbound| outbound.reached);
        let slot = &self.connections.slots[index];
        let framing = match slot.state {
            SlotState::Exchange => ResponseFraming::Frames,
            _ => slot.framing(),
        };
        let (feeds, cx) = self.feeds();
        let event = feeds.farewell(index, reason, pending, &cx);
        let mut farewell = Vec::new();
        framing.part(&event, &mut farewell);
        self.connections.handle(connection, |connection, cx| {
            connection.dismiss(id, &farewell, reason, cx);
        });
        if connection == index && !is_blocked {
            self.connections.send_outbound(index);
        }
        self.do_wishes();
    }

    fn execute(&mut self, index: u32, effect: ConnectionEffect) {
        match effect {
            ConnectionEffect::Submit(id, command) => self.add_command(id, command),
            ConnectionEffect::LoadName(id, name) => {
                let token = self.connections.slots.token_of(id);
                let sender = &self.context.sender;
                if !self.context.readers.load_name(name, token, sender) {
                    self.on_exchange(id.slot(), ExchangeEvent::NotRead);
                }
            }
            ConnectionEffect::AwaitKeys(id) => self.await_keys(id),
            ConnectionEffect::Read(id, fetch) => self.read(id, fetch),
            ConnectionEffect::Compress(id, compressor) => self.compress(id, compressor),
            ConnectionEffect::Dispatch(id, number, request) => self.dispatch(id, number, request),
            ConnectionEffect::EndDispatch(id, number) => {
                let client = self.client(id, number);
                self.send_message(DispatcherMessage::CallerEnded(client));
            }
            ConnectionEffect::AbandonDispatch(id, number) => {
                let client = self.client(id, number);
                self.send_message(DispatcherMessage::Disconnected(client));
            }
            ConnectionEffect::Subscribe(id, feed) => {
                let (feeds, mut cx) = self.feeds();
                feeds.subscribe(id.slot(), feed, &mut cx);
                self.deliver_soon(id.slot());
            }
            ConnectionEffect::Poll(id, stream, from) => {
                let (feeds, mut cx) = self.feeds();
                feeds.poll(id.slot(), &stream, from, &mut cx);
                self.deliver_soon(id.slot());
            }
            ConnectionEffect::Unsubscribe(id) => {
                let (feeds, mut cx) = self.feeds();
                feeds.unsubscribe(id.slot(), &mut cx);
            }
            ConnectionEffect::Deliver(id, reached) => self.take_records_again(id.slot(), reached),
            ConnectionEffect::Dismiss(id, reason) => self.dismiss(id.slot(), reason),
            ConnectionEffect::Remind(id) => self.remind(id.slot()),
            ConnectionEffect::Weigh(id) => self.weigh(id.slot()),
            ConnectionEffect::Grow(id) => {
                self.weigh(id.slot());
                if self.context.buffers.are_crowded() {
                    self.grown.push(self.connections.slots.token_of(id));
                }
            }
            ConnectionEffect::Queue(id) => self.queue(id.slot()),
            ConnectionEffect::Flush => self.dirty.push(self.connections.slots.token(index)),
            ConnectionEffect::Receive => {
                if self.connections.slots[index].flags.has(Flags::UNREAD) {
                    self.queue(index);
                }
            }
            ConnectionEffect::Handshake(received, client) => {
                self.begin_handshake(index, received, client);
            }
            ConnectionEffect::NoteOperator => {
                let token = self.connections.slots.token(index);
                if let Some(operators) = &mut self.operators {
                    operators.note_request(token);
                }
            }
            ConnectionEffect::Fail(id, reason) => self.on(index, Event::Fail(id, reason)),
            ConnectionEffect::Ended(id, reason) => self.release(id.slot(), reason),
            ConnectionEffect::Linger => self.connections.linger(index),
            ConnectionEffect::Close(reason) => self.close_now(index, reason),
            ConnectionEffect::CloseBehind(reason) => {
                if !self.closes_behind(index, reason) {
                    self.close_now(index, reason);
                }
            }
            ConnectionEffect::CloseGently(reason) => {
                if !self.closes_behind(index, reason) {
                    self.count_closed(reason);
                    self.connections.linger(index);
                }
            }
            ConnectionEffect::Cut(reason) => {
                self.connections.reset(index);
                self.close_now(index, reason);
            }
        }
    }

    /// Adds a command to those that are handed over next.
    fn add_command(&mut self, id: ExchangeId, command: Command) {
        let token = self.connections.slots.token_of(id);
        let all = &self.context.congested;
        if all.count() > 0 && !self.context.settings.admission_wait.is_zero() {
            // If it appends to a congested stream, its acknowledgement may be held back.
            let backpressure = &mut self.feeds.fan_out.backpressure;
            backpressure.note_command(token, &command, all);
        }
        let bytes = command.weight_bytes();
        let from = Submitter {
            shard: self.context.number,
            token,
        };
        self.outbox.add_command(Submission { command, from }, bytes);
    }

    fn await_keys(&mut self, id: ExchangeId) {
        if self.awaiting_keys.len() >= AWAITING_KEYS_MAX {
            return self.on_exchange(id.slot(), ExchangeEvent::NoPlaceForKeys);
        }
        let token = self.connections.slots.token_of(id);
        self.awaiting_keys.push(token);
    }

    fn read(&mut self, id: ExchangeId, fetch: Fetch) {
        let token = self.connections.slots.token_of(id);
        let sender = &self.context.sender;
        if !self.context.readers.read(fetch, token, sender) {
            self.on_exchange(id.slot(), ExchangeEvent::NotRead);
        }
    }

    fn compress(&mut self, id: ExchangeId, compressor: Box<Compressor>) {
        let task = CompressTask {
            compressor,
            token: self.connections.slots.token_of(id),
            sender: self.context.sender.clone(),
        };
        if let Err(compressor) = self.context.readers.compress(task) {
            self.on_exchange(id.slot(), ExchangeEvent::NotCompressed(compressor));
        }
    }

    fn dispatch(&mut self, id: ExchangeId, number: u32, request: DispatchRequest) {
        let client = self.client(id, number);
        self.send_message(DispatcherMessage::Request(client, request));
    }

    fn client(&self, id: ExchangeId, number: u32) -> DispatchClient {
        DispatchClient {
            node: 0,
            shard: self.context.number,
            token: self.connections.slots.token_of(id),
            request: number,
        }
    }

    fn send_message(&mut self, message: DispatcherMessage) {
        let bytes = self.context.dispatcher.weight_bytes(&message);
        self.outbox.add_message(message, bytes);
    }

    /// A subscriber's records are sent behind what is in work now.
    fn deliver_soon(&mut self, index: u32) {
        let id = ExchangeId::new(index);
        let connection = self.connections.of_exchange(index);
        if connection.is_some_and(|connection| connection.is_blocked(id)) {
            // The head of its response waits for the client.
            let (feeds, mut cx) = self.feeds();
            feeds.falls_behind(index, &mut cx);
        }
        self.due.push(self.connections.slots.token(index));
    }

    /// A connection takes records again. Its subscriber has everything up to `reached`, if that has changed.
    fn take_records_again(&mut self, index: u32, reached: Option<Offset>) {
        let slots = &mut self.connections.slots;
        if slots[index].feed == SlotFeed::None {
            return;
        }
        if let Some(reached) = reached {
            self.feeds.reached(index, reached, slots);
        }
        self.due.push(slots.token(index));
    }

    /// Has an exchange looked at when its deadlines pass.
    pub(super) fn remind(&mut self, index: u32) {
        let id = ExchangeId::new(index);
        let (now, token) = (
            self.connections.clock.monotonic(),
            self.connections.slots.token(index),
        );
        let (feeds, cx) = self.feeds();
        let is_behind = feeds.lag(index, &cx).is_some();
        let connection = self.connections.slots.connection_of(index);
        if let Some(connection) = self.connections.get_mut(connection) {
            let is_behind = is_behind || connection.blocked_since(id).is_some();
            if connection.timer(id).first().is_some() {
                let timer = connection.timer_mut(id);
                self.timers.remind(timer, is_behind, token, now);
            }
        }
    }

    /// Whether a connection has output that its socket has not taken, behind which it is closed.
    fn closes_behind(&mut self, index: u32, reason: CloseReason) -> bool {
        let connection = self.connections.get_mut(index);
        connection.is_some_and(|connection| connection.close_behind(reason).is_some())
    }

    fn close_now(&mut self, index: u32, reason: CloseReason) {
        if self.connections.slots[index].state == SlotState::Exchange {
            let id = ExchangeId::new(index);
            let connection = self.connections.slots.connection_of(index);
            return self.on(connection, Event::Fail(id, reason));
        }
        self.close_connection(index, reason);
    }
}

/// Requests of a shard that may wait for keys; further ones are refused at once.
const AWAITING_KEYS_MAX: usize = 1_024;
