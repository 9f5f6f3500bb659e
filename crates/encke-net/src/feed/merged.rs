//! Feeds of several streams: one connection, the records of all its streams in the order of the log.
//!
//! Such a subscriber has a slot, and in each topic's list a member slot without a socket that leads to it. So a subscriber of one
//! stream costs nothing more, and rounds work as for other subscribers. Due records are merged: recent ones by their positions
//! in the ring, older ones by reading a part of each stream (`merged_older`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use encke_log::Sequence;
use encke_protocol::{CutCharacter, MergedRecord, StreamEnd};
use encke_stream::{Item, Life, Offset};

use super::encoding::{RUN_BYTES, RunBudget};
use super::feeds::{DueDelivery, FeedContext, Feeds, Purpose, framing};
use super::long_delivery::{LongDelivery, LongFeed};
use super::merged_feed::MergedFeed;
use super::merged_long::{AlsoSaid, MergedLong};
use super::slot::Slots;
use super::state::FeedKind;
use super::topics::Next;
use super::withheld::TextRecord;

impl Feeds {
    /// What is due to a subscriber of several streams.
    pub(super) fn next_merged(&mut self, index: u32, cx: &mut FeedContext<'_>) -> DueDelivery {
        // Each log has one turn. The one that has it now need not have streams of the subscriber any more.
        let mut turns = self.merged(index).map_or(0, MergedFeed::logs);
        loop {
            let due = self.due(index, cx.slots);
            if !due.ended.is_empty() {
                return self.encode_ends(index, &due.ended, cx);
            }
            if due.older {
                return self.begin_older(index, cx);
            }
            if !due.heads.is_empty() {
                return self.encode_merged(index, due.heads, cx);
            }
            turns = turns.saturating_sub(1);
            if turns == 0 || !self.turn(index, cx.slots) {
                self.is_up_to_date(index, cx);
                return DueDelivery::Nothing;
            }
        }
    }

    /// The subscriber has the encoded recent records. Whether others may follow.
    pub(super) fn has_merged(&mut self, index: u32, more: bool, cx: &mut FeedContext<'_>) -> bool {
        cx.slots[index].cursor = self.encoding().end;
        // Other logs have their turn.
        self.turn(index, cx.slots) || more
    }

    /// Keeps a quiet subscriber's connection alive. A subscriber of a pattern gets its position, because a client that returns with an
    /// old one has the order since then to read, or finds it gone.
    pub(super) fn merged_heartbeat(
        &mut self,
        index: u32,
        cx: &mut FeedContext<'_>,
    ) -> Option<Vec<u8>> {
        let merged = self.merged(index)?;
        let encoder = merged.encoder;
        if !merged.has_patterns() || merged.older.is_some() {
            let encoder = self.encoders.merge_encoder(encoder);
            return Some(encoder.heartbeat().to_vec());
        }
        self.advance(index, cx.slots);
        let merged = self.merged(index)?;
        let after = merged.all_after(cx.slots[index].cursor);
        let ahead = merged.ahead(&after);
        let at = merged.position(after, ahead, &[]);
        let mut beat = Vec::new();
        let encoder = self.encoders.merge_encoder(encoder);
        encoder.position(&merged.label, at.merged(), &mut beat);
        Some(beat)
    }

    /// Switches to the next log with streams of the subscriber. False: there is no other.
    pub(super) fn turn(&mut self, index: u32, slots: &mut Slots) -> bool {
        let cursor = slots[index].cursor;
        let merged = self.merged_mut(index);
        match merged.and_then(|merged| merged.turn(cursor)) {
            Some(after) => {
                slots[index].cursor = after;
                true
            }
            None => false,
        }
    }

    /// Moves the position of a subscriber on where nothing is due: it has everything that the shard has passed.
    fn advance(&mut self, index: u32, slots: &mut Slots) {
        let cursor = slots[index].cursor;
        let Some(merged) = self.merged(index) else {
            return;
        };
        let passed = (0..).zip(merged.all_after(cursor)).map(|(log, after)| {
            let is_quiet = self.due_in(index, log, after, slots).is_empty();
            is_quiet.then(|| self.passed(log))
        });
        let passed: Vec<Option<Sequence>> = passed.collect();
        if let Some(merged) = self.merged_mut(index) {
            slots[index].cursor = merged.advance(cursor, &passed);
        }
    }

    /// The records that are due to a subscriber, of the log whose turn it is.
    fn due(&self, index: u32, slots: &Slots) -> DueRecords {
        let log = self.merged(index).map_or(0, MergedFeed::log);
        self.due_in(index, log, slots[index].cursor, slots)
    }

