//! Does what connections want done.
//!
//! What a connection writes is sent at once; everything else is collected and done in order, also what comes of that. So no
//! effect happens inside another.

use super::reseat::reseat;
use super::state::Shard;
use crate::broadcast_message::ChannelName;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::{Connection, Event};
use crate::feed::framing;
use crate::feed::slot::{Flags, SlotFeed, SlotState};

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

    /// Counts what an exchange holds in memory now.
    pub(super) fn weigh(&mut self, index: u32) {
        if !self.connections.is_open(index) {
            return;
        }
        // What a feed of a channel holds is counted with its channel.
        let slots = &self.connections.slots;
        let id = slots.carrier_of(index);
        let index = id.slot();
        let of_channel = self.connections.feeds_of_channel(index);
        let feeds = of_channel.into_iter().chain([index]);
        let more = feeds.map(|feed| self.feeds.bytes(feed, slots)).sum();
        let connection = slots.connection_of(index);
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
        let carrier = self.connections.slots.carrier_of(index);
        let known = self.connections.get(connection);
        let outbound = known.and_then(|known| known.outbound_of(carrier));
        if outbound.is_some_and(|outbound| outbound.close.is_some()) {
            // It was sent away before, or has its end.
            return;
        }
        if self.feeds.is_inside_record(index) {
            // A farewell, or the end of the response, would make the record look complete.
            return self.close(index, reason);
        }
        let is_blocked = outbound.is_some();
        let pending = outbound.and_then(|outbound| outbound.reached);
        let framing = framing(index, &self.connections.slots);
        let (feeds, cx) = self.feeds();
        drop(feeds.seats.take(index));
        let event = feeds.farewell(index, reason, pending, &cx);
        let mut farewell = Vec::new();
        framing.part(&event, &mut farewell);
        framing.end(&mut farewell);
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
            ConnectionEffect::Submit(id, command, holds) => {
                let token = self.connections.slots.token_of(id);
                if self.context.may_hold_back() {
                    // If it appends to a congested stream, its acknowledgement may be held back.
                    let backpressure = &mut self.feeds.fan_out.backpressure;
                    backpressure.note_command(token, &command, &self.context.congested);
                }
                let trace = self.connections.requests.trace_command(id);
                self.hand_over.add_command(token, command, trace, holds);
            }
            ConnectionEffect::Broadcast {
                id,
                message,
                echoes,
            } => {
                let except = match echoes {
                    true => None,
                    false => self.connections.slots.channel_of_message(id),
                };
                let except = except.map(|token| ChannelName {
                    shard: self.context.number,
                    token,
                });
                let handed_over = self.context.broadcaster.send(*message, except);
                self.on_exchange(id.slot(), ExchangeEvent::Broadcast(handed_over));
            }
            ConnectionEffect::LoadName(id, name) => {
                let token = self.connections.slots.token_of(id);
                self.refused(id, self.hand_over.load_name(token, name));
            }
            ConnectionEffect::Park(id) => {
                let token = self.connections.slots.token_of(id);
                let now = self.connections.clock.monotonic();
                let refused = self.hand_over.park(token, now);
                self.refused(id, refused);
            }
            ConnectionEffect::Read(id, fetch) => {
                self.connections.requests.begin_part(id, "read");
                let token = self.connections.slots.token_of(id);
                let kept = match self.deferred.takes_kept_piece() {
                    true => self.hand_over.kept_piece(&fetch),
                    false => None,
                };
                match kept {
                    Some(piece) => self.deferred.add_kept_piece(token, piece),
                    None => self.refused(id, self.hand_over.read(token, fetch)),
                }
            }
            ConnectionEffect::List(id, fetch) => {
                let token = self.connections.slots.token_of(id);
                self.refused(id, self.hand_over.list(token, fetch));
            }
            ConnectionEffect::Inspect(id, inquiry) => {
                let token = self.connections.slots.token_of(id);
                self.refused(id, self.hand_over.inspect(token, inquiry));
            }
            ConnectionEffect::Compress(id, compressor) => {
                let token = self.connections.slots.token_of(id);
                self.refused(id, self.hand_over.compress(token, compressor));
            }
            ConnectionEffect::Dispatch(id, number, request) => {
                self.connections.requests.begin_part(id, "dispatch");
                let token = self.connections.slots.token_of(id);
                self.hand_over.dispatch(token, number, request);
            }
            ConnectionEffect::EndDispatch(id, number) => {
                let token = self.connections.slots.token_of(id);
                self.hand_over.end_dispatch(token, number);
            }
            ConnectionEffect::AbandonDispatch(id, number) => {
                let token = self.connections.slots.token_of(id);
                self.hand_over.abandon_dispatch(token, number);
            }
            ConnectionEffect::SendFiles(file) => {
                self.connections
                    .handle(index, |connection, cx| connection.add_files(file, cx));
                self.connections.send_outbound(index);
            }
            ConnectionEffect::Subscribe(id, feed, seat) => {
                let (feeds, mut cx) = self.feeds();
                feeds.subscribe(id.slot(), feed, seat, &mut cx);
                self.connections.hold_patterns(id.slot(), &self.feeds);
                self.deliver_soon(id.slot());
            }
            ConnectionEffect::Reseat(id, member) => {
                reseat(
                    id,
                    member.as_deref(),
                    (&mut self.feeds, &mut self.connections),
                    &self.context,
                );
            }
            ConnectionEffect::Poll(id, stream, from) => {
                let (feeds, mut cx) = self.feeds();
                feeds.poll(id.slot(), &stream, from, &mut cx);
                self.deliver_soon(id.slot());
            }
            ConnectionEffect::Unsubscribe(id) => {
                let (feeds, mut cx) = self.feeds();
                feeds.unsubscribe(id.slot(), &mut cx);
                self.connections.release_patterns(id.slot(), &self.feeds);
            }
            ConnectionEffect::Deliver(id, reached) => {
                let slots = &mut self.connections.slots;
                if slots[id.slot()].feed != SlotFeed::None {
                    if let Some(reached) = reached {
                        self.feeds.reached(id.slot(), reached, slots);
                    }
                    self.due.push(slots.token_of(id));
                }
            }
            ConnectionEffect::Dismiss(id, reason) => self.dismiss(id.slot(), reason),
            ConnectionEffect::Remind(id) => self.remind(id.slot()),
            ConnectionEffect::Weigh(id) => self.weigh(id.slot()),
            ConnectionEffect::Grow(id) => {
                self.weigh(id.slot());
                if self.context.buffers.are_crowded() {
                    self.grown.push(self.connections.slots.token_of(id));
                }
            }
            ConnectionEffect::Queue(id) => self.deferred.queue(id, &mut self.connections.slots),
            ConnectionEffect::Flush => self.dirty.push(self.connections.slots.token(index)),
            ConnectionEffect::Receive => {
                if self.connections.slots[index].flags.has(Flags::UNREAD) {
                    self.deferred
                        .queue(ExchangeId::new(index), &mut self.connections.slots);
                }
            }
            ConnectionEffect::Handshake(received, client) => {
                self.begin_handshake(index, received, client);
            }
            ConnectionEffect::AwaitRefusal => {
                let token = self.connections.slots.token(index);
                let now = self.connections.clock.monotonic();
                self.admission.await_request(token, now);
            }
            ConnectionEffect::NoteOperator => {
                let token = self.connections.slots.token(index);
                if let Some(operators) = &mut self.operators {
                    operators.note_request(token);
                }
            }
            ConnectionEffect::CloseChannel(id, reason) => {
                self.on(index, Event::CloseChannel(id, reason));
            }
            ConnectionEffect::Fail(id, reason) => self.on(index, Event::Fail(id, reason)),
            ConnectionEffect::Ended(id, reason) => self.release(id.slot(), reason),
            ConnectionEffect::Linger => self.connections.linger(index),
            ConnectionEffect::Close(reason) => self.close_now(index, reason),
            ConnectionEffect::CloseBehind(reason) => {
                if !self.connections.close_behind(index, reason) {
                    self.close_now(index, reason);
                }
            }
            ConnectionEffect::CloseGently(reason) => {
                if !self.connections.close_behind(index, reason) {
                    self.connections.count_closed(reason);
                    self.connections.linger(index);
                }
            }
            ConnectionEffect::Cut(reason) => {
                self.connections.reset(index);
                self.close_now(index, reason);
            }
        }
    }

    /// Tells an exchange that there was no room for what it wanted, if so.
    fn refused(&mut self, id: ExchangeId, event: Option<ExchangeEvent>) {
        if let Some(event) = event {
            self.on_exchange(id.slot(), event);
        }
    }

    /// A subscriber's records are sent behind what is in work now.
    fn deliver_soon(&mut self, index: u32) {
        if self.connections.is_blocked(index) {
            // The head of its response waits for the client.
            let (feeds, mut cx) = self.feeds();
            feeds.falls_behind(index, &mut cx);
        }
        self.due.push(self.connections.slots.token(index));
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

    fn close_now(&mut self, index: u32, reason: CloseReason) {
        if self.connections.slots[index].state == SlotState::Exchange {
            let id = ExchangeId::new(index);
            let connection = self.connections.slots.connection_of(index);
            return self.on(connection, Event::Fail(id, reason));
        }
        self.close_connection(index, reason);
    }
}
