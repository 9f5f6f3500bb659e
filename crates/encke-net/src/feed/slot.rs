//! The table of connections and feeds: 40 bytes each, and nothing else while they are idle.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use encke_log::Sequence;
use encke_protocol::EncoderId;

use crate::chunked_vec::ChunkedVec;
use crate::connection::exchange_id::ExchangeId;
use crate::http::framing::ResponseFraming;

/// One connection, or one exchange of a connection that has several.
#[derive(Debug)]
pub(crate) struct Slot {
    fd: Option<OwnedFd>,
    generation: u32,
    /// The topic it is subscribed to.
    pub(crate) topic: u32,
    /// Its neighbours in the topic's list; `next` also links free slots.
    pub(crate) next: u32,
    pub(crate) prev: u32,
    /// When something was last sent or received, in seconds since the shard started.
    pub(crate) active_s: u32,
    pub(crate) state: SlotState,
    pub(crate) feed: SlotFeed,
    pub(crate) flags: Flags,
    /// Requests so far of a connection at rest, as far as they can be counted.
    pub(crate) requests: u16,
    /// All records of its stream up to this one are delivered; of a merged feed, of all its streams.
    pub(crate) cursor: Sequence,
}

// What an idle connection costs in this table is a promise of the design.
const _: () = assert!(size_of::<Slot>() <= 40);

impl Slot {
    /// Where the channel of a connection at rest is kept. The slot of such a connection has no topic, because its subscriptions are
    /// exchanges.
    pub(crate) fn channel_place(&self) -> u32 {
        self.topic
    }

    pub(crate) fn set_channel_place(&mut self, place: u32) {
        self.topic = place;
    }

    /// The channel is not at rest any more.
    pub(crate) fn clear_channel_place(&mut self) {
        self.topic = NONE;
    }

    /// How the records of a subscriber are framed whose connection is at rest.
    pub(crate) fn framing(&self) -> ResponseFraming {
        match self.flags.has(Flags::HTTP_1_0) {
            true => ResponseFraming::Connection,
            false => ResponseFraming::Chunks,
        }
    }
}

/// What a slot says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    /// A connection at rest, between two requests.
    Idle,
    /// A connection at rest: it only gets records, and its socket takes them.
    Subscribed,
    /// A connection at rest: its channel is in the table of those.
    Channel,
    /// In the table of active connections, which says what it is doing.
    Active,
    /// An exchange of another connection, which says what it is doing.
    Exchange,
    /// No connection: stands on a topic's list for a subscriber of several streams.
    Member,
    /// Closed; freed at the end of the turn.
    Closed,
}

/// What a slot says of its feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotFeed {
    /// It has none.
    None,
    /// The records of the stream of its topic, by this encoder, and nothing that a slot has no room for.
    Plain(EncoderId),
    /// In the table of feeds.
    InTable,
}

/// Facts of a connection that the shard needs whatever the connection is doing, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    /// The socket holds input that was left there.
    pub(crate) const UNREAD: Flags = Flags(1);
    /// In the queue of those that have more to do than one turn allows.
    pub(crate) const QUEUED: Flags = Flags(1 << 1);
    /// The client speaks HTTP/1.0: no chunks, and nothing behind the response.
    pub(crate) const HTTP_1_0: Flags = Flags(1 << 2);
    /// The client speaks TLS: to the server, or to a proxy that says so.
    pub(crate) const TLS: Flags = Flags(1 << 3);
    /// Epoll reports when the socket takes more.
    pub(crate) const OUTPUT_WATCHED: Flags = Flags(1 << 4);
    /// The socket carries records of TLS; the session is in the table of sockets.
    pub(crate) const ENCRYPTED: Flags = Flags(1 << 5);
    /// It is open until its first request is refused, and takes no place of the others.
    pub(crate) const TURNED_AWAY: Flags = Flags(1 << 6);
    /// Connected to the address for operators.
    pub(crate) const OPERATOR: Flags = Flags(1 << 7);
    /// An exchange of a channel: what its feed delivers are messages of WebSocket.
    pub(crate) const MESSAGES: Flags = Flags(1 << 8);
    /// The client takes compressed messages.
    pub(crate) const DEFLATE: Flags = Flags(1 << 9);
    /// A subscriber at rest: a request may follow behind the end of its feed.
    pub(crate) const KEEP_ALIVE: Flags = Flags(1 << 10);
    /// Of the server itself, which probes its own health.
    pub(crate) const PROBE: Flags = Flags(1 << 11);

    pub(crate) fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flags, on: bool) {
        if on {
            self.0 |= flag.0;
        } else {
            self.0 &= !flag.0;
        }
    }
}

