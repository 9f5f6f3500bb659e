//! Feeds of one stream: recent records from the ring, older ones from the log.

use std::sync::Arc;

use encke_log::Sequence;
use encke_protocol::{EncoderId, Run, Variant};
use encke_stream::{Fetch, Item, LargeRecords, Life, Offset, Piece};

use super::encoding::{LongStart, RUN_BYTES, RecentKey, RunBudget, are_withheld, sequence_of};
use super::feeds::{DueDelivery, FeedContext, Feeds, Purpose, framing};
use super::slot::Slots;
use super::state::FeedKind;
use super::topics::Next;
use crate::connection::close::CloseReason;

impl Feeds {
    /// What is due to a subscriber of one stream whose position is between two records.
    pub(super) fn next_single(
        &mut self,
        index: u32,
        encoder: (EncoderId, u64),
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let slot = &cx.slots[index];
        match self.fan_out.topics.next(slot.topic, slot.cursor) {
            Next::Nothing => {
                self.is_up_to_date(index, cx);
                DueDelivery::Nothing
            }
            Next::Recent(at) => self.recent(index, at, encoder, cx),
            Next::Older => self.next_older(index, cx),
        }
    }

    /// What is due to a subscriber whose position is inside a record.
    pub(super) fn next_inside(
        &mut self,
        index: u32,
        position: Offset,
        encoder: (EncoderId, u64),
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        match self.fan_out.topics.inside(cx.slots[index].topic, position) {
            Some(at) => self.recent(index, at, encoder, cx),
            None => self.next_older(index, cx),
        }
    }

    /// Encodes the recent records from a position of the ring on.
    fn recent(
        &mut self,
        index: u32,
        at: u64,
        (encoder, option): (EncoderId, u64),
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let slot = &cx.slots[index];
        let topics = &self.fan_out.topics;
        if self.encoders.encoder(encoder).names_streams() && topics[slot.topic].stream.is_none() {
            return DueDelivery::Load(topics.no(slot.topic));
        }
        let last = topics[slot.topic].last;
        let key = RecentKey {
            topic: slot.topic,
            from: self.position(index, cx.slots),
            last,
            encoder,
            option,
            framing: framing(index, cx.slots),
        };
        let now = cx.clock.wall();
        match self.fan_out.encode_recent(key, at, &self.encoders, now) {
            Some(long) => self.begin_long(index, long, None, cx),
            None => DueDelivery::Send(Purpose::Recent(last)),
        }
    }

    /// The subscriber has the encoded recent records. Whether others follow that this shard knows.
    pub(super) fn has_recent(
        &mut self,
        index: u32,
        last: Sequence,
        cx: &mut FeedContext<'_>,
    ) -> bool {
        let encoding = self.encoding();
        let (reached, end) = (encoding.reached(), encoding.end);
        self.reached(index, reached, cx.slots);
        end < last
    }

    /// What is due to a subscriber or a long poll whose next records are not in the ring: the records between it and the ring,
    /// if the committed facts show any.
    pub(super) fn next_older(&mut self, index: u32, cx: &mut FeedContext<'_>) -> DueDelivery {
        let topic = cx.slots[index].topic;
        let Some(stream) = self.fan_out.topics[topic].stream.clone() else {
            return DueDelivery::Load(self.fan_out.topics.no(topic));
        };
        let from = self.position(index, cx.slots);
        let facts = stream.facts();
        let state = self.state(index, cx.slots);
        let is_poll = state.is_some_and(|state| matches!(state.kind, FeedKind::Poll(_)));
        if from < facts.tail {
            let bytes_max = match state.is_some_and(|state| state.eager) {
                true => EAGER_BYTES,
                false => RUN_BYTES,
            };
            let upto = facts.tail;
            return match is_poll {
                true => {
                    let fetch = Fetch::for_response(&stream, from, upto, bytes_max);
                    DueDelivery::ReadForPoll(fetch)
                }
                false => DueDelivery::Read {
                    fetch: Fetch {
                        large: LargeRecords::Beginnings,
                        ..Fetch::new(&stream, from, upto, bytes_max)
                    },
                    begins: true,
                },
            };
        }
        if facts.closed || facts.life != Life::Live {
            let is_closed = facts.closed && facts.life == Life::Live;
            let end = Run::at_tail(stream.position(from), facts);
            return self.end(index, end, is_closed, cx);
        }
        self.set_position(index, None, cx.slots);
        // No data lies between the cursor and the recent records, or the tail would be behind it.
        let complete_from = self.fan_out.topics.complete_from(topic);
        let slot = &mut cx.slots[index];
        slot.cursor = slot.cursor.max(complete_from);
        match self.fan_out.topics.next(topic, slot.cursor) {
            // The position is between two records now, and the ring has the next one.
            Next::Recent(at) if is_poll => DueDelivery::Answer(at),
            Next::Recent(at) => {
                self.settle(index, cx.slots);
                match self.form(index, cx.slots) {
                    Some((encoder, Variant { option, .. })) => {
                        self.recent(index, at, (encoder, option), cx)
                    }
                    None => DueDelivery::Nothing,
                }
            }
            Next::Nothing | Next::Older => {
                self.is_up_to_date(index, cx);
                DueDelivery::Nothing
            }
        }
    }

