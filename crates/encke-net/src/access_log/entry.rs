//! What the access log says about one request.

use std::net::IpAddr;

use encke_trace::TraceId;

use super::secrets::without_secrets;

/// A request that is over.
#[derive(Clone, Debug)]
pub(crate) struct AccessEntry {
    /// When it ended, in microseconds since 1970.
    pub(crate) ended_us: u64,
    /// From its complete head to the last byte of the response that the kernel took.
    pub(crate) duration_us: u64,
    /// The client as the rules for proxies name it.
    pub(crate) client: Option<IpAddr>,
    pub(crate) status: u16,
    /// Bytes of the body that the kernel took, with the frames of chunks.
    pub(crate) body_bytes: u64,
    /// The minor version of HTTP/1, or 2 for HTTP/2; `None` where the request line has none.
    pub(crate) version: Option<u8>,
    pub(crate) trace: Option<TraceId>,
    /// [`COMPLETE`], or why the connection was closed before the response was complete.
    pub(crate) end: &'static str,
    pub(crate) text: RequestText,
}

/// The response was complete.
pub(crate) const COMPLETE: &str = "complete";

/// The status of a request whose connection ended before a response, as nginx logs it.
pub(crate) const NO_RESPONSE: u16 = 499;

/// The texts of a request that a line contains, each cut to its bound, in one allocation: an open subscription keeps them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestText {
    bytes: Box<[u8]>,
    /// The end of each text in `bytes`.
    ends: [u16; TEXTS],
}

/// Method, target, user agent, referer, the id of the request, and the caller.
const TEXTS: usize = 6;

impl RequestText {
    /// The texts of a request; one that is empty is not there.
    pub(crate) fn new(
        method: &[u8],
        (path, query): (&[u8], Option<&[u8]>),
        user_agent: &[u8],
        referer: &[u8],
        request_id: &[u8],
    ) -> RequestText {
        let mark: &[u8] = if query.is_some() { b"?" } else { b"" };
        let path = without_secrets(path);
        let query = without_secrets(query.unwrap_or_default());
        let referer = without_secrets(referer);
        let texts: [(&[&[u8]], usize); TEXTS] = [
            (&[method], METHOD_BYTES_MAX),
            (&[&path, mark, &query], TARGET_BYTES_MAX),
            (&[user_agent], FIELD_BYTES_MAX),
            (&[&referer], FIELD_BYTES_MAX),
            (&[request_id], FIELD_BYTES_MAX),
            // It is known when the credentials are checked.
            (&[], CALLER_BYTES_MAX),
        ];
        let mut bytes = Vec::new();
        let mut ends = [0; TEXTS];
        for ((parts, bytes_max), end) in texts.into_iter().zip(&mut ends) {
            let start = bytes.len();
            for part in parts {
                // One byte more than allowed shows that it is too long.
                let room = bytes_max + 1 - (bytes.len() - start);
                bytes.extend_from_slice(&part[..part.len().min(room)]);
            }
            if bytes.len() - start > bytes_max {
                bytes.truncate(start + bytes_max - CUT.len());
                bytes.extend_from_slice(CUT);
            }
            // The sum of all bounds is less than 65,536.
            *end = bytes.len() as u16;
        }
        RequestText {
            bytes: bytes.into_boxed_slice(),
            ends,
        }
    }

    pub(crate) fn method(&self) -> Option<&[u8]> {
        self.text(0)
    }

    /// The path, with the query.
    pub(crate) fn target(&self) -> Option<&[u8]> {
        self.text(1)
    }

    pub(crate) fn user_agent(&self) -> Option<&[u8]> {
        self.text(2)
    }

    pub(crate) fn referer(&self) -> Option<&[u8]> {
        self.text(3)
    }

    /// The id that the client sent.
    pub(crate) fn request_id(&self) -> Option<&[u8]> {
        self.text(REQUEST_ID)
    }

    /// The name of the caller.
    pub(crate) fn caller(&self) -> Option<&[u8]> {
        self.text(CALLER)
    }

    /// Gives an id to a request that has none.
    pub(crate) fn set_request_id(&mut self, id: &str) {
        self.replace(REQUEST_ID, id.as_bytes());
    }

