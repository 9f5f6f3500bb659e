//! The published messages: producer, sequence number and time.
//!
//! On JSON streams a message is `{"p":producer,"n":sequence,"t":nanoseconds,"pad":"…"}`; on all
//! others it is the line `producer sequence nanoseconds pad`. Both are found in a received batch
//! at the speed of a search for the next quote or line end.

use serde::Deserialize;
use std::io::Write as _;

/// What identifies a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Message {
    /// The producer: see [`producer_number`].
    #[serde(rename = "p")]
    pub(crate) producer: u64,
    /// Its number among those of its producer on its stream, from 0.
    #[serde(rename = "n")]
    pub(crate) sequence: u64,
    /// When it was sent, in nanoseconds of `CLOCK_MONOTONIC`.
    #[serde(rename = "t")]
    pub(crate) sent_ns: u64,
}

/// The most producers of one run.
pub(crate) const PRODUCERS_MAX: u32 = 1 << 16;

/// The longest line that is waited for; what is longer is no message of ours.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A producer's number: unique among runs as well as within one, and exact in a JSON number.
pub(crate) fn producer_number(run: u32, index: u32) -> u64 {
    // 48 bits: JSON numbers are exact to 53.
    u64::from(run) << 16 | u64::from(index % PRODUCERS_MAX)
}

/// The run that a producer's number belongs to.
pub(crate) fn run_of(producer: u64) -> u64 {
    producer >> 16
}

/// How messages are written on a stream, which follows from its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `application/json`: a message is a JSON object.
    Json,
    /// Anything else: a message is a line.
    Line,
}

impl Format {
    /// The format for a content type.
    pub(crate) fn of(content_type: &str) -> Self {
        let bare = content_type.split(';').next().unwrap_or("").trim();
        if bare.eq_ignore_ascii_case("application/json") {
            Self::Json
        } else {
            Self::Line
        }
    }

    /// Writes `message`, padded to `size` bytes in all where it is shorter.
    pub(crate) fn write(self, message: &Message, size: usize, out: &mut Vec<u8>) {
        let start = out.len();
        let Message {
            producer,
            sequence,
            sent_ns,
        } = message;
        let (head, tail): (_, &[u8]) = match self {
            Self::Json => (
                write!(
                    out,
                    r#"{{"p":{producer},"n":{sequence},"t":{sent_ns},"pad":""#
                ),
                br#""}"#,
            ),
            Self::Line => (write!(out, "{producer} {sequence} {sent_ns} "), b"\n"),
        };
        head.expect("writing to a vector can't fail");
        let end = start + size.max(out.len() - start + tail.len());
        out.resize(end - tail.len(), b'x');
        out.extend_from_slice(tail);
    }
}

/// Calls `on_message` for every message in a JSON array (or in one bare JSON value).
///
/// Returns how many values were there that are no messages of ours; what is no JSON counts as one.
pub(crate) fn scan_json(mut bytes: &[u8], mut on_message: impl FnMut(Message)) -> u64 {
    let mut strangers = 0;
    bytes = bytes.trim_ascii_start();
    bytes = bytes.strip_prefix(b"[").unwrap_or(bytes);
    loop {
        while let [b' ' | b'\t' | b'\r' | b'\n' | b',' | b']', rest @ ..] = bytes {
            bytes = rest;
        }
        if bytes.is_empty() {
            return strangers;
        }
        if let Some((message, rest)) = fast_object(bytes) {
            on_message(message);
            bytes = rest;
            continue;
        }
        let mut values =
            serde_json::Deserializer::from_slice(bytes).into_iter::<&serde_json::value::RawValue>();
        let Some(Ok(raw)) = values.next() else {
            return strangers + 1;
        };
        match serde_json::from_str(raw.get()) {
            Ok(message) => on_message(message),
            Err(_) => strangers += 1,
        }
        bytes = &bytes[values.byte_offset()..];
    }
}

/// Finds messages in a JSON array that arrives in pieces, as far as they can be told apart without
/// its end; holds back what can't.
#[derive(Debug, Default)]
pub(crate) struct JsonPieces {
    held: Vec<u8>,
}

impl JsonPieces {
    /// Takes the next piece of the array.
    pub(crate) fn feed(&mut self, piece: &[u8], mut on_message: impl FnMut(Message)) {
        self.held.extend_from_slice(piece);
        let mut rest = &self.held[..];
        loop {
            while let [b' ' | b'\t' | b'\r' | b'\n' | b',' | b'[', after @ ..] = rest {
                rest = after;
            }
            let Some((message, after)) = fast_object(rest) else {
                break;
            };
            on_message(message);
            rest = after;
        }
        let taken = self.held.len() - rest.len();
        self.held.drain(..taken);
    }

