//! A bounded part of a stream, read from the log.

use encke_log::{Disk, FORGOTTEN, ReadError, Reader, Sequence};

use crate::number::log_of;
use crate::record::Change;
use crate::stream::Span;
use crate::{Offset, Stream};

/// What to read: some spans of the log, and how much at a time.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The parts of the log that hold the data, in order.
    pub spans: Vec<Span>,
    /// Where the data begins.
    pub from: Offset,
    /// Where it ends: a position that was the stream's tail, or a fork's beginning.
    pub upto: Offset,
    /// Up to this record the stream's are gone for its readers.
    pub floor: Sequence,
    /// About how much data a piece holds. One that would be empty holds one record, however large.
    pub bytes_max: usize,
}

impl Fetch {
    /// The index of the log that has what is to be read.
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
        }
    }
}

/// A part of a stream as it was read: records one behind the other.
#[derive(Debug, Default)]
pub struct Piece {
    bytes: Vec<u8>,
    records: Vec<PieceRecord>,
    /// The position behind the last record, or where the reading was to end if it came so far.
    pub end: Offset,
    /// Whether data was left for another piece.
    pub more: bool,
}

#[derive(Debug)]
struct PieceRecord {
    data_end: usize,
    skip: u32,
    take: u32,
    end: Offset,
}

/// The data of one record, as a reader gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The record's data, whole.
    pub data: &'a [u8],
    /// Units at its beginning that the reader has already.
    pub skip: u32,
    /// Units, counted from its beginning, behind which the rest is not the reader's.
    pub take: u32,
    /// The position behind it.
    pub end: Offset,
}

impl Piece {
    /// Reads from the log. What was acknowledged before it was written and can't be read yet is left
    /// for another piece.
    ///
    /// # Errors
    /// Something could not be read, or is damaged: never an absence. What follows the position that was asked for may also
    /// be no longer kept; whoever asks for all from the beginning gets what is left. What was acknowledged before it was
    /// written and never will be, because the log has failed, is an error too.
    pub fn read<D: Disk>(log: &Reader<D>, fetch: &Fetch) -> Result<Piece, ReadError> {
        let mut piece = Piece {
            end: fetch.upto,
            ..Piece::default()
        };
        if let Some(span) = fetch.spans.first()
            && fetch.from != Offset::START
            && fetch.from.sequence < fetch.floor
        {
            // A fork may still read what is gone for the stream's own readers.
            return Err(ReadError::BelowFloor {
                stream: span.stream,
                after: fetch.from.sequence,
                floor: fetch.floor,
            });
        }
        // Lookup before anything is read: what is published meanwhile is not missed, but left.
        let published = log.published();
        for span in &fetch.spans {
            // A position inside a record asks for the beginning of that record too.
            let last = span.upto.sequence + u64::from(span.upto.units > 0);
            let room = fetch.bytes_max.saturating_sub(piece.bytes.len());
            if let Some(taken) = piece.records.last()
                && room == 0
            {
                piece.end = taken.end;
                piece.more = true;
                return Ok(piece);
            }
            let end = log.read(
                span.stream,
                span.from.sequence,
                last.min(published),
                room,
                &mut |frame| piece.take(span, frame.sequence, frame.payload),
            )?;
            let after = span.from.sequence;
            let kept = end.floor <= after || end.floor == FORGOTTEN;
            if !kept && fetch.from != Offset::START {
                return Err(ReadError::BelowFloor {
                    stream: span.stream,
                    after,
                    floor: end.floor,
                });
            }
            if end.more {
                piece.end = Offset::behind(end.last);
                piece.more = true;
                return Ok(piece);
            }
            if last > published {
                if piece.records.is_empty()
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
                return Ok(piece);
            }
        }
        Ok(piece)
    }

    /// The records' data, in order.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let mut start = 0;
        self.records.iter().map(move |record| {
            let data = &self.bytes[start..record.data_end];
            start = record.data_end;
            Item {
                data,
                skip: record.skip,
                take: record.take,
                end: record.end,
            }
        })
    }

    /// How much data it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it holds nothing though there is more: what follows is acknowledged and not written yet.
    pub fn lacks(&self) -> bool {
        self.more && self.records.is_empty()
    }

    fn take(&mut self, span: &Span, sequence: u64, payload: &[u8]) {
        // The log has checked the frame; what can't be read here was refused when it was opened.
        let Ok((change, data)) = Change::decode(payload) else {
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
            // Even if that is all of it: nothing ends behind what was asked for.
            (units.min(span.upto.units), span.upto)
        } else {
            (units, Offset::behind(sequence))
        };
        if skip >= take {
            return;
        }
        self.bytes.extend_from_slice(data);
        self.records.push(PieceRecord {
            data_end: self.bytes.len(),
            skip,
            take,
            end,
        });
    }
}
