//! From a commit to the subscribers: rounds over a topic's list, one send for all that is due.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_log::ReadError;
use encke_protocol::{Run, Variant};
use encke_stream::{Batch, Fetch, Item, Life, Offset, Piece};

use super::Shard;
use super::busy::Continuation;
use super::encoded::{Encoded, MadeOf, RUN_BYTES};
use super::rounds::Due;
use crate::close::CloseReason;
use crate::slot::{Flags, NONE, State};
use crate::topics::{Next, Round};

impl Shard {
    /// Takes a commit and queues the topics that it concerns.
    pub(super) fn commit(&mut self, batch: &Arc<Batch>) {
        let bytes = self.taken_bytes;
        self.taken_bytes += (batch.bytes + batch.records.len()) as u64;
        let us = self.clock.now_us();
        let rounds = &mut self.rounds;
        self.topics.take(batch, |topic, number| {
            topic.state = match topic.state {
                Round::Quiet => Round::Queued,
                Round::Running => Round::Again,
                Round::Queued | Round::Again => return,
            };
            rounds.push(Due {
                topic: number,
                bytes,
                us,
            });
        });
        self.encoded.made_of = None;
    }

    /// Serves subscribers until the turn's sends are used up.
    pub(super) fn deliver(&mut self) {
        let now_us = self.clock.now_us();
        let topics = &self.topics;
        self.rounds.wake(now_us, |topic| topics[topic].appended);
        while self.sends_left > 0
            && let Some(topic) = self.rounds.first()
        {
            if self.topics[topic].state == Round::Queued {
                self.topics[topic].state = Round::Running;
                self.topics.begin(topic);
                self.rounds.begin(now_us);
                self.jam.begin_round();
            }
            while self.sends_left > 0 && self.topics[topic].iter != NONE {
                let index = self.topics[topic].iter;
                self.topics[topic].iter = self.slots[index].next;
                if self.flush(index) {
                    self.sends_left -= 1;
                }
                self.see_in_round(index);
            }
            let over = self.topics[topic].iter == NONE;
            self.note_round(topic, over);
            if !over {
                break;
            }
            let round = &mut self.topics[topic];
            let rests = self.rounds.end(now_us, round.appended);
            self.counts.rests += u64::from(rests);
            round.state = match round.state {
                Round::Again => Round::Queued,
                _ => Round::Quiet,
            };
        }
        self.report_lag();
    }

    /// Sends a subscriber what is due to it. True if a system call was spent on it.
    pub(super) fn flush(&mut self, index: u32) -> bool {
        let index = self.slots.subscriber(index);
        if self.slots[index].flags.has(Flags::BEHIND) && self.is_passed(index) {
            self.pass(index);
            return true;
        }
        let slot = &self.slots[index];
        if slot.state == State::Several {
            return self.flush_several(index);
        }
        if slot.flags.has(Flags::BLOCKED) || slot.flags.has(Flags::CATCHING) {
            return false;
        }
        if !matches!(slot.state, State::Following | State::Polling) {
            return false;
        }
        if self.busy.get(index).is_some_and(|busy| busy.from.is_some()) {
            return self.older(index);
        }
        match self.topics.next(slot.topic, slot.cursor) {
            Next::Nothing => {
                self.is_abreast(index);
                false
            }
            Next::Recent(at) if slot.state == State::Polling => self.poll_recent(index, at),
            Next::Recent(at) => self.push(index, at),
            Next::Older => self.older(index),
        }
    }

    /// A piece of the stream has come for a subscriber that was behind.
    pub(super) fn caught_up(&mut self, index: u32, piece: Result<Piece, ReadError>) {
        self.slots[index].flags.set(Flags::CATCHING, false);
        let Some(piece) = self.readable_piece(index, piece) else {
            return;
        };
        let Some(stream) = self.topics[self.slots[index].topic].stream.clone() else {
            // It was let go of meanwhile. The piece will be read again.
            self.load(index);
            return;
        };
        let facts = stream.facts();
        if facts.life == Life::Ended {
            // What was read may have been gone in part.
            let end = self.position(index);
            self.end_behind(index, end, false);
            return;
        }
        let at_tail = !piece.more && piece.end >= facts.tail;
        let items: Vec<Item<'_>> = piece.items().collect();
        let run = Run {
            items: &items,
            end: piece.end,
            at_tail,
            closed: at_tail && facts.closed && facts.life == Life::Live,
        };
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.made_of = None;
        encoded.clear();
        self.encode_for(index, &run, &mut encoded);
        encoded.count(&items);
        encoded.end = piece.end.sequence;
        encoded.ended = run.closed;
        let complete = self.send_encoded(index, &encoded);
        if complete {
            self.reached(index, piece.end);
        }
        self.encoded = encoded;
        if self.is_open(index) {
            self.slots[index].flags.set(Flags::EAGER, complete);
            if complete {
                self.settle(index);
                self.lag(index);
            }
        }
    }