/// A connection's name outside its table. A slot that is used again has another token.
pub(crate) type Token = u64;

/// All connections of a shard.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: ChunkedVec<Slot>,
    /// Of exchanges, the slots that they belong to: that of the connection, or of the channel of a message.
    owners: ChunkedVec<u32>,
    free: Option<u32>,
    used: usize,
}

impl Slots {
    /// Takes a slot for a new connection.
    pub(crate) fn add(&mut self, fd: OwnedFd, now_s: u32) -> u32 {
        self.used += 1;
        self.put(Some(fd), now_s)
    }

    /// Takes a slot for an exchange of a connection, or for a message of a channel.
    pub(crate) fn add_exchange(&mut self, owner: u32, now_s: u32) -> u32 {
        let index = self.put(None, now_s);
        self.slots[index].state = SlotState::Exchange;
        while self.owners.len() <= index as usize {
            self.owners.push(NONE);
        }
        self.owners[index] = owner;
        index
    }

    /// The slot of the connection that an exchange belongs to: its own, but for one of several.
    pub(crate) fn connection_of(&self, index: u32) -> u32 {
        // The owner of a message is an exchange itself if its channel is a stream of HTTP/2.
        self.owner_of(self.owner_of(index))
    }

    /// The exchange through whose output that of an exchange goes: its channel for a message, itself for any other.
    pub(crate) fn carrier_of(&self, index: u32) -> ExchangeId {
        ExchangeId::new(match self.slots[index].flags.has(Flags::MESSAGES) {
            true => self.owner_of(index),
            false => index,
        })
    }

    /// The channel of a message, outside the table. `None`: it is no message.
    pub(crate) fn channel_of_message(&self, exchange: ExchangeId) -> Option<Token> {
        let is_message = self.slots[exchange.slot()].flags.has(Flags::MESSAGES);
        is_message.then(|| self.token_of(self.carrier_of(exchange.slot())))
    }

    /// Whether the output of an exchange goes to the socket of its connection as it is, and not through frames of HTTP/2.
    pub(crate) fn is_direct(&self, index: u32) -> bool {
        let carrier = self.carrier_of(index).slot();
        self.slots[carrier].state != SlotState::Exchange
    }

    fn owner_of(&self, index: u32) -> u32 {
        match self.slots[index].state {
            SlotState::Exchange => self.owners[index],
            _ => index,
        }
    }

    /// Takes a slot that stands on a topic's list for the subscriber in another.
    pub(crate) fn add_member(&mut self, subscriber: u32) -> u32 {
        let index = self.put(None, 0);
        let slot = &mut self.slots[index];
        slot.state = SlotState::Member;
        // A member has no socket, so it needs no time.
        slot.active_s = subscriber;
        index
    }

    /// The subscriber for which a slot stands on a topic's list: itself, for most.
    pub(crate) fn subscriber(&self, index: u32) -> u32 {
        let slot = &self.slots[index];
        match slot.state {
            SlotState::Member => slot.active_s,
            _ => index,
        }
    }

    /// Marks a connection as closed.
    pub(crate) fn mark_closed(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        slot.state = SlotState::Closed;
        slot.feed = SlotFeed::None;
        slot.flags = Flags::default();
    }

