//! GET and HEAD (sections 5.5 to 5.8): what is asked for, and what all answers share.

use std::borrow::Cow;

use encke_stream::{Facts, Item, Lifetime, MediaKind, Offset, Retention, Stream};

use super::{DurableStreams, From, answer, check_own, cursor, error, follow};
use crate::action::Action;
use crate::{Headers, Request, Response, json, query};

impl DurableStreams {
    pub(crate) fn head(&self, request: &Request<'_>, name: &str) -> Result<Action, Response> {
        let stream = self.find(name, request.now_ms)?;
        let facts = stream.facts();
        let response = answer(200)
            .field("Content-Type", &stream.media.name)
            .field("Stream-Next-Offset", facts.tail)
            .field("Encke-Ack", stream.ack)
            .field_if("Encke-Retention", retention(&stream))
            .field_if("Encke-Floor", floor(facts))
            .field("Cache-Control", "no-store");
        let response = match stream.lifetime {
            Lifetime::Unbounded => response,
            Lifetime::Sliding { ttl_s } => response.field("Stream-TTL", ttl_s),
            Lifetime::Until { at_ms } => response.field("Stream-Expires-At", timestamp(at_ms)),
        };
        Ok(Action::Respond(closed(response, facts.closed)))
    }

    pub(crate) fn get(&self, request: &Request<'_>, name: &str) -> Result<Action, Response> {
        let parameters = Parameters::parse(request.query)?;
        let stream = self.find(name, request.now_ms)?;
        let facts = stream.facts();
        let from = match parameters.offset {
            Some(From::Now) => facts.tail,
            Some(From::At(offset)) => offset,
            None | Some(From::Start) => Offset::START,
        };
        if from > facts.tail {
            return Err(error(
                400,
                "beyond_tail",
                format!(
                    "the offset {from} is beyond the stream's end at {}: this server never gave it \
                     for this stream, or has lost what was only accepted or written",
                    facts.tail
                ),
            ));
        }
        check_own(&stream, from)?;
        self.check_kept(&stream, from)?;
        stream.touch(request.now_ms);
        Ok(match parameters.live {
            None if matches!(parameters.offset, Some(From::Now)) => self.tail(&stream, facts),
            None => self.catch_up(request, stream, facts, from),
            Some(Live::LongPoll) => self.long_poll(request, stream, facts, from, parameters.cursor),
            Some(Live::Sse) => follow::subscribe(request, stream, facts, from, parameters.cursor),
        })
    }
}

/// What is kept of a stream, unless it is everything.
fn retention(stream: &Stream) -> Option<Retention> {
    Some(stream.retention()).filter(Retention::is_limited)
}

/// Where what is left of a stream begins, if anything is gone.
fn floor(facts: Facts) -> Option<Offset> {
    (facts.floor > 0).then(|| Offset::behind(facts.floor))
}

/// Where an answer ends, and whether more may follow.
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
    closed(response, over)
}

/// The records' data as one body.
pub(super) fn data(kind: MediaKind, items: &[Item<'_>]) -> Vec<u8> {
    let mut body = Vec::with_capacity(items.iter().map(|item| item.data.len() + 1).sum());
    join(kind, items, &mut body);
    body
}

/// Writes the records' data as one body.
pub(super) fn join(kind: MediaKind, items: &[Item<'_>], body: &mut Vec<u8>) {
    if kind == MediaKind::Json {
        body.push(b'[');
    }
    push_items(kind, items, true, body);
    if kind == MediaKind::Json {
        body.push(b']');
    }
}

/// Writes the records' data to a body; `first` if no message stands in it yet.
pub(crate) fn push_items(kind: MediaKind, items: &[Item<'_>], first: bool, body: &mut Vec<u8>) {
    for (index, item) in items.iter().enumerate() {
        if kind == MediaKind::Json && !(first && index == 0) {
            body.push(b',');
        }
        body.extend_from_slice(&part(kind, item));
    }
}

/// A tag that changes when data comes or the stream is closed (section 10.1).
pub(super) fn etag(stream: &Stream, from: Offset, end: Offset, over: bool) -> String {
    format!(
        "\"{:x}:{from}:{end}{}\"",
        stream.no,
        if over { ":c" } else { "" }
    )
}

/// The part of a record that is the reader's: all of it, but for forks that cut one.
fn part<'a>(kind: MediaKind, item: &Item<'a>) -> Cow<'a, [u8]> {
    match kind {
        MediaKind::Json if item.skip == 0 && item.end.units == 0 => item.data.into(),
        MediaKind::Json => json::part(item.data, item.skip, item.take).into(),
        MediaKind::Text | MediaKind::Binary => {
            let end = item.data.len().min(item.take as usize);
            item.data[end.min(item.skip as usize)..end].into()
        }
    }
}

pub(super) fn closed(response: Response, closed: bool) -> Response {
    response.field_if("Stream-Closed", closed.then_some("true"))
}

/// What is over never changes; what is not may go on at any time.
pub(super) fn cache_control(over: bool) -> &'static str {
    if over {
        "public, max-age=60, stale-while-revalidate=300"
    } else {
        "no-cache"
    }
}

/// Whether the client has what `etag` stands for already: `If-None-Match` lists it, or any (RFC
/// 9110, section 13.1.2).
pub(super) fn has_already(headers: Headers<'_>, etag: &str) -> bool {
    // No tag of ours holds a comma, so none can be made up of parts of others.
    let mut tags = headers
        .all("If-None-Match")
        .flat_map(|list| list.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii);
    tags.any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes())
}

/// A time as RFC 3339 has it.
pub(super) fn timestamp(at_ms: u64) -> String {
    i64::try_from(at_ms)
        .ok()
        .and_then(|at_ms| jiff::Timestamp::from_millisecond(at_ms).ok())
        .map(|at| at.to_string())
        .unwrap_or_default()
}

/// The parameters of a read. Unknown ones are ignored.
#[derive(Debug, Default)]
struct Parameters {
    offset: Option<From>,
    live: Option<Live>,
    cursor: u64,
}

#[derive(Clone, Copy, Debug)]
enum Live {
    LongPoll,
    Sse,
}

impl Parameters {
    fn parse(query: Option<&str>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut parameters = Parameters::default();
        for parameter in query::parameters(query) {
            let Ok((name, value)) = parameter else {
                return Err(bad("the query is not percent-encoded UTF-8".into()));
            };
            match &*name {
                "offset" if parameters.offset.is_some() => {
                    return Err(bad("the offset is given more than once".into()));
                }
                "offset" => {
                    parameters.offset =
                        Some(value.parse().map_err(|why| {
                            bad(format!("{why}, or -1, or now; this is {value:?}"))
                        })?);
                }
                "live" => {
                    parameters.live = Some(match &*value {
                        "long-poll" => Live::LongPoll,
                        "sse" => Live::Sse,
                        other => {
                            return Err(bad(format!("live is long-poll or sse, not {other:?}")));
                        }
                    });
                }
                // A cursor is opaque to clients; one that is not ours starts over.
                "cursor" => parameters.cursor = cursor::parse(&value).unwrap_or(0),
                _ => {}
            }
        }
        if parameters.live.is_some() && parameters.offset.is_none() {
            return Err(bad(
                "a live read needs an offset: -1, now, or a token".into()
            ));
        }
        Ok(parameters)
    }
}
