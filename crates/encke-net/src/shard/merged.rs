//! Subscribers of several streams: one connection, the records of all its streams in the order of the log.
//!
//! Such a subscriber has a slot, and in each topic's list a member slot without a socket that leads to it. So a subscriber of one
//! stream costs nothing more, and rounds work as for other subscribers. Due records are merged: recent ones by their positions
//! in the ring, older ones by reading a part of each stream (`merged_older`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use encke_log::Sequence;
use encke_protocol::{
    AheadStream, CutCharacter, MergeEncoderId, MergeSource, MergedRecord, SourceKind, StreamEnd,
    StreamGeneration,
};
use encke_stream::{Item, Life, Offset};

use super::Shard;
use crate::connection::active::{FeedState, Subscriber, Task};
use crate::connection::close::CloseReason;
use crate::connection::merged_feed::{FeedMember, MergedFeed};
use crate::connection::withheld::TextRecord;
use crate::fanout::encoding::RUN_BYTES;
use crate::fanout::topics::Next;

impl Shard {
    /// Subscribes a connection to several streams.
    pub(super) fn follow_merged(
        &mut self,
        index: u32,
        sources: Vec<MergeSource>,
        after: Vec<Sequence>,
        generations: Box<[StreamGeneration]>,
        encoder: MergeEncoderId,
        ended: Vec<AheadStream>,
    ) {
        let mut members = Vec::with_capacity(sources.len());
        for source in sources {
            let topics = &mut self.fan_out.topics;
            let topic = match &source.kind {
                SourceKind::Stream(stream) => topics.intern(stream),
                SourceKind::Pattern { pattern, log } => {
                    topics.intern_pattern(pattern, usize::from(*log))
                }
            };
            let slots = &mut self.connections.slots;
            let slot = slots.add_member(index);
            self.fan_out.topics.link(slots, topic, slot);
            members.push(FeedMember::new(slot, source));
        }
        let log = members.first().map_or(0, FeedMember::log);
        self.connections.slots[index].cursor = after[log];
        let merged = MergedFeed::new(encoder, members, after, generations, ended);
        let feed = FeedState::Merged(Box::new(merged));
        let task = Task::Subscribed(Subscriber::new(feed));
        self.connections.begin(index, task);
    }

    /// The feed of a subscriber of several streams.
    pub(super) fn merged(&self, index: u32) -> Option<&MergedFeed> {
        match &self.connections.active(index)?.subscriber()?.feed {
            FeedState::Merged(merged) => Some(merged),
            FeedState::Single(_) => None,
        }
    }

    /// The same, mutable.
    pub(super) fn merged_mut(&mut self, index: u32) -> Option<&mut MergedFeed> {
        match &mut self.connections.active_mut(index)?.subscriber_mut()?.feed {
            FeedState::Merged(merged) => Some(merged),
            FeedState::Single(_) => None,
        }
    }

    /// Switches to the next log with streams of the subscriber. False: there is no other.
    fn turn(&mut self, index: u32) -> bool {
        let cursor = self.connections.slots[index].cursor;
        match self
            .merged_mut(index)
            .and_then(|merged| merged.turn(cursor))
        {
            Some(after) => {
                self.connections.slots[index].cursor = after;
                true
            }
            None => false,
        }
    }

    /// Sends a subscriber of several streams its due records. True if this took a system call.
    pub(super) fn flush_merged(&mut self, index: u32) -> bool {
        // Each log has one turn. The one that has it now need not have streams of the subscriber any more.
        let mut turns = self.merged(index).map_or(0, MergedFeed::logs);
        loop {
            let due = self.due(index);
            if !due.ended.is_empty() {
                self.send_ended(index, &due.ended);
                return true;
            }
            if due.older {
                self.read_older_merged(index);
                return false;
            }
            if !due.heads.is_empty() {
                return self.push_merged(index, due.heads);
            }
            turns = turns.saturating_sub(1);
            if turns == 0 || !self.turn(index) {
                self.is_abreast(index);
                return false;
            }
        }
    }