    /// A piece for a subscriber, unless it is closed for want of it or for another reason.
    pub(super) fn readable_piece(
        &mut self,
        index: u32,
        piece: Result<Piece, ReadError>,
    ) -> Option<Piece> {
        if self.is_dismissed(index) {
            return None;
        }
        match piece {
            Ok(piece) => return Some(piece),
            Err(ReadError::BelowFloor { .. }) => self.pass(index),
            Err(_) => self.close(index, CloseReason::Unreadable),
        }
        None
    }

    /// Up to where a subscriber has everything.
    pub(super) fn position(&self, index: u32) -> Offset {
        self.busy
            .get(index)
            .and_then(|busy| busy.from)
            .unwrap_or(Offset::behind(self.slots[index].cursor))
    }

    /// A subscriber has everything up to there.
    pub(super) fn reached(&mut self, index: u32, reached: Offset) {
        self.slots[index].cursor = reached.sequence;
        if let Some(busy) = self.busy.get_mut(index) {
            busy.from = (reached.units > 0).then_some(reached);
        }
    }

    /// Comes back to a connection in a later turn.
    pub(super) fn lag(&mut self, index: u32) {
        if !self.slots[index].flags.has(Flags::LAGGING) {
            self.slots[index].flags.set(Flags::LAGGING, true);
            self.lagging.push_back(index);
        }
    }

    /// Goes on with a connection that had more to do than one turn does.
    pub(super) fn catch_lagging(&mut self, index: u32) {
        if !self.slots[index].flags.has(Flags::LAGGING) {
            // The slot was given to somebody else.
            return;
        }
        self.slots[index].flags.set(Flags::LAGGING, false);
        if self.slots[index].state == State::Streaming {
            if self.busy(index).next.is_some() {
                self.stream_on(index);
            }
        } else if self.slots[index].flags.has(Flags::UNREAD)
            && !matches!(self.slots[index].state, State::Following | State::Several)
        {
            self.readable(index, true);
        } else {
            self.flush(index);
        }
    }

    /// Encodes a run for one subscriber.
    fn encode_for(&self, index: u32, run: &Run<'_>, encoded: &mut Encoded) {
        if let Some((encoder, option)) = self.encoder(index) {
            let kind = self.topics[self.slots[index].topic].kind;
            let encoder = self.encoders.encoder(encoder);
            let variant = Variant { kind, option };
            encoder.encode(variant, run, self.clock.now_ms(), &mut encoded.run);
        }
    }

    /// Sends a subscriber the recent records from a position on.
    fn push(&mut self, index: u32, at: u64) -> bool {
        let Some((encoder, option)) = self.encoder(index) else {
            return false;
        };
        let slot = &self.slots[index];
        let (topic, from) = (slot.topic, slot.cursor);
        let made_of = MadeOf {
            topic,
            from,
            last: self.topics[topic].last,
            encoder,
            option,
        };
        let mut encoded = std::mem::take(&mut self.encoded);
        if encoded.made_of != Some(made_of) {
            self.encode_recent(&mut encoded, made_of, at);
        }
        let complete = self.send_encoded(index, &encoded);
        let end = encoded.end;
        self.encoded = encoded;
        if complete {
            self.slots[index].cursor = end;
            if end < made_of.last {
                self.lag(index);
            } else {
                self.is_abreast(index);
            }
        }
        true
    }

    /// Sends an encoded run. True when all of it is out and the subscriber is still there.
    pub(super) fn send_encoded(&mut self, index: u32, encoded: &Encoded) -> bool {
        if encoded.run.bytes.is_empty() {
            if encoded.ended {
                self.close(index, CloseReason::Ended);
                return false;
            }
            return true;
        }
        self.counts.sends += 1;
        let Some(sent) = self.send(index, &encoded.run.bytes) else {
            return false;
        };
        if sent == encoded.run.bytes.len() {
            self.counts.deliveries += encoded.records;
            self.gains(index, encoded.weight);
            if encoded.ended {
                self.close(index, CloseReason::Ended);
                return false;
            }
            return true;
        }
        self.counts.blocked += 1;
        // The subscriber is left behind the last event that is out; the one that is cut stays
        // with it and counts as delivered once it is out.
        let whole = encoded.run.marks.partition_point(|mark| mark.end <= sent);
        if let Some(mark) = whole.checked_sub(1).map(|last| encoded.run.marks[last]) {
            self.reached(index, mark.at);
        }
        let start = match whole.checked_sub(1) {
            Some(last) => encoded.run.marks[last].end,
            None => 0,
        };
        match encoded.run.marks.get(whole) {
            Some(_) if sent == start => {
                let here = self.position(index);
                self.gains(index, encoded.share(start));
                self.block(index, &[], Some(here), false);
            }
            Some(cut) => {
                let ended = encoded.ended && whole + 1 == encoded.run.marks.len();
                // The rest of it goes out before anything else does.
                self.gains(index, encoded.share(cut.end));
                self.block(
                    index,
                    &encoded.run.bytes[sent..cut.end],
                    Some(cut.at),
                    ended,
                );
            }
            // Every byte belongs to a mark, so a cut has one.
            None => self.close(index, CloseReason::Internal),
        }
        false
    }

