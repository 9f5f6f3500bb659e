//! The feed of a subscriber of several streams: the records of all of them in the order of the log.
//!
//! The cursor of the subscriber's slot is its position in every stream. With several logs, each has an order of its own and
//! they take turns: one send carries records of one log, and the slot's cursor is the position in that log.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_log::{Sequence, StreamNo};
use encke_protocol::{
    AheadStream, CutCharacter, MergeEncoderId, MergeSource, MergedPosition, SourceKind, StreamEnd,
    StreamGeneration,
};
use encke_stream::{Item, MediaKind, Offset, OrderedRecord, Piece, Stream, log_of};

use super::withheld::{TextRecord, WithheldCharacter, WithheldCharacters};
use crate::survey::SubscribedTo;

/// What a subscriber of several streams needs beside its slot.
#[derive(Debug)]
pub(crate) struct MergedFeed {
    pub(crate) encoder: MergeEncoderId,
    /// The name of the subscription, for encoders that state it.
    pub(crate) label: Box<str>,
    pub(crate) members: Vec<FeedMember>,
    /// The streams that the client's positions are of.
    generations: Box<[StreamGeneration]>,
    /// A digest of the names in the client's request.
    names: u32,
    /// `None` if there is one log.
    turns: Option<Box<LogTurns>>,
    /// Characters that are withheld until their rest comes, if ever one was.
    withheld: Option<Box<WithheldCharacters>>,
    /// The part of the streams that is being read for it.
    pub(crate) older: Option<Box<OlderRecords>>,
}

/// Several logs that take turns.
#[derive(Debug)]
struct LogTurns {
    /// The log whose turn it is.
    log: usize,
    /// The client's positions in the logs, by index. For the log whose turn it is, the slot's cursor holds it.
    after: Vec<Sequence>,
}

/// One of the streams, or a pattern of names in one of the logs.
#[derive(Debug)]
pub(crate) struct FeedMember {
    /// The slot that stands on the topic's list.
    pub(crate) slot: u32,
    pub(crate) kind: SourceKind,
    /// The client has its records up to there, however far the others are.
    pub(crate) from: Offset,
    pub(crate) place: u8,
    /// The record with which the stream ends, once that is known. A pattern does not end.
    pub(crate) end: Option<(Sequence, StreamEnd)>,
}

/// A part of all streams on its way from the log.
#[derive(Debug)]
pub(crate) struct OlderRecords {
    /// The member whose part is being read.
    pub(crate) asked: usize,
    /// The members whose patterns are being read, or were, together.
    pub(crate) patterns: Vec<usize>,
    /// Up to this sequence everything that was read is complete.
    pub(crate) upto: Sequence,
    pub(crate) records: Vec<OlderRecord>,
    bytes: usize,
}

/// A record that was read from the log.
#[derive(Debug)]
pub(crate) struct OlderRecord {
    pub(crate) sequence: Sequence,
    pub(crate) member: usize,
    /// Its stream, if the member is a pattern, and what it does.
    pub(crate) ordered: Option<OrderedRecord>,
    pub(crate) data: Vec<u8>,
    /// The data is only the beginning of that of the record.
    pub(crate) is_cut: bool,
    pub(crate) skip: u32,
    pub(crate) take: u32,
    pub(crate) end: Offset,
    pub(crate) time: WallTime,
}

// What each stream costs a subscriber of several, beside a slot, and the feed itself.
const _: () = assert!(size_of::<FeedMember>() <= 56);
const _: () = assert!(size_of::<MergedFeed>() <= 88);

impl FeedMember {
    /// Whether the client gets the streams of an owner that it matches.
    pub(crate) fn sees(&self, owner: Option<&str>) -> bool {
        match &self.kind {
            // Its owner was looked at when the client subscribed.
            SourceKind::Stream(_) => true,
            SourceKind::Pattern { pattern, .. } => pattern.viewer.sees(owner),
        }
    }

    /// What it is, for operators.
    pub(crate) fn subscribed_to(&self) -> SubscribedTo {
        match &self.kind {
            SourceKind::Stream(stream) => {
                SubscribedTo::Stream(stream.no, Some(stream.name.clone()))
            }
            SourceKind::Pattern { pattern, .. } => {
                SubscribedTo::Pattern(pattern.names.to_string().into())
            }
        }
    }

    /// Whether it has the records of a stream.
    pub(crate) fn gets(&self, no: StreamNo, name: &str) -> bool {
        match &self.kind {
            SourceKind::Stream(stream) => stream.no == no,
            SourceKind::Pattern { pattern, log } => {
                usize::from(*log) == log_of(no) && pattern.names.matches(name)
            }
        }
    }

