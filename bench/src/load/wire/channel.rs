//! The messages of a channel (docs/websocket.md) that has one subscription to one stream of JSON.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// What a message of the server says to a subscriber.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChannelMessage<'a> {
    /// Where the subscriber stands behind this message.
    At {
        /// The offset.
        offset: Cow<'a, str>,
        /// The records, as an array of JSON, if there are some.
        data: Option<&'a [u8]>,
        /// Nothing follows.
        ended: bool,
    },
    /// Nothing follows.
    Ended,
    /// The subscription is over, and may begin again at the last offset.
    Disconnected,
    /// An error, with the status of the same request over HTTP.
    Error(u16),
}

impl<'a> ChannelMessage<'a> {
    /// Reads a message; `None` for one that no subscriber expects.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Self> {
        if let Some(records) = usual_records(text) {
            return Some(records);
        }
        let message: AnyMessage<'a> = serde_json::from_slice(text).ok()?;
        match message.kind {
            "subscribed" | "records" | "position" => Some(Self::At {
                offset: message.offset?,
                data: message.data.map(|data| data.get().as_bytes()),
                ended: message.ended.is_some(),
            }),
            "ended" => Some(Self::Ended),
            "disconnected" => Some(Self::Disconnected),
            "error" => Some(Self::Error(message.status?)),
            _ => None,
        }
    }
}

/// Records in the form that nearly all have, without a parser of JSON: members in the server's order, and nothing escaped.
fn usual_records(text: &[u8]) -> Option<ChannelMessage<'_>> {
    let rest = text.strip_prefix(br#"{"type":"records","stream":""#)?;
    let (_, rest) = plain_string(rest)?;
    let rest = rest.strip_prefix(br#","offset":""#)?;
    let (offset, rest) = plain_string(rest)?;
    let rest = rest.strip_prefix(br#","data":"#)?.strip_suffix(b"}")?;
    let data = rest.strip_suffix(br#","upToDate":true"#).unwrap_or(rest);
    // No member but the array ends so, and what is behind the array would be.
    data.ends_with(b"]").then_some(ChannelMessage::At {
        offset: Cow::Borrowed(std::str::from_utf8(offset).ok()?),
        data: Some(data),
        ended: false,
    })
}

/// A string up to its quote, and what follows it; `None` if something in it is escaped.
fn plain_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr2(b'"', b'\\', bytes)?;
    (bytes[end] == b'"').then(|| (&bytes[..end], &bytes[end + 1..]))
}

/// The used members of a message.
#[derive(Deserialize)]
struct AnyMessage<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    offset: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    ended: Option<&'a RawValue>,
    status: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(offset: &'a str, data: Option<&'a str>, ended: bool) -> Option<ChannelMessage<'a>> {
        Some(ChannelMessage::At {
            offset: offset.into(),
            data: data.map(str::as_bytes),
            ended,
        })
    }

    #[test]
    fn messages_of_the_documentation() {
        for (text, expected) in [
            (
                r#"{"type":"subscribed","id":1,"stream":"a","offset":"0_1"}"#,
                at("0_1", None, false),
            ),
            (
                r#"{"type":"subscribed","stream":"a","offset":"0_1","ended":[{"stream":"a","reason":"closed"}]}"#,
                at("0_1", None, true),
            ),
            (
                r#"{"type":"position","stream":"a","offset":"0_2","upToDate":true}"#,
                at("0_2", None, false),
            ),
            (
                r#"{"type":"records","stream":"a","offset":"0_3","data":[{"x":[1]}]}"#,
                at("0_3", Some(r#"[{"x":[1]}]"#), false),
            ),
            (
                r#"{"type":"records","stream":"a","offset":"0_3","data":[1,"]"],"upToDate":true}"#,
                at("0_3", Some(r#"[1,"]"]"#), false),
            ),
            (
                r#"{"type":"records","stream":"a","offset":"0_3","data":[1],"upToDate":true,"ended":"closed"}"#,
                at("0_3", Some("[1]"), true),
            ),
            (
                r#"{"type":"records","stream":"a\"","offset":"0_3","data":[1],"new":[2]}"#,
                at("0_3", Some("[1]"), false),
            ),
            (
                r#"{"type":"ended","stream":"a","reason":"deleted"}"#,
                Some(ChannelMessage::Ended),
            ),
            (
                r#"{"type":"disconnected","stream":"a","reason":"x","offset":"0_1","resumable":true}"#,
                Some(ChannelMessage::Disconnected),
            ),
            (
                r#"{"type":"error","stream":"a","status":404,"code":"not_found","message":"x"}"#,
                Some(ChannelMessage::Error(404)),
            ),
            (r#"{"type":"appended","stream":"a","offset":"0_1"}"#, None),
            (r#"{"type":"records","stream":"a""#, None),
        ] {
            assert_eq!(ChannelMessage::parse(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn usual_records_take_the_short_way() {
        for (text, usual) in [
            (
                r#"{"type":"records","stream":"a","offset":"1","data":[1]}"#,
                true,
            ),
            (
                r#"{"type":"records","stream":"a","offset":"1","data":[1],"upToDate":true}"#,
                true,
            ),
            (
                r#"{"type":"records","stream":"a","offset":"1","data":[1],"ended":"closed"}"#,
                false,
            ),
            (
                r#"{"type":"records","stream":"\"","offset":"1","data":[1]}"#,
                false,
            ),
        ] {
            assert_eq!(usual_records(text.as_bytes()).is_some(), usual, "{text}");
        }
    }
}
