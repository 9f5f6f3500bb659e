//! Catch-up: subscribers and long polls whose next records are not in the ring.

use encke_log::ReadError;
use encke_protocol::{OnRead, Run, Variant};
use encke_stream::{Fetch, Item, Life, Offset, Piece};

use super::Shard;
use crate::connection::active::{Active, FeedState, Task};
use crate::connection::close::CloseReason;
use crate::connection::slot::SlotState;
use crate::fanout::encoding::{Encoding, RUN_BYTES};
use crate::fanout::topics::Next;

impl Shard {
    /// Requests the records between a subscriber and the ring, if the committed facts show any.
    pub(super) fn read_older(&mut self, index: u32) -> bool {
        let topic = self.connections.slots[index].topic;
        let Some(stream) = self.fan_out.topics[topic].stream.clone() else {
            self.load_stream(index);
            return false;
        };
        let from = self.position(index);
        let facts = stream.facts();
        if from < facts.tail {
            let active = self.connections.active(index);
            if active.is_some_and(|a| matches!(a.task, Task::AwaitingRecord { .. })) {
                // It has sent nothing, and reads once.
                let fetch = Fetch::new(&stream, from, facts.tail, RUN_BYTES);
                if let Some((_, then)) = self.take_wait(index) {
                    let then: Box<dyn OnRead> = then;
                    self.read(index, fetch, then);
                }
                return true;
            }
            if self.awaits_window(index) {
                return false;
            }
            let subscriber = self.connections.active(index).and_then(Active::subscriber);
            let bytes_max = match subscriber.is_some_and(|subscriber| subscriber.eager) {
                true => EAGER_BYTES,
                false => RUN_BYTES,
            };
            let bytes_max = self.grant_read(index, bytes_max);
            let fetch = Fetch::new(&stream, from, facts.tail, bytes_max);
            let token = self.connections.slots.token(index);
            let sender = &self.context.sender;
            if self.context.readers.read(fetch, token, sender) {
                self.set_reading(index, true);
            } else {
                // The readers are overloaded: the subscriber keeps its position and tries again.
                self.queue(index);
            }
            return false;
        }
        if facts.closed || facts.life != Life::Live {
            let closed = facts.closed && facts.life == Life::Live;
            return self.end_feed(index, stream.position(from), closed);
        }
        self.set_position(index, None);
        // No data lies between the cursor and the recent records, or the tail would be behind it.
        let complete_from = self.fan_out.topics.complete_from(topic);
        let slot = &mut self.connections.slots[index];
        slot.cursor = slot.cursor.max(complete_from);
        let cursor = slot.cursor;
        match self.fan_out.topics.next(topic, cursor) {
            Next::Recent(_) => {
                self.connections.settle(index);
                self.flush(index)
            }
            _ => {
                self.is_abreast(index);
                false
            }
        }
    }

    /// A piece of the stream was read for a subscriber.
    pub(super) fn caught_up(&mut self, index: u32, piece: Result<Piece, ReadError>) {
        self.set_reading(index, false);
        let Some(piece) = self.readable_piece(index, piece) else {
            return;
        };
        let topic = self.connections.slots[index].topic;
        let Some(stream) = self.fan_out.topics[topic].stream.clone() else {
            // It was evicted meanwhile. The piece will be read again.
            self.load_stream(index);
            return;
        };
        let facts = stream.facts();
        if facts.life == Life::Ended {
            // Some of what was read may have been gone.
            let end = self.position(index);
            self.end_feed(index, end, false);
            return;
        }
        let at_tail = !piece.more && piece.end >= facts.tail;
        let items: Vec<Item<'_>> = piece.items().collect();
        let run = Run {
            items: &items,
            end: stream.position(piece.end),
            at_tail,
            closed: at_tail && facts.closed && facts.life == Life::Live,
        };
        let mut encoding = std::mem::take(&mut self.fan_out.encoding);
        encoding.begin();
        self.encode_for(index, &run, &mut encoding);
        encoding.count(&items);
        encoding.end = piece.end.sequence;
        encoding.ended = run.closed;
        encoding.frame(self.connections.slots[index].framing());
        let complete = self.send_encoding(index, &encoding);
        let reached = encoding.run.withheld_at.unwrap_or(piece.end);
        self.fan_out.encoding = encoding;
        if complete {
            let before = self.position(index);
            self.reached(index, reached);
            if reached == before && !piece.more {
                // All of it is the beginning of a character, which waits for its rest.
                self.is_abreast(index);
                return;
            }
        }
        if let Some(active) = self.connections.active_mut(index)
            && let Some(subscriber) = active.subscriber_mut()
        {
            subscriber.eager = complete;
        }
        if complete {
            self.queue(index);
        }
    }

