//! A bounded part of a stream, read from the log.

use std::ops::Range;
use std::sync::Arc;

use encke_clock::WallTime;
use encke_log::{
    BackwardBounds, Disk, FORGOTTEN, FrameView, GivenRecord, LargeRecord, ReadError, Reader,
    Sequence, StreamNo, StreamRead,
};

use super::large_records::{LargeData, LargePart, LargeRecords, PartRead, RECORD_BYTES};
use super::record_run::{AddedRecord, Item, PIECE_BYTES_MAX, PieceRecords};
use crate::stream::Span;
use crate::stream::label::StreamLabel;
use crate::stream::number::log_of;
use crate::stream::record::{Change, EndReason};
use crate::{MediaKind, Offset, Stream};

/// A read: spans of the log, and how much to return at a time.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The parts of the log that hold the data, in order.
    pub spans: Vec<Span>,
    /// Where the data begins.
    pub from: Offset,
    /// Where the data ends: a position that was the stream's tail, or the beginning of a fork.
    pub upto: Offset,
    /// The stream's readers must not see its records up to this one.
    pub floor: Sequence,
    /// About how much data a piece holds. A piece has at least one record, or what `large` gives of it.
    pub bytes_max: usize,
    /// Reads backwards: a piece holds the last records, at most so many. `None`: it holds the first ones.
    pub last: Option<usize>,
    /// How large records are read.
    pub large: LargeRecords,
}

impl Fetch {
    /// The index of the log that holds the data.
    pub fn log(&self) -> usize {
        self.spans.first().map_or(0, |span| log_of(span.stream))
    }

    /// Reads `stream` from `from` to `upto`.
    pub fn new(stream: &Stream, from: Offset, upto: Offset, bytes_max: usize) -> Self {
        Fetch {
            spans: stream.spans(from, upto),
            from,
            upto,
            floor: stream.facts().floor,
            bytes_max,
            last: None,
            large: LargeRecords::Whole,
        }
    }

    /// The same for a response that has sent nothing. It takes large records in parts, or by their beginnings if it begins inside a record of
    /// messages: the messages before `from` are left out of its parts.
    pub fn for_response(stream: &Stream, from: Offset, upto: Offset, bytes_max: usize) -> Self {
        let large = match (from.units, stream.media.kind) {
            (1.., MediaKind::Json) => LargeRecords::Beginnings,
            _ => LargeRecords::Parts(PartRead::behind(0)),
        };
        Fetch {
            large,
            ..Fetch::new(stream, from, upto, bytes_max)
        }
    }

    /// Reads the data of one record from the byte `had` on, which is not the end.
    pub fn rest_of_record(
        stream: StreamNo,
        sequence: Sequence,
        had: u64,
        bytes_max: usize,
    ) -> Self {
        let from = Offset::behind(sequence.saturating_sub(1));
        let upto = Offset::behind(sequence);
        let span = Span { stream, from, upto };
        Fetch {
            spans: vec![span],
            from,
            upto,
            floor: 0,
            bytes_max,
            last: None,
            large: LargeRecords::Parts(PartRead {
                is_bounded: true,
                ..PartRead::behind(had)
            }),
        }
    }
}

/// The part of a stream that was read: consecutive records.
#[derive(Debug, Default)]
pub struct Piece {
    pub(super) records: PieceRecords,
    /// The position after the last record, or the end of the read if that was reached. Of a read backwards the position up to
    /// which older data may be left, or the beginning of the read if that was reached.
    pub end: Offset,
    /// Whether data was left for another piece.
    pub more: bool,
    /// What each record of a read of the global order is; empty for a read of one stream.
    ordered: Vec<OrderedRecord>,
    /// The next record is acknowledged and not written yet.
    lacks: bool,
    /// A part of a large record, or several that lie in files, and nothing else.
    pub large: Vec<LargePart>,
    /// Bytes of the record behind `end` that were read.
    pub cut: u64,
    /// The record of which `large` is a part.
    part_of: Sequence,
    /// The log gave the record whole, of which `large` is a part.
    reads_whole_record: bool,
}

