//! Gives events to connections, sends what they write, and collects what they want done.

use std::os::fd::OwnedFd;

use encke_protocol::OnRecord;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::state::Connections;
use super::transfer::send;
use crate::clients::addresses::Denied;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::moved::MovingParts;
use crate::connection::outbound::Outbound;
use crate::connection::rest::{Rest, Resting};
use crate::connection::{Connection, Event};
use crate::feed::slot::{Flags, Slot, SlotState};
use crate::transport::plain;

impl Connections {
    /// Takes a slot for a new connection.
    pub(crate) fn add(&mut self, socket: OwnedFd) -> u32 {
        self.slots.add(socket, self.clock.now_s())
    }

    /// Begins with a connection of the health probe, whose request is to be read. It counts for no limit and in no metric of
    /// connections. `None`: the shard stops.
    pub(crate) fn adopt(&mut self, socket: OwnedFd) -> Option<u32> {
        if self.stopping.is_some() {
            return None;
        }
        let index = self.add(socket);
        self.slots[index].flags.set(Flags::PROBE, true);
        self.newcomer = Some(index);
        Some(index)
    }

    /// Begins with a connection that may be turned away, and may have to begin with a header of the PROXY protocol.
    pub(crate) fn begin(&mut self, index: u32, turned_away: Option<Denied>, awaits_proxy: bool) {
        self.enter(index, turned_away, |id, facts, cx| {
            Connection::new(id, facts, awaits_proxy, cx)
        });
    }

    /// A new connection's socket goes to a handshake thread.
    pub(crate) fn begin_handshake(&mut self, index: u32, turned_away: Option<Denied>) {
        self.enter(index, turned_away, |id, facts, _| {
            Connection::handshaking(id, facts)
        });
    }

