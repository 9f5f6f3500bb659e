//! The messages of a page of a JSON stream, one after the other.

use std::cell::Cell;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::rc::Rc;

use serde::Deserializer;
use serde::de::{SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Why the messages of a page could not all be handed over.
#[derive(Debug)]
pub(crate) enum MessagesError<E> {
    /// The page ends, or reading it fails, before its array does.
    CutOff(String),
    /// The page is no array of JSON.
    NotJson(String),
    /// A message exceeds the bound.
    TooLarge,
    /// The taker of the messages says so.
    Taker(E),
}

/// Hands each message of a page to `take`, as the page has it. At most one message of `bytes_max` bytes is in memory. An empty page
/// has none.
pub(crate) fn each_message<E>(
    page: impl Read,
    bytes_max: u64,
    take: &mut dyn FnMut(&str) -> Result<(), E>,
) -> Result<(), MessagesError<E>> {
    let left = Rc::new(Cell::new(0));
    let bounded = Bounded {
        page,
        left: Rc::clone(&left),
        exceeded: false,
    };
    let mut page = BufReader::with_capacity(BUFFER_BYTES, bounded);
    left.set(bytes_max + BUFFER_BYTES as u64);
    if !has_something(&mut page)? {
        return Ok(());
    }
    let mut failed = None;
    let mut json = serde_json::Deserializer::from_reader(&mut page);
    let result = json.deserialize_seq(EachMessage {
        left,
        bytes_max,
        take,
        failed: &mut failed,
    });
    let result = result.and_then(|()| json.end());
    if let Some(error) = failed {
        return Err(MessagesError::Taker(error));
    }
    let exceeded = page.get_ref().exceeded;
    result.map_err(|error| match error.classify() {
        _ if exceeded => MessagesError::TooLarge,
        serde_json::error::Category::Io | serde_json::error::Category::Eof => {
            MessagesError::CutOff(error.to_string())
        }
        _ => MessagesError::NotJson(error.to_string()),
    })
}

/// Whether anything but white space is there.
fn has_something<E>(page: &mut impl BufRead) -> Result<bool, MessagesError<E>> {
    loop {
        let buffer = page.fill_buf();
        let buffer = buffer.map_err(|error| MessagesError::CutOff(error.to_string()))?;
        if buffer.is_empty() {
            return Ok(false);
        }
        if let Some(begin) = buffer.iter().position(|byte| !byte.is_ascii_whitespace()) {
            page.consume(begin);
            return Ok(true);
        }
        let all = buffer.len();
        page.consume(all);
    }
}

struct EachMessage<'a, E> {
    left: Rc<Cell<u64>>,
    bytes_max: u64,
    take: &'a mut dyn FnMut(&str) -> Result<(), E>,
    failed: &'a mut Option<E>,
}

impl<'de, E> Visitor<'de> for EachMessage<'_, E> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<(), A::Error> {
        while let Some(message) = messages.next_element::<Box<RawValue>>()? {
            if let Err(error) = (self.take)(message.get()) {
                *self.failed = Some(error);
                return Err(serde::de::Error::custom("the taker of the messages failed"));
            }
            // What is read ahead counts for the next one.
            self.left.set(self.bytes_max + BUFFER_BYTES as u64);
        }
        Ok(())
    }
}

/// A page of which no message takes more than what is left of a number of bytes.
struct Bounded<R> {
    page: R,
    left: Rc<Cell<u64>>,
    exceeded: bool,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left.get() == 0 {
            self.exceeded = true;
            return Err(std::io::Error::other("the message is too large"));
        }
        let read = self.page.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(read as u64));
        Ok(read)
    }
}

/// The largest message that is copied. Destinations take less: 16 MiB by default.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// What is read from a page at a time.
const BUFFER_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages(page: &[u8]) -> Result<Vec<String>, MessagesError<()>> {
        let mut all = Vec::new();
        each_message(page, 1 << 20, &mut |message| {
            all.push(message.to_owned());
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn each_message_comes_as_the_page_has_it() {
        let page = b" [ {\"a\" :\n1.50} , [2,\r\n3],\"\\u00e9,]\", 1e400 ,null ]\n";
        let expected = [
            "{\"a\" :\n1.50}",
            "[2,\r\n3]",
            "\"\\u00e9,]\"",
            "1e400",
            "null",
        ];
        assert_eq!(messages(page).unwrap(), expected);
        assert!(messages(b"").unwrap().is_empty());
        assert!(messages(b" \n").unwrap().is_empty());
        assert!(messages(b"[]").unwrap().is_empty());
    }

    #[test]
    fn deep_messages_are_no_matter_of_the_stack() {
        let depth = 100_000;
        let page = format!("[{}{}]", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(messages(page.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_array_is_told_from_what_is_cut() {
        for wrong in ["{}", "[1 2]", "[1]2", "<html>", "[1,]"] {
            let error = messages(wrong.as_bytes()).unwrap_err();
            assert!(
                matches!(error, MessagesError::NotJson(_)),
                "{wrong}: {error:?}"
            );
        }
        for cut in ["[", "[1", "[1,", "[{\"a\":", "[\"ab"] {
            let error = messages(cut.as_bytes()).unwrap_err();
            assert!(
                matches!(error, MessagesError::CutOff(_)),
                "{cut}: {error:?}"
            );
        }
    }

    #[test]
    fn a_message_is_bounded_and_a_page_is_not() {
        let count = |page: &str| {
            let mut count = 0;
            let result: Result<(), MessagesError<()>> =
                each_message(page.as_bytes(), 1_000, &mut |_| {
                    count += 1;
                    Ok(())
                });
            (result, count)
        };
        let message = format!("\"{}\"", "x".repeat(900));
        let many = format!("[{}]", vec![message; 1_000].join(","));
        assert!(matches!(count(&many), (Ok(()), 1_000)));
        let large = format!("[1,\"{}\"]", "x".repeat(200_000));
        assert!(matches!(count(&large), (Err(MessagesError::TooLarge), 1)));
    }

    #[test]
    fn the_taker_ends_it() {
        let mut count = 0;
        let error = each_message(&b"[1,2,3"[..], 1_000, &mut |_| {
            count += 1;
            if count == 2 { Err("enough") } else { Ok(()) }
        });
        assert!(matches!(error, Err(MessagesError::Taker("enough"))));
        assert_eq!(count, 2);
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(Into::into),
            "\\PC{0,20}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::btree_map("\\PC{0,5}", inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_page_of_any_messages_is_taken_apart(values in prop::collection::vec(json(), 0..20)) {
            let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
            let page = serde_json::Value::Array(values).to_string();
            prop_assert_eq!(messages(page.as_bytes()).unwrap(), texts);
        }

        #[test]
        fn a_page_that_is_cut_anywhere_is_never_taken_for_whole(values in prop::collection::vec(json(), 1..10), cut in any::<prop::sample::Index>()) {
            let page = serde_json::Value::Array(values).to_string();
            let cut = 1 + cut.index(page.len() - 1);
            let is_cut = matches!(messages(&page.as_bytes()[..cut]), Err(MessagesError::CutOff(_) | MessagesError::NotJson(_)));
            prop_assert!(is_cut);
        }
    }
}
