//! Older records of several streams: a part of each is read from the log, and what lies before the end of the shortest
//! part is sent.

use encke_log::{ReadError, Sequence};
use encke_protocol::{Ahead, MergedRecord, StreamEnd};
use encke_stream::{Fetch, Item, Life, Offset, Piece};

use super::Several;
use crate::shard::Shard;
use crate::slot::{FeedEncoder, Flags};

/// A part of all streams on its way from the log.
#[derive(Debug)]
pub(super) struct Reading {
    /// The member that is asked for.
    asked: usize,
    /// Up to this sequence everything that was read so far is complete.
    upto: Sequence,
    records: Vec<Read>,
    pub(super) bytes: usize,
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

impl Shard {
    /// A part of one of the streams was read.
    pub(in crate::shard) fn read_for_several(
        &mut self,
        index: u32,
        piece: Result<Piece, ReadError>,
    ) {
        self.slots[index].flags.set(Flags::CATCHING, false);
        let Some(piece) = self.readable_piece(index, piece) else {
            return;
        };
        if let Some(reading) = self.reading(index) {
            reading.take(&piece);
        }
        self.weigh(index);
        self.read_next(index);
    }

    /// Begins to read a part of all streams from the log.
    pub(super) fn read_all(&mut self, index: u32) {
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
        let committed = self.parts.views.all_committed();
        let several = self.busy.get_mut(index).and_then(|b| b.several.as_mut());
        let several = several.map(|several| &mut **several);
        let Some(several) = several else { return };
        let log = several.log();
        let Several {
            members, reading, ..
        } = several;
        let committed = committed[log];
        let Some(part) = reading else { return };
        let bytes_max = (PARTS_BYTES / members.len().max(1)).max(PART_BYTES_MIN);
        while let Some(member) = members.get(part.asked) {
            if member.log() != log {
                part.asked += 1;
                continue;
            }
            let from = member.position(after);
            let tail = member.stream.facts().tail;
            part.upto = part.upto.min(committed.max(after));
            let upto = tail.min(Offset::behind(part.upto));
            if from >= upto {
                part.asked += 1;
                continue;
            }
            let fetch = Fetch::new(&member.stream, from, upto, bytes_max);
            if self.parts.readers.ask(fetch, token, &self.parts.sender) {
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
        if let Some(several) = self.several(index)
            && let FeedEncoder::Merged(encoder) = self.slots[index].encoder
        {
            let encoder = self.encoders.merge_encoder(encoder);
            let records = part.records.chunk_by(|a, b| a.sequence == b.sequence);
            for same in records {
                for (number, read) in same.iter().enumerate() {
                    // A fork and its source share records; until all have theirs, the id says who has.
                    let mut after = read.sequence;
                    let mut ahead = Vec::new();
                    if number + 1 < same.len() {
                        after -= 1;
                        let had = same[..=number].iter();
                        ahead.extend(had.map(|had| Ahead {
                            log: several.log(),
                            at: Offset::behind(read.sequence),
                            place: several.members[had.member].place,
                        }));
                    }
                    ahead.extend(several.ahead(&several.all_after(read.sequence)));
                    let after = several.all_after(after);
                    let item = Item {
                        data: &read.data,
                        skip: read.skip,
                        take: read.take,
                        end: read.end,
                    };
                    let record = MergedRecord {
                        stream: &several.members[read.member].stream,
                        item,
                        after: &after,
                        ahead: &ahead,
                    };
                    let last = number + 1 == same.len();
                    if last {
                        encoded.add(item, read.sequence, |out| {
                            encoder.record(&record, out);
                        });
                    } else {
                        encoded.add_part(item, |out| encoder.record(&record, out));
                    }
                }
            }
        }
        self.weigh(index);
        let complete = self.send_encoded(index, &encoded);
        self.encoded = encoded;
        if complete && self.is_open(index) {
            let after = part.upto.max(after);
            self.slots[index].cursor = after;
            self.note_ends(index, after);
            self.lag(index);
        }
    }

    /// Notes which streams have nothing more behind what was read: a stream may end without a record that is read.
    fn note_ends(&mut self, index: u32, after: Sequence) {
        let several = self.busy.get_mut(index).and_then(|b| b.several.as_mut());
        let Some(several) = several else { return };
        let log = several.log();
        let members = several.members.iter_mut();
        for member in members.filter(|member| member.log() == log) {
            let facts = member.stream.facts();
            let why = match facts.life {
                Life::Live if facts.closed => StreamEnd::Closed,
                Life::Live => continue,
                Life::Kept | Life::Ended => StreamEnd::Deleted,
            };
            let position = member.position(after);
            if position >= facts.tail {
                member.ends = Some((position.sequence, why));
            }
        }
    }

    fn reading(&mut self, index: u32) -> Option<&mut Reading> {
        let several = self.busy.get_mut(index)?.several.as_mut()?;
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

/// The last record of which a reader has anything at a position.
fn whole(position: Offset) -> Sequence {
    position.sequence + Sequence::from(position.units > 0)
}

/// About how much is read of all streams before something is sent.
const PARTS_BYTES: usize = 256 << 10;

/// At least about so much is read of a stream at a time, however many there are.
const PART_BYTES_MIN: usize = 4 << 10;

/// What was read and waits for the other streams' parts is about so much at most, or one record.
const READ_BYTES_MAX: usize = 2 * PARTS_BYTES;
