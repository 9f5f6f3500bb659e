//! Subscribers of several streams: one connection, the records of all its streams in the order of the log.
//!
//! Such a subscriber has a slot as all have, whose cursor says up to where it has everything of every stream. On each
//! topic's list stands a slot without a socket that leads to it, so a subscriber of one stream costs nothing more, and a
//! record finds its subscribers as always. What is due is merged: recent records by their places in the ring, older ones
//! by reading a part of each stream and sending what lies before the end of the shortest part ([`older`]).
//!
//! Where there are several logs, each has an order of its own and they take turns: what is sent at once is of one log, and the
//! slot's cursor is the one in that.

mod older;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use encke_log::Sequence;
use encke_protocol::{Ahead, MergeSource, MergedRecord, Response, StreamEnd};
use encke_stream::{Item, Life, Offset, Stream, log_of};

use super::Shard;
use super::encoded::RUN_BYTES;
use super::slow::lacks;
use crate::close::CloseReason;
use crate::slot::{FeedEncoder, Flags, State};
use crate::topics::Next;
use older::Reading;

/// What a subscriber of several streams needs beside its slot.
#[derive(Debug)]
pub(crate) struct Several {
    members: Vec<Member>,
    /// Nothing where there is one log.
    turns: Option<Box<Turns>>,
    /// The part of the streams that is being read for it.
    reading: Option<Box<Reading>>,
}

/// Several logs taking turns: what is sent at once is of one log.
#[derive(Debug)]
struct Turns {
    /// The log whose turn it is.
    log: usize,
    /// Up to where the client has everything of the logs, by their indices. For the one whose turn it is the slot's cursor
    /// says so.
    after: Vec<Sequence>,
}

/// One of its streams.
#[derive(Debug)]
struct Member {
    /// The slot that stands on the topic's list.
    slot: u32,
    stream: Arc<Stream>,
    /// Its records up to there are the client's already, however far the others are.
    from: Offset,
    place: u8,
    /// The record with which it ends, once that is known.
    ends: Option<(Sequence, StreamEnd)>,
}

// What each of its streams costs a subscriber of several, beside a slot; and what it costs to be one.
const _: () = assert!(size_of::<Member>() <= 48);
const _: () = assert!(size_of::<Several>() <= 40);

impl Member {
    fn log(&self) -> usize {
        log_of(self.stream.no)
    }

    /// Up to where the client has this stream, if it has everything up to `after`.
    fn position(&self, after: Sequence) -> Offset {
        self.from.max(Offset::behind(after))
    }
}

impl Several {
    /// What waits to be sent, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.reading.as_ref().map_or(0, |reading| reading.bytes)
    }

    /// Up to where the client has everything of all logs, if it has everything up to `after` of the one whose turn it
    /// is.
    fn all_after(&self, after: Sequence) -> Vec<Sequence> {
        match &self.turns {
            None => vec![after],
            Some(turns) => {
                let mut all = turns.after.clone();
                all[turns.log] = after;
                all
            }
        }
    }

    /// The log whose turn it is.
    fn log(&self) -> usize {
        self.turns.as_ref().map_or(0, |turns| turns.log)
    }

    /// What the client has of streams beyond that.
    fn ahead(&self, after: &[Sequence]) -> Vec<Ahead> {
        let ahead = self.members.iter();
        ahead
            .filter_map(|member| Ahead::of(&member.stream, member.from, member.place, after))
            .collect()
    }

    /// The next log that has streams of the subscriber, if others have.
    fn next_log(&self) -> Option<usize> {
        let turns = self.turns.as_ref()?;
        let logs = turns.after.len();
        let mut others = (1..logs).map(|step| (turns.log + step) % logs);
        others.find(|log| self.members.iter().any(|member| member.log() == *log))
    }
}

impl Shard {
    /// Subscribes a connection to several streams.
    pub(super) fn follow_all(
        &mut self,
        index: u32,
        response: &Response,
        sources: Vec<MergeSource>,
        after: Vec<Sequence>,
    ) {
        self.slots[index].state = State::Several;
        let log = sources.first().map_or(0, |member| log_of(member.stream.no));
        self.slots[index].cursor = after[log];
        self.counts.subscribers += 1;
        let mut members = Vec::with_capacity(sources.len());
        for member in sources {
            let topic = self.topics.intern(&member.stream);
            let slot = self.slots.add_member(index);
            self.topics.link(&mut self.slots, topic, slot);
            members.push(Member {
                slot,
                stream: member.stream,
                from: member.from,
                place: member.place,
                ends: None,
            });
        }
        self.busy(index).several = Some(Box::new(Several {
            members,
            turns: (after.len() > 1).then(|| Box::new(Turns { log, after })),
            reading: None,
        }));
        self.open(index, response);
        if self.is_open(index) {
            self.flush_several(index);
        }
    }

