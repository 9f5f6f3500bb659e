//! The fields of responses to GET and HEAD: where a response ends, what a cache may do with it.

use encke_stream::{Facts, Offset, Retention, Stream};

use crate::request::Headers;
use crate::response::Response;

/// A stream's retention, if it has limits.
pub(super) fn retention(stream: &Stream) -> Option<Retention> {
    Some(stream.retention()).filter(Retention::is_limited)
}

/// Where the kept part of a stream begins, if retention or a truncation has removed records.
pub(super) fn floor(facts: Facts) -> Option<Offset> {
    (facts.floor > 0).then(|| Offset::behind(facts.floor))
}

/// Adds the fields that say where a response ends, and whether more may follow.
pub(super) fn position(
    response: Response,
    stream: &Stream,
    end: Offset,
    at_tail: bool,
    over: bool,
) -> Response {
    let response = response
        .field("Content-Type", &stream.media.name)
        .field("Stream-Next-Offset", end)
        .field_if("Encke-Retention", retention(stream))
        .field_if("Stream-Up-To-Date", at_tail.then_some("true"));
    ended(response, over, stream.facts())
}

/// A tag that changes when data arrives, the stream is closed (section 10.1), or its producer is asked to stop.
pub(super) fn etag(stream: &Stream, from: Offset, end: Offset, over: bool) -> String {
    let state = match over {
        true => ":c",
        false if stream.facts().stop_asked => ":s",
        false => "",
    };
    format!("\"{:x}:{from}:{end}{state}\"", stream.no)
}

/// Says that a stream is closed, if it is, and why; and otherwise whether its producer is asked to stop.
pub(super) fn ended(response: Response, closed: bool, facts: Facts) -> Response {
    let asks_stop = facts.stop_asked && !closed;
    response
        .field_if("Stream-Closed", closed.then_some("true"))
        .field_if("Encke-End-Reason", facts.end.filter(|_| closed))
        .field_if("Encke-Stop-Requested", asks_stop.then_some("true"))
}

/// Lets caches keep a response: only the client's own, unless it is `public`. A complete stream never changes; any other may.
pub(super) fn cacheable(response: Response, over: bool, public: bool) -> Response {
    let control = match (over, public) {
        (true, true) => "public, max-age=60, stale-while-revalidate=300",
        (true, false) => "private, max-age=60, stale-while-revalidate=300",
        (false, true) => "no-cache",
        (false, false) => "private, no-cache",
    };
    response.cacheable().field("Cache-Control", control)
}

/// The tags of what the client has already, as one list.
pub(super) fn known_tags(headers: Headers<'_>) -> Vec<u8> {
    let lists: Vec<_> = headers.all("If-None-Match").collect();
    lists.join(&b',')
}

/// The tag under which the client has the content of `etag` already: `known_tags` lists it, or any (RFC 9110, section
/// 13.1.2). It is weak if the client has the content in a coding.
pub(super) fn has_already(known_tags: &[u8], etag: &str) -> Option<String> {
    // The server's tags hold no commas, so splitting a list at commas yields whole tags.
    let mut tags = known_tags
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii);
    let is_same = |tag: &&[u8]| tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes();
    let tag = tags.find(|tag| *tag == b"*" || is_same(tag))?;
    Some(match tag.starts_with(b"W/") {
        true => format!("W/{etag}"),
        false => etag.to_owned(),
    })
}