    fn enter(
        &mut self,
        index: u32,
        turned_away: Option<Denied>,
        connection: impl FnOnce(ExchangeId, ConnectionFacts, &mut Context<'_>) -> Connection,
    ) {
        let id = ExchangeId::new(index);
        let facts = ConnectionFacts {
            turned_away,
            ..rest_of(&self.slots[index]).facts
        };
        let mut entered = None;
        self.with_context(index, |cx| entered = Some(connection(id, facts, cx)));
        if let Some(connection) = entered {
            self.slots[index].state = SlotState::Active;
            self.active.insert(index, connection);
        }
        self.collect(index);
    }

    /// Gives something to a connection, sends what it writes, and collects what it wants done.
    pub(crate) fn handle(
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
    pub(crate) fn send_outbound(&mut self, index: u32) {
        if self.slots[index].state != SlotState::Active {
            return;
        }
        let connection = self.active.get(index);
        let Some(outbound) = connection.and_then(Connection::outbound) else {
            return;
        };
        let slot = &self.slots[index];
        let rest = outbound.rest();
        let sent = match rest.is_empty() {
            true => Ok(0),
            false => send(slot, &mut self.transports, index, rest),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(fault) => return self.end_session(index, &fault),
        };
        let is_whole = sent == rest.len();
        self.note_sent(index, sent);
        let is_cut = self.has_unsent_record(index);
        if is_whole && outbound_has_file(self.active.get(index)) {
            return self.send_file(index, sent);
        }
        self.took(index, sent, is_cut);
    }

    /// Sends what is left of a file, behind `sent` bytes that the socket has taken, and what follows it.
    fn send_file(&mut self, index: u32, sent: usize) {
        if sent > 0 {
            self.took(index, sent, false);
        }
        let connection = self.active.get(index);
        let file = connection
            .and_then(Connection::outbound)
            .and_then(Outbound::file);
        let (Some(file), Some(fd)) = (file, self.slots[index].fd()) else {
            return;
        };
        let taken = match plain::send_file(fd, file) {
            Ok(taken) => taken,
            Err(error) => {
                let reason = match error {
                    Errno::IO => CloseReason::Unreadable,
                    _ => CloseReason::HangUp,
                };
                return self.wish(index, ConnectionEffect::Cut(reason));
            }
        };
        let is_out = taken == file.bytes;
        self.note_sent(index, taken as usize);
        self.handle(index, |connection, cx| connection.took_file(taken, cx));
        if is_out {
            self.send_outbound(index);
        }
    }

    /// The socket has taken so much of what was kept.
    fn took(&mut self, index: u32, sent: usize, is_cut: bool) {
        let mut taken = None;
        self.handle(index, |connection, cx| {
            taken = connection.took_outbound(sent, is_cut, cx);
            if let Some(outbound) = &taken {
                match outbound.close {
                    Some(CloseReason::Ended) => connection.feed_ended(cx),
                    Some(reason) => cx.push(ConnectionEffect::Close(reason)),
                    None => {
                        if outbound.has_sent_file {
                            connection.file_sent(cx);
                        }
                        connection.on(Event::Drained, cx);
                    }
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

    /// Sends bytes of a feed on an exchange of a connection that has several; with `ends` they are its last. Returns how many were
    /// taken.
    pub(crate) fn send_on(&mut self, id: ExchangeId, bytes: &[u8], ends: bool) -> usize {
        let connection = self.slots.connection_of(id.slot());
        let mut sent = 0;
        loop {
            let mut count = 0;
            self.handle(connection, |connection, cx| {
                count = connection.send_on(id, &bytes[sent..], ends, cx);
            });
            sent += count;
            if sent == bytes.len() || count == 0 || self.is_blocked(connection) {
                return sent;
            }
            // What was written so far makes room.
            self.handle(connection, |connection, cx| connection.on(Event::Flush, cx));
        }
    }

    /// The continuation of a long poll, which is answered with what it says.
    pub(crate) fn take_poll(&mut self, id: ExchangeId) -> Option<Box<dyn OnRecord>> {
        let connection = self.slots.connection_of(id.slot());
        self.get_mut(connection)?.take_poll(id)
    }

    /// Keeps what was not taken of a feed.
    pub(crate) fn block(&mut self, id: ExchangeId, outbound: Outbound) {
        let connection = self.slots.connection_of(id.slot());
        self.handle(connection, |connection, cx| {
            connection.block_on(id, outbound, cx);
        });
    }

    /// Lets the client of a connection read what was sent last, and nothing else.
    pub(crate) fn linger(&mut self, index: u32) {
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

    /// Removes a connection or an exchange: its slot and its socket are kept until [`Self::free_closed`].
    pub(crate) fn remove(&mut self, index: u32, reason: CloseReason) {
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
    pub(crate) fn free_closed(&mut self) {
        for index in self.closed.drain(..) {
            self.slots.remove(index);
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
                let id = ExchangeId::new(index);
                Some(Box::new(Connection::from_rest(id, rest, None)))
            }
            SlotState::Channel => {
                let rest = rest_of(&self.slots[index]);
                let id = ExchangeId::new(index);
                let slot = &mut self.slots[index];
                let channel = self.channels.remove(slot.channel_place());
                slot.clear_channel_place();
                Some(Box::new(Connection::from_rest(id, rest, channel)))
            }
            SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => None,
        }
    }

    /// Takes a connection apart that another process takes over. Its slot is left. `None`: it can't move.
    pub(crate) fn take_moving(&mut self, index: u32) -> Option<MovingParts> {
        if !self.can_move(index) {
            return None;
        }
        let connection = self.take(index)?;
        self.slots[index].state = SlotState::Idle;
        connection.into_moving()
    }

    /// Makes a connection of parts that another process has given away.
    pub(crate) fn arrive(&mut self, index: u32, parts: MovingParts) {
        self.enter(index, None, |id, _, cx| Connection::arrive(id, parts, cx));
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
                    Resting::Channel => SlotState::Channel,
                    Resting::Subscribed {
                        http_1_0,
                        keep_alive,
                    } => {
                        slot.flags.set(Flags::HTTP_1_0, http_1_0);
                        slot.flags.set(Flags::KEEP_ALIVE, keep_alive);
                        SlotState::Subscribed
                    }
                };
                self.holdings.rest(ExchangeId::new(index));
                if self.slots[index].state == SlotState::Subscribed {
                    // Most subscribers wait now. Ciphers of all that come in a storm would leave gaps in memory.
                    self.rest_session(index);
                }
                if let Some(channel) = connection.into_channel() {
                    let place = self.channels.insert(channel);
                    self.slots[index].set_channel_place(place);
                }
            }
            None => {
                slot.flags.set(Flags::HTTP_1_0, connection.is_http_1_0());
                slot.state = SlotState::Active;
                self.active.insert_boxed(index, connection);
            }
        }
    }
}

/// Whether a file follows the bytes that a connection keeps.
fn outbound_has_file(connection: Option<&Connection>) -> bool {
    let outbound = connection.and_then(Connection::outbound);
    outbound.is_some_and(Outbound::has_file)
}

/// What a slot says of a connection at rest.
fn rest_of(slot: &Slot) -> Rest {
    let flags = slot.flags;
    Rest {
        facts: ConnectionFacts {
            tls: flags.has(Flags::TLS),
            operator: flags.has(Flags::OPERATOR),
            turned_away: None,
            probe: flags.has(Flags::PROBE),
        },
        requests: slot.requests,
        doing: match slot.state {
            SlotState::Channel => Resting::Channel,
            SlotState::Subscribed => Resting::Subscribed {
                http_1_0: flags.has(Flags::HTTP_1_0),
                keep_alive: flags.has(Flags::KEEP_ALIVE),
            },
            _ => Resting::Idle,
        },
    }
}
