//! Control events of an event stream: where the client is, and whether the stream is closed.

use memchr::memmem::Finder;
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::LazyLock;

/// The data of a control event, as far as clients here use it.
#[derive(Debug, Deserialize)]
pub(crate) struct Control<'a> {
    /// Where a client continues that has everything before this event.
    #[serde(rename = "streamNextOffset", borrow)]
    pub(crate) offset: Cow<'a, str>,
    /// Nothing will follow.
    #[serde(rename = "streamClosed", default)]
    pub(crate) closed: bool,
}

impl<'a> Control<'a> {
    /// Parses the data of a control event; `None` if it is none.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        // Every event is followed by one of these, so the usual form is not worth a JSON parser.
        if let Some(rest) = line.strip_prefix(br#"{"streamNextOffset":""#)
            && let Some(end) = memchr::memchr2(b'"', b'\\', rest)
            && rest[end] == b'"'
            && CLOSED.find(&rest[end..]).is_none()
        {
            return Some(Self {
                offset: Cow::Borrowed(std::str::from_utf8(&rest[..end]).ok()?),
                closed: false,
            });
        }
        serde_json::from_slice(line).ok()
    }
}

/// Finds the word that only a stream's last control event has.
static CLOSED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"streamClosed"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_events_in_any_json() {
        type Case = (&'static [u8], Option<(&'static str, bool)>);
        let cases: [Case; 5] = [
            (
                br#"{"streamNextOffset":"1_2","streamCursor":"5","upToDate":true}"#,
                Some(("1_2", false)),
            ),
            (
                br#"{"streamNextOffset":"1","streamClosed":true}"#,
                Some(("1", true)),
            ),
            (
                br#"{ "streamClosed" : false, "streamNextOffset": "1" }"#,
                Some(("1", false)),
            ),
            (br#"{"streamNextOffset":"a\u0062"}"#, Some(("ab", false))),
            (br#"{"upToDate":true}"#, None),
        ];
        for (line, expected) in cases {
            let found = Control::parse(line);
            let found = found.as_ref().map(|one| (one.offset.as_ref(), one.closed));
            assert_eq!(found, expected);
        }
    }
}
