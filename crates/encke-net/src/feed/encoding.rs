//! Encoded records: the bytes of one send, shared by all subscribers at the same position.
//!
//! Subscribers of one topic may read in several forms: by different encoders, in chunks or in frames. Each form is encoded once.

use encke_clock::WallTime;
use encke_log::Sequence;
use encke_protocol::long_record::{LongRecord, LongRecordKey, PIECE_BYTES, encoded_bytes_max};
use encke_protocol::{
    CutCharacter, EncodedRun, Encoder, EncoderId, Mark, MergeEncoderId, Run, Variant,
};
use encke_stream::{EndReason, Item, MediaKind, Offset};

use super::weight::weight;
use crate::http::framing::ResponseFraming;

/// An encoded run and its key: subscribers with the same key get the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Encoding {
    pub(crate) key: Option<EncodingKey>,
    pub(crate) run: EncodedRun,
    /// Memory for framing.
    framed: Vec<u8>,
    pub(crate) records: u64,
    /// What its records add to the lag of a subscriber that has not got them.
    pub(crate) weight: u32,
    pub(crate) end: Sequence,
    /// The position behind a piece that was read from files, which may be inside a record.
    pub(crate) piece_end: Offset,
    /// Nothing follows; the connection is closed behind it.
    pub(crate) ended: bool,
    /// Of a piece of a long record, how the record continues.
    pub(crate) after: Option<Box<LongRecord>>,
    /// Of a piece of a long record: it is the last one.
    pub(crate) is_last_piece: bool,
}

/// What an encoding depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodingKey {
    /// Of recent records.
    Recent(RecentKey),
    /// Of a piece of a long record.
    Long(LongKey),
    /// Of ephemeral messages: those of a round with these bits.
    Ephemeral {
        round: u64,
        wanted: u64,
        form: EphemeralForm,
        framing: ResponseFraming,
    },
}

/// What an encoding of recent records depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecentKey {
    pub(crate) topic: u32,
    pub(crate) from: Offset,
    pub(crate) last: Sequence,
    pub(crate) encoder: EncoderId,
    pub(crate) option: u64,
    pub(crate) framing: ResponseFraming,
}

/// The key of a piece of a long record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongKey {
    pub(crate) topic: u32,
    pub(crate) sequence: Sequence,
    pub(crate) record: LongRecordKey,
    pub(crate) encoder: EncoderId,
    pub(crate) option: u64,
    pub(crate) framing: ResponseFraming,
}

/// In which form a subscriber gets ephemeral messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EphemeralForm {
    /// Of one stream.
    Single(EncoderId),
    /// Of several streams, by a subscription with the name that has this number in the round.
    Merged(MergeEncoderId, u32),
}

/// The encodings of the topics that are being served, one for each form.
#[derive(Debug)]
pub(crate) struct Encodings {
    entries: Vec<Encoding>,
    /// The one that is sent now.
    current: usize,
    /// The one that the next new one replaces.
    oldest: usize,
}

impl Encodings {
    /// The encoding that is sent now.
    pub(crate) fn current(&self) -> &Encoding {
        &self.entries[self.current]
    }

    /// Makes the encoding with this key the current one. False: there is none.
    pub(crate) fn select(&mut self, key: EncodingKey) -> bool {
        if self.current().key == Some(key) {
            return true;
        }
        let mut entries = self.entries.iter();
        match entries.position(|entry| entry.key == Some(key)) {
            Some(found) => {
                self.current = found;
                true
            }
            None => false,
        }
    }

    /// A place for a new encoding, which is the current one from now on. The oldest one is given up for it.
    pub(crate) fn replace(&mut self) -> &mut Encoding {
        self.current = self.oldest;
        self.oldest = (self.oldest + 1) % self.entries.len();
        &mut self.entries[self.current]
    }

    /// Takes what the channel of that number must not get out of the current encoding, in a copy that no other subscriber shares.
    pub(crate) fn omit(&mut self, number: u64) {
        let current = self.current();
        if !current.run.omits(number) {
            return;
        }
        let rest = Encoding {
            key: None,
            run: current.run.without(number),
            framed: Vec::new(),
            after: None,
            ..*current
        };
        *self.replace() = rest;
    }

    /// Other records follow: no encoding is shared any more.
    pub(crate) fn forget(&mut self) {
        for entry in &mut self.entries {
            entry.key = None;
        }
    }
}

impl Default for Encodings {
    fn default() -> Self {
        Encodings {
            entries: (0..FORMS).map(|_| Encoding::default()).collect(),
            current: 0,
            oldest: 0,
        }
    }
}

impl Encoding {
    /// Begins an encoding that is not shared.
    pub(crate) fn begin(&mut self) {
        self.clear();
        self.key = None;
        self.records = 0;
        self.weight = 0;
        self.ended = false;
        self.after = None;
        self.is_last_piece = false;
    }

    /// Writes one record, behind which a subscriber may be left.
    pub(crate) fn add(
        &mut self,
        item: Item<'_>,
        sequence: Sequence,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.add_part(item, write);
        self.run.marks.push(Mark {
            end: self.run.bytes.len(),
            at: Offset::behind(sequence),
        });
    }