    pub(crate) fn new(slot: u32, source: MergeSource) -> Self {
        FeedMember {
            slot,
            kind: source.kind,
            from: source.from,
            place: source.place,
            end: None,
        }
    }

    pub(crate) fn log(&self) -> usize {
        self.kind.log()
    }

    /// The stream, unless it is a pattern.
    pub(crate) fn stream(&self) -> Option<&Arc<Stream>> {
        self.kind.stream()
    }

    /// The client's position in this stream, if it has everything up to `after`.
    pub(crate) fn position(&self, after: Sequence) -> Offset {
        self.from.max(Offset::behind(after))
    }
}

impl MergedFeed {
    /// A feed of these members from these positions on; the first member's log has its turn. `ended` are streams that ended before,
    /// of which the client has more than its position says.
    pub(crate) fn new(
        encoder: MergeEncoderId,
        label: Box<str>,
        members: Vec<FeedMember>,
        after: Vec<Sequence>,
        (generations, names): (Box<[StreamGeneration]>, u32),
        ended: Vec<AheadStream>,
    ) -> Self {
        let log = members.first().map_or(0, FeedMember::log);
        MergedFeed {
            encoder,
            label,
            members,
            generations,
            names,
            turns: (after.len() > 1).then(|| Box::new(LogTurns { log, after })),
            withheld: WithheldCharacters::of_ended(ended).map(Box::new),
            older: None,
        }
    }

    /// An upper bound of the bytes that an encoder adds to a record, without the name of its stream. The client has everything up to `after`.
    pub(crate) fn overhead(&self, after: Sequence) -> usize {
        let after = self.all_after(after);
        let entries = after.len() + self.ahead(&after).len() + self.generations.len();
        self.label.len() + EVENT_OVERHEAD + POSITION_BYTES * entries
    }

