//! What the body of a request must be: the content itself, without a coding and whole.

use crate::problem::error;
use crate::request::Headers;
use crate::response::Response;

/// Refuses a body that is not the content itself, by the fields of its request: one in a coding (`Content-Encoding`), and a part
/// (`Content-Range`). A body is stored as it comes, and its readers learn nothing of the request's fields. Nothing is decoded, because a
/// body of a few bytes may decode to very many.
pub(crate) fn check_content(headers: Headers<'_>) -> Result<(), Response> {
    let codings = headers.all("Content-Encoding");
    let codings = codings.flat_map(|list| list.split(|byte| *byte == b','));
    let mut codings = codings.map(<[u8]>::trim_ascii);
    // An empty member of a list is none (RFC 9110, section 5.6.1.2).
    let plain = |coding: &&[u8]| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
    if let Some(coding) = codings.find(|coding| !plain(coding)) {
        let coding = coding.get(..SHOWN_BYTES_MAX).unwrap_or(coding);
        let coding = String::from_utf8_lossy(coding);
        let why = format!(
            "the body has the content coding {coding:?}, and a body is stored as it comes; send it without a coding"
        );
        // Which codings would do (RFC 9110, section 12.5.3).
        return Err(error(415, "content_coding", why).field("Accept-Encoding", "identity"));
    }
    // RFC 9110, section 14.4.
    if headers.first("Content-Range").is_some() {
        let why =
            "the body is a part according to Content-Range, and nothing here is written in parts";
        return Err(error(400, "content_range", why));
    }
    Ok(())
}

/// Longer names of codings are not repeated in full.
const SHOWN_BYTES_MAX: usize = 32;
