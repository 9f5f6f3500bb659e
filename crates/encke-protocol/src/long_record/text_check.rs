//! Examines text that arrives in parts.

use super::form::RecordFacts;
use super::record_part::RecordPart;
use super::written_data::WrittenData;
use crate::text::CutCharacter;

/// Whether bytes are valid UTF-8, and how they end.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextCheck {
    /// A character that is cut at the end is withheld. Otherwise the record is no text.
    withholds: bool,
    /// Everything up to the cut character is text.
    is_text: bool,
    /// The beginning of a character at the end of the bytes so far.
    cut: CutCharacter,
}

impl TextCheck {
    /// Bytes that follow a cut character.
    pub(super) fn new(before: CutCharacter, withholds: bool) -> Self {
        TextCheck {
            withholds,
            is_text: true,
            cut: before,
        }
    }

    /// Examines further bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.is_text = self.is_text && is_text(self.cut, bytes);
        self.cut = self.cut.following(bytes);
    }

    /// The result.
    pub(super) fn facts(&self, part: &RecordPart) -> RecordFacts {
        let withheld = match self.withholds {
            true => self.cut,
            false => CutCharacter::default(),
        };
        let is_text = self.is_text && withheld == self.cut;
        let cut = withheld.as_bytes().len();
        let units = u64::from(part.take).saturating_sub(cut as u64);
        let units = units.max(part.skip.into()) as u32;
        RecordFacts {
            data: match is_text {
                true => WrittenData::Text,
                false => WrittenData::Bytes,
            },
            end: part.position(if cut == 0 { part.take } else { units }),
            time: part.time,
            withheld,
        }
    }
}

/// Whether bytes behind the beginning of a character are text, apart from a character that is cut at their end.
fn is_text(cut: CutCharacter, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    if !cut.is_empty() {
        // A character has at most four bytes, so that three more complete it.
        let (more, behind) = bytes.split_at(bytes.len().min(CHARACTER_BYTES_MAX - 1));
        let joined = [cut.as_bytes(), more].concat();
        let valid = match std::str::from_utf8(&joined) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        match valid.checked_sub(cut.as_bytes().len()) {
            Some(used) if valid > 0 => rest = &bytes[used..],
            _ => return behind.is_empty() && is_cut(&joined),
        }
    }
    is_cut_text(rest)
}

fn is_cut_text(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// Whether bytes are the beginning of one character.
fn is_cut(bytes: &[u8]) -> bool {
    let error = std::str::from_utf8(bytes).err();
    error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

const CHARACTER_BYTES_MAX: usize = 4;
