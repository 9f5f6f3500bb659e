//! Delivers long records: records that are too large to be encoded at once. A subscriber gets a long record in pieces, each when its
//! connection has taken the last one, and holds none of the data.
//!
//! The data comes from the recent records as long as the record is among them, and is read from the log in parts otherwise. Nothing else is
//! sent to the subscriber before the last piece. Pieces are deferred work: they wait for commits and for the deliveries of other records.

use std::sync::Arc;

use encke_protocol::long_record::{LongRecord, LongStep};
use encke_protocol::{EncodedRun, Encoders, RecordHead, Run, Variant};
use encke_stream::{Life, MEMORY_LOG, Offset, Piece, Stream, log_of};

use super::encoding::{BehindLong, Encoding, EncodingKey, LongKey, LongStart};
use super::feeds::{DueDelivery, FeedContext, Feeds, Purpose, Sent, framing};
use super::long_delivery::{LongDelivery, LongFeed};
use super::queue::FanOut;
use super::slot::Slots;
use super::state::{FeedKind, FeedState};
use super::weight::weight;
use crate::by_slot::BySlot;
use crate::connection::close::CloseReason;
use crate::http::framing::ResponseFraming;

impl Feeds {
    /// Whether a long record is on its way to a subscriber.
    pub(crate) fn is_long(&self, index: u32) -> bool {
        self.long.get(index).is_some()
    }

    /// Whether a part of a record was sent to a subscriber, whose rest must follow.
    pub(crate) fn is_inside_record(&self, index: u32) -> bool {
        self.long.get(index).is_some_and(|long| long.has_begun)
    }

    /// Begins to deliver a long record of the only stream of a subscriber. `piece`: what was read of it, if it was read.
    pub(super) fn begin_long(
        &mut self,
        index: u32,
        start: LongStart,
        piece: Option<&Arc<Piece>>,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let topic = cx.slots[index].topic;
        let (Some(stream), Some((encoder, variant))) = (
            self.fan_out.topics[topic].stream.clone(),
            self.form(index, cx.slots),
        ) else {
            return DueDelivery::Load(self.fan_out.topics.no(topic));
        };
        let record = LongRecord::new(variant.kind, &start.item(), start.before, true);
        let place = (stream.source_of(start.sequence), start.sequence);
        let feed = LongFeed::Single {
            stream,
            encoder,
            option: variant.option,
            beginning: start.beginning,
            stop_asked: start.stop_asked,
        };
        let mut long = LongDelivery::new(record, place, topic, feed);
        long.held = piece
            .filter(|_| log_of(place.0) == MEMORY_LOG)
            .map(Arc::clone);
        self.enter_long(index, long, cx)
    }

    /// Notes that a long record is on its way to a subscriber.
    pub(super) fn enter_long(
        &mut self,
        index: u32,
        mut long: LongDelivery,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        if let Some(state) = self.activate(index, cx.slots) {
            state.is_long = true;
            long.is_in_lag = state.behind.is_some();
            self.long.insert(index, long);
        }
        // Publishers of such records are slowed to the pace of most subscribers.
        self.falls_behind(index, cx);
        DueDelivery::Later
    }

    /// The next piece of a long record. `read`: a part of the record that was read.
    pub(crate) fn next_piece(
        &mut self,
        index: u32,
        read: Option<&Arc<Piece>>,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let Some(mut long) = self.long.remove(index) else {
            return DueDelivery::Nothing;
        };
        if let Some(piece) = read {
            long.take_part(piece);
        }
        let due = match self.begin_form(index, &mut long, cx) {
            true => self.encode_piece(index, &mut long, read.map(|piece| &**piece), cx),
            false => DueDelivery::Close(CloseReason::Internal),
        };
        self.long.insert_boxed(index, long);
        due
    }

    /// Whether more of the part that was read for a subscriber is to be encoded.
    pub(crate) fn has_part(&self, index: u32) -> bool {
        let long = self.long.get(index);
        long.is_some_and(|long| long.part().is_some())
    }