    /// Answers a long poll with the recent records from a position on.
    fn poll_recent(&mut self, index: u32, at: u64) -> bool {
        let Some(Continuation::Record(then)) = self.take_then(index) else {
            return false;
        };
        let mut items = Vec::new();
        let gathered = self.gather(self.slots[index].topic, at, &mut items);
        let response = if gathered.deleted && items.is_empty() {
            then.ended()
        } else {
            then.arrived(gathered.run(&items), self.clock.now_ms())
        };
        self.counts.deliveries += items.len() as u64;
        self.counts.sends += 1;
        self.poll_answered(index, &response);
        true
    }

    /// Something may lie between the subscriber and the recent records: looks at the committed
    /// facts, and asks a reader thread if there is data.
    fn older(&mut self, index: u32) -> bool {
        let slot = &self.slots[index];
        let Some(stream) = self.topics[slot.topic].stream.clone() else {
            self.load(index);
            return false;
        };
        let state = slot.state;
        let from = self.position(index);
        let facts = stream.facts();
        if from < facts.tail {
            let eager = self.slots[index].flags.has(Flags::EAGER);
            let bytes_max = if eager { EAGER_BYTES } else { RUN_BYTES };
            let fetch = Fetch::new(&stream, from, facts.tail, bytes_max);
            if state == State::Polling {
                self.poll_fetches(index, fetch);
                return true;
            }
            let token = self.slots.token(index);
            if self.parts.readers.ask(fetch, token, &self.parts.sender) {
                self.slots[index].flags.set(Flags::CATCHING, true);
            } else {
                // The readers are overrun: the subscriber keeps its place and its turn.
                self.lag(index);
            }
            return false;
        }
        let over = facts.closed || facts.life != Life::Live;
        if over {
            return self.end_behind(index, from, facts.closed && facts.life == Life::Live);
        }
        if let Some(busy) = self.busy.get_mut(index) {
            busy.from = None;
        }
        // No data lies between the cursor and the recent records, or the tail would be behind it.
        let topic = self.slots[index].topic;
        let cursor = self.slots[index]
            .cursor
            .max(self.topics.complete_from(topic));
        self.slots[index].cursor = cursor;
        self.settle(index);
        match self.topics.next(topic, cursor) {
            Next::Recent(_) => self.flush(index),
            _ => {
                self.is_abreast(index);
                false
            }
        }
    }

    /// Tells a subscriber that has all data that there will be no more.
    pub(super) fn end_behind(&mut self, index: u32, end: Offset, closed: bool) -> bool {
        let run = Run {
            items: &[],
            end,
            at_tail: true,
            closed,
        };
        let now_ms = self.clock.now_ms();
        if self.slots[index].state == State::Polling {
            let Some(Continuation::Record(then)) = self.take_then(index) else {
                return false;
            };
            let response = if closed {
                then.arrived(run, now_ms)
            } else {
                then.ended()
            };
            self.poll_answered(index, &response);
            return true;
        }
        let mut encoded = Encoded {
            ended: true,
            ..Encoded::default()
        };
        if closed {
            self.encode_for(index, &run, &mut encoded);
        }
        self.send_encoded(index, &encoded);
        true
    }

    /// Tells the sequencer how far the deliveries are behind.
    fn report_lag(&self) {
        let (bytes, us) = match self.rounds.oldest() {
            Some(due) => {
                let now_us = self.clock.now_us();
                (self.taken_bytes - due.bytes, now_us.saturating_sub(due.us))
            }
            None => (0, 0),
        };
        self.parts
            .receiver
            .lag
            .bytes
            .store(bytes, Ordering::Relaxed);
        self.parts.receiver.lag.us.store(us, Ordering::Relaxed);
    }
}

/// How much is read at a time for a subscriber whose socket takes it at once. Others would have most of it read again.
const EAGER_BYTES: usize = 4 * RUN_BYTES;
