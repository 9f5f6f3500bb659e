//! Subscribers of several streams: one connection, the records of all its streams in the order of the log.
//!
//! Such a subscriber has a slot as all have, whose cursor says up to where it has everything of every stream. On each
//! topic's list stands a slot without a socket that leads to it, so a subscriber of one stream costs nothing more, and a
//! record finds its subscribers as always. What is due is merged: recent records by their places in the ring, older ones
//! by reading a part of each stream and sending what lies before the end of the shortest part.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use encke_face::SubscribeAll;
use encke_face::events::{Ending, HEARTBEAT, Told};
use encke_log::{ReadError, Sequence};
use encke_stream::{Fetch, Item, Life, Offset, Piece, Stream};

use super::Shard;
use super::deliver::RUN_BYTES;
use crate::slot::{Flags, State};
use crate::topics::Next;

/// What a subscriber of several streams needs beside its slot.
#[derive(Debug)]
pub(crate) struct Several {
    members: Vec<Member>,
    /// The part of the streams that is being read for it.
    reading: Option<Box<Reading>>,
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
    ends: Option<(Sequence, Ending)>,
}

/// A part of all streams on its way from the log.
#[derive(Debug)]
struct Reading {
    /// The member that is asked for.
    asked: usize,
    /// Up to this sequence everything that was read so far is complete.
    upto: Sequence,
    records: Vec<Read>,
    bytes: usize,
}

/// A record as it was read.
#[derive(Debug)]
struct Read {
    sequence: Sequence,
    member: usize,
    data: Vec<u8>,
    skip: u32,
    take: u32,
    end: Offset,
}

impl Member {
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

    /// The streams of which the client has more than everything up to `after`.
    fn ahead(&self, after: Sequence) -> Vec<(Offset, u8)> {
        let ahead = self.members.iter();
        ahead
            .filter(|member| member.from > Offset::behind(after))
            .map(|member| (member.from, member.place))
            .collect()
    }
}