    /// Gives up the part that was read for a subscriber, unless its record would be read whole for what is left of it.
    pub(crate) fn drop_part(&mut self, index: u32) {
        if let Some(long) = self.long.get_mut(index) {
            let is_costly = |piece: &Piece| piece.reads_whole_record();
            long.part = long.part.take().filter(|(_, piece)| is_costly(piece));
        }
    }

    /// Begins the form of a long record that is examined. False: its feed is gone.
    fn begin_form(&mut self, index: u32, long: &mut LongDelivery, cx: &FeedContext<'_>) -> bool {
        let Some(facts) = long.record.facts() else {
            return true;
        };
        let form = match &mut long.feed {
            LongFeed::Single {
                stream,
                encoder,
                option,
                beginning,
                ..
            } => {
                let head = RecordHead { facts, beginning };
                let encoder = self.encoders.encoder(*encoder);
                Some(encoder.form(variant_of(stream, *option), &head, cx.clock.wall()))
            }
            LongFeed::Merged(merged) => {
                let framing = framing(index, cx.slots);
                let feed = match self.states.get(index).map(|state| &state.kind) {
                    Some(FeedKind::Merged(feed)) => Some(feed),
                    _ => None,
                };
                feed.map(|feed| {
                    let encoder = self.encoders.merge_encoder(feed.encoder);
                    merged.form(feed, encoder, &facts, framing)
                })
            }
        };
        form.map(|form| long.record.begin(form)).is_some()
    }

    /// Encodes the next piece of a long record, unless another subscriber got the same.
    fn encode_piece(
        &mut self,
        index: u32,
        long: &mut LongDelivery,
        read: Option<&Piece>,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let framing = framing(index, cx.slots);
        let key = piece_key(long, framing).map(EncodingKey::Long);
        if !key.is_some_and(|key| self.fan_out.encodings.select(key)) {
            let FanOut {
                topics, encodings, ..
            } = &mut self.fan_out;
            let Some(data) = long.data(topics) else {
                return match read {
                    None => DueDelivery::Read {
                        fetch: long.rest(),
                        begins: !long.has_begun,
                    },
                    // It is not written yet.
                    Some(piece) if piece.lacks() => DueDelivery::Later,
                    Some(_) => DueDelivery::Dismiss(CloseReason::NoLongerKept),
                };
            };
            cx.counts.pieces += 1;
            let mut after = long.record.clone();
            let encoding = encodings.replace();
            encoding.begin();
            let mut each = |at: Offset, message: &[u8], out: &mut EncodedRun| {
                if let LongFeed::Single {
                    stream,
                    encoder,
                    option,
                    ..
                } = &long.feed
                {
                    let encoder = self.encoders.encoder(*encoder);
                    encoder.message(variant_of(stream, *option), message, at, out);
                }
            };
            let step = after.step(data.bytes, data.is_end, &mut each, &mut encoding.run);
            encoding.key = key;
            encoding.is_last_piece = step == LongStep::Written;
            encoding.after = Some(Box::new(after));
            let behind = match encoding.is_last_piece {
                true => behind_long(long, &self.encoders, cx),
                false => BehindLong {
                    reached: position_of(&self.states, index, cx.slots),
                    ..BehindLong::default()
                },
            };
            encoding.end_piece(framing, !long.has_begun, &behind);
        }
        let encoding = self.fan_out.encodings.current();
        if let Some(after) = &encoding.after {
            long.record.clone_from(after);
        }
        let is_empty = encoding.run.bytes.is_empty();
        let is_last = encoding.is_last_piece;
        long.has_begun |= !is_empty;
        match is_empty && !is_last {
            true => DueDelivery::Later,
            false => DueDelivery::Send(Purpose::Long {
                is_last,
                is_fragment: long.record.is_one_value(),
            }),
        }
    }

