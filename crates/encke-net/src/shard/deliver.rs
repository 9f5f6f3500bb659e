//! Delivers commits to subscribers, one send per subscriber. What is not among the recent records is read from files first.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_log::ReadError;
use encke_protocol::{OnRecord, Response, Run};
use encke_stream::{Item, LoadError, Offset, Piece, Stream};

use super::hand_over::FeedRead;
use super::state::Shard;
use crate::connection::Connection;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::outbound::Outbound;
use crate::connection::websocket::WebSocket;
use crate::feed::encoding::RUN_BYTES;
use crate::feed::queue::gather;
use crate::feed::slot::{Flags, SlotFeed, SlotState, Token};
use crate::feed::{DueDelivery, Purpose, Sent};

/// How a subscriber was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// Nothing was due.
    Nothing,
    /// What is due can't be sent now: its connection takes nothing, or it is read first.
    Waits,
    /// Something was sent, or the subscription was ended. More may be due.
    Sent,
}

impl Shard {
    /// Serves the subscribers that have just come, or take records again.
    pub(super) fn deliver_due(&mut self) {
        while let Some(token) = self.due.pop() {
            if let Some(index) = self.connections.slots.find(token) {
                self.serve(index);
                self.feeds.settle(index, &mut self.connections.slots);
            }
        }
    }

    /// Sends a subscriber its due records.
    pub(super) fn serve(&mut self, index: u32) -> Served {
        let index = self.connections.slots.subscriber(index);
        let slots = &self.connections.slots;
        let is_blocked = match slots[index].feed {
            SlotFeed::None => return Served::Nothing,
            SlotFeed::Plain(_) => self.connections.is_blocked(index),
            SlotFeed::InTable => {
                let carrier = slots.carrier_of(index);
                let outbound = self.connections.of_exchange(index);
                let outbound = outbound.and_then(|connection| connection.outbound_of(carrier));
                let is_dismissed = outbound.is_some_and(Outbound::is_dismissal);
                let pending = outbound.and_then(|outbound| outbound.reached);
                let is_blocked =
                    outbound.is_some() || self.connections.is_in_message_of_another(index);
                let lacks = !is_dismissed && self.feeds.lacks_removed(index, pending, slots);
                // A record that has begun is sent to its end if its data is still there.
                if lacks && !self.feeds.is_inside_record(index) {
                    self.dismiss(index, CloseReason::NoLongerKept);
                    return Served::Sent;
                }
                // Most subscribers of a round are in no table.
                is_blocked || self.feeds.is_reading(index)
            }
        };
        if is_blocked {
            return Served::Waits;
        }
        let (feeds, mut cx) = self.feeds();
        let due = match feeds.is_long(index) {
            // Its turn comes behind the deliveries of other records.
            true => DueDelivery::Later,
            false => feeds.next(index, &mut cx),
        };
        self.give(index, due)
    }