/// What a record of the order means to the readers of its stream, beside its data.
#[derive(Clone, Debug)]
pub struct OrderedRecord {
    /// Its stream.
    pub stream: Arc<StreamLabel>,
    /// The number of its stream.
    pub no: StreamNo,
    /// The index of the pattern that matches.
    pub pattern: usize,
    /// What happened.
    pub event: OrderEvent,
}

/// What a record of the order does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderEvent {
    /// It has data.
    Data,
    /// It has data, or none, and no data follows.
    Closed(Option<EndReason>),
    /// The stream is deleted.
    Deleted,
    /// The first record here of a stream that lacks records before it, or lacks this one.
    Removed,
}

impl Piece {
    /// One record, which stands for all up to that position.
    pub(crate) fn of_state(data: Vec<u8>, end: Offset, time: WallTime) -> Piece {
        let record = AddedRecord {
            sequence: end.sequence,
            time,
            skip: 0,
            take: 1,
            end,
            is_cut: false,
        };
        let mut piece = Piece {
            end,
            ..Piece::default()
        };
        piece.records.own.push(record, &data);
        piece
    }

    /// Records that other pieces have, too. `more`: data follows behind `end`.
    pub(super) fn of_shared(records: PieceRecords, end: Offset, more: bool) -> Piece {
        Piece {
            records,
            end,
            more,
            ..Piece::default()
        }
    }

    /// Reads from the log. Records that are acknowledged and not written yet are left for another piece.
    ///
    /// # Errors
    /// A record cannot be read or is damaged; a missing record is never reported as absent. The records after the
    /// requested position may be removed; a read from the beginning returns what is left instead. Records that were
    /// acknowledged before a write and will never be written, because the log has failed, are an error too.
    pub fn read<D: Disk>(log: &Reader<D>, fetch: &Fetch) -> Result<Piece, ReadError> {
        match fetch.last {
            None => Piece::read_first(log, fetch),
            Some(records_max) => Piece::read_last(log, fetch, records_max),
        }
    }