    /// Sets the name of the caller, cut to its bound.
    pub(crate) fn set_caller(&mut self, name: &str) {
        match name.len() {
            ..=CALLER_BYTES_MAX => self.replace(CALLER, name.as_bytes()),
            _ => {
                let start = &name.as_bytes()[..CALLER_BYTES_MAX - CUT.len()];
                self.replace(CALLER, &[start, CUT].concat());
            }
        }
    }

    /// Replaces one of the texts. The bytes are within its bound.
    fn replace(&mut self, number: usize, text: &[u8]) {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        let (start, end) = (usize::from(start), usize::from(self.ends[number]));
        let behind = &self.bytes[end..];
        self.bytes = [&self.bytes[..start], text, behind].concat().into();
        for at in &mut self.ends[number..] {
            // The sum of all bounds is less than 65,536.
            *at = (usize::from(*at) + text.len() + start - end) as u16;
        }
    }

    /// What it takes in memory beside itself.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn text(&self, number: usize) -> Option<&[u8]> {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        let text = &self.bytes[usize::from(start)..usize::from(self.ends[number])];
        (!text.is_empty()).then_some(text)
    }
}

/// Bytes of a method in a line; registered methods have at most 17.
const METHOD_BYTES_MAX: usize = 32;

/// Bytes of a path with its query in a line, before they are escaped.
const TARGET_BYTES_MAX: usize = 2048;

/// Bytes of any other field in a line, before they are escaped.
const FIELD_BYTES_MAX: usize = 512;

/// Bytes of the name of a caller in a line, before they are escaped.
const CALLER_BYTES_MAX: usize = 256;

/// The places of texts that are set later than the others.
const REQUEST_ID: usize = 4;
const CALLER: usize = 5;

/// Stands for the rest of a text that is longer than its bound.
const CUT: &[u8] = b"...";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_of_each_text_with_a_url() {
        let query = b"a=b&%73ignature=c2ln&access_token=x";
        let kept = "a=b&%73ignature=-&access_token=-";
        let text = RequestText::new(b"", (b"/;token=x", Some(query)), b"", query, b"");
        assert_eq!(text.target(), Some(format!("/;token=-?{kept}").as_bytes()));
        assert_eq!(text.referer(), Some(kept.as_bytes()));
    }

    #[test]
    fn texts_are_kept_apart_and_cut() {
        let text = RequestText::new(b"GET", (b"/a", Some(b"b=c")), b"", b"r", b"id");
        assert_eq!(text.method(), Some(&b"GET"[..]));
        assert_eq!(text.target(), Some(&b"/a?b=c"[..]));
        assert_eq!(text.user_agent(), None);
        assert_eq!(text.referer(), Some(&b"r"[..]));
        assert_eq!(text.request_id(), Some(&b"id"[..]));
        let mut text = RequestText::new(b"GET", (b"/a", None), b"u", b"r", b"");
        assert_eq!(text.request_id(), None);
        text.set_request_id("made");
        assert_eq!(text.request_id(), Some(&b"made"[..]));
        assert_eq!(text.referer(), Some(&b"r"[..]));
        // The last caller counts, whenever it is known.
        for name in ["ann", "", "somebody else"] {
            text.set_caller(name);
            assert_eq!(text.caller(), (!name.is_empty()).then_some(name.as_bytes()));
            assert_eq!(text.request_id(), Some(&b"made"[..]));
        }
        text.set_request_id("another");
        assert_eq!(text.request_id(), Some(&b"another"[..]));
        assert_eq!(text.caller(), Some(&b"somebody else"[..]));
        text.set_caller(&"x".repeat(CALLER_BYTES_MAX + 1));
        let caller = text.caller().unwrap();
        assert!(caller.len() == CALLER_BYTES_MAX && caller.ends_with(CUT));
        assert_eq!(text.user_agent(), Some(&b"u"[..]));
        for length in TARGET_BYTES_MAX - 3..TARGET_BYTES_MAX + 3 {
            let path = vec![b'x'; length];
            let text = RequestText::new(b"", (&path, Some(b"")), b"", b"", b"");
            let target = text.target().unwrap();
            assert_eq!(target.len(), (length + 1).min(TARGET_BYTES_MAX));
            assert_eq!(target.ends_with(CUT), length + 1 > TARGET_BYTES_MAX);
        }
    }
}