    /// A piece was read for a subscriber.
    pub(super) fn piece_read_for_feed(&mut self, index: u32, piece: Result<Piece, ReadError>) {
        let carrier = self.connections.slots.carrier_of(index);
        let connection = self.connections.slots.connection_of(index);
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.read_arrived(carrier);
            if connection.is_dismissed(carrier) {
                let slots = &mut self.connections.slots;
                self.feeds.set_reading(index, false, slots);
                return;
            }
        }
        let of_channel = self.connections.feeds_of_channel(index);
        let piece = piece.map(Arc::new);
        if self.feeds.is_long(index) && self.connections.is_blocked(index) {
            // It is read again.
            let slots = &mut self.connections.slots;
            self.feeds.set_reading(index, false, slots);
        } else {
            send_piece(self, index, &piece);
        }
        self.weigh(index);
        // It is the turn of the others to read.
        let slots = &self.connections.slots;
        let others = of_channel.into_iter().filter(|feed| *feed != index);
        self.due.extend(others.map(|feed| slots.token(feed)));
        if self.connections.is_open(index) {
            self.feeds.settle(index, &mut self.connections.slots);
        }
    }

    /// A subscriber's stream was loaded.
    pub(super) fn stream_loaded(
        &mut self,
        token: Token,
        stream: Result<Option<std::sync::Arc<Stream>>, LoadError>,
    ) {
        let Some(index) = self.connections.slots.find(token) else {
            return;
        };
        let slots = &mut self.connections.slots;
        if !self.feeds.set_reading(index, false, slots) {
            return;
        }
        match stream {
            Ok(Some(stream)) => {
                self.feeds.bring(index, &stream, slots);
                self.serve(index);
            }
            // It has ended, and the record that ended it is no longer in the ring.
            Ok(None) => {
                let end = self.feeds.position(index, slots);
                let (feeds, mut cx) = self.feeds();
                let due = feeds.end(index, Run::position(end), false, &mut cx);
                self.give(index, due);
            }
            Err(LoadError::Contended) => self
                .deferred
                .queue(ExchangeId::new(index), &mut self.connections.slots),
            Err(_) => self.close(index, CloseReason::Unreadable),
        }
        if self.connections.is_open(index) {
            self.feeds.settle(index, &mut self.connections.slots);
        }
    }

    /// Keeps the connection of a quiet subscriber alive.
    pub(super) fn beat(&mut self, index: u32) {
        if self.connections.is_blocked(index) {
            return;
        }
        let (feeds, mut cx) = self.feeds();
        if feeds.encode_heartbeat(index, &mut cx) {
            self.send_encoding(index, Purpose::Heartbeat);
            self.connections.rest_session(index);
        }
    }

    /// Gives a subscriber what is due.
    fn give(&mut self, index: u32, due: DueDelivery) -> Served {
        match due {
            DueDelivery::Nothing => return Served::Nothing,
            DueDelivery::Later => {
                let id = ExchangeId::new(index);
                self.deferred.queue(id, &mut self.connections.slots);
                return Served::Waits;
            }
            DueDelivery::Send(purpose) => {
                // What a channel has caused is left out of what it is sent. Few records name a channel.
                if !self.feeds.encoding().run.omissions.is_empty()
                    && let Some(number) = self.connections.channel_number(index)
                {
                    self.feeds.fan_out.encodings.omit(number);
                }
                self.send_encoding(index, purpose);
            }
            DueDelivery::Read { fetch, begins } => {
                self.read_for_feed(index, FeedRead::Stream(fetch), begins);
                return Served::Waits;
            }
            DueDelivery::ReadOrder { fetch, begins } => {
                self.read_for_feed(index, FeedRead::Order(fetch), begins);
                return Served::Waits;
            }
            DueDelivery::Load(no) => {
                self.read_for_feed(index, FeedRead::Load(no), false);
                return Served::Waits;
            }
            DueDelivery::Answer(at) => match self.answer_poll(index, at) {
                true => {}
                false => return Served::Nothing,
            },
            DueDelivery::ReadForPoll(fetch) => {
                self.on_exchange(index, ExchangeEvent::ReadForPoll(fetch));
            }
            DueDelivery::EndPoll(end) => {
                if let Some(then) = self.connections.take_poll(ExchangeId::new(index)) {
                    let response = end_of_poll(then, end, self.connections.clock.wall());
                    self.on_exchange(index, ExchangeEvent::Answered(response));
                }
            }
            DueDelivery::Dismiss(reason) => self.dismiss(index, reason),
            DueDelivery::Close(reason) => self.close(index, reason),
        }
        Served::Sent
    }

    /// Sends what is encoded to a subscriber.
    pub(super) fn send_encoding(&mut self, index: u32, purpose: Purpose) {
        let fragment = match purpose {
            Purpose::Long {
                is_last,
                is_fragment: true,
            } => Some(is_last),
            _ => None,
        };
        let encoding = self.feeds.encoding();
        let (bytes, ended) = (encoding.run.bytes.len(), encoding.ended);
        let mut sent = 0;
        let slot = &self.connections.slots[index];
        let is_message = slot.flags.has(Flags::MESSAGES);
        let is_exchange = slot.state == SlotState::Exchange && !is_message;
        // What was read for a feed of a channel may arrive while the rest of another feed's message waits.
        let waits = is_message && self.connections.is_blocked(index);
        if is_message && fragment == Some(false) {
            on_channel(self, index, |channel, _, _| {
                channel.begin_long_message(ExchangeId::new(index));
            });
        }
        if bytes > 0 || ended && is_exchange {
            self.connections.counts.sends += u64::from(!matches!(purpose, Purpose::Heartbeat));
            let bytes = &self.feeds.encoding().run.bytes;
            let carrier = self.connections.slots.carrier_of(index);
            sent = match self.connections.slots.is_direct(index) {
                _ if waits => 0,
                false => self
                    .connections
                    .send_on(carrier, bytes, ended && is_exchange),
                true => {
                    let connection = self.connections.slots.connection_of(index);
                    match self.connections.send_direct(connection, bytes) {
                        Ok(sent) => sent,
                        Err(reason) => return self.close(connection, reason),
                    }
                }
            };
            if !self.connections.is_open(index) {
                return;
            }
        }
        let (feeds, mut cx) = self.feeds();
        match feeds.sent(index, purpose, sent, &mut cx) {
            Sent::All => {}
            Sent::More => self
                .deferred
                .queue(ExchangeId::new(index), &mut self.connections.slots),
            Sent::Ended if is_message || is_exchange => {
                end_message(self, index, fragment);
                self.close(index, CloseReason::Ended);
            }
            Sent::Ended => self.connections.handle(index, Connection::feed_ended),
            Sent::Cut {
                from,
                to,
                reached,
                ended,
            } => {
                feeds.falls_behind(index, &mut cx);
                if ended {
                    drop(feeds.seats.take(index));
                }
                if waits {
                    return self.do_wishes();
                }
                let rest = feeds.encoding().run.bytes[from..to].to_vec();
                let mut outbound = Outbound::new(rest);
                let id = cx.slots.carrier_of(index);
                if is_message {
                    // The rest of the message goes out before anything else on the channel.
                    feeds.reached(index, reached, cx.slots);
                    self.connections.block(id, outbound);
                    end_message(self, index, fragment);
                    if ended {
                        self.close(index, CloseReason::Ended);
                    }
                } else {
                    outbound.reached = Some(reached);
                    outbound.close = ended.then_some(CloseReason::Ended);
                    self.connections.block(id, outbound);
                }
            }
        }
        end_message(self, index, fragment);
        self.do_wishes();
    }

    /// Has something read for a subscriber. If nothing of it can be sent now, or there is no room, the subscriber keeps its position.
    fn read_for_feed(&mut self, index: u32, mut wanted: FeedRead, begins: bool) {
        let carrier = self.connections.slots.carrier_of(index);
        let connection = self.connections.slots.connection_of(index);
        if connection != index && !matches!(wanted, FeedRead::Load(_)) {
            // One feed of a channel reads at a time: what is read for the others could not be sent.
            let mut awaits_window = begins && {
                let of_channel = self.connections.feeds_of_channel(index);
                of_channel
                    .into_iter()
                    .any(|feed| self.feeds.is_reading(feed))
            };
            self.connections.handle(connection, |connection, cx| {
                awaits_window |= begins && connection.awaits_window(carrier, cx);
                if let (FeedRead::Stream(fetch), false) = (&mut wanted, awaits_window) {
                    fetch.bytes_max = connection.grant_read(carrier, fetch.bytes_max);
                }
            });
            if awaits_window {
                self.feeds.not_read(index);
                let (feeds, mut cx) = self.feeds();
                feeds.falls_behind(index, &mut cx);
                return self.do_wishes();
            }
        }
        let token = self.connections.slots.token(index);
        let loads = matches!(wanted, FeedRead::Load(_));
        if self.hand_over.read_for_feed(token, wanted) {
            let slots = &mut self.connections.slots;
            self.feeds.set_reading(index, true, slots);
            return;
        }
        // The readers are overloaded: it tries again.
        if !loads {
            self.feeds.not_read(index);
        }
        self.deferred
            .queue(ExchangeId::new(index), &mut self.connections.slots);
    }

    /// Responds to a long poll with the recent records from a position of the ring on. False: nothing of them answers it.
    fn answer_poll(&mut self, index: u32, at: u64) -> bool {
        let slot = &self.connections.slots[index];
        let (topic, from) = (slot.topic, Offset::behind(slot.cursor));
        let mut items = Vec::new();
        let topics = &self.feeds.fan_out.topics;
        // A larger record is sent alone, from its file.
        let fits = |item: &Item<'_>| item.data.len() <= RUN_BYTES;
        let gathered = gather(topics, topic, from, at, &mut items, fits);
        let says_something = gathered.deleted || gathered.closed || gathered.stop_asked;
        if items.is_empty() && !says_something {
            // A record without data, such as the renewal of a lifetime, answers nothing.
            self.connections.slots[index].cursor = gathered.last;
            if gathered.long.is_some() {
                let id = ExchangeId::new(index);
                self.deferred.queue(id, &mut self.connections.slots);
            }
            return false;
        }
        let Some(then) = self.connections.take_poll(ExchangeId::new(index)) else {
            return false;
        };
        let response = match gathered.deleted && items.is_empty() {
            true => then.ended(),
            false => then.arrived(gathered.run(&items), self.connections.clock.wall()),
        };
        self.connections.counts.deliveries += items.len() as u64;
        self.connections.counts.sends += 1;
        self.on_exchange(index, ExchangeEvent::Answered(response));
        true
    }
}

