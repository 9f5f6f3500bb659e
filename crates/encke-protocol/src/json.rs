//! JSON as streams hold it: consecutive messages, separated by commas.
//!
//! A body is checked on the thread of a shard, in one pass without a tree and without recursion: [`Scanner`] decides what is JSON
//! (RFC 8259). It is judged by `serde_json` in the tests.

use encke_stream::Data;

/// A body that is not valid JSON, or too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotJson {
    #[error("the body is not valid JSON: it is not UTF-8 at byte {0}")]
    NotText(usize),
    #[error("the body is not valid JSON: unexpected character at byte {0}")]
    Unexpected(usize),
    #[error("the body is not valid JSON: it ends within a value")]
    Incomplete,
    #[error("a message has more than {DEPTH_MAX} arrays and objects inside each other")]
    TooDeep,
}

/// Checks a body and flattens one level of an array into messages (Durable Streams, section 9.1).
pub(crate) fn messages(body: Vec<u8>) -> Result<Data, NotJson> {
    if let Err(why) = std::str::from_utf8(&body) {
        return Err(NotJson::NotText(why.valid_up_to()));
    }
    let text = trim(&body);
    let start = body.iter().take_while(|byte| SPACE.contains(byte)).count();
    let (inside, units) = match text {
        [b'[', inside @ ..] => {
            let whole = inside.strip_suffix(b"]");
            let mut units = 0;
            let read = Scanner::new(whole.unwrap_or(inside)).messages(|_| units += 1);
            read.map_err(|why| why.behind(start + 1))?;
            (whole.ok_or(NotJson::Incomplete)?, units)
        }
        text => {
            let mut scanner = Scanner::new(text);
            let read = scanner.value().and_then(|()| scanner.end());
            read.map_err(|why| why.behind(start))?;
            (text, 1)
        }
    };
    Ok(Data {
        units,
        bytes: trim(inside).to_vec(),
    })
}

/// Trims what is white space in JSON (RFC 8259, section 2), and nothing else.
fn trim(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text
        && SPACE.contains(first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && SPACE.contains(last)
    {
        text = rest;
    }
    text
}

/// The messages `skip..take` of stored data.
pub(crate) fn part(data: &[u8], skip: u32, take: u32) -> Vec<u8> {
    let mut number = 0;
    let mut wanted = None;
    let mut note = |message: std::ops::Range<usize>| {
        if (skip..take).contains(&number) {
            let start = wanted.map_or(message.start, |(start, _)| start);
            wanted = Some((start, message.end));
        }
        number += 1;
    };
    // Stored data was checked when it was appended, by earlier versions without a bound on its depth.
    if Scanner::unbounded(data).messages(&mut note).is_err() {
        return Vec::new();
    }
    wanted.map_or_else(Vec::new, |(start, end)| data[start..end].to_vec())
}

/// Hands over the messages `skip..take` of stored data, each with the number of messages up to its end.
pub(crate) fn each(data: &[u8], skip: u32, take: u32, mut message: impl FnMut(u32, &[u8])) {
    let mut number = 0;
    let note = |range: std::ops::Range<usize>| {
        number += 1;
        if (skip + 1..=take).contains(&number) {
            message(number, &data[range]);
        }
    };
    // Stored data was checked when it was appended, see `part`.
    let _ = Scanner::unbounded(data).messages(note);
}

/// Reads values of JSON off a text that is UTF-8.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    /// The containers around the value that is read, the outermost first; true for an object.
    around: Vec<bool>,
    depth_max: usize,
}

impl NotJson {
    /// The same in a text that begins so many bytes later.
    fn behind(self, bytes: usize) -> Self {
        match self {
            NotJson::NotText(at) => NotJson::NotText(at + bytes),
            NotJson::Unexpected(at) => NotJson::Unexpected(at + bytes),
            other => other,
        }
    }
}

impl<'a> Scanner<'a> {
    fn new(text: &'a [u8]) -> Self {
        Scanner {
            text,
            at: 0,
            around: Vec::new(),
            depth_max: DEPTH_MAX,
        }
    }

    fn unbounded(text: &'a [u8]) -> Self {
        Scanner {
            depth_max: usize::MAX,
            ..Scanner::new(text)
        }
    }

    /// Reads values that are separated by commas to the end of the text; there may be none. Each is handed over by its place.
    fn messages(&mut self, mut message: impl FnMut(std::ops::Range<usize>)) -> Result<(), NotJson> {
        self.space();
        if self.at == self.text.len() {
            return Ok(());
        }
        loop {
            self.space();
            let start = self.at;
            self.value()?;
            message(start..self.at);
            self.space();
            match self.text.get(self.at) {
                None => return Ok(()),
                Some(b',') => self.at += 1,
                Some(_) => return Err(NotJson::Unexpected(self.at)),
            }
        }
    }

