//! Finds the position behind which the last messages of a stream begin.
//!
//! Nothing counts the messages of a stream: truncations and forks would make a count wrong. So the records are read backwards from
//! the tail, in pieces, until enough messages are found. A message is what a reader of lines gets in one line: of a JSON stream one
//! message of an append, of another stream the data of one append.

use encke_log::Sequence;

use super::large_records::LargeRecords;
use super::piece::Fetch;
use super::record_run::Item;
use crate::stream::Span;
use crate::{Facts, MediaKind, Offset, Stream};

/// How far a search goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastMessagesBounds {
    /// Bytes of data: the search ends behind the record that reaches them, with the messages that it has found.
    pub bytes_max: usize,
    /// Bytes that are read at a time.
    pub piece_bytes: usize,
}

/// A search for the position behind which the last messages of a stream begin. It asks for pieces, newest first, and takes them.
///
/// Invariant: the messages behind `begin` are those that were counted.
#[derive(Clone, Debug)]
pub struct LastMessages {
    /// What was not read yet.
    spans: Vec<Span>,
    floor: Sequence,
    kind: MediaKind,
    /// Messages that are still to be found.
    wanted: usize,
    bytes_left: usize,
    piece_bytes: usize,
    begin: Offset,
    tail: Offset,
}

impl LastMessages {
    /// Searches for the last `count` messages before the tail in `facts`, which are of the stream.
    pub fn new(stream: &Stream, facts: Facts, count: usize, bounds: LastMessagesBounds) -> Self {
        LastMessages {
            spans: stream.spans(Offset::START, facts.tail),
            floor: facts.floor,
            kind: stream.media.kind,
            wanted: count,
            bytes_left: bounds.bytes_max,
            piece_bytes: bounds.piece_bytes,
            begin: facts.tail,
            tail: facts.tail,
        }
    }

    /// The position, if it is known without another piece. If fewer messages are kept than are wanted it is the beginning of the
    /// stream, so that retention may remove some of them meanwhile; if none is kept it is the tail.
    pub fn found(&self) -> Option<Offset> {
        if self.wanted == 0 || self.bytes_left == 0 {
            return Some(self.begin);
        }
        let from = match self.begin == self.tail {
            true => self.tail,
            false => Offset::START,
        };
        self.spans.is_empty().then_some(from)
    }

    /// The next piece.
    pub fn fetch(&self) -> Fetch {
        Fetch {
            large: LargeRecords::Whole,
            spans: self.spans.clone(),
            from: Offset::START,
            upto: self.spans.last().map_or(Offset::START, |span| span.upto),
            floor: self.floor,
            bytes_max: self.piece_bytes,
            last: Some(self.wanted.saturating_add(DATALESS_RECORDS)),
        }
    }

    /// Takes a piece that was read: its records, the position up to which older ones may be left, and whether there may be some.
    pub fn take(&mut self, items: &[Item<'_>], end: Offset, more: bool) {
        let mut bytes = 0;
        for item in items.iter().rev() {
            let units = item.take.saturating_sub(item.skip) as usize;
            let counted = match self.kind {
                MediaKind::Json => units.min(self.wanted),
                MediaKind::Text | MediaKind::Binary => 1,
            };
            self.begin = match self.kind {
                MediaKind::Json => item.position_before(counted),
                MediaKind::Text | MediaKind::Binary => item.position(item.skip),
            };
            self.wanted -= counted;
            self.bytes_left = self.bytes_left.saturating_sub(item.data.len());
            bytes += item.data.len();
            if self.found().is_some() {
                return;
            }
        }
        match more {
            // The last record is not written yet.
            true if self.spans.last().is_none_or(|span| span.upto <= end) => {}
            true => {
                let cost = PIECE_COST_BYTES.saturating_sub(bytes);
                self.bytes_left = self.bytes_left.saturating_sub(cost);
                self.go_on_before(end);
            }
            false => self.spans.clear(),
        }
    }

    /// Everything from a position on was read.
    fn go_on_before(&mut self, end: Offset) {
        while let Some(span) = self.spans.last_mut() {
            span.upto = span.upto.min(end);
            if span.from < span.upto {
                return;
            }
            self.spans.pop();
        }
    }
}

/// Records without data, such as a truncation, that a piece may have beside those that are wanted.
const DATALESS_RECORDS: usize = 8;

/// What a piece counts at least, in bytes, so that records without data do not make the number of pieces unbounded.
const PIECE_COST_BYTES: usize = 16 << 10;