    /// Ends the feed of a subscriber or a long poll that has all records of a stream that has ended. `is_closed`: its records can
    /// still be read.
    pub(crate) fn end(
        &mut self,
        index: u32,
        run: Run<'_>,
        is_closed: bool,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let end = run.end;
        let state = self.state(index, cx.slots);
        if state.is_some_and(|state| matches!(state.kind, FeedKind::Poll(_))) {
            return DueDelivery::EndPoll(is_closed.then_some(end));
        }
        let form = self.form(index, cx.slots);
        let name = self.fan_out.topics.name(cx.slots[index].topic);
        let encoder = form.map(|(encoder, _)| self.encoders.encoder(encoder));
        if name.is_empty() && encoder.is_some_and(|encoder| encoder.names_streams()) {
            // Its channel knows the name.
            return DueDelivery::Close(CloseReason::Deleted);
        }
        let encoding = self.fan_out.encodings.replace();
        encoding.begin();
        encoding.ended = true;
        encoding.end = end.sequence;
        if let (Some(encoder), Some((_, variant))) = (encoder, form) {
            let variant = Variant { name, ..variant };
            match is_closed {
                true => encoder.encode(variant, &run, cx.clock.wall(), &mut encoding.run),
                false => encoding.add_deletion(encoder, variant, end),
            }
        }
        encoding.frame(framing(index, cx.slots));
        DueDelivery::Send(Purpose::End)
    }

    /// A piece of its stream was read for a subscriber of one stream.
    pub(super) fn read_for_single(
        &mut self,
        index: u32,
        piece: &Arc<Piece>,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let topic = cx.slots[index].topic;
        let Some(stream) = self.fan_out.topics[topic].stream.clone() else {
            // It was evicted meanwhile. The piece will be read again.
            return DueDelivery::Load(self.fan_out.topics.no(topic));
        };
        let facts = stream.facts();
        if facts.life == Life::Ended {
            // Some of what was read may have been gone.
            let end = self.position(index, cx.slots);
            return self.end(index, Run::position(end), false, cx);
        }
        let Some((encoder, variant)) = self.form(index, cx.slots) else {
            return DueDelivery::Nothing;
        };
        let variant = Variant {
            name: &stream.name,
            ..variant
        };
        let mut budget = RunBudget::new();
        let encoder = self.encoders.encoder(encoder);
        let position = self.position(index, cx.slots);
        let mut items: Vec<Item<'_>> = Vec::new();
        let mut left = None;
        for (mut item, is_cut) in piece.beginnings() {
            // It was sent before.
            if item.end <= position {
                continue;
            }
            if sequence_of(&item) == position.sequence + 1 {
                item.skip = item.skip.max(position.units);
            }
            if is_cut || !budget.try_spend(variant.kind, &item, || encoder.overhead(variant, &item))
            {
                left = Some(item);
                break;
            }
            items.push(item);
        }
        if let Some(item) = left
            && are_withheld(variant.kind, &items)
        {
            let start = LongStart::new(&item, &items);
            return self.begin_long(index, start, Some(piece), cx);
        }
        let more = piece.more || left.is_some();
        let piece_end = match (left, items.last()) {
            (Some(_), Some(last)) => last.end,
            _ => piece.end,
        };
        let at_tail = !more && piece_end >= facts.tail;
        let end = stream.position(piece_end);
        let run = match at_tail && facts.life == Life::Live {
            true => Run::at_tail(end, facts),
            false => Run {
                at_tail,
                ..Run::position(end)
            },
        };
        let run = run.with(&items);
        let encoding = self.fan_out.encodings.replace();
        encoding.begin();
        encoder.encode(variant, &run, cx.clock.wall(), &mut encoding.run);
        encoding.count(&items);
        encoding.end = piece_end.sequence;
        encoding.piece_end = piece_end;
        encoding.ended = run.closed;
        encoding.frame(framing(index, cx.slots));
        DueDelivery::Send(Purpose::Older { more })
    }

    /// Whether a subscriber of one stream lacks records that are in a piece of it.
    pub(crate) fn lacks_of(&self, index: u32, piece: &Piece, slots: &Slots) -> bool {
        let encoded = self.encoding().piece_end;
        !self.is_long(index)
            && self.is_single(index, slots)
            && piece.items().last().is_some_and(|last| last.end > encoded)
    }

    /// The subscriber has the encoded older records. Whether it is looked at again.
    pub(super) fn has_older(&mut self, index: u32, more: bool, cx: &mut FeedContext<'_>) -> bool {
        let encoding = self.encoding();
        let reached = encoding.run.withheld_at.unwrap_or(encoding.piece_end);
        let before = self.position(index, cx.slots);
        self.reached(index, reached, cx.slots);
        if reached == before && !more {
            // All of it is the beginning of a character, which waits for its rest.
            return false;
        }
        // Its connection took all of it at once.
        if let Some(state) = self.activate(index, cx.slots) {
            state.eager = true;
        }
        true
    }
}

/// Bytes of a piece for a subscriber whose socket takes it at once. For others most of it would be read again.
const EAGER_BYTES: usize = 4 * RUN_BYTES;