    /// Nothing but white space follows.
    fn end(&mut self) -> Result<(), NotJson> {
        self.space();
        match self.at == self.text.len() {
            true => Ok(()),
            false => Err(NotJson::Unexpected(self.at)),
        }
    }

    /// Reads one value, whatever it contains.
    fn value(&mut self) -> Result<(), NotJson> {
        loop {
            self.space();
            match self.peek()? {
                open @ (b'{' | b'[') => {
                    self.at += 1;
                    self.open(open == b'{')?;
                    self.space();
                    let close = if open == b'{' { b'}' } else { b']' };
                    if self.peek()? == close {
                        self.at += 1;
                        self.around.pop();
                    } else {
                        if open == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b'"' => self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                _ => return Err(NotJson::Unexpected(self.at)),
            }
            if self.leave()? {
                return Ok(());
            }
        }
    }

    /// Behind a value: goes to the next one, and out of containers that end. True: the outermost value is complete.
    fn leave(&mut self) -> Result<bool, NotJson> {
        while let Some(object) = self.around.last().copied() {
            self.space();
            match (self.peek()?, object) {
                (b',', true) => {
                    self.at += 1;
                    self.space();
                    self.key()?;
                    return Ok(false);
                }
                (b',', false) => {
                    self.at += 1;
                    return Ok(false);
                }
                (b'}', true) | (b']', false) => {
                    self.at += 1;
                    self.around.pop();
                }
                _ => return Err(NotJson::Unexpected(self.at)),
            }
        }
        Ok(true)
    }

    fn open(&mut self, object: bool) -> Result<(), NotJson> {
        if self.around.len() >= self.depth_max {
            return Err(NotJson::TooDeep);
        }
        self.around.push(object);
        Ok(())
    }

    /// A name in an object, with its colon.
    fn key(&mut self) -> Result<(), NotJson> {
        if self.peek()? != b'"' {
            return Err(NotJson::Unexpected(self.at));
        }
        self.string()?;
        self.space();
        if self.peek()? != b':' {
            return Err(NotJson::Unexpected(self.at));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), NotJson> {
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = memchr::memchr2(b'"', b'\\', rest);
            let plain = &rest[..plain.ok_or(NotJson::Incomplete)?];
            // Without a branch for each byte: most strings have none.
            if plain.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < b' ' {
                let control = plain.iter().position(|byte| *byte < b' ');
                return Err(NotJson::Unexpected(self.at + control.unwrap_or_default()));
            }
            self.at += plain.len();
            if self.text[self.at] == b'"' {
                self.at += 1;
                return Ok(());
            }
            self.escape()?;
        }
    }

    fn escape(&mut self) -> Result<(), NotJson> {
        self.at += 1;
        match self.peek()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            b'u' => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek()?.is_ascii_hexdigit() {
                        return Err(NotJson::Unexpected(self.at));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(NotJson::Unexpected(self.at)),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), NotJson> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), NotJson> {
        if !self.peek()?.is_ascii_digit() {
            return Err(NotJson::Unexpected(self.at));
        }
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        Ok(())
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), NotJson> {
        for letter in word {
            if self.peek()? != *letter {
                return Err(NotJson::Unexpected(self.at));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn space(&mut self) {
        while self
            .text
            .get(self.at)
            .is_some_and(|byte| SPACE.contains(byte))
        {
            self.at += 1;
        }
    }

    fn peek(&self) -> Result<u8, NotJson> {
        self.text.get(self.at).copied().ok_or(NotJson::Incomplete)
    }
}

/// Arrays and objects inside each other in a message. With the array around the messages of a read that is what common parsers take.
const DEPTH_MAX: usize = 127;

/// Whether a byte is white space in JSON (RFC 8259, section 2).
pub(crate) fn is_space(byte: u8) -> bool {
    SPACE.contains(&byte)
}

const SPACE: [u8; 4] = [b' ', b'\t', b'\n', b'\r'];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    fn data(body: &str) -> Option<(String, u32)> {
        let data = messages(body.as_bytes().to_vec()).ok()?;
        Some((String::from_utf8(data.bytes).unwrap(), data.units))
    }

    /// What the judge makes of a body: the messages.
    fn judged(body: &[u8]) -> Option<Vec<String>> {
        let text = |value: &&RawValue| value.get().to_owned();
        match trim(body).first() {
            Some(b'[') => serde_json::from_slice::<Vec<&RawValue>>(body)
                .ok()
                .map(|values| values.iter().map(text).collect()),
            _ => serde_json::from_slice::<&RawValue>(body)
                .ok()
                .map(|value| vec![text(&value)]),
        }
    }

    #[test]
    fn flattens_one_level() {
        assert_eq!(data(r#" {"a":1} "#), Some((r#"{"a":1}"#.into(), 1)));
        assert_eq!(data("[1, 2]"), Some(("1, 2".into(), 2)));
        assert_eq!(data("[[1,2],[3]]"), Some(("[1,2],[3]".into(), 2)));
        assert_eq!(data("[[[1]]]"), Some(("[[1]]".into(), 1)));
        assert_eq!(data("[ ]"), Some((String::new(), 0)));
        for bad in ["", "{", "[1,]", "1 2", "[1][2]", "nul", "\u{feff}1"] {
            assert_eq!(data(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_refusal_names_the_place() {
        for (body, why) in [
            (&b"  {\"a\" 1}"[..], NotJson::Unexpected(7)),
            (b" [1,x]", NotJson::Unexpected(4)),
            (b"[1][2]", NotJson::Unexpected(2)),
            (b"1 2", NotJson::Unexpected(2)),
            (b"[1,", NotJson::Incomplete),
            (b"[1", NotJson::Incomplete),
            (b"{\"a\":\"b", NotJson::Incomplete),
            (b"\"\n\"", NotJson::Unexpected(1)),
            (b"\"\xff\"", NotJson::NotText(1)),
            (b"", NotJson::Incomplete),
        ] {
            let refused = messages(body.to_vec()).expect_err("it is no JSON");
            assert_eq!(refused, why, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn the_depth_of_a_message_is_bounded_and_costs_no_stack() {
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        // The outermost array is that of the messages.
        assert!(data(&deep(DEPTH_MAX + 1)).is_some());
        for depth in [DEPTH_MAX + 2, 1_000_000] {
            let refused = messages(deep(depth).into_bytes());
            assert_eq!(refused, Err(NotJson::TooDeep));
        }
        let objects = r#"{"a":"#.repeat(200) + "1" + &"}".repeat(200);
        assert_eq!(messages(objects.into_bytes()), Err(NotJson::TooDeep));
        // What an earlier version has stored is still read.
        let stored = format!("{},2", deep(10_000));
        assert_eq!(part(stored.as_bytes(), 1, 2), b"2");
    }

    #[test]
    fn parts_are_counted_in_messages() {
        let stored = br#"{"a":[1,2]}, "x,y",3"#;
        assert_eq!(part(stored, 1, 3), br#""x,y",3"#);
        assert_eq!(part(stored, 0, 1), br#"{"a":[1,2]}"#);
        assert_eq!(part(stored, 3, 9), b"");
    }

    proptest! {
        #[test]
        fn what_is_stored_reads_back_as_an_array(body in "\\PC{0,40}") {
            if let Ok(stored) = messages(body.into_bytes()) {
                let array = [b"[", &stored.bytes[..], b"]"].concat();
                let values: Vec<serde_json::Value> = serde_json::from_slice(&array).unwrap();
                prop_assert_eq!(values.len(), stored.units as usize);
            }
        }

        #[test]
        fn it_takes_what_the_judge_takes(
            body in "[\\[\\]{}\",:\\\\ \n\t0-9.eE+\\-truefalsn/bu\u{0}ä\u{1f600}]{0,24}",
            raw in proptest::collection::vec(any::<u8>(), 0..12),
        ) {
            for body in [body.into_bytes(), raw] {
                let stored = messages(body.clone()).ok();
                let expected = judged(&body);
                prop_assert_eq!(stored.as_ref().map(|data| data.units as usize), expected.as_ref().map(Vec::len));
                if let (Some(stored), Some(expected)) = (stored, expected) {
                    for (number, message) in expected.iter().enumerate() {
                        let own = part(&stored.bytes, number as u32, number as u32 + 1);
                        prop_assert_eq!(String::from_utf8(own).unwrap(), message.as_str());
                    }
                }
            }
        }

        #[test]
        fn values_come_through(value in value()) {
            let body = serde_json::to_vec_pretty(&value).unwrap();
            let stored = messages(body.clone()).unwrap();
            let array = [b"[", &stored.bytes[..], b"]"].concat();
            let read: serde_json::Value = serde_json::from_slice(&array).unwrap();
            let expected = match value.is_array() {
                true => value,
                false => serde_json::Value::Array(vec![value]),
            };
            prop_assert_eq!(read, expected);
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<u32>().prop_map(|bits| (f64::from(bits) / 8.0).into()),
            ".{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                proptest::collection::hash_map(".{0,4}", inner, 0..6)
                    .prop_map(|map| map.into_iter().collect::<serde_json::Map<_, _>>().into()),
            ]
        })
    }
}