    fn read_first<D: Disk>(log: &Reader<D>, fetch: &Fetch) -> Result<Piece, ReadError> {
        let mut piece = Piece {
            end: fetch.upto,
            ..Piece::default()
        };
        if let Some(span) = fetch.spans.first()
            && fetch.from != Offset::START
            && fetch.from.sequence < fetch.floor
        {
            // A fork may still read records that the stream's own readers must not see.
            return Err(ReadError::BelowFloor {
                stream: span.stream,
                after: fetch.from.sequence,
                floor: fetch.floor,
            });
        }
        // Before the read: what is published meanwhile is left for the next piece.
        let published = log.published();
        let bytes_max = match fetch.large {
            LargeRecords::Beginnings => RECORD_BYTES,
            LargeRecords::Whole | LargeRecords::Parts(_) => usize::MAX,
        };
        for (number, span) in fetch.spans.iter().enumerate() {
            let last = last_record(span);
            // What the reader has of the first record takes no room of the others.
            let had = span.from.units as usize;
            let room = fetch.bytes_max.min(PIECE_BYTES_MAX).saturating_add(had);
            let room = room.saturating_sub(piece.records.own.bytes.len());
            if room == 0
                && let Some(end) = piece.records.end()
            {
                piece.end = end;
                piece.more = true;
                return Ok(piece);
            }
            // A record that is cut at its end is none that is read in parts. The first one is in the first span.
            let parts = fetch.large.parts().filter(|_| span.upto.units == 0);
            let parts = parts.map(|parts| match number {
                0 => parts,
                _ => PartRead { had: 0, ..parts },
            });
            let wanted = StreamRead {
                stream: span.stream,
                after: span.from.sequence,
                upto: last.min(published),
                bytes_max: room,
                large_min: parts.map(|parts| parts.large_bytes),
                large_together: match parts {
                    Some(parts) if parts.in_file.is_some() => FILES_TOGETHER,
                    _ => 0,
                },
                verified_since: parts.and_then(|parts| parts.in_file),
            };
            let mut failed = None;
            // The first record of the next piece.
            let mut left = None;
            let end = log.read_parts(&wanted, &mut |given| match (given, parts) {
                _ if left.is_some() => {}
                // A part of a large record is alone in its piece.
                (GivenRecord::Large(record), Some(_)) if !piece.records.is_empty() => {
                    left = Some(record.sequence);
                }
                (GivenRecord::Large(record), Some(parts)) => {
                    match piece.take_from_file(span, &record, parts, room) {
                        Ok(true) => {}
                        Ok(false) => left = Some(record.sequence),
                        Err(error) => failed = Some(error),
                    }
                }
                (GivenRecord::Whole(frame), _) if !piece.large.is_empty() => {
                    left = Some(frame.sequence);
                }
                // The rest of a record that was begun in parts, or a large one that history has read whole, and would for each part.
                (GivenRecord::Whole(frame), Some(parts))
                    if piece.records.is_empty() && (parts.had > 0 || is_large(&frame, parts)) =>
                {
                    piece.take_part(span, frame.sequence, frame.payload, parts, room);
                }
                (GivenRecord::Whole(frame), Some(parts)) if is_large(&frame, parts) => {
                    left = Some(frame.sequence);
                }
                (GivenRecord::Whole(frame), _) if piece.ends_cut() => left = Some(frame.sequence),
                (GivenRecord::Whole(frame), _) => {
                    piece.take(span, &frame, bytes_max);
                }
                // Nothing is large where parts are not wanted.
                (GivenRecord::Large(_), None) => {}
            })?;
            if let Some(failed) = failed {
                return Err(failed);
            }
            match left {
                // Its head could not be decoded.
                Some(_) if piece.is_empty() => {
                    let large = fetch.large.parts().map(|parts| PartRead {
                        large_bytes: u32::MAX,
                        ..parts
                    });
                    let whole = Fetch {
                        large: large.map_or(fetch.large, LargeRecords::Parts),
                        ..fetch.clone()
                    };
                    return Piece::read_first(log, &whole);
                }
                Some(sequence) => {
                    let next = if piece.cut > 0 {
                        piece.part_of
                    } else {
                        sequence
                    };
                    piece.end = Offset::behind(next.saturating_sub(1));
                    piece.more = true;
                    return Ok(piece);
                }
                None => {}
            }
            let after = span.from.sequence;
            let kept = end.floor <= after || end.floor == FORGOTTEN;
            if !kept && fetch.from != Offset::START {
                return Err(ReadError::BelowFloor {
                    stream: span.stream,
                    after,
                    floor: end.floor,
                });
            }
            if piece.cut > 0 {
                piece.end = Offset::behind(piece.part_of.saturating_sub(1));
                piece.more = true;
                return Ok(piece);
            }
            if end.more || !piece.large.is_empty() && number + 1 < fetch.spans.len() {
                piece.end = Offset::behind(end.last);
                piece.more = true;
                return Ok(piece);
            }
            if last > published {
                if piece.is_empty()
                    && let Some(reason) = log.given_up(published)
                {
                    return Err(ReadError::NeverWritten {
                        stream: span.stream,
                        after: published,
                        reason,
                    });
                }
                piece.end = span.from.max(Offset::behind(published));
                piece.more = true;
                piece.lacks = piece.is_empty();
                return Ok(piece);
            }
        }
        Ok(piece)
    }