    /// Writes an event that is no record, behind which a subscriber has that position.
    pub(crate) fn add_event(&mut self, event: &[u8], at: Offset) {
        self.run.bytes.extend_from_slice(event);
        self.run.marks.push(Mark {
            end: self.run.bytes.len(),
            at,
        });
    }

    /// Writes that the stream was deleted, where an encoder says so.
    pub(crate) fn add_deletion(&mut self, encoder: &dyn Encoder, variant: Variant<'_>, at: Offset) {
        let before = self.run.bytes.len();
        encoder.deleted(variant, &mut self.run.bytes);
        let end = self.run.bytes.len();
        if end > before {
            self.run.marks.push(Mark { end, at });
        }
    }

    /// Writes one record that belongs together with the next.
    pub(crate) fn add_part(&mut self, item: Item<'_>, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.run.bytes);
        self.records += 1;
        self.weight = self.weight.saturating_add(weight(item.data.len()));
    }

    /// Counts the records of the run.
    pub(crate) fn count(&mut self, items: &[Item<'_>]) {
        self.records = items.len() as u64;
        self.weight = items
            .iter()
            .fold(0, |sum, item| sum.saturating_add(weight(item.data.len())));
    }

    /// Frames the bytes up to each mark on their own, because a subscriber may be left there, and the end of a body behind which
    /// nothing follows.
    pub(crate) fn frame(&mut self, framing: ResponseFraming) {
        if !matches!(
            framing,
            ResponseFraming::Chunks | ResponseFraming::Messages { .. }
        ) {
            return;
        }
        let EncodedRun { bytes, marks, .. } = &mut self.run;
        self.framed.clear();
        let mut start = 0;
        for mark in &mut *marks {
            framing.part(&bytes[start..mark.end], &mut self.framed);
            start = mark.end;
            mark.end = self.framed.len();
        }
        if self.ended {
            framing.end(&mut self.framed);
            let end = self.framed.len();
            match marks.last_mut() {
                Some(mark) => mark.end = end,
                None => marks.push(Mark {
                    end,
                    at: Offset::behind(self.end),
                }),
            }
        }
        std::mem::swap(bytes, &mut self.framed);
    }

    /// Frames a piece of a long record, and what follows the record behind its last piece. A subscriber has that position behind it.
    pub(crate) fn frame_piece(
        &mut self,
        framing: ResponseFraming,
        (is_first, is_last): (bool, bool),
        behind: &[u8],
        at: Offset,
    ) {
        let bytes = &mut self.run.bytes;
        self.framed.clear();
        if !bytes.is_empty() || is_last {
            framing.piece(bytes, is_first, is_last, &mut self.framed);
        }
        framing.part(behind, &mut self.framed);
        if self.ended {
            framing.end(&mut self.framed);
        }
        std::mem::swap(bytes, &mut self.framed);
        self.run.marks.clear();
        self.run.mark(at);
    }

    /// The position of a subscriber that has all of it.
    pub(crate) fn reached(&self) -> Offset {
        self.run.withheld_at.unwrap_or(Offset::behind(self.end))
    }

    /// What its first `sent` bytes count for the lag.
    pub(crate) fn share(&self, sent: usize) -> u32 {
        // No more than the weight, which fits.
        (u64::from(self.weight) * sent as u64 / self.run.bytes.len().max(1) as u64) as u32
    }

    /// Makes room for another run.
    pub(crate) fn clear(&mut self) {
        self.run.bytes.clear();
        self.run.marks.clear();
        self.run.withheld_at = None;
        self.run.omissions.clear();
        self.run.bytes.shrink_to(ENCODED_BYTES_KEPT);
        self.framed.shrink_to(ENCODED_BYTES_KEPT);
    }
}

/// How far gathered records go.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The position behind the last data.
    pub(crate) end: Offset,
    /// The last record, with data or not.
    pub(crate) last: Sequence,
    pub(crate) at_tail: bool,
    pub(crate) closed: bool,
    pub(crate) end_reason: Option<EndReason>,
    pub(crate) stop_asked: bool,
    pub(crate) deleted: bool,
    /// The next record is too large to be encoded at once, and nothing is to be sent before it.
    pub(crate) long: Option<LongStart>,
}

/// A long record that is to be delivered.
#[derive(Clone, Debug)]
pub(crate) struct LongStart {
    pub(crate) sequence: Sequence,
    pub(crate) skip: u32,
    pub(crate) take: u32,
    pub(crate) end: Offset,
    pub(crate) time: WallTime,
    /// The beginning of a character that the subscriber lacks and that ends in the record.
    pub(crate) before: CutCharacter,
    /// The beginning of its data, on which its form may depend.
    pub(crate) beginning: Vec<u8>,
    /// A record before it asks the producer to stop, which the subscriber was not told.
    pub(crate) stop_asked: bool,
}