    /// Keeps a quiet subscriber's connection alive. A subscriber of a pattern gets its position, because a client that returns with an
    /// old one has the order since then to read, or finds it gone.
    pub(super) fn heartbeat_merged(&mut self, index: u32) {
        let Some(merged) = self.merged(index) else {
            return;
        };
        let encoder = merged.encoder;
        let mut beat = Vec::new();
        if merged.has_patterns() && merged.older.is_none() {
            self.advance(index);
            if let Some(merged) = self.merged(index) {
                let after = merged.all_after(self.connections.slots[index].cursor);
                let ahead = merged.ahead(&after);
                let at = merged.position(after, ahead, &[]);
                let encoder = self.encoders.merge_encoder(encoder);
                encoder.position(at.merged(), &mut beat);
            }
        } else {
            beat.extend_from_slice(self.encoders.merge_encoder(encoder).heartbeat());
        }
        self.send_part(index, &beat, false);
    }

    /// Moves the position of a subscriber on where nothing is due: it has everything that the shard has passed.
    fn advance(&mut self, index: u32) {
        let cursor = self.connections.slots[index].cursor;
        let Some(merged) = self.merged(index) else {
            return;
        };
        let passed = (0..).zip(merged.all_after(cursor)).map(|(log, after)| {
            let is_quiet = self.due_in(index, log, after).is_empty();
            is_quiet.then(|| self.fan_out.passed(log))
        });
        let passed: Vec<Option<Sequence>> = passed.collect();
        if let Some(merged) = self.merged_mut(index) {
            let cursor = merged.advance(cursor, &passed);
            self.connections.slots[index].cursor = cursor;
        }
    }

    /// The records that are due to a subscriber, of the log whose turn it is.
    fn due(&self, index: u32) -> DueRecords {
        let log = self.merged(index).map_or(0, MergedFeed::log);
        self.due_in(index, log, self.connections.slots[index].cursor)
    }

    /// The records of a log that are due to a subscriber that has everything of it up to `after`.
    fn due_in(&self, index: u32, log: usize, after: Sequence) -> DueRecords {
        let mut due = DueRecords::default();
        let Some(merged) = self.merged(index) else {
            return due;
        };
        for (number, member) in merged.members.iter().enumerate() {
            if member.log() != log {
                continue;
            }
            let topic = self.connections.slots[member.slot].topic;
            let position = member.position(after);
            if let Some((last, why)) = member.end
                && position >= Offset::behind(last)
            {
                due.ended.push((number, why));
                continue;
            }
            let next = self.fan_out.topics.next(topic, position.sequence);
            match (next, member.stream()) {
                (Next::Nothing, _) if position.units == 0 => {}
                (Next::Recent(at), _) if position.units == 0 => {
                    due.heads.push(Reverse((at, number)));
                }
                (_, None) => due.older |= position.sequence < self.context.views.committed(log),
                (_, Some(stream)) => {
                    let facts = stream.facts();
                    if position < facts.tail {
                        due.older = true;
                    } else if facts.life != Life::Live {
                        due.ended.push((number, StreamEnd::Deleted));
                    } else if facts.closed {
                        due.ended.push((number, StreamEnd::Closed));
                    } else {
                        // No data lies in between, or the tail would be behind it.
                        let from = self
                            .fan_out
                            .topics
                            .complete_from(topic)
                            .max(position.sequence);
                        if let Next::Recent(at) = self.fan_out.topics.next(topic, from) {
                            due.heads.push(Reverse((at, number)));
                        }
                    }
                }
            }
        }
        due
    }