    /// Ends the array. Returns how many values in what was held back are no messages of ours.
    pub(crate) fn finish(&mut self, on_message: impl FnMut(Message)) -> u64 {
        let held = std::mem::take(&mut self.held);
        scan_json(&held, on_message)
    }

    /// How many bytes are held back.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

/// Our own object exactly as we wrote it; whatever a server has reformatted takes the slow way.
fn fast_object(bytes: &[u8]) -> Option<(Message, &[u8])> {
    let (producer, rest) = digits(bytes.strip_prefix(br#"{"p":"#)?)?;
    let (sequence, rest) = digits(rest.strip_prefix(br#","n":"#)?)?;
    let (sent_ns, rest) = digits(rest.strip_prefix(br#","t":"#)?)?;
    let rest = rest.strip_prefix(br#","pad":""#)?;
    let quote = memchr::memchr2(b'"', b'\\', rest)?;
    let rest = rest[quote..].strip_prefix(br#""}"#)?;
    Some((
        Message {
            producer,
            sequence,
            sent_ns,
        },
        rest,
    ))
}

/// Parses one line; `None` when it is no message of ours.
pub(crate) fn parse_line(line: &[u8]) -> Option<Message> {
    let (producer, rest) = digits(line)?;
    let (sequence, rest) = digits(rest.strip_prefix(b" ")?)?;
    let (sent_ns, rest) = digits(rest.strip_prefix(b" ")?)?;
    rest.starts_with(b" ").then_some(Message {
        producer,
        sequence,
        sent_ns,
    })
}

/// A decimal number of at most 19 digits (which can't overflow), and what follows it.
fn digits(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut rest) = (0u64, bytes);
    // Most of them are long.
    while let Some((eight, after)) = rest.split_first_chunk::<8>()
        && let Some(eight) = eight_digits(*eight)
        && bytes.len() - after.len() <= DIGITS_MAX
    {
        value = value * 100_000_000 + eight;
        rest = after;
    }
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        if bytes.len() - after.len() > DIGITS_MAX {
            return None;
        }
        value = value * 10 + u64::from(digit - b'0');
        rest = after;
    }
    (rest.len() < bytes.len()).then_some((value, rest))
}

/// The value of eight digits, found side by side in one word: of each two neighbours, of each two pairs, of both halves.
fn eight_digits(bytes: [u8; 8]) -> Option<u64> {
    let word = u64::from_le_bytes(bytes);
    let high = 0xf0f0_f0f0_f0f0_f0f0;
    let zeros = 0x3030_3030_3030_3030;
    // Digits are 0x30 to 0x39: six more carries nothing into the upper half.
    let more = word.wrapping_add(0x0606_0606_0606_0606);
    if word & high != zeros || more & high != zeros {
        return None;
    }
    let ones = word & !high;
    let pairs = (ones * 10 + (ones >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// The most digits that can't overflow.
const DIGITS_MAX: usize = 19;

/// Finds messages in a stream of lines that may be cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The beginning of a line whose end has not arrived.
    carry: Vec<u8>,
}

impl Lines {
    /// Takes the next bytes of the stream; returns how many complete lines were no messages.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut on_message: impl FnMut(Message)) -> u64 {
        let mut strangers = 0;
        let mut line = |line: &[u8]| match parse_line(line) {
            Some(message) => on_message(message),
            None => strangers += 1,
        };
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            if self.carry.is_empty() {
                line(&bytes[..end]);
            } else {
                self.carry.extend_from_slice(&bytes[..end]);
                line(&self.carry);
                self.carry = Vec::new();
            }
            bytes = &bytes[end + 1..];
        }
        self.carry.extend_from_slice(bytes);
        if self.carry.len() > LINE_BYTES_MAX {
            self.clear();
            strangers += 1;
        }
        strangers
    }

    /// Forgets the beginning of a line.
    pub(crate) fn clear(&mut self) {
        self.carry = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages(json: &[u8]) -> (Vec<Message>, u64) {
        let mut found = Vec::new();
        let strangers = scan_json(json, |message| found.push(message));
        (found, strangers)
    }

    fn message(producer: u64, sequence: u64, sent_ns: u64) -> Message {
        Message {
            producer,
            sequence,
            sent_ns,
        }
    }

    #[test]
    fn a_message_has_the_size_that_was_asked_for() {
        let m = message(producer_number(7, 3), 41, 123_456_789);
        for (format, bytes) in [(Format::Json, 200), (Format::Line, 200)] {
            let mut out = Vec::new();
            format.write(&m, bytes, &mut out);
            assert_eq!(out.len(), bytes);
        }
        let mut least = Vec::new();
        Format::Line.write(&m, 0, &mut least);
        assert_eq!(least, b"458755 41 123456789 \n");
        assert_eq!(run_of(m.producer), 7);
    }

    #[test]
    fn reformatted_and_foreign_json_is_understood_or_counted() {
        let text = br#" [ { "n" : 2, "p":1, "t":3 , "more":[{}] },{"p":4,"n":5,"t":6,"pad":"a\"b"},
            {"x":1}, 17, "str]ing", {"p":7,"n":8,"t":9,"pad":"xx"} ] "#;
        assert_eq!(
            messages(text),
            (
                vec![message(1, 2, 3), message(4, 5, 6), message(7, 8, 9)],
                3
            )
        );
        assert_eq!(messages(b"[]"), (vec![], 0));
        assert_eq!(messages(b""), (vec![], 0));
        assert_eq!(messages(b"{\"p\":1,\"n\":"), (vec![], 1));
        assert_eq!(
            messages(br#"{"p":1,"n":2,"t":99999999999999999999,"pad":""}"#).1,
            1
        );
    }

    #[test]
    fn content_types_choose_the_format() {
        assert_eq!(Format::of("Application/JSON; charset=utf-8"), Format::Json);
        assert_eq!(Format::of("application/ndjson"), Format::Line);
        assert_eq!(Format::of("text/plain"), Format::Line);
    }

    prop_compose! {
        fn any_message()(run in any::<u32>(), index in 0..PRODUCERS_MAX, sequence in 0..u64::MAX / 4,
            sent_ns in 0..u64::MAX / 4) -> Message {
            message(producer_number(run, index), sequence, sent_ns)
        }
    }

    proptest! {
        #[test]
        fn what_is_written_in_json_is_found(
            all in prop::collection::vec((any_message(), 0usize..300), 0..20),
        ) {
            let mut body = b"[".to_vec();
            for (index, (message, size)) in all.iter().enumerate() {
                if index > 0 {
                    body.push(b',');
                }
                Format::Json.write(message, *size, &mut body);
            }
            body.push(b']');
            let parsed: Vec<Message> = serde_json::from_slice(&body).unwrap();
            let expected: Vec<Message> = all.into_iter().map(|(message, _)| message).collect();
            prop_assert_eq!(&parsed, &expected);
            prop_assert_eq!(messages(&body), (expected, 0));
        }

        #[test]
        fn json_in_pieces_is_the_same_as_in_one(
            all in prop::collection::vec((any_message(), any::<bool>()), 0..12),
            step in 1usize..50,
        ) {
            let values: Vec<_> = all.iter().map(|(message, ours)| {
                let mut out = Vec::new();
                match ours {
                    true => Format::Json.write(message, 80, &mut out),
                    false => out.extend_from_slice(br#"{"x":["\""]}"#),
                }
                String::from_utf8(out).unwrap()
            }).collect();
            let body = format!("[{}]", values.join(", "));
            let (mut pieces, mut found) = (JsonPieces::default(), Vec::new());
            for piece in body.as_bytes().chunks(step) {
                pieces.feed(piece, |message| found.push(message));
            }
            let strangers = pieces.finish(|message| found.push(message));
            prop_assert_eq!((found, strangers), messages(body.as_bytes()));
        }

        #[test]
        fn what_is_written_in_lines_is_found_however_it_is_cut(
            all in prop::collection::vec((any_message(), 0usize..120), 0..12),
            step in 1usize..50,
        ) {
            let mut body = Vec::new();
            for (message, size) in &all {
                Format::Line.write(message, *size, &mut body);
            }
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in body.chunks(step) {
                prop_assert_eq!(lines.feed(piece, |message| found.push(message)), 0);
            }
            let expected: Vec<Message> = all.into_iter().map(|(message, _)| message).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn the_fast_way_and_a_real_parser_agree_on_damaged_messages(
            message in any_message(),
            at in any::<prop::sample::Index>(),
            byte in prop::sample::select(&br#"0917"\{}[],:ptn x"#[..]),
        ) {
            let mut object = Vec::new();
            Format::Json.write(&message, 0, &mut object);
            let at = at.index(object.len());
            object[at] = byte;
            let slow = serde_json::from_slice::<Message>(&object);
            if let (Some((fast, [])), Ok(slow)) = (fast_object(&object), slow) {
                prop_assert_eq!(fast, slow);
            }
        }

        #[test]
        fn digits_are_the_number_that_they_say(text in "[0-9]{0,25}[ -~]{0,9}") {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (number, rest) = text.split_at(end);
            let expected = (1..=DIGITS_MAX).contains(&end);
            let expected = expected.then(|| (number.parse().unwrap(), rest.as_bytes()));
            prop_assert_eq!(digits(text.as_bytes()), expected);
        }

        #[test]
        fn no_bytes_make_the_parsers_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            messages(&bytes);
            parse_line(&bytes);
            Lines::default().feed(&bytes, |_| ());
        }
    }
}