impl Shard {
    /// Subscribes a connection to several streams.
    pub(super) fn follow_all(&mut self, index: u32, subscribe: SubscribeAll) {
        let token = self.slots.token(index);
        self.slots[index].state = State::Several;
        self.slots[index].cursor = subscribe.after;
        self.counts.subscribers += 1;
        let mut members = Vec::with_capacity(subscribe.members.len());
        for member in subscribe.members {
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
            reading: None,
        }));
        self.open(index, &subscribe.response);
        if self.slots.find(token).is_some() {
            self.flush_several(index);
        }
    }

    /// Takes a subscriber of several streams off all lists.
    pub(super) fn leave_all(&mut self, index: u32) {
        let several = self.busy.get_mut(&index).and_then(|b| b.several.take());
        for member in several.into_iter().flat_map(|several| several.members) {
            self.drop_member(member.slot);
        }
    }

    /// The topics of a subscriber of several streams.
    pub(super) fn topics_of(&self, index: u32) -> impl Iterator<Item = u32> {
        let several = self.busy.get(&index).and_then(|b| b.several.as_ref());
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
        let due = self.due(index);
        if !due.ended.is_empty() {
            self.tell_ended(index, &due.ended);
            return true;
        }
        if due.older {
            self.read_all(index);
            return false;
        }
        if due.heads.is_empty() {
            self.is_abreast(index);
            return false;
        }
        self.push_merged(index, due.heads)
    }

    /// A part of one of the streams was read.
    pub(super) fn read_for_several(&mut self, index: u32, piece: Result<Piece, ReadError>) {
        self.slots[index].flags.set(Flags::CATCHING, false);
        let Ok(piece) = piece else {
            self.close(index, "unreadable");
            return;
        };
        if let Some(reading) = self.reading(index) {
            reading.take(&piece);
        }
        self.weigh(index);
        self.read_next(index);
    }

    /// Keeps a quiet subscriber's connection alive, and its streams: one with readers does not expire.
    pub(super) fn heartbeat_several(&mut self, index: u32) {
        let now_ms = self.clock.now_ms();
        let several = self.busy.get(&index).and_then(|b| b.several.as_ref());
        for member in several.into_iter().flat_map(|several| &several.members) {
            member.stream.touch(now_ms);
        }
        self.send_raw(index, HEARTBEAT);
    }

    /// What stands at the subscriber's position in each stream.
    fn due(&self, index: u32) -> Due {
        let mut due = Due::default();
        let after = self.slots[index].cursor;
        let Some(several) = self.busy.get(&index).and_then(|b| b.several.as_ref()) else {
            return due;
        };
        for (number, member) in several.members.iter().enumerate() {
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
                        due.ended.push((number, Ending::Deleted));
                    } else if facts.closed {
                        due.ended.push((number, Ending::Closed));
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
    fn tell_ended(&mut self, index: u32, ended: &[(usize, Ending)]) {
        let Some(mut several) = self.busy.get_mut(&index).and_then(|b| b.several.take()) else {
            return;
        };
        let mut events = Vec::new();
        // From the back, so that the numbers before stay what they are.
        for (number, why) in ended.iter().rev() {
            let member = several.members.remove(*number);
            let name = &member.stream.name;
            let told = Told::Ended { name, why: *why };
            self.parts.faces.tell(&told, &mut events);
            let topic = self.slots[member.slot].topic;
            self.loses(index, self.topics[topic].appended);
            self.drop_member(member.slot);
        }
        let last = several.members.is_empty();
        several.reading = None;
        self.busy(index).several = Some(several);
        let token = self.slots.token(index);
        self.counts.sends += 1;
        self.send_raw(index, &events);
        if self.slots.find(token).is_none() {
            return;
        }
        if !last {
            self.lag(index);
        } else if self.slots[index].flags.has(Flags::BLOCKED) {
            self.busy(index).ended = true;
        } else {
            self.close(index, "ended");
        }
    }

    /// Sends the recent records of all streams, merged, as many as one send should carry.
    fn push_merged(&mut self, index: u32, heads: Vec<Reverse<(u64, usize)>>) -> bool {
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.forget();
        let mut ends = None;
        let mut more = false;
        let several = self.busy.get(&index).and_then(|b| b.several.as_ref());
        if let Some(several) = several {
            let mut heads = BinaryHeap::from(heads);
            let mut bytes = 0;
            while let Some(Reverse((at, number))) = heads.pop() {
                let (record, next) = self.topics.record(at);
                let member = &several.members[number];
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
                        let ahead = several.ahead(record.sequence);
                        let told = Told::Record {
                            stream: &member.stream,
                            item,
                            after: record.sequence,
                            ahead: &ahead,
                        };
                        self.parts.faces.tell(&told, out);
                    });
                }
                if record.deletes || record.closes {
                    let why = match record.deletes {
                        true => Ending::Deleted,
                        false => Ending::Closed,
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
            if more {
                self.lag(index);
            } else {
                self.is_abreast(index);
            }
        }
        true
    }

    /// Begins to read a part of all streams from the log.
    fn read_all(&mut self, index: u32) {
        if let Some(several) = self.busy(index).several.as_mut() {
            several.reading = Some(Box::new(Reading {
                asked: 0,
                upto: Sequence::MAX,
                records: Vec::new(),
                bytes: 0,
            }));
            self.read_next(index);
        }
    }

    /// Has the next stream's part read; sends what was read when there is none left.
    fn read_next(&mut self, index: u32) {
        let after = self.slots[index].cursor;
        let token = self.slots.token(index);
        // Before any facts are read, so that everything up to there is among them.
        let committed = self.parts.view.committed();
        let several = self.busy.get_mut(&index).and_then(|b| b.several.as_mut());
        let Some(Several { members, reading }) = several.map(|several| &mut **several) else {
            return;
        };
        let Some(part) = reading else { return };
        let bytes_max = (RUN_BYTES / members.len().max(1)).max(PART_BYTES_MIN);
        while let Some(member) = members.get(part.asked) {
            let from = member.position(after);
            let tail = member.stream.facts().tail;
            part.upto = part.upto.min(committed.max(after));
            let upto = tail.min(Offset::behind(part.upto));
            if from >= upto {
                part.asked += 1;
                continue;
            }
            let fetch = Fetch::new(&member.stream, from, upto, bytes_max);
            if self.parts.readers.ask(fetch, token, &self.parts.door) {
                self.slots[index].flags.set(Flags::CATCHING, true);
            } else {
                // The readers are overrun: the subscriber keeps its place and begins again.
                *reading = None;
                self.lag(index);
            }
            return;
        }
        if let Some(part) = reading.take() {
            self.send_read(index, *part);
        }
    }

    /// Sends what was read of all streams, as far as it is complete.
    fn send_read(&mut self, index: u32, mut part: Reading) {
        let after = self.slots[index].cursor;
        part.records.retain(|read| read.sequence <= part.upto);
        part.records
            .sort_by_key(|read| (read.sequence, read.member));
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.forget();
        if let Some(several) = self.busy.get(&index).and_then(|b| b.several.as_ref()) {
            let records = part.records.chunk_by(|a, b| a.sequence == b.sequence);
            for same in records {
                for (number, read) in same.iter().enumerate() {
                    // A fork and its source share records; until all have theirs, the id says who has.
                    let mut after = read.sequence;
                    let mut ahead = Vec::new();
                    if number + 1 < same.len() {
                        after -= 1;
                        let had = same[..=number].iter();
                        ahead.extend(had.map(|had| {
                            let place = several.members[had.member].place;
                            (Offset::behind(read.sequence), place)
                        }));
                    }
                    ahead.extend(several.ahead(read.sequence));
                    let item = Item {
                        data: &read.data,
                        skip: read.skip,
                        take: read.take,
                        end: read.end,
                    };
                    let told = Told::Record {
                        stream: &several.members[read.member].stream,
                        item,
                        after,
                        ahead: &ahead,
                    };
                    let last = number + 1 == same.len();
                    if last {
                        encoded.add(item, read.sequence, |out| {
                            self.parts.faces.tell(&told, out);
                        });
                    } else {
                        encoded.add_part(item, |out| self.parts.faces.tell(&told, out));
                    }
                }
            }
        }
        let token = self.slots.token(index);
        self.weigh(index);
        let complete = self.send_encoded(index, &encoded);
        self.encoded = encoded;
        if complete && self.slots.find(token).is_some() {
            let after = part.upto.max(after);
            self.slots[index].cursor = after;
            self.note_ends(index, after);
            self.lag(index);
        }
    }

    /// Notes which streams have nothing more behind what was read: a stream may end without a record that is read.
    fn note_ends(&mut self, index: u32, after: Sequence) {
        let several = self.busy.get_mut(&index).and_then(|b| b.several.as_mut());
        for member in several.into_iter().flat_map(|several| &mut several.members) {
            let facts = member.stream.facts();
            let why = match facts.life {
                Life::Live if facts.closed => Ending::Closed,
                Life::Live => continue,
                Life::Kept | Life::Ended => Ending::Deleted,
            };
            let position = member.position(after);
            if position >= facts.tail {
                member.ends = Some((position.sequence, why));
            }
        }
    }

    fn drop_member(&mut self, slot: u32) {
        self.topics.unlink(&mut self.slots, slot);
        self.slots.remove_member(slot);
    }

    fn reading(&mut self, index: u32) -> Option<&mut Reading> {
        let several = self.busy.get_mut(&index)?.several.as_mut()?;
        several.reading.as_deref_mut()
    }
}

impl Reading {
    /// Takes the part of the member that was asked for.
    fn take(&mut self, piece: &Piece) {
        for item in piece.items() {
            self.bytes += item.data.len();
            self.records.push(Read {
                sequence: whole(item.end),
                member: self.asked,
                data: item.data.to_vec(),
                skip: item.skip,
                take: item.take,
                end: item.end,
            });
        }
        if piece.more {
            self.upto = self.upto.min(whole(piece.end));
        }
        self.asked += 1;
        self.trim();
    }

    /// Lets go of the newest records when there are too many: they are read again later.
    fn trim(&mut self) {
        if self.bytes <= READ_BYTES_MAX {
            return;
        }
        self.records.sort_by_key(|read| read.sequence);
        let mut bytes = 0;
        let mut kept = 0;
        for same in self.records.chunk_by(|a, b| a.sequence == b.sequence) {
            bytes += same.iter().map(|read| read.data.len()).sum::<usize>();
            // The first are kept however large they are, or nothing would ever be sent.
            if bytes > READ_BYTES_MAX && kept > 0 {
                self.upto = self.upto.min(same[0].sequence - 1);
                break;
            }
            kept += same.len();
        }
        self.records.truncate(kept);
        self.bytes = self.records.iter().map(|read| read.data.len()).sum();
    }
}

/// What stands at a subscriber's position.
#[derive(Default)]
struct Due {
    /// The next recent record of each stream that has one: its place in the ring and the member.
    heads: Vec<Reverse<(u64, usize)>>,
    /// Members that have nothing more, now or ever.
    ended: Vec<(usize, Ending)>,
    /// Some have data that must be read from the log.
    older: bool,
}

/// The last record of which a reader has anything at a position.
fn whole(position: Offset) -> Sequence {
    position.sequence + Sequence::from(position.units > 0)
}

/// At least about so much is read of a stream at a time, however many there are.
const PART_BYTES_MIN: usize = 4 << 10;

/// What was read and waits for the other streams' parts is about so much at most, or one record.
const READ_BYTES_MAX: usize = 2 * RUN_BYTES;