    /// The records of a log that are due to a subscriber that has everything of it up to `after`.
    fn due_in(&self, index: u32, log: usize, after: Sequence, slots: &Slots) -> DueRecords {
        let mut due = DueRecords::default();
        let Some(merged) = self.merged(index) else {
            return due;
        };
        let topics = &self.fan_out.topics;
        for (number, member) in merged.members.iter().enumerate() {
            if member.log() != log {
                continue;
            }
            let topic = slots[member.slot].topic;
            let position = member.position(after);
            if let Some((last, why)) = member.end
                && position >= Offset::behind(last)
            {
                due.ended.push((number, why));
                continue;
            }
            let next = topics.next(topic, position.sequence);
            match (next, member.stream()) {
                (Next::Nothing, _) if position.units == 0 => {}
                (Next::Recent(at), _) if position.units == 0 => {
                    due.heads.push(Reverse((at, number)));
                }
                (_, None) => due.older |= position.sequence < self.views.committed(log),
                (_, Some(stream)) => {
                    let facts = stream.facts();
                    if position < facts.tail {
                        due.older = true;
                    } else if facts.life != Life::Live {
                        due.ended.push((number, StreamEnd::Deleted));
                    } else if facts.closed {
                        due.ended.push((number, StreamEnd::Closed(facts.end)));
                    } else {
                        // No data lies in between, or the tail would be behind it.
                        let from = topics.complete_from(topic).max(position.sequence);
                        if let Next::Recent(at) = topics.next(topic, from) {
                            due.heads.push(Reverse((at, number)));
                        }
                    }
                }
            }
        }
        due
    }

    /// Encodes the ends of streams. Nothing follows when none is left.
    fn encode_ends(
        &mut self,
        index: u32,
        ended: &[(usize, StreamEnd)],
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let mut events = Vec::new();
        let framing = framing(index, cx.slots);
        let cursor = cx.slots[index].cursor;
        // From the last one, so that earlier indices stay valid.
        for (number, why) in ended.iter().rev() {
            let Some(merged) = self.merged_mut(index) else {
                return DueDelivery::Nothing;
            };
            merged.older = None;
            let encoder = merged.encoder;
            let label = merged.label.clone();
            let member = merged.members.remove(*number);
            let released = merged.release(member.place, cursor);
            if matches!(why, StreamEnd::Closed(_)) {
                merged.note_end(&member, cursor);
            }
            let encoder = self.encoders.merge_encoder(encoder);
            if let Some(stream) = member.stream() {
                // Its rest never comes.
                if let Some(withheld) = released.filter(|_| matches!(why, StreamEnd::Closed(_)))
                    && let Some(merged) = self.merged(index)
                {
                    let after = merged.all_after(cursor);
                    let ahead = merged.ahead(&after);
                    let at = merged.position(after, ahead, &[]);
                    let item = Item {
                        data: &[],
                        skip: 0,
                        take: 0,
                        end: stream.facts().tail,
                        time: withheld.time,
                    };
                    let record = MergedRecord {
                        name: &stream.name,
                        kind: stream.media.kind,
                        item,
                        cut: [withheld.character, CutCharacter::default()],
                        at: at.merged(),
                    };
                    encoder.record(&label, &record, &mut events);
                    framing.separate(&mut events);
                }
                encoder.ended(&label, &stream.name, *why, None, &mut events);
                framing.separate(&mut events);
            }
            let topic = cx.slots[member.slot].topic;
            let appended = self.fan_out.topics[topic].appended;
            self.loses(index, appended, cx.slots);
            self.drop_member(member.slot, cx);
        }
        let merged = self.merged(index);
        let is_last = merged.is_none_or(|merged| merged.members.is_empty());
        let encoding = self.fan_out.encodings.replace();
        encoding.begin();
        encoding.end = cursor;
        encoding.ended = is_last;
        encoding.add_event(&events, Offset::behind(cursor));
        encoding.frame(framing);
        DueDelivery::Send(Purpose::MembersEnded)
    }