    /// Whether one of the streams has something behind what the client has that is no longer kept.
    pub(super) fn lacks_any(&self, index: u32, after: Sequence) -> bool {
        self.several(index).is_some_and(|several| {
            let after = several.all_after(after);
            let mut members = several.members.iter();
            members.any(|member| lacks(&member.stream, member.position(after[member.log()])))
        })
    }

    /// Takes a subscriber of several streams off all lists.
    pub(super) fn leave_all(&mut self, index: u32) {
        let several = self.busy.get_mut(index).and_then(|b| b.several.take());
        for member in several.into_iter().flat_map(|several| several.members) {
            self.drop_member(member.slot);
        }
    }

    /// The topics of a subscriber of several streams.
    pub(super) fn topics_of(&self, index: u32) -> impl Iterator<Item = u32> {
        let several = self.several(index);
        several
            .into_iter()
            .flat_map(|several| &several.members)
            .map(|member| self.slots[member.slot].topic)
    }

    /// Sends a subscriber of several streams what is due to it. True if a system call was spent on it.
    pub(super) fn flush_several(&mut self, index: u32) -> bool {
        let flags = self.slots[index].flags;
        if flags.has(Flags::BLOCKED) || flags.has(Flags::CATCHING) {
            return false;
        }
        let first = self.several(index).map(Several::log);
        loop {
            let due = self.due(index);
            if !due.ended.is_empty() {
                self.tell_ended(index, &due.ended);
                return true;
            }
            if due.older {
                self.read_all(index);
                return false;
            }
            if !due.heads.is_empty() {
                return self.push_merged(index, due.heads);
            }
            if !self.turn(index) || self.several(index).map(Several::log) == first {
                self.is_abreast(index);
                return false;
            }
        }
    }

    /// Goes on to the next log that has streams of the subscriber. False: there is no other.
    fn turn(&mut self, index: u32) -> bool {
        let cursor = self.slots[index].cursor;
        let several = self.busy.get_mut(index).and_then(|b| b.several.as_mut());
        let Some(several) = several else { return false };
        let Some(next) = several.next_log() else {
            return false;
        };
        let Some(turns) = &mut several.turns else {
            return false;
        };
        turns.after[turns.log] = cursor;
        turns.log = next;
        self.slots[index].cursor = turns.after[next];
        true
    }

    /// Keeps a quiet subscriber's connection alive, and its streams: one with readers does not expire.
    pub(super) fn heartbeat_several(&mut self, index: u32) {
        let now_ms = self.clock.now_ms();
        let several = self.several(index);
        for member in several.into_iter().flat_map(|several| &several.members) {
            member.stream.touch(now_ms);
        }
        if let FeedEncoder::Merged(encoder) = self.slots[index].encoder {
            let beat = self.encoders.merge_encoder(encoder).heartbeat();
            self.send_raw(index, beat);
        }
    }

    /// What stands at the subscriber's position in each stream.
    fn due(&self, index: u32) -> Due {
        let mut due = Due::default();
        let after = self.slots[index].cursor;
        let Some(several) = self.several(index) else {
            return due;
        };
        for (number, member) in several.members.iter().enumerate() {
            if member.log() != several.log() {
                continue;
            }
            let topic = self.slots[member.slot].topic;
            let position = member.position(after);
            if let Some((last, why)) = member.ends
                && position >= Offset::behind(last)
            {
                due.ended.push((number, why));
                continue;
            }
            match self.topics.next(topic, position.sequence) {
                Next::Nothing if position.units == 0 => {}
                Next::Recent(at) if position.units == 0 => due.heads.push(Reverse((at, number))),
                _ => {
                    let facts = member.stream.facts();
                    if position < facts.tail {
                        due.older = true;
                    } else if facts.life != Life::Live {
                        due.ended.push((number, StreamEnd::Deleted));
                    } else if facts.closed {
                        due.ended.push((number, StreamEnd::Closed));
                    } else {
                        // No data lies in between, or the tail would be behind it.
                        let from = self.topics.complete_from(topic).max(position.sequence);
                        if let Next::Recent(at) = self.topics.next(topic, from) {
                            due.heads.push(Reverse((at, number)));
                        }
                    }
                }
            }
        }
        due
    }

