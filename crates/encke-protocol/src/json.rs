//! JSON as streams hold it: consecutive messages, separated by commas.

use encke_stream::Data;
use serde_json::value::RawValue;

/// A body that is not valid JSON.
#[derive(Debug, thiserror::Error)]
#[error("the body is not valid JSON: {0}")]
pub(crate) struct NotJson(#[from] serde_json::Error);

/// Checks a body and flattens one level of an array into messages (Durable Streams, section 9.1).
pub(crate) fn messages(body: Vec<u8>) -> Result<Data, NotJson> {
    let text = trim(&body);
    if text.first() != Some(&b'[') {
        serde_json::from_slice::<&RawValue>(text)?;
        return Ok(Data {
            bytes: text.to_vec(),
            units: 1,
        });
    }
    let messages: Vec<&RawValue> = serde_json::from_slice(text)?;
    // The text between the array's brackets is the messages, separated by commas.
    Ok(Data {
        units: u32::try_from(messages.len()).unwrap_or(u32::MAX),
        bytes: trim(&text[1..text.len() - 1]).to_vec(),
    })
}

/// Trims what is white space in JSON (RFC 8259, section 2), and nothing else.
fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t' | b'\n' | b'\r'] = text {
        text = rest;
    }
    text
}

/// The messages `skip..take` of stored data.
pub(crate) fn part(data: &[u8], skip: u32, take: u32) -> Vec<u8> {
    let array = [b"[", data, b"]"].concat();
    // Stored data was checked when it was appended.
    let messages: Vec<&RawValue> = serde_json::from_slice(&array).unwrap_or_default();
    let mut part = Vec::with_capacity(data.len());
    let wanted = messages
        .iter()
        .take(take as usize)
        .skip(skip as usize)
        .enumerate();
    for (index, message) in wanted {
        if index > 0 {
            part.push(b',');
        }
        part.extend_from_slice(message.get().as_bytes());
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(body: &str) -> Option<(String, u32)> {
        let data = messages(body.as_bytes().to_vec()).ok()?;
        Some((String::from_utf8(data.bytes).unwrap(), data.units))
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
    fn depth_costs_no_stack() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let _ = data(&deep);
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
    }
}