    /// Encodes the recent records of all streams, merged, as many as one send should carry.
    fn encode_merged(
        &mut self,
        index: u32,
        heads: Vec<Reverse<(u64, usize)>>,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let before = cx.slots[index].cursor;
        let framing = framing(index, cx.slots);
        let topics = &self.fan_out.topics;
        let encoding = self.fan_out.encodings.replace();
        encoding.begin();
        let Some(FeedKind::Merged(merged)) = self.states.get_mut(index).map(|s| &mut s.kind) else {
            return DueDelivery::Nothing;
        };
        let mut ends = None;
        let mut more = false;
        let mut change = None;
        let mut long = None;
        let mut budget = RunBudget::new();
        let overhead = merged.overhead(before);
        let encoder = self.encoders.merge_encoder(merged.encoder);
        let mut heads = BinaryHeap::from(heads);
        let mut bytes = 0;
        while let Some(Reverse((at, number))) = heads.pop() {
            let member = &merged.members[number];
            let topic = cx.slots[member.slot].topic;
            let (record, next) = topics.record(topic, at);
            let (name, kind) = match member.stream() {
                Some(stream) => (&*stream.name, stream.media.kind),
                None => match topics.label(topic, at) {
                    Some(label) if !member.sees(label.owner.as_deref()) => {
                        encoding.end = record.sequence;
                        if next != 0 {
                            heads.push(Reverse((next, number)));
                        }
                        continue;
                    }
                    Some(label) => (&*label.name, label.kind),
                    // All records of a pattern's topic have labels.
                    None => break,
                },
            };
            let end = match (record.deletes, record.closes) {
                (true, _) => Some(StreamEnd::Deleted),
                (_, true) => Some(StreamEnd::Closed(record.end)),
                _ => None,
            };
            // Only this stream of a pattern ends; the feed continues.
            let end_within = end.filter(|_| member.stream().is_none());
            let item = Item {
                data: &record.data,
                skip: 0,
                take: record.units,
                end: Offset::behind(record.sequence),
                time: record.time,
            };
            if record.units > 0 && !budget.try_spend(kind, &item, || overhead + 2 * name.len()) {
                more = true;
                if encoding.run.marks.is_empty() {
                    let place = (number, before);
                    let mut starting = MergedLong::new(merged, place, (name, kind), &item);
                    starting.also = AlsoSaid {
                        asks_stop: record.asks_stop,
                        ends_within: end_within,
                        ends: end.filter(|_| end_within.is_none()),
                    };
                    starting.is_shared = heads.iter().any(|Reverse((at, other))| {
                        let topic = cx.slots[merged.members[*other].slot].topic;
                        topics.record(topic, *at).0.sequence == record.sequence
                    });
                    let place = (record.stream, record.sequence);
                    let record = starting.record(merged);
                    let feed = LongFeed::Merged(Box::new(starting));
                    long = Some(LongDelivery::new(record, place, topic, feed));
                }
                break;
            }
            encoding.end = record.sequence;
            if record.units > 0 || end_within.is_some() || record.asks_stop {
                bytes += record.data.len();
                let text = match record.units {
                    0 => TextRecord::default(),
                    _ => merged.text_record(member, kind, &item, record.sequence, before),
                };
                change = text.change;
                encoding.add(item, record.sequence, |out| {
                    let after = merged.all_after(record.sequence);
                    let ahead = merged.ahead(&after);
                    let at = merged.position(after, ahead, text.change.as_slice());
                    let merged_record = MergedRecord {
                        name,
                        kind,
                        item,
                        cut: [text.before, text.behind],
                        at: at.merged(),
                    };
                    if record.units > 0 && !text.is_withheld {
                        encoder.record(&merged.label, &merged_record, out);
                        framing.separate(out);
                    }
                    if record.asks_stop {
                        encoder.stop_asked(&merged.label, name, at.merged(), out);
                        framing.separate(out);
                    }
                    if let Some(end) = end_within {
                        encoder.ended(&merged.label, name, end, Some(at.merged()), out);
                        framing.separate(out);
                    }
                });
            }
            if let (Some(end), true) = (end, end_within.is_none()) {
                ends = Some((number, record.sequence, end));
                more = true;
                break;
            }
            if next != 0 {
                heads.push(Reverse((next, number)));
            }
            // A client that is left before a change of what is withheld has the state before it.
            if bytes > RUN_BYTES || change.is_some() {
                more = true;
                break;
            }
        }
        if let Some(long) = long {
            return self.enter_long(index, long, cx);
        }
        merged.note_withheld(change.as_slice(), before);
        if let Some((number, sequence, why)) = ends {
            merged.members[number].end = Some((sequence, why));
        }
        encoding.frame(framing);
        DueDelivery::Send(Purpose::Merged { more })
    }
}

/// The records of one log that are due to a subscriber.
#[derive(Default)]
struct DueRecords {
    /// The next recent record of each stream that has one: its place in the ring and the member.
    heads: Vec<Reverse<(u64, usize)>>,
    /// Members of ended streams without further records.
    ended: Vec<(usize, StreamEnd)>,
    /// Some have data that must be read from the log.
    older: bool,
}

impl DueRecords {
    fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.ended.is_empty() && !self.older
    }
}