    /// Closes the socket of a connection, if it has one of its own, and frees its slot.
    pub(crate) fn remove(&mut self, index: u32) {
        self.used -= usize::from(self.slots[index].fd.is_some());
        self.free(index);
    }

    /// Frees the slot of a member.
    pub(crate) fn remove_member(&mut self, index: u32) {
        self.free(index);
    }

    fn put(&mut self, fd: Option<OwnedFd>, now_s: u32) -> u32 {
        if let Some(index) = self.free {
            let slot = &mut self.slots[index];
            self.free = (slot.next != NONE).then_some(slot.next);
            let generation = slot.generation;
            *slot = Slot::new(fd, generation, now_s);
            return index;
        }
        self.slots.push(Slot::new(fd, 0, now_s))
    }

    fn free(&mut self, index: u32) {
        let next = self.free.unwrap_or(NONE);
        let slot = &mut self.slots[index];
        slot.fd = None;
        slot.state = SlotState::Free;
        slot.feed = SlotFeed::None;
        slot.flags = Flags::default();
        // The last generations would make tokens with another meaning for the reactor.
        slot.generation = (slot.generation + 1) % (u32::MAX - 1);
        slot.next = next;
        self.free = Some(index);
    }

    /// The slot that a token names, if its connection is still there.
    pub(crate) fn find(&self, token: Token) -> Option<u32> {
        let index = token as u32;
        let slot = self.slots.get(index)?;
        let open = !matches!(slot.state, SlotState::Free | SlotState::Closed);
        (open && slot.generation == (token >> 32) as u32).then_some(index)
    }

    /// The name of an exchange outside the table.
    pub(crate) fn token_of(&self, exchange: ExchangeId) -> Token {
        self.token(exchange.slot())
    }

    pub(crate) fn token(&self, index: u32) -> Token {
        u64::from(self[index].generation) << 32 | u64::from(index)
    }

    /// How many connections there are, without the exchanges of those that have several.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// How many slots there are, used or free.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

impl std::ops::Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, index: u32) -> &Slot {
        &self.slots[index]
    }
}

impl std::ops::IndexMut<u32> for Slots {
    fn index_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index]
    }
}

impl Slot {
    fn new(fd: Option<OwnedFd>, generation: u32, now_s: u32) -> Self {
        Slot {
            fd,
            generation,
            topic: NONE,
            next: NONE,
            prev: NONE,
            active_s: now_s,
            state: SlotState::Idle,
            feed: SlotFeed::None,
            flags: Flags::default(),
            requests: 0,
            cursor: 0,
        }
    }

    /// Gives the socket to another thread, for as long as a handshake takes.
    pub(crate) fn take_socket(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Takes the socket back.
    pub(crate) fn set_socket(&mut self, socket: OwnedFd) {
        self.fd = Some(socket);
    }

    /// The socket; nothing for a free slot, a member, an exchange, and during a handshake.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }
}

/// No slot, no topic.
pub(crate) const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn messages_go_through_their_channel() {
        let mut slots = Slots::default();
        let connection = slots.add(fd(), 0);
        let stream = slots.add_exchange(connection, 0);
        for channel in [connection, stream] {
            let message = slots.add_exchange(channel, 0);
            slots[message].flags.set(Flags::MESSAGES, true);
            assert_eq!(slots.connection_of(message), connection);
            assert_eq!(slots.carrier_of(message).slot(), channel);
            assert_eq!(slots.is_direct(message), channel == connection);
        }
        assert_eq!(slots.carrier_of(stream).slot(), stream);
        assert!(slots.is_direct(connection) && !slots.is_direct(stream));
    }

    #[test]
    fn a_token_outlives_no_connection() {
        let mut slots = Slots::default();
        let index = slots.add(fd(), 0);
        let token = slots.token(index);
        assert_eq!(slots.find(token), Some(index));
        slots.remove(index);
        assert_eq!(slots.find(token), None);
        let again = slots.add(fd(), 0);
        assert_eq!(again, index);
        assert_eq!(slots.find(token), None);
        assert_eq!(slots.used(), 1);
    }
}