    /// What waits to be sent, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.older.as_ref().map_or(0, |older| older.bytes)
    }

    /// Memory of its patterns, in bytes.
    pub(crate) fn pattern_bytes(&self) -> usize {
        let of_patterns = self.members.iter().map(|member| match &member.kind {
            SourceKind::Stream(_) => 0,
            SourceKind::Pattern { pattern, .. } => {
                PATTERN_BYTES + PATTERN_COPIES * pattern.names.prefix().len()
            }
        });
        of_patterns.sum()
    }

    /// The client's positions in all logs, if `after` is the one in the log whose turn it is.
    pub(crate) fn all_after(&self, after: Sequence) -> Vec<Sequence> {
        match &self.turns {
            None => vec![after],
            Some(turns) => {
                let mut all = turns.after.clone();
                all[turns.log] = after;
                all
            }
        }
    }

    /// How many logs there are.
    pub(crate) fn logs(&self) -> usize {
        self.turns.as_ref().map_or(1, |turns| turns.after.len())
    }

    /// The log whose turn it is.
    pub(crate) fn log(&self) -> usize {
        self.turns.as_ref().map_or(0, |turns| turns.log)
    }

    /// Whether a pattern is among the sources.
    pub(crate) fn has_patterns(&self) -> bool {
        self.members.iter().any(|member| member.stream().is_none())
    }

    /// Moves the client's positions on: it has everything up to `passed` of the logs for which that is `Some`. The position in the
    /// log whose turn it is was `cursor`; returns what it is now.
    pub(crate) fn advance(&mut self, cursor: Sequence, passed: &[Option<Sequence>]) -> Sequence {
        let moved = |log: usize, after: Sequence| {
            let passed = passed.get(log).copied().flatten();
            passed.map_or(after, |passed| passed.max(after))
        };
        let turn = self.log();
        if let Some(turns) = &mut self.turns {
            for (log, after) in turns.after.iter_mut().enumerate() {
                *after = moved(log, *after);
            }
        }
        moved(turn, cursor)
    }

    /// The streams of which the client has more than that.
    pub(crate) fn ahead(&self, after: &[Sequence]) -> Vec<AheadStream> {
        let ahead = self.members.iter();
        ahead
            .filter_map(|member| AheadStream::of(member.log(), member.from, member.place, after))
            .collect()
    }

    /// The client's position, if it has everything up to `after`, by log, and what `ahead` says beyond, but for what is withheld, also
    /// by `changes` to that.
    pub(crate) fn position(
        &self,
        after: Vec<Sequence>,
        ahead: Vec<AheadStream>,
        changes: &[WithheldCharacter],
    ) -> FeedPosition<'_> {
        let mut position = FeedPosition {
            after,
            ahead,
            generations: &self.generations,
            names: self.names,
        };
        if self.withheld.is_none() && changes.is_empty() {
            return position;
        }
        let withheld = |member: &FeedMember| {
            let after = position.after[member.log()];
            let mut changed = changes.iter().filter(|one| one.place == member.place);
            let present = || self.withheld.as_ref()?.find(member.place, after);
            let one = changed.next_back().or_else(present)?;
            (!one.character.is_empty()).then_some(one.at)
        };
        let members: Vec<(&FeedMember, Option<Offset>)> = self
            .members
            .iter()
            .map(|member| (member, withheld(member)))
            .collect();
        // What the client lacks the least of sets its position, and the others are ahead of that.
        for (log, after) in position.after.iter_mut().enumerate() {
            let of_log = || members.iter().filter(|(member, _)| member.log() == log);
            let lacking = of_log().filter_map(|(_, at)| *at);
            let Some(least) = lacking.map(|at| at.sequence).min() else {
                continue;
            };
            let least = least.min(*after);
            let had = std::mem::replace(after, least);
            let mut ahead: Vec<AheadStream> = Vec::new();
            for (member, at) in of_log() {
                let stated = position.ahead.iter();
                let stated = stated.filter(|one| (one.log, one.place) == (log, member.place));
                let has = stated.fold(member.position(had), |has, one| has.max(one.at));
                let at = at.unwrap_or(has);
                if at > Offset::behind(least) {
                    ahead.push(AheadStream {
                        log,
                        at,
                        place: member.place,
                    });
                }
            }
            position.ahead.retain(|one| one.log != log);
            position.ahead.extend(ahead);
        }
        // Streams that have ended are no members any more, and the client has them all the same.
        for one in self.withheld.iter().flat_map(|withheld| withheld.ended()) {
            if one.at > Offset::behind(position.after[one.log]) {
                position.ahead.push(*one);
            }
        }
        position
    }

    /// What becomes of a record of a member, for a client that has everything up to `after` of its log. A pattern has no positions inside
    /// records, so that nothing of its streams is withheld.
    pub(crate) fn text_record(
        &self,
        member: &FeedMember,
        kind: MediaKind,
        item: &Item<'_>,
        sequence: Sequence,
        after: Sequence,
    ) -> TextRecord {
        if kind != MediaKind::Text || member.stream().is_none() {
            return TextRecord::default();
        }
        let withheld = self.withheld.as_ref();
        let withheld = withheld.and_then(|all| all.find(member.place, after));
        TextRecord::new(item, sequence, member.place, withheld)
    }

    /// Notes what is withheld from a record on. The client has everything up to `after` of its log.
    pub(crate) fn note_withheld(&mut self, changes: &[WithheldCharacter], after: Sequence) {
        for change in changes {
            let withheld = self.withheld.get_or_insert_default();
            withheld.note(*change, after);
        }
    }

    /// Notes that a stream has ended, and that the client has all of it. Its position matters while something that is withheld keeps that
    /// of the client behind.
    pub(crate) fn note_end(&mut self, member: &FeedMember, cursor: Sequence) {
        let at = member.position(self.all_after(cursor)[member.log()]);
        if let Some(withheld) = &mut self.withheld {
            withheld.note_end(AheadStream {
                log: member.log(),
                at,
                place: member.place,
            });
        }
    }

    /// The beginning of a character that is withheld of the stream at a place.
    pub(crate) fn withheld_of(&self, place: u8, after: Sequence) -> Option<CutCharacter> {
        let withheld = self.withheld.as_ref()?.find(place, after)?;
        Some(withheld.character)
    }

    /// Takes what is withheld of a stream that has ended.
    pub(crate) fn release(&mut self, place: u8, after: Sequence) -> Option<WithheldCharacter> {
        let withheld = self.withheld.as_mut()?;
        let released = withheld.find(place, after).copied();
        withheld.forget(place);
        released
    }

    /// Gives the turn to the next log that has streams of the subscriber, whose position in the present one is `cursor`. Its
    /// position in the next one; `None` if there is no other.
    pub(crate) fn turn(&mut self, cursor: Sequence) -> Option<Sequence> {
        let turns = self.turns.as_mut()?;
        let logs = turns.after.len();
        let mut others = (1..logs).map(|step| (turns.log + step) % logs);
        let next = others.find(|log| self.members.iter().any(|member| member.log() == *log))?;
        turns.after[turns.log] = cursor;
        turns.log = next;
        Some(turns.after[next])
    }
}