    /// Tells that streams have ended, and closes the connection when none is left.
    fn tell_ended(&mut self, index: u32, ended: &[(usize, StreamEnd)]) {
        let Some(mut several) = self.busy.get_mut(index).and_then(|b| b.several.take()) else {
            return;
        };
        let mut events = Vec::new();
        // From the back, so that the numbers before stay what they are.
        for (number, why) in ended.iter().rev() {
            let member = several.members.remove(*number);
            if let FeedEncoder::Merged(encoder) = self.slots[index].encoder {
                let encoder = self.encoders.merge_encoder(encoder);
                encoder.ended(&member.stream, *why, &mut events);
            }
            let topic = self.slots[member.slot].topic;
            self.loses(index, self.topics[topic].appended);
            self.drop_member(member.slot);
        }
        let last = several.members.is_empty();
        several.reading = None;
        self.busy(index).several = Some(several);
        self.counts.sends += 1;
        self.send_raw(index, &events);
        if !self.is_open(index) {
            return;
        }
        if !last {
            self.lag(index);
        } else if self.slots[index].flags.has(Flags::BLOCKED) {
            self.busy(index).ended = true;
        } else {
            self.close(index, CloseReason::Ended);
        }
    }

    /// Sends the recent records of all streams, merged, as many as one send should carry.
    fn push_merged(&mut self, index: u32, heads: Vec<Reverse<(u64, usize)>>) -> bool {
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.forget();
        let mut ends = None;
        let mut more = false;
        if let Some(several) = self.several(index)
            && let FeedEncoder::Merged(encoder) = self.slots[index].encoder
        {
            let encoder = self.encoders.merge_encoder(encoder);
            let mut heads = BinaryHeap::from(heads);
            let mut bytes = 0;
            while let Some(Reverse((at, number))) = heads.pop() {
                let member = &several.members[number];
                let topic = self.slots[member.slot].topic;
                let (record, next) = self.topics.record(topic, at);
                encoded.end = record.sequence;
                if record.units > 0 {
                    bytes += record.data.len();
                    let item = Item {
                        data: &record.data,
                        skip: 0,
                        take: record.units,
                        end: Offset::behind(record.sequence),
                    };
                    encoded.add(item, record.sequence, |out| {
                        let after = several.all_after(record.sequence);
                        let ahead = several.ahead(&after);
                        let merged = MergedRecord {
                            stream: &member.stream,
                            item,
                            after: &after,
                            ahead: &ahead,
                        };
                        encoder.record(&merged, out);
                    });
                }
                if record.deletes || record.closes {
                    let why = match record.deletes {
                        true => StreamEnd::Deleted,
                        false => StreamEnd::Closed,
                    };
                    ends = Some((number, record.sequence, why));
                    more = true;
                    break;
                }
                if next != 0 {
                    heads.push(Reverse((next, number)));
                }
                if bytes > RUN_BYTES {
                    more = true;
                    break;
                }
            }
        }
        if let Some((number, sequence, why)) = ends
            && let Some(several) = self.busy(index).several.as_mut()
        {
            several.members[number].ends = Some((sequence, why));
        }
        let complete = self.send_encoded(index, &encoded);
        let end = encoded.end;
        self.encoded = encoded;
        if complete {
            self.slots[index].cursor = end;
            // Other logs have their turn, too.
            if self.turn(index) || more {
                self.lag(index);
            } else {
                self.is_abreast(index);
            }
        }
        true
    }

    /// What a subscriber of several streams needs beside its slot.
    fn several(&self, index: u32) -> Option<&Several> {
        self.busy.get(index)?.several.as_deref()
    }

    fn drop_member(&mut self, slot: u32) {
        self.topics.unlink(&mut self.slots, slot);
        self.slots.remove_member(slot);
    }
}

/// What stands at a subscriber's position.
#[derive(Default)]
struct Due {
    /// The next recent record of each stream that has one: its place in the ring and the member.
    heads: Vec<Reverse<(u64, usize)>>,
    /// Members that have nothing more, now or ever.
    ended: Vec<(usize, StreamEnd)>,
    /// Some have data that must be read from the log.
    older: bool,
}
