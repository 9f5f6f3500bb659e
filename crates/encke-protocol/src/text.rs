//! Text in UTF-8 whose characters may be cut between two records, as writers of token streams cut them.
//!
//! An event holds text. The beginning of a character at the end of the records is withheld until its rest comes, and the position
//! that the event states is the one before that character. What is no text is given as it is, for an encoding that can hold it.
//! Nothing is replaced.

use encke_clock::WallTime;
use encke_stream::{Item, Offset};

use crate::run::Run;

/// The beginning of a character: at most three bytes, possibly none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutCharacter {
    bytes: [u8; CUT_BYTES_MAX],
    len: u8,
}

impl CutCharacter {
    /// The beginning of a character at the end of some bytes, which may be text otherwise or not.
    pub fn at_end_of(bytes: &[u8]) -> Self {
        let mut cut = CutCharacter::default();
        for len in 1..=CUT_BYTES_MAX.min(bytes.len()) {
            let end = &bytes[bytes.len() - len..];
            let error = std::str::from_utf8(end).err();
            if error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none()) {
                cut.bytes[..len].copy_from_slice(end);
                cut.len = len as u8;
            }
        }
        cut
    }

    /// The beginning of a character at the end of bytes that follow this one.
    pub fn following(self, bytes: &[u8]) -> Self {
        match bytes.len() < CUT_BYTES_MAX {
            true => CutCharacter::at_end_of(&[self.as_bytes(), bytes].concat()),
            false => CutCharacter::at_end_of(bytes),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Records, or parts of them, that go into one event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextPart {
    pub(crate) bytes: Vec<u8>,
    /// Whether they are text.
    pub(crate) is_text: bool,
    /// The position behind them.
    pub(crate) end: Offset,
    /// The time of the last record of which they have bytes.
    pub(crate) time: WallTime,
}

/// Splits the records of a run at their ends, so that a part has about `bytes_max` bytes at most, or one record. Records that are
/// no text have parts of their own. The position is the one behind the last part, if a cut character is withheld behind it.
pub(crate) fn split(run: &Run<'_>, bytes_max: usize) -> (Vec<TextPart>, Option<Offset>) {
    let mut splitter = Splitter::default();
    for item in run.items {
        splitter.take(item, bytes_max);
    }
    splitter.finish(run)
}

#[derive(Default)]
struct Splitter {
    parts: Vec<TextPart>,
    /// Text that is in no part yet, and a cut character behind it.
    text: Vec<u8>,
    /// How much of it is whole characters, and the position behind these.
    whole: usize,
    at: Offset,
    /// The time of the record that ends the whole characters, and of the last record.
    whole_time: WallTime,
    last_time: WallTime,
}

impl Splitter {
    fn take(&mut self, item: &Item<'_>, bytes_max: usize) {
        let data = item.part();
        if self.whole > 0 && self.whole + data.len() > bytes_max {
            self.flush();
        }
        self.last_time = item.time;
        if self.text.is_empty() && self.parts.is_empty() {
            self.at = item.position(item.skip);
        }
        let carried = self.text.len() - self.whole;
        self.text.extend_from_slice(data);
        let (cut, end) = match std::str::from_utf8(&self.text[self.whole..]) {
            Ok(_) => (0, item.end),
            Err(error) if error.error_len().is_none() => {
                let cut = self.text.len() - self.whole - error.valid_up_to();
                (cut, item.position_before(cut))
            }
            // The text ends before it, and before the cut character that it does not complete.
            Err(_) => {
                let bytes = self.text.split_off(self.whole);
                self.flush();
                let cut = CutCharacter::at_end_of(&bytes);
                let cut = cut.as_bytes();
                let (bytes, cut) = bytes.split_at(bytes.len() - cut.len());
                self.at = item.position_before(cut.len());
                self.text.extend_from_slice(cut);
                self.parts.push(TextPart {
                    bytes: bytes.to_vec(),
                    is_text: false,
                    end: self.at,
                    time: item.time,
                });
                return;
            }
        };
        // A character that is still not complete stays where it begins, possibly in an earlier record.
        if cut < carried + data.len() {
            self.whole = self.text.len() - cut;
            self.at = end;
            self.whole_time = item.time;
        }
    }

    /// Ends a part of text behind the last whole character.
    fn flush(&mut self) {
        if self.whole == 0 {
            return;
        }
        let cut = self.text.split_off(self.whole);
        self.whole = 0;
        self.parts.push(TextPart {
            bytes: std::mem::replace(&mut self.text, cut),
            is_text: true,
            end: self.at,
            time: self.whole_time,
        });
    }

    fn finish(mut self, run: &Run<'_>) -> (Vec<TextPart>, Option<Offset>) {
        self.flush();
        if self.text.is_empty() {
            // Records without data may follow the last one.
            if let Some(last) = self.parts.last_mut() {
                last.end = run.end;
            }
            return (self.parts, None);
        }
        if run.closed {
            // Its rest never comes.
            self.parts.push(TextPart {
                bytes: self.text,
                is_text: false,
                end: run.end,
                time: self.last_time,
            });
            return (self.parts, None);
        }
        (self.parts, Some(self.at))
    }
}

/// A character has at most four bytes.
const CUT_BYTES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Records one behind the other, with ten positions for each.
    fn items<'a>(records: &[&'a [u8]]) -> Vec<Item<'a>> {
        let records = (1_u64..).zip(records);
        let item = |(number, data): (u64, &&'a [u8])| Item {
            data,
            skip: 0,
            take: data.len() as u32,
            end: Offset::behind(10 * number),
            time: WallTime::from_ms(number),
        };
        records.map(item).collect()
    }

    fn run<'a>(items: &'a [Item<'a>], closed: bool) -> Run<'a> {
        Run {
            items,
            at_tail: true,
            closed,
            ..Run::position(items.last().map_or(Offset::START, |item| item.end))
        }
    }

    fn part(bytes: &[u8], is_text: bool, sequence: u64, units: u32) -> TextPart {
        TextPart {
            bytes: bytes.to_vec(),
            is_text,
            end: Offset { sequence, units },
            // Of the record that ends there, or in which it lies.
            time: WallTime::from_ms((sequence + 1) / 10),
        }
    }

    fn inside(sequence: u64, units: u32) -> Option<Offset> {
        Some(Offset { sequence, units })
    }

    #[test]
    fn a_cut_character_waits_for_its_rest() {
        let euro = "€".as_bytes();
        for (records, parts, withheld) in [
            // The character begins behind three bytes of the first record.
            (
                &[&b"abc\xe2"[..]][..],
                vec![part(b"abc", true, 9, 3)],
                inside(9, 3),
            ),
            (
                &[b"abc\xe2", b"\x82"],
                vec![part(b"abc", true, 9, 3)],
                inside(9, 3),
            ),
            (
                &[b"abc\xe2", b"\x82", b"\xacd"],
                vec![part("abc€d".as_bytes(), true, 30, 0)],
                None,
            ),
            // It begins with a record of its own.
            (&[&euro[..1]], vec![], inside(9, 0)),
            (
                &[b"a", &euro[..1], &euro[1..2]],
                vec![part(b"a", true, 10, 0)],
                inside(10, 0),
            ),
            (
                &[&euro[..1], &euro[1..2], &euro[2..]],
                vec![part(euro, true, 30, 0)],
                None,
            ),
            // It is no character after all.
            (
                &[b"a\xe2", b"bc", b"d"],
                vec![
                    part(b"a", true, 9, 1),
                    part(b"\xe2bc", false, 20, 0),
                    part(b"d", true, 30, 0),
                ],
                None,
            ),
            // Text behind what is none, and a cut character between them.
            (
                &[b"\xff\xe2", b"\x82\xac"],
                vec![part(b"\xff", false, 9, 1), part(euro, true, 20, 0)],
                None,
            ),
            (
                &[b"\xac", b"x"],
                vec![part(b"\xac", false, 10, 0), part(b"x", true, 20, 0)],
                None,
            ),
        ] {
            let items = items(records);
            assert_eq!(
                split(&run(&items, false), 100),
                (parts, withheld),
                "{records:?}"
            );
        }
    }

    #[test]
    fn the_end_of_a_stream_releases_what_is_withheld() {
        let items = items(&[b"a\xe2", b"\x82"]);
        let parts = vec![part(b"a", true, 9, 1), part(b"\xe2\x82", false, 20, 0)];
        assert_eq!(split(&run(&items, true), 100), (parts, None));
    }

    #[test]
    fn a_reader_that_begins_inside_a_character_gets_its_rest_as_it_is() {
        let mut items = items(&["x€y".as_bytes(), b"z"]);
        items[0].skip = 2;
        let parts = vec![part(b"\x82\xacy", false, 10, 0), part(b"z", true, 20, 0)];
        assert_eq!(split(&run(&items, false), 100), (parts, None));
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => "[a€é😀]{0,4}".prop_map(String::into_bytes),
            1 => prop::collection::vec(any::<u8>(), 0..4),
        ]
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_or_replaced_or_claimed_too_early(
            text in prop::collection::vec(bytes(), 0..8),
            cuts in prop::collection::vec(0_usize..40, 0..12),
            bytes_max in 0_usize..20,
            closed: bool,
        ) {
            // What a writer wrote, cut anywhere.
            let text = text.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| *at < text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            cuts.dedup();
            let records: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let items = items(&records);
            let (parts, withheld) = split(&run(&items, closed), bytes_max);
            let got: Vec<u8> = parts.iter().flat_map(|part| &part.bytes).copied().collect();
            prop_assert!(text.starts_with(&got));
            prop_assert!(text.len() - got.len() <= CUT_BYTES_MAX);
            prop_assert_eq!(withheld.is_some(), got.len() < text.len());
            prop_assert!(!(closed && withheld.is_some()));
            if std::str::from_utf8(&text).is_ok() {
                prop_assert!(parts.iter().all(|part| part.is_text));
                prop_assert_eq!(got.len(), text.len());
            }
            // Each position is behind just the bytes of the parts before it.
            let mut sent = 0;
            for part in &parts {
                prop_assert_eq!(part.is_text, std::str::from_utf8(&part.bytes).is_ok() && part.is_text);
                sent += part.bytes.len();
                let Offset { sequence, units } = part.end;
                let whole = records.iter().take(sequence as usize / 10 + usize::from(sequence % 10 == 9));
                let whole: usize = whole.map(|record| record.len()).sum();
                let expected = match sequence % 10 {
                    9 => whole - records[sequence as usize / 10].len() + units as usize,
                    _ => whole,
                };
                prop_assert_eq!(sent, expected);
            }
        }
    }
}