/// A client's position, whole.
#[derive(Debug)]
pub(crate) struct FeedPosition<'a> {
    after: Vec<Sequence>,
    ahead: Vec<AheadStream>,
    generations: &'a [StreamGeneration],
    names: u32,
}

impl FeedPosition<'_> {
    /// The same, as encoders take it.
    pub(crate) fn merged(&self) -> MergedPosition<'_> {
        MergedPosition {
            after: &self.after,
            ahead: &self.ahead,
            generations: self.generations,
            names: self.names,
        }
    }
}

impl OlderRecord {
    /// Whether the client may have it.
    pub(crate) fn is_for(&self, member: &FeedMember) -> bool {
        let label = self.ordered.as_ref().map(|ordered| &ordered.stream);
        label.is_none_or(|label| member.sees(label.owner.as_deref()))
    }

    /// The record as encoders take it.
    pub(crate) fn item(&self) -> Item<'_> {
        Item {
            data: &self.data,
            skip: self.skip,
            take: self.take,
            end: self.end,
            time: self.time,
        }
    }

    /// The name and kind of its stream.
    pub(crate) fn label<'a>(&'a self, members: &'a [FeedMember]) -> Option<(&'a str, MediaKind)> {
        if let Some(ordered) = &self.ordered {
            return Some((&ordered.stream.name, ordered.stream.kind));
        }
        let stream = members.get(self.member)?.stream()?;
        Some((&stream.name, stream.media.kind))
    }
}

impl Default for OlderRecords {
    fn default() -> Self {
        OlderRecords {
            asked: 0,
            patterns: Vec::new(),
            upto: Sequence::MAX,
            records: Vec::new(),
            bytes: 0,
        }
    }
}

impl OlderRecords {
    /// Takes the part of the member that was asked for, or of all patterns. `has` is the client's position in the source of a
    /// member.
    pub(crate) fn take(&mut self, piece: &Piece, has: impl Fn(usize) -> Sequence) {
        let mut ordered = piece.ordered();
        for (item, is_cut) in piece.beginnings() {
            let ordered = ordered.next().map(|(_, ordered)| ordered);
            let sequence = whole(item.end);
            let member = match ordered {
                None => self.asked,
                // A pattern may be further on than another one with which it is read.
                Some(ordered) => match self.patterns.get(ordered.pattern) {
                    Some(member) if sequence > has(*member) => *member,
                    _ => continue,
                },
            };
            self.bytes += item.data.len();
            self.records.push(OlderRecord {
                sequence,
                member,
                ordered: ordered.cloned(),
                data: item.data.to_vec(),
                is_cut,
                skip: item.skip,
                take: item.take,
                end: item.end,
                time: item.time,
            });
        }
        if piece.more {
            self.upto = self.upto.min(whole(piece.end));
        }
        self.asked += 1;
        self.trim();
    }

    /// Drops the newest records if there are too many; they are read again later.
    fn trim(&mut self) {
        if self.bytes <= READ_BYTES_MAX {
            return;
        }
        self.records.sort_by_key(|read| read.sequence);
        let mut bytes = 0;
        let mut kept = 0;
        for same in self.records.chunk_by(|a, b| a.sequence == b.sequence) {
            bytes += same.iter().map(|read| read.data.len()).sum::<usize>();
            // The first stay however large they are, or nothing would ever be sent.
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

/// The last record of which a position includes anything.
fn whole(position: Offset) -> Sequence {
    position.sequence + Sequence::from(position.units > 0)
}

/// Bytes of an event without its data, its names and its position.
const EVENT_OVERHEAD: usize = 256;

/// Bytes of a log, a source or a generation in a position, at most.
const POSITION_BYTES: usize = 96;

/// Bytes of a pattern for a subscriber: a slot, a member of the feed, and a topic and entries in tables, which subscribers of one pattern
/// share.
const PATTERN_BYTES: usize = 500;

/// How often the text of a pattern is kept: in the feed, its label, the subscriptions of a channel, and the table of patterns.
const PATTERN_COPIES: usize = 4;

/// Bytes that are read of all streams before something is sent, approximately.
pub(crate) const PARTS_BYTES: usize = 256 << 10;

/// Bytes that are read of one stream at a time, at least, however many streams there are.
pub(crate) const PART_BYTES_MIN: usize = 4 << 10;

/// Bytes that wait for the other streams' parts, at most, unless one record is larger.
const READ_BYTES_MAX: usize = 2 * PARTS_BYTES;
