//! Encodes one record in pieces of about [`PIECE_BYTES`], however large it is and however much its form adds to it.
//!
//! A [`LongRecord`] takes the data of its record from the front, as much as is at hand, and continues inside a message or a character. So
//! neither the data nor the encoded form is ever held as a whole, but for one message at a time where messages are handed over. An encoder
//! only states the [`RecordForm`]: what precedes the data, how the data is written, and what follows it.
//!
//! Text is examined before the first byte is written: whether it is valid UTF-8, and whether it ends inside a character, decides the form.

mod form;
mod json_cursor;
mod record_part;
#[cfg(test)]
mod tests;
mod text_check;
mod writer;
mod written_data;

use encke_stream::{Item, MediaKind, Offset, Sequence};

pub use form::{DataForm, RecordFacts, RecordForm};
pub use writer::{EachMessage, PIECE_BYTES};
pub use written_data::WrittenData;

use self::record_part::RecordPart;
use self::text_check::TextCheck;
use self::writer::{DataWriter, ESCAPED_BYTES};
use crate::encoded_run::EncodedRun;
use crate::text::CutCharacter;

/// A record that is encoded in pieces.
#[derive(Clone, Debug)]
pub struct LongRecord {
    part: RecordPart,
    /// The beginning of a character with which the record before it ended, and which the reader has not got.
    before: CutCharacter,
    /// Where the data of the next step begins. It is the first byte of the part again after the examination.
    next_byte: u64,
    /// The end of the reader's part; from [`LongRecord::begin`] on without a character that is withheld.
    end: Offset,
    stage: Stage,
}

/// Identifies the next piece: readers with the same key and form get the same piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongRecordKey {
    part: RecordPart,
    before: CutCharacter,
    next_byte: u64,
    is_examined: bool,
    has_begun: bool,
    is_in_message: bool,
}

/// The outcome of a step of a [`LongRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongStep {
    /// More of the record follows.
    More,
    /// Its facts are known: [`LongRecord::begin`] is to be called.
    Examined,
    /// All of it is written.
    Written,
}

#[derive(Clone, Debug)]
enum Stage {
    Examine(TextCheck),
    Examined(RecordFacts),
    Write {
        writer: Box<DataWriter>,
        tail: Vec<u8>,
    },
}

impl LongRecord {
    /// The reader's part of a record; the data of `item` is not looked at. `before` was withheld before it. `withholds`: a character that is
    /// cut at its end is withheld.
    pub fn new(kind: MediaKind, item: &Item<'_>, before: CutCharacter, withholds: bool) -> Self {
        let part = RecordPart {
            kind,
            skip: item.skip,
            take: item.take,
            end: item.end,
            time: item.time,
        };
        let next_byte = part.first_byte();
        let facts = |data| RecordFacts {
            data,
            end: part.end,
            time: part.time,
            withheld: CutCharacter::default(),
        };
        let stage = match kind {
            MediaKind::Text => Stage::Examine(TextCheck::new(before, withholds)),
            MediaKind::Json => Stage::Examined(facts(WrittenData::Messages)),
            MediaKind::Binary => Stage::Examined(facts(WrittenData::Bytes)),
        };
        LongRecord {
            part,
            before,
            next_byte,
            end: item.end,
            stage,
        }
    }

    /// Where in the record's data the next step begins.
    pub fn next_byte(&self) -> u64 {
        self.next_byte
    }

    /// The sequence of the record.
    pub fn sequence(&self) -> Sequence {
        let end = self.part.end;
        end.sequence + Sequence::from(end.units > 0)
    }

    /// The position behind the record, or before a character that is withheld at its end.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// The key of the next piece.
    pub fn key(&self) -> LongRecordKey {
        LongRecordKey {
            part: self.part,
            before: self.before,
            next_byte: self.next_byte,
            is_examined: !matches!(self.stage, Stage::Examine(_)),
            has_begun: match &self.stage {
                Stage::Write { writer, .. } => writer.has_begun(),
                Stage::Examine(_) | Stage::Examined(_) => false,
            },
            is_in_message: match &self.stage {
                Stage::Write { writer, .. } => writer.is_in_message(),
                Stage::Examine(_) | Stage::Examined(_) => false,
            },
        }
    }

    /// The facts of the record, between its examination and its first piece.
    pub fn facts(&self) -> Option<RecordFacts> {
        match &self.stage {
            Stage::Examined(facts) => Some(*facts),
            Stage::Examine(_) | Stage::Write { .. } => None,
        }
    }

    /// Begins the encoded form. Before the record is examined it does nothing.
    pub fn begin(&mut self, form: RecordForm) {
        let Some(facts) = self.facts() else {
            return;
        };
        self.end = facts.end;
        let withheld = facts.withheld.as_bytes().len() as u64;
        let end_byte = u64::from(self.part.take).saturating_sub(withheld);
        let before = self.before.as_bytes();
        let writer = DataWriter::new(self.part, end_byte, before, form.head, form.data);
        self.stage = Stage::Write {
            writer: Box::new(writer),
            tail: form.tail,
        };
    }

    /// Whether it is written as one value, and not as separate messages.
    pub fn is_one_value(&self) -> bool {
        match &self.stage {
            Stage::Write { writer, .. } => writer.is_one_value(),
            Stage::Examine(_) | Stage::Examined(_) => true,
        }
    }

    /// Uses data of the record from [`LongRecord::next_byte`] on, and appends about [`PIECE_BYTES`] to an empty run. `is_end`: the record has no
    /// further data.
    pub fn step(
        &mut self,
        data: &[u8],
        is_end: bool,
        each: EachMessage<'_>,
        out: &mut EncodedRun,
    ) -> LongStep {
        match &mut self.stage {
            Stage::Examine(check) => {
                let left = u64::from(self.part.take).saturating_sub(self.next_byte);
                let bytes = data.len().min(EXAMINED_BYTES).min(left as usize);
                check.take(&data[..bytes]);
                self.next_byte += bytes as u64;
                if self.next_byte < u64::from(self.part.take) && !(is_end && bytes == data.len()) {
                    return LongStep::More;
                }
                self.stage = Stage::Examined(check.facts(&self.part));
                self.next_byte = self.part.first_byte();
                LongStep::Examined
            }
            Stage::Examined(_) => LongStep::Examined,
            Stage::Write { writer, tail } => {
                let used = writer.write(data, is_end, each, out);
                self.next_byte += used as u64;
                if !writer.is_done() {
                    return LongStep::More;
                }
                out.bytes.append(tail);
                LongStep::Written
            }
        }
    }
}

/// An upper bound of the bytes that a record has in any encoding that adds at most `overhead` bytes to its data.
pub fn encoded_bytes_max(kind: MediaKind, item: &Item<'_>, overhead: usize) -> usize {
    let added = |is_long: fn(&u8) -> bool, data: &[u8]| {
        data.iter().filter(|byte| is_long(byte)).count() * (ESCAPED_BYTES - 1)
    };
    overhead
        + match kind {
            MediaKind::Json => {
                item.data.len() + added(|byte| matches!(byte, b'\n' | b'\r'), item.data)
            }
            MediaKind::Text => {
                let part = item.part();
                let escaped = added(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'), part);
                // In base64, or escaped.
                part.len() + (part.len() / 3 + 4).max(escaped)
            }
            MediaKind::Binary => item.part().len() / 3 * 4 + 4,
        }
}

/// Bytes that are examined in one step: about as much work as a piece.
const EXAMINED_BYTES: usize = 256 << 10;