    /// Reads the last records. Nothing is read while the last of them is not written: the piece lacks it.
    fn read_last<D: Disk>(
        log: &Reader<D>,
        fetch: &Fetch,
        records_max: usize,
    ) -> Result<Piece, ReadError> {
        let mut piece = Piece {
            end: fetch.from,
            ..Piece::default()
        };
        let published = log.published();
        if let Some(span) = fetch.spans.last()
            && last_record(span) > published
        {
            if let Some(reason) = log.given_up(published) {
                return Err(ReadError::NeverWritten {
                    stream: span.stream,
                    after: published,
                    reason,
                });
            }
            piece.end = fetch.upto;
            piece.more = true;
            piece.lacks = true;
            return Ok(piece);
        }
        for span in fetch.spans.iter().rev() {
            let bounds = BackwardBounds {
                records_max: records_max.saturating_sub(piece.records.len()),
                bytes_max: fetch
                    .bytes_max
                    .min(PIECE_BYTES_MAX)
                    .saturating_sub(piece.records.own.bytes.len()),
            };
            let is_full = bounds.records_max == 0 || bounds.bytes_max == 0;
            if is_full && !piece.records.is_empty() {
                piece.end = span.upto;
                piece.more = true;
                break;
            }
            let after = span.from.sequence;
            let mut each = |frame: FrameView<'_>| piece.take(span, &frame, usize::MAX);
            let left = log.read_back(span.stream, after, last_record(span), bounds, &mut each)?;
            if let Some(left) = left {
                piece.end = Offset::behind(left);
                piece.more = true;
                break;
            }
        }
        piece.records.own.reverse();
        Ok(piece)
    }