    /// A connection has taken the first `sent` bytes of a piece, and keeps the rest.
    pub(super) fn sent_piece(
        &mut self,
        index: u32,
        is_last: bool,
        sent: usize,
        cx: &mut FeedContext<'_>,
    ) -> Sent {
        let encoding = self.fan_out.encodings.current();
        let bytes = encoding.run.bytes.len();
        let ended = encoding.ended;
        let reached = match is_last {
            true => encoding.piece_end,
            // Others that share the piece may have come from elsewhere.
            false => self.position(index, cx.slots),
        };
        match is_last {
            true => self.end_long(index, cx),
            false => self.makes_progress(index, cx),
        }
        if sent < bytes {
            cx.counts.blocked += 1;
            return Sent::Cut {
                from: sent,
                to: bytes,
                reached,
                ended,
            };
        }
        if ended {
            return Sent::Ended;
        }
        self.reached(index, reached, cx.slots);
        Sent::More
    }

    /// All of a long record is encoded.
    fn end_long(&mut self, index: u32, cx: &mut FeedContext<'_>) {
        let Some(long) = self.long.remove(index) else {
            return;
        };
        cx.counts.deliveries += 1;
        if long.is_in_lag {
            self.gains(index, weight(long.record.next_byte() as usize), cx);
        }
        let Some(state) = self.states.get_mut(index) else {
            return;
        };
        state.is_long = false;
        if let (LongFeed::Merged(merged), FeedKind::Merged(feed)) = (&long.feed, &mut state.kind) {
            merged.end(long.sequence, feed);
        }
    }
}

impl Encoding {
    /// Ends a piece of a long record.
    fn end_piece(&mut self, framing: ResponseFraming, is_first: bool, behind: &BehindLong) {
        self.ended = behind.ends;
        self.end = behind.reached.sequence;
        self.piece_end = behind.reached;
        let after = self.after.as_ref();
        if after.is_some_and(|after| after.is_one_value()) {
            let place = (is_first, self.is_last_piece);
            return self.frame_piece(framing, place, &behind.events, behind.reached);
        }
        if self.is_last_piece {
            self.run.bytes.extend_from_slice(&behind.events);
        }
        let marked = self.run.marks.last().map_or(0, |mark| mark.end);
        if self.is_last_piece || marked < self.run.bytes.len() {
            self.run.mark(behind.reached);
        }
        self.frame(framing);
    }
}

/// The events behind a long record in its last piece.
fn behind_long(long: &LongDelivery, encoders: &Encoders, cx: &FeedContext<'_>) -> BehindLong {
    let (stream, encoder, option, stop_asked) = match &long.feed {
        LongFeed::Merged(merged) => return merged.behind(),
        LongFeed::Single {
            stream,
            encoder,
            option,
            stop_asked,
            ..
        } => (stream, *encoder, *option, *stop_asked),
    };
    let end = long.record.end();
    let facts = stream.facts();
    let mut behind = BehindLong {
        reached: end,
        ..BehindLong::default()
    };
    let is_at_tail = end >= facts.tail && facts.life == Life::Live;
    let run = match (is_at_tail, stop_asked) {
        // A subscriber that has everything learns that.
        (true, _) => Run::at_tail(stream.position(end), facts),
        (false, true) => Run {
            stop_asked,
            ..Run::position(end)
        },
        (false, false) => return behind,
    };
    let mut state = EncodedRun::default();
    let encoder = encoders.encoder(encoder);
    encoder.encode(
        variant_of(stream, option),
        &run,
        cx.clock.wall(),
        &mut state,
    );
    behind.events = state.bytes;
    behind.ends = run.closed;
    behind
}

fn position_of(states: &BySlot<FeedState>, index: u32, slots: &Slots) -> Offset {
    let cursor = slots[index].cursor;
    let state = states.get(index);
    state.map_or(Offset::behind(cursor), |state| state.position(cursor))
}

/// The piece that is next for a subscriber, if others may get the same.
fn piece_key(long: &LongDelivery, framing: ResponseFraming) -> Option<LongKey> {
    match &long.feed {
        LongFeed::Single {
            encoder, option, ..
        } if long.held.is_none() => Some(LongKey {
            topic: long.topic,
            sequence: long.sequence,
            record: long.record.key(),
            encoder: *encoder,
            option: *option,
            framing,
        }),
        LongFeed::Single { .. } | LongFeed::Merged(_) => None,
    }
}

fn variant_of(stream: &Stream, option: u64) -> Variant<'_> {
    Variant {
        name: &stream.name,
        kind: stream.media.kind,
        option,
    }
}
