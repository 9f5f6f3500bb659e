//! GET and HEAD (sections 5.5 to 5.8): the parameters of a read, and the fields that all responses share.

use encke_access::LAST_EVENT_ID;
use encke_stream::{Facts, Lifetime, Offset, Retention, Stream};

use super::follow::LiveRead;
use super::{DurableStreams, cursor};
use crate::action::Action;
use crate::gate::Admitted;
use crate::live_format::LiveFormat;
use crate::misspelled;
use crate::problem::error;
use crate::query;
use crate::request::{Headers, Request};
use crate::response::Response;
use crate::resume;
use crate::streams::{StartPosition, check_own};

impl DurableStreams {
    pub(crate) fn head(&self, request: &Request<'_>, name: &str) -> Result<Action, Response> {
        let stream = self.streams.find(name, request.now)?;
        let facts = stream.facts();
        let response = Response::shared(200)
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

    pub(crate) fn get(
        &self,
        request: &Request<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let mut parameters = Parameters::parse(request.query)?;
        let format = match parameters.live {
            None | Some(Live::LongPoll) => None,
            Some(Live::Sse) => Some(LiveFormat::Events),
            Some(Live::Accepted) => Some(LiveFormat::accepted(request.headers)),
        };
        let resumed_at = match format {
            Some(_) => last_event_id(request.headers, parameters.last_event_id.take())?,
            None => None,
        };
        if let Some(offset) = resumed_at {
            let is_behind = match parameters.offset {
                Some(StartPosition::Start) => true,
                Some(StartPosition::At(begin)) => offset >= begin,
                Some(StartPosition::Now) | None => false,
            };
            if !is_behind && !admitted.may_go_on_anywhere() {
                return Err(admitted.goes_on_elsewhere());
            }
            // The client sends the URL of its first request again; what it has since is newer.
            parameters.offset = Some(StartPosition::At(offset));
        }
        let stream = self.streams.find(name, request.now)?;
        let facts = stream.facts();
        let from = match parameters.offset {
            Some(StartPosition::Now) => facts.tail,
            Some(StartPosition::At(offset)) => offset,
            None | Some(StartPosition::Start) => Offset::START,
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
        self.streams.check_kept(&stream, from)?;
        self.streams.touch(&stream, request.now);
        if let Some(format) = format {
            let live = LiveRead {
                format,
                is_negotiated: matches!(parameters.live, Some(Live::Accepted)),
                client_cursor: parameters.cursor,
                resumes: resumed_at.is_some(),
            };
            return Ok(self.subscribe(request, stream, facts, from, live));
        }
        Ok(match parameters.live {
            None if matches!(parameters.offset, Some(StartPosition::Now)) => {
                self.tail(&stream, facts)
            }
            None => self.catch_up(request, stream, facts, from, admitted.is_public()),
            Some(_) => {
                let way = (parameters.cursor, admitted.is_public());
                self.long_poll(request, stream, facts, from, way)
            }
        })
    }
}

/// The offset in the field `Last-Event-ID` or in the parameter for it, if the client sends one.
fn last_event_id(
    headers: Headers<'_>,
    parameter: Option<String>,
) -> Result<Option<Offset>, Response> {
    let bad = |why: &str| error(400, "bad_field", format!("Last-Event-ID {why}"));
    let id = resume::last_event_id(headers, parameter.as_deref());
    let Some(id) = id.map_err(|_| bad("is not text"))? else {
        return Ok(None);
    };
    let offset = id.parse();
    offset.map(Some).map_err(|why| {
        bad(&format!(
            "is the id of an event of this stream, which is its offset: {why}; this is {id:?}"
        ))
    })
}

/// A stream's retention, if it has limits.
fn retention(stream: &Stream) -> Option<Retention> {
    Some(stream.retention()).filter(Retention::is_limited)
}

/// Where the kept part of a stream begins, if retention or a truncation has removed records.
fn floor(facts: Facts) -> Option<Offset> {
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
    closed(response, over)
}

/// A tag that changes when data arrives or the stream is closed (section 10.1).
pub(super) fn etag(stream: &Stream, from: Offset, end: Offset, over: bool) -> String {
    format!(
        "\"{:x}:{from}:{end}{}\"",
        stream.no,
        if over { ":c" } else { "" }
    )
}

pub(super) fn closed(response: Response, closed: bool) -> Response {
    response.field_if("Stream-Closed", closed.then_some("true"))
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

/// The tag under which the client has the content of `etag` already: `If-None-Match` lists it, or any (RFC 9110, section
/// 13.1.2). It is weak if the client has the content in a coding.
pub(super) fn has_already(headers: Headers<'_>, etag: &str) -> Option<String> {
    // The server's tags hold no commas, so splitting a list at commas yields whole tags.
    let mut tags = headers
        .all("If-None-Match")
        .flat_map(|list| list.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii);
    let is_same = |tag: &&[u8]| tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes();
    let tag = tags.find(|tag| *tag == b"*" || is_same(tag))?;
    Some(match tag.starts_with(b"W/") {
        true => format!("W/{etag}"),
        false => etag.to_owned(),
    })
}

/// A time in the format of RFC 3339.
pub(super) fn timestamp(at_ms: u64) -> String {
    i64::try_from(at_ms)
        .ok()
        .and_then(|at_ms| jiff::Timestamp::from_millisecond(at_ms).ok())
        .map(|at| at.to_string())
        .unwrap_or_default()
}

/// The parameters of a read. Unknown ones are ignored, but for those that are nearly one of these.
const PARAMETERS: &[&str] = &["offset", "live", "cursor", LAST_EVENT_ID];

/// The parameters of a read.
#[derive(Debug, Default)]
struct Parameters {
    offset: Option<StartPosition>,
    live: Option<Live>,
    cursor: u64,
    last_event_id: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Live {
    LongPoll,
    Sse,
    /// In the form that `Accept` names. An extension of the protocol.
    Accepted,
}

impl Parameters {
    fn parse(query: Option<&str>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut parameters = Parameters::default();
        for parameter in query::parameters(query) {
            let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
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
                        "true" => Live::Accepted,
                        other => {
                            return Err(bad(format!(
                                "live is long-poll, sse or true, not {other:?}"
                            )));
                        }
                    });
                }
                // A cursor is opaque to clients; one that the server did not give starts over.
                "cursor" => parameters.cursor = cursor::parse(&value).unwrap_or(0),
                LAST_EVENT_ID => parameters.last_event_id = Some(value.into_owned()),
                other => misspelled::check_parameter(other, PARAMETERS)?,
            }
        }
        if parameters.live.is_some() && parameters.offset.is_none() {
            return Err(bad(
                "a live read needs an offset: offset=-1, offset=now, or one that the server gave"
                    .into(),
            ));
        }
        Ok(parameters)
    }
}