    /// The records' data, in order.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.records.items()
    }

    /// The data of all records, one behind the other, unless the reader gets only a part of one.
    pub fn joined(&self) -> Option<&[u8]> {
        self.records.are_whole().then(|| self.records.data())
    }

    /// The records, each with whether its data is only the beginning of that of the record.
    pub fn beginnings(&self) -> impl Iterator<Item = (Item<'_>, bool)> {
        self.records.beginnings()
    }

    /// How much data it holds.
    pub fn bytes(&self) -> usize {
        let large = self.large.iter().map(|part| match &part.data {
            LargeData::Bytes(bytes) => bytes.len(),
            LargeData::File(_) => 0,
        });
        self.records.data().len() + large.sum::<usize>()
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.large.is_empty()
    }

    /// Whether the piece is empty because the next records are acknowledged and not written yet.
    pub fn lacks(&self) -> bool {
        self.lacks
    }

    /// The records of a read of the global order, each with what it does.
    pub fn ordered(&self) -> impl Iterator<Item = (Item<'_>, &OrderedRecord)> {
        self.items().zip(&self.ordered)
    }

    /// Adds a record of the global order.
    pub(crate) fn push_ordered(
        &mut self,
        (sequence, time): (Sequence, WallTime),
        data: &[u8],
        units: u32,
        ordered: OrderedRecord,
    ) {
        let is_cut = data.len() > RECORD_BYTES;
        let record = AddedRecord {
            sequence,
            time,
            skip: 0,
            take: units,
            end: Offset::behind(sequence),
            is_cut,
        };
        let data = &data[..data.len().min(RECORD_BYTES)];
        self.records.own.push(record, data);
        self.ordered.push(ordered);
    }

    /// Ends a read of the global order.
    pub(crate) fn end_order(&mut self, last: Sequence, more: bool, lacks: bool) {
        self.end = Offset::behind(last);
        self.more = more;
        self.lacks = lacks;
    }

    /// Takes what is left of a large record that was given whole.
    fn take_part(
        &mut self,
        span: &Span,
        sequence: Sequence,
        payload: &[u8],
        parts: PartRead,
        room: usize,
    ) {
        let Ok((change, data)) = Change::decode(payload) else {
            return;
        };
        if change.units() == 0 {
            return;
        }
        let total = data.len() as u64;
        let room = match parts.is_bounded {
            true => room,
            false => usize::MAX,
        };
        let Some(part) = self.next_part(span, sequence, parts, total, room) else {
            return;
        };
        let bytes = data[part.start as usize..part.end as usize].to_vec();
        self.reads_whole_record = true;
        self.set_large(parts, LargeData::Bytes(bytes), part.end, total);
    }

    /// Takes a large record that is in a file, or a part of it. False: its header is too long to be decoded from the beginning, or its
    /// data do not stay in a file, so that they are alone in their piece.
    fn take_from_file(
        &mut self,
        span: &Span,
        record: &LargeRecord<'_>,
        parts: PartRead,
        room: usize,
    ) -> Result<bool, ReadError> {
        let Ok((change, rest)) = Change::decode(record.head) else {
            return Ok(false);
        };
        if change.units() == 0 {
            return Ok(true);
        }
        let data = record.payload.skip((record.head.len() - rest.len()) as u64);
        let in_file = parts.in_file.is_some() && data.fd().is_some();
        if !self.large.is_empty() && (!in_file || self.cut > 0) {
            return Ok(false);
        }
        let room = match in_file {
            true => usize::MAX,
            false => room,
        };
        let Some(part) = self.next_part(span, record.sequence, parts, data.bytes, room) else {
            return Ok(true);
        };
        let total = data.bytes;
        let data = data.skip(part.start);
        let data = match in_file {
            true => LargeData::File(data),
            false => {
                let mut bytes = vec![0; (part.end - part.start) as usize];
                data.read(&mut bytes)?;
                LargeData::Bytes(bytes)
            }
        };
        self.set_large(parts, data, part.end, total);
        Ok(true)
    }

    /// Which bytes of a large record come next, of so many.
    fn next_part(
        &mut self,
        span: &Span,
        sequence: Sequence,
        parts: PartRead,
        total: u64,
        room: usize,
    ) -> Option<Range<u64>> {
        let skip = match sequence == span.from.sequence + 1 {
            true => span.from.units.into(),
            false => 0,
        };
        let had = if self.large.is_empty() { parts.had } else { 0 };
        let start = had.max(skip);
        self.part_of = sequence;
        let end = start.saturating_add(room.max(1) as u64).min(total);
        (start < end).then_some(start..end)
    }

    fn set_large(&mut self, parts: PartRead, data: LargeData, end: u64, total: u64) {
        self.cut = if end < total { end } else { 0 };
        let begins = parts.had == 0 || !self.large.is_empty();
        self.large.push(LargePart { begins, data });
    }

    fn take(&mut self, span: &Span, frame: &FrameView<'_>, bytes_max: usize) {
        let sequence = frame.sequence;
        // The log has checked the frame, and opening the log has refused payloads that cannot be decoded.
        let Ok((change, data)) = Change::decode(frame.payload) else {
            return;
        };
        let units = change.units();
        if units == 0 {
            return;
        }
        let skip = if sequence == span.from.sequence + 1 {
            span.from.units
        } else {
            0
        };
        let cut = span.upto.units > 0 && sequence == span.upto.sequence + 1;
        let (take, end) = if cut {
            // Even if that is the whole record: no position is after the end of the read.
            (units.min(span.upto.units), span.upto)
        } else {
            (units, Offset::behind(sequence))
        };
        if skip >= take {
            return;
        }
        // Units are bytes, or messages, of which each has more than one byte with what separates it from the next.
        let wanted = match units as usize == data.len() {
            true => (take - skip) as usize,
            false => data.len(),
        };
        let is_cut = wanted > bytes_max;
        let data = match is_cut {
            true => &data[..bytes_max],
            false => data,
        };
        let record = AddedRecord {
            sequence,
            time: frame.time,
            skip,
            take,
            end,
            is_cut,
        };
        self.records.own.push(record, data);
    }

    /// Whether all of a record was read for the part of it that the piece has, as history gives records.
    pub fn reads_whole_record(&self) -> bool {
        self.reads_whole_record
    }

    /// Whether the last record is there with its beginning only.
    pub fn ends_cut(&self) -> bool {
        self.records.ends_cut()
    }
}

/// Whether a record is so large that it is read in parts.
fn is_large(frame: &FrameView<'_>, parts: PartRead) -> bool {
    frame.payload.len() >= parts.large_bytes as usize
}

/// Large records that lie in files are sent together while there are fewer bytes of them.
const FILES_TOGETHER: usize = 2 << 20;

/// The last record with data of a span: a position inside a record needs the beginning of that record too.
fn last_record(span: &Span) -> Sequence {
    span.upto.sequence + u64::from(span.upto.units > 0)
}