    /// A piece for a subscriber, unless it is closed instead.
    pub(super) fn readable_piece(
        &mut self,
        index: u32,
        piece: Result<Piece, ReadError>,
    ) -> Option<Piece> {
        let active = self.connections.active(index)?;
        if active.is_dismissed() {
            return None;
        }
        match piece {
            Ok(piece) => return Some(piece),
            Err(ReadError::BelowFloor { .. } | ReadError::NoLongerKept { .. }) => {
                self.dismiss_now(index, CloseReason::NoLongerKept);
            }
            Err(_) => self.close(index, CloseReason::Unreadable),
        }
        None
    }

    /// The position of a subscriber or a long poll.
    pub(super) fn position(&self, index: u32) -> Offset {
        let cursor = self.connections.slots[index].cursor;
        match self.connections.active(index).map(|active| &active.task) {
            Some(Task::Subscribed(subscriber)) => subscriber.position(cursor),
            Some(Task::AwaitingRecord {
                position: Some(position),
                ..
            }) => *position,
            _ => Offset::behind(cursor),
        }
    }

    /// Notes that a subscriber has every record up to there.
    pub(super) fn reached(&mut self, index: u32, reached: Offset) {
        self.connections.slots[index].cursor = reached.sequence;
        self.set_position(index, (reached.units > 0).then_some(reached));
    }

    /// Ends a subscription or long poll that has all records of an ended stream.
    pub(super) fn end_feed(&mut self, index: u32, end: Offset, closed: bool) -> bool {
        let run = Run {
            items: &[],
            end,
            at_tail: true,
            closed,
        };
        let active = self.connections.active(index);
        if active.is_some_and(|active| matches!(active.task, Task::AwaitingRecord { .. })) {
            let Some((_, then)) = self.take_wait(index) else {
                return false;
            };
            let response = if closed {
                then.arrived(run, self.clock.now_ms())
            } else {
                then.ended()
            };
            self.respond_later(index, &response);
            return true;
        }
        let mut encoding = Encoding::default();
        encoding.ended = true;
        encoding.end = end.sequence;
        if closed {
            self.encode_for(index, &run, &mut encoding);
        }
        encoding.frame(self.connections.slots[index].framing());
        self.send_encoding(index, &encoding);
        true
    }

    /// Encodes a run for one subscriber of one stream.
    fn encode_for(&self, index: u32, run: &Run<'_>, encoding: &mut Encoding) {
        let slot = &self.connections.slots[index];
        let (encoder, option) = match slot.state {
            SlotState::Subscribed(encoder) => (encoder, 0),
            _ => match self.connections.active(index).map(|active| &active.task) {
                Some(Task::Subscribed(subscriber)) => match &subscriber.feed {
                    FeedState::Single(feed) => (feed.encoder, feed.option),
                    FeedState::Merged(_) => return,
                },
                _ => return,
            },
        };
        let kind = self.fan_out.topics[slot.topic].kind;
        let encoder = self.encoders.encoder(encoder);
        let variant = Variant { kind, option };
        encoder.encode(variant, run, self.clock.now_ms(), &mut encoding.run);
    }

    fn set_position(&mut self, index: u32, to: Option<Offset>) {
        if to.is_some() {
            self.connections.activate(index);
        }
        match self.connections.active_mut(index).map(|a| &mut a.task) {
            Some(Task::Subscribed(subscriber)) => {
                if let FeedState::Single(feed) = &mut subscriber.feed {
                    feed.position = to;
                }
            }
            Some(Task::AwaitingRecord { position, .. }) => *position = to,
            _ => {}
        }
    }
}

/// Bytes of a piece for a subscriber whose socket takes it at once. For others most of it would be read again.
const EAGER_BYTES: usize = 4 * RUN_BYTES;