    /// Sends the ends of streams, and closes the connection when none is left.
    fn send_ended(&mut self, index: u32, ended: &[(usize, StreamEnd)]) {
        let mut events = Vec::new();
        let cursor = self.connections.slots[index].cursor;
        // From the last one, so that earlier indices stay valid.
        for (number, why) in ended.iter().rev() {
            let Some(merged) = self.merged_mut(index) else {
                return;
            };
            merged.older = None;
            let encoder = merged.encoder;
            let member = merged.members.remove(*number);
            let released = merged.release(member.place, cursor);
            if *why == StreamEnd::Closed {
                merged.note_end(&member, cursor);
            }
            let encoder = self.encoders.merge_encoder(encoder);
            if let Some(stream) = member.stream() {
                // Its rest never comes.
                if let Some(withheld) = released.filter(|_| *why == StreamEnd::Closed)
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
                    };
                    let record = MergedRecord {
                        name: &stream.name,
                        kind: stream.media.kind,
                        item,
                        cut: [withheld.character, CutCharacter::default()],
                        at: at.merged(),
                    };
                    encoder.record(&record, &mut events);
                }
                encoder.ended(&stream.name, *why, None, &mut events);
            }
            let topic = self.connections.slots[member.slot].topic;
            self.loses(index, self.fan_out.topics[topic].appended);
            self.drop_member(member.slot);
        }
        let last = self
            .merged(index)
            .is_none_or(|merged| merged.members.is_empty());
        self.counts.sends += 1;
        self.send_part(index, &events, last);
        if !last {
            self.queue(index);
            return;
        }
        let reason = self.last_reason(index);
        let active = self.connections.active_mut(index);
        match active.and_then(|active| active.pending.as_mut()) {
            Some(pending) => {
                pending.close.get_or_insert(reason);
            }
            None => self.close(index, CloseReason::Ended),
        }
    }

    /// Sends the recent records of all streams, merged, as many as one send should carry.
    fn push_merged(&mut self, index: u32, heads: Vec<Reverse<(u64, usize)>>) -> bool {
        let mut encoding = std::mem::take(&mut self.fan_out.encoding);
        encoding.begin();
        let mut ends = None;
        let mut more = false;
        let mut change = None;
        let before = self.connections.slots[index].cursor;
        if let Some(merged) = self.merged(index) {
            let encoder = self.encoders.merge_encoder(merged.encoder);
            let mut heads = BinaryHeap::from(heads);
            let mut bytes = 0;
            while let Some(Reverse((at, number))) = heads.pop() {
                let member = &merged.members[number];
                let topic = self.connections.slots[member.slot].topic;
                let (record, next) = self.fan_out.topics.record(topic, at);
                encoding.end = record.sequence;
                let (name, kind) = match member.stream() {
                    Some(stream) => (&*stream.name, stream.media.kind),
                    None => match self.fan_out.topics.label(topic, at) {
                        Some(label) => (&*label.name, label.kind),
                        // All records of a pattern's topic have labels.
                        None => break,
                    },
                };
                let end = match (record.deletes, record.closes) {
                    (true, _) => Some(StreamEnd::Deleted),
                    (_, true) => Some(StreamEnd::Closed),
                    _ => None,
                };
                // Only this stream of a pattern ends; the feed continues.
                let end_within = end.filter(|_| member.stream().is_none());
                if record.units > 0 || end_within.is_some() {
                    bytes += record.data.len();
                    let item = Item {
                        data: &record.data,
                        skip: 0,
                        take: record.units,
                        end: Offset::behind(record.sequence),
                    };
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
                            encoder.record(&merged_record, out);
                        }
                        if let Some(end) = end_within {
                            encoder.ended(name, end, Some(at.merged()), out);
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
        }
        if let Some(merged) = self.merged_mut(index) {
            merged.note_withheld(change.as_slice(), before);
        }
        if let Some((number, sequence, why)) = ends
            && let Some(merged) = self.merged_mut(index)
        {
            merged.members[number].end = Some((sequence, why));
        }
        encoding.frame(self.connections.slots[index].framing());
        let complete = self.send_encoding(index, &encoding);
        let end = encoding.end;
        self.fan_out.encoding = encoding;
        if complete {
            self.connections.slots[index].cursor = end;
            // Other logs have their turn.
            if self.turn(index) || more {
                self.queue(index);
            } else {
                self.is_abreast(index);
            }
        }
        true
    }

    pub(super) fn drop_member(&mut self, slot: u32) {
        let slots = &mut self.connections.slots;
        self.fan_out.topics.unlink(slots, slot, self.clock.time());
        slots.remove_member(slot);
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