impl LongStart {
    /// The record of an item, behind items of which all is withheld.
    pub(crate) fn new(item: &Item<'_>, withheld: &[Item<'_>]) -> Self {
        let withheld = withheld.iter().map(Item::part);
        let withheld: Vec<u8> = withheld.collect::<Vec<_>>().concat();
        LongStart {
            sequence: sequence_of(item),
            skip: item.skip,
            take: item.take,
            end: item.end,
            time: item.time,
            before: CutCharacter::at_end_of(&withheld),
            beginning: item.data[..item.data.len().min(BEGINNING_BYTES)].to_vec(),
            stop_asked: false,
        }
    }

    /// The record without its data.
    pub(crate) fn item(&self) -> Item<'static> {
        Item {
            data: &[],
            skip: self.skip,
            take: self.take,
            end: self.end,
            time: self.time,
        }
    }
}

/// The events behind a long record, and the position of the subscriber.
#[derive(Debug, Default)]
pub(crate) struct BehindLong {
    /// Events or messages behind the record.
    pub(crate) events: Vec<u8>,
    /// The feed ends.
    pub(crate) ends: bool,
    /// The subscriber's position.
    pub(crate) reached: Offset,
}

/// The sequence of the record of an item.
pub(crate) fn sequence_of(item: &Item<'_>) -> Sequence {
    item.end.sequence + Sequence::from(item.end.units > 0)
}

/// Whether items of text have nothing but the beginning of a character, which is withheld.
pub(crate) fn are_withheld(kind: MediaKind, items: &[Item<'_>]) -> bool {
    let bytes: usize = items.iter().map(|item| item.part().len()).sum();
    if items.is_empty() || kind != MediaKind::Text || bytes > CUT_BYTES_MAX {
        return items.is_empty();
    }
    let parts: Vec<&[u8]> = items.iter().map(Item::part).collect();
    CutCharacter::at_end_of(&parts.concat()).as_bytes().len() == bytes
}

/// The room for encoded records in one send.
#[derive(Debug)]
pub(crate) struct RunBudget {
    left: usize,
}

impl RunBudget {
    pub(crate) fn new() -> Self {
        RunBudget {
            left: PIECE_BYTES - RUN_STATE_BYTES,
        }
    }

    /// Takes the room for one more record, to whose data an encoder adds at most `overhead` bytes. False: it does not fit, and the room is
    /// unchanged.
    pub(crate) fn try_spend(
        &mut self,
        kind: MediaKind,
        item: &Item<'_>,
        overhead: impl FnOnce() -> usize,
    ) -> bool {
        let is_small = match kind {
            MediaKind::Json => item.data.len() <= self.left,
            MediaKind::Text | MediaKind::Binary => item.part().len() <= self.left,
        };
        // The bytes of a larger record are not looked through.
        let bytes = is_small.then(|| encoded_bytes_max(kind, item, overhead()));
        match bytes.and_then(|bytes| self.left.checked_sub(bytes)) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

impl Gathered {
    pub(crate) fn run<'a>(&self, items: &'a [Item<'a>]) -> Run<'a> {
        Run {
            items,
            at_tail: self.at_tail,
            closed: self.closed,
            end_reason: self.end_reason,
            stop_asked: self.stop_asked && !self.closed,
            ..Run::position(self.end)
        }
    }
}

/// Bytes of an encoding for the state of the stream, which may follow the records.
const RUN_STATE_BYTES: usize = 1 << 10;

/// Bytes of a record's data that a form may depend on.
const BEGINNING_BYTES: usize = 64;

/// Bytes of a cut character, at most.
const CUT_BYTES_MAX: usize = 3;

/// Bytes of data that one send to a subscriber carries, approximately.
pub(crate) const RUN_BYTES: usize = 64 << 10;

/// Encodings that are kept at a time: the forms of a mixed audience, and one that is not shared.
const FORMS: usize = 8;

/// The largest buffer that is kept for the next encoding.
const ENCODED_BYTES_KEPT: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(framing: ResponseFraming, last: Sequence) -> EncodingKey {
        EncodingKey::Recent(RecentKey {
            topic: 1,
            from: Offset::START,
            last,
            encoder: crate::synthetic::encoder(),
            option: 0,
            framing,
        })
    }

    #[test]
    fn each_form_is_encoded_once_until_other_records_follow() {
        let mut encodings = Encodings::default();
        let forms = [
            ResponseFraming::Chunks,
            ResponseFraming::Frames,
            ResponseFraming::Connection,
        ];
        let mut encoded = 0;
        for subscriber in 0..30 {
            let key = key(forms[subscriber % 3], 7);
            if !encodings.select(key) {
                encodings.replace().key = Some(key);
                encoded += 1;
            }
            assert_eq!(encodings.current().key, Some(key));
        }
        assert_eq!(encoded, 3);
        encodings.forget();
        assert!(!encodings.select(key(forms[0], 7)));
        // Others take the places of the oldest.
        for last in 0..FORMS as Sequence + 1 {
            encodings.replace().key = Some(key(forms[0], last));
        }
        assert!(!encodings.select(key(forms[0], 0)) && encodings.select(key(forms[0], 1)));
    }
}
