//! Older records of several streams: a part of each is read from the log, and the records before the end of the shortest part
//! are sent.

use std::sync::Arc;

use encke_log::Sequence;
use encke_protocol::{AheadStream, MergedRecord, SourceKind, StreamEnd};
use encke_stream::{Fetch, LargeRecords, Life, Offset, OrderEvent, OrderFetch, Piece};

use super::encoding::RunBudget;
use super::feeds::{DueDelivery, FeedContext, Feeds, Purpose, framing};
use super::long_delivery::{LongDelivery, LongFeed};
use super::merged_feed::{
    FeedMember, MergedFeed, OlderRecord, OlderRecords, PART_BYTES_MIN, PARTS_BYTES,
};
use super::merged_long::MergedLong;
use super::slot::Slots;
use super::state::FeedKind;
use super::withheld::TextRecord;

impl Feeds {
    /// Takes a part of one of the streams that was read for a subscriber.
    pub(super) fn read_for_merged(
        &mut self,
        index: u32,
        piece: &Piece,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let after = cx.slots[index].cursor;
        if let Some(MergedFeed { members, older, .. }) = self.merged_mut(index)
            && let Some(older) = older
        {
            older.take(piece, |member| members[member].position(after).sequence);
        }
        self.next_part(index, false, cx)
    }

    /// Begins to read a part of all streams from the log.
    pub(super) fn begin_older(&mut self, index: u32, cx: &mut FeedContext<'_>) -> DueDelivery {
        if let Some(merged) = self.merged_mut(index) {
            merged.older = Some(Box::default());
        }
        self.next_part(index, true, cx)
    }

    /// What was to be read for a subscriber is not read now: it keeps its position and begins again.
    pub(crate) fn not_read(&mut self, index: u32) {
        if let Some(merged) = self.merged_mut(index) {
            merged.older = None;
        }
    }

    /// The next stream's part to read, or behind the last one the merged parts to send. `begins`: nothing was read yet.
    fn next_part(&mut self, index: u32, begins: bool, cx: &mut FeedContext<'_>) -> DueDelivery {
        let after = cx.slots[index].cursor;
        // Read before any facts, so that they include everything up to there.
        let committed = self.views.all_committed();
        let Some(merged) = self.merged_mut(index) else {
            return DueDelivery::Nothing;
        };
        let log = merged.log();
        let committed = committed[log];
        let Some(older) = &mut merged.older else {
            return DueDelivery::Nothing;
        };
        let bytes_max = (PARTS_BYTES / merged.members.len().max(1)).max(PART_BYTES_MIN);
        while let Some(member) = merged.members.get(older.asked) {
            if member.log() != log {
                older.asked += 1;
                continue;
            }
            let from = member.position(after);
            older.upto = older.upto.min(committed.max(after));
            let all = Offset::behind(older.upto);
            let upto = member
                .stream()
                .map_or(all, |stream| stream.facts().tail.min(all));
            if from >= upto {
                older.asked += 1;
                continue;
            }
            match &member.kind {
                SourceKind::Stream(stream) => {
                    let fetch = Fetch {
                        large: LargeRecords::Beginnings,
                        ..Fetch::new(stream, from, upto, bytes_max)
                    };
                    return DueDelivery::Read { fetch, begins };
                }
                // One look at the order serves all patterns.
                SourceKind::Pattern { .. } if !older.patterns.is_empty() => older.asked += 1,
                SourceKind::Pattern { .. } => {
                    let (fetch, read) = order_fetch(&merged.members, log, after, older.upto);
                    older.patterns = read;
                    return DueDelivery::ReadOrder { fetch, begins };
                }
            }
        }
        match merged.older.take() {
            Some(older) => self.encode_older(index, *older, cx),
            None => DueDelivery::Nothing,
        }
    }