/// Sends a subscriber the next piece of a long record, or whatever else is due to it.
pub(super) fn serve_deferred(shard: &mut Shard, index: u32) {
    if !shard.feeds.is_long(index) {
        shard.serve(index);
        return;
    }
    if shard.connections.is_blocked(index) || shard.feeds.is_reading(index) {
        return;
    }
    let (feeds, mut cx) = shard.feeds();
    let due = feeds.next_piece(index, None, &mut cx);
    shard.give(index, due);
}

/// Sends what was read for a subscriber, in sends of bounded size, as far as its connection takes it.
fn send_piece(shard: &mut Shard, index: u32, piece: &Result<Arc<Piece>, ReadError>) {
    for _ in 0..SENDS_OF_PIECE {
        let (feeds, mut cx) = shard.feeds();
        let due = match feeds.has_part(index) {
            true => feeds.next_piece(index, None, &mut cx),
            false => feeds.piece_read(index, piece.as_ref(), &mut cx),
        };
        shard.give(index, due);
        let slots = &shard.connections.slots;
        let has_more = piece.as_ref().is_ok_and(|piece| {
            shard.feeds.has_part(index) || shard.feeds.lacks_of(index, piece, slots)
        });
        let takes_more = shard.connections.is_open(index)
            && !shard.connections.is_blocked(index)
            && !shard.feeds.is_reading(index);
        if !has_more || !takes_more {
            break;
        }
    }
    shard.feeds.drop_part(index);
}

/// The last fragment of a message is sent, or kept for its connection: the channel sends other messages again.
fn end_message(shard: &mut Shard, index: u32, fragment: Option<bool>) {
    let is_message = shard.connections.slots[index].flags.has(Flags::MESSAGES);
    if is_message && fragment == Some(true) {
        on_channel(shard, index, |channel, is_blocked, cx| {
            channel.end_long_message(is_blocked, cx);
        });
    }
}

/// Gives something to the channel of a feed.
fn on_channel(
    shard: &mut Shard,
    index: u32,
    give: impl FnOnce(&mut WebSocket, bool, &mut Context<'_>),
) {
    let carrier = shard.connections.slots.carrier_of(index);
    let connection = shard.connections.slots.connection_of(index);
    shard.connections.handle(connection, |connection, cx| {
        connection.with_channel(carrier, cx, give);
    });
}

/// Sends of one piece that was read, at most. The rest is read again.
const SENDS_OF_PIECE: usize = 8;

/// The response to a long poll of a stream that has ended. With `Some` it was closed there.
fn end_of_poll(then: Box<dyn OnRecord>, end: Option<Offset>, now: WallTime) -> Response {
    let Some(end) = end else {
        return then.ended();
    };
    then.arrived(Run::closed_at(end), now)
}