    /// Encodes the parts of all streams, as far as they are complete.
    fn encode_older(
        &mut self,
        index: u32,
        mut part: OlderRecords,
        cx: &mut FeedContext<'_>,
    ) -> DueDelivery {
        let after = cx.slots[index].cursor;
        let framing = framing(index, cx.slots);
        let encoding = self.fan_out.encodings.replace();
        encoding.begin();
        let Some(FeedKind::Merged(merged)) = self.states.get_mut(index).map(|s| &mut s.kind) else {
            return DueDelivery::Nothing;
        };
        let members = &merged.members;
        part.records
            .retain(|read| read.sequence <= part.upto && read.is_for(&members[read.member]));
        part.records
            .sort_by_key(|read| (read.sequence, read.member));
        let mut changes = Vec::new();
        let before = after;
        let encoder = self.encoders.merge_encoder(merged.encoder);
        let mut budget = RunBudget::new();
        let overhead = merged.overhead(after);
        let mut long = None;
        let records = part.records.chunk_by(|a, b| a.sequence == b.sequence);
        for same in records {
            if !same
                .iter()
                .all(|read| fits(&mut budget, read, merged, overhead))
            {
                match encoding.run.marks.is_empty() {
                    true => long = Some(same),
                    // It follows in the next send.
                    false => part.upto = same[0].sequence - 1,
                }
                break;
            }
            for (number, read) in same.iter().enumerate() {
                // A fork and its source share records; until all have theirs, the id says which have.
                let mut after = read.sequence;
                let mut ahead = Vec::new();
                if number + 1 < same.len() {
                    after -= 1;
                    let had = same[..=number].iter();
                    ahead.extend(had.map(|had| AheadStream {
                        log: merged.log(),
                        at: Offset::behind(read.sequence),
                        place: merged.members[had.member].place,
                    }));
                }
                ahead.extend(merged.ahead(&merged.all_after(read.sequence)));
                let after = merged.all_after(after);
                let item = read.item();
                let Some((name, kind)) = read.label(&merged.members) else {
                    continue;
                };
                let member = &merged.members[read.member];
                let text = match item.take {
                    0 => TextRecord::default(),
                    _ => merged.text_record(member, kind, &item, read.sequence, before),
                };
                changes.extend(text.change);
                let at = merged.position(after, ahead, &changes);
                let at = at.merged();
                let record = MergedRecord {
                    name,
                    kind,
                    item,
                    cut: [text.before, text.behind],
                    at,
                };
                let event = read.ordered.as_ref().map(|ordered| ordered.event);
                let write = |out: &mut Vec<u8>| {
                    if item.take > 0 && !text.is_withheld {
                        encoder.record(&merged.label, &record, out);
                        framing.separate(out);
                    }
                    let end = match event {
                        Some(OrderEvent::Closed(end)) => StreamEnd::Closed(end),
                        Some(OrderEvent::Deleted) => StreamEnd::Deleted,
                        Some(OrderEvent::Removed) => {
                            encoder.gap(&merged.label, name, at, out);
                            return framing.separate(out);
                        }
                        Some(OrderEvent::Data) | None => return,
                    };
                    encoder.ended(&merged.label, name, end, Some(at), out);
                    framing.separate(out);
                };
                let last = number + 1 == same.len();
                if last {
                    encoding.add(item, read.sequence, write);
                } else {
                    encoding.add_part(item, write);
                }
            }
            // A client that is left before a change of what is withheld has the state before it. The rest is read again.
            if !changes.is_empty() {
                part.upto = same[0].sequence;
                break;
            }
        }
        if let Some(same) = long
            && let Some(long) = long_older(merged, same, before, cx.slots)
        {
            return self.enter_long(index, long, cx);
        }
        merged.note_withheld(&changes, after);
        encoding.end = part.upto.max(after);
        encoding.frame(framing);
        DueDelivery::Send(Purpose::MergedOlder(part.upto))
    }

    /// The subscriber has the encoded older records.
    pub(super) fn has_merged_older(
        &mut self,
        index: u32,
        upto: Sequence,
        cx: &mut FeedContext<'_>,
    ) -> bool {
        let after = upto.max(cx.slots[index].cursor);
        cx.slots[index].cursor = after;
        self.note_ends(index, after);
        true
    }

    /// Notes which streams have nothing more behind what was read: a stream may end without a record that is read.
    fn note_ends(&mut self, index: u32, after: Sequence) {
        let Some(merged) = self.merged_mut(index) else {
            return;
        };
        let log = merged.log();
        let members = merged.members.iter_mut();
        for member in members.filter(|member| member.log() == log) {
            let Some(stream) = member.stream() else {
                continue;
            };
            let facts = stream.facts();
            let why = match facts.life {
                Life::Live if facts.closed => StreamEnd::Closed(facts.end),
                Life::Live => continue,
                Life::Kept | Life::Ended => StreamEnd::Deleted,
            };
            let position = member.position(after);
            if position >= facts.tail {
                member.end = Some((position.sequence, why));
            }
        }
    }
}

/// Whether a record fits behind the others of a send. It is counted then.
fn fits(budget: &mut RunBudget, read: &OlderRecord, feed: &MergedFeed, overhead: usize) -> bool {
    let Some((name, kind)) = read.label(&feed.members) else {
        return true;
    };
    !read.is_cut && budget.try_spend(kind, &read.item(), || overhead + 2 * name.len())
}

/// The delivery of a long record that was read, of which the first of these members gets it next.
fn long_older(
    feed: &MergedFeed,
    same: &[OlderRecord],
    before: Sequence,
    slots: &Slots,
) -> Option<LongDelivery> {
    let read = same.first()?;
    let (name, kind) = read.label(&feed.members)?;
    let member = &feed.members[read.member];
    let mut merged = MergedLong::new(feed, (read.member, before), (name, kind), &read.item());
    merged.is_shared = same.len() > 1;
    let no = match (&read.ordered, member.stream()) {
        (Some(ordered), _) => ordered.no,
        (None, Some(stream)) => stream.source_of(read.sequence),
        (None, None) => return None,
    };
    if let Some(OrderEvent::Closed(end)) = read.ordered.as_ref().map(|ordered| ordered.event) {
        merged.also.ends_within = Some(StreamEnd::Closed(end));
    }
    let record = merged.record(feed);
    let feed = LongFeed::Merged(Box::new(merged));
    let topic = slots[member.slot].topic;
    Some(LongDelivery::new(record, (no, read.sequence), topic, feed))
}

/// The part of a log's order from which all patterns of a feed are served, and the members that these are. The client has
/// everything of the log up to `after`.
fn order_fetch(
    members: &[FeedMember],
    log: usize,
    after: Sequence,
    upto: Sequence,
) -> (OrderFetch, Vec<usize>) {
    let mut fetch = OrderFetch {
        log,
        patterns: Vec::new(),
        after: upto,
        upto,
        bytes_max: PARTS_BYTES,
    };
    let mut read = Vec::new();
    for (number, member) in members.iter().enumerate() {
        if let SourceKind::Pattern { pattern, .. } = &member.kind
            && member.log() == log
        {
            fetch.patterns.push(Arc::clone(&pattern.names));
            fetch.after = fetch.after.min(member.position(after).sequence);
            read.push(number);
        }
    }
    (fetch, read)
}
