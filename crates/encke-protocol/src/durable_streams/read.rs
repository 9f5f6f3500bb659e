//! GET and HEAD (sections 5.5 to 5.8): the parameters of a read, and which kind of read they ask for.

use std::sync::Arc;

use encke_access::{LAST_EVENT_ID, name_of_identity};
use encke_clock::WallTime;
use encke_stream::{BadOffset, Facts, Lifetime, Offset, Pattern, Stream};

use super::catch_up::{CatchUpRead, tail};
use super::encode::END_MARK;
use super::follow::LiveRead;
use super::poll::PollRead;
use super::response_fields::{ended, floor, retention};
use super::state::ReadContext;
use super::{DurableStreams, cursor};
use crate::action::Action;
use crate::channel;
use crate::gate::Admitted;
use crate::last_messages::{
    BadLast, LAST_BYTES_MAX, OnLastFound, ReadStart, WantedMessages, find_last,
};
use crate::live_format::LiveFormat;
use crate::misspelled;
use crate::number::decimal;
use crate::problem::error;
use crate::query::{self, truth};
use crate::request::{Headers, Request};
use crate::response::Response;
use crate::resume;
use crate::streams::StartPosition;
use crate::timestamp::timestamp;

impl DurableStreams {
    pub(crate) fn head(
        &self,
        request: &Request<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let stream = self.streams.find_for(name, request.now, &admitted.rights)?;
        let facts = stream.facts();
        let response = Response::shared(200)
            .field("Content-Type", &stream.media.name)
            .field("Stream-Next-Offset", facts.tail)
            .field_if("Encke-Messages", facts.messages())
            .field("Encke-Ack", stream.ack)
            .field_if("Encke-Retention", retention(&stream))
            .field_if("Encke-Floor", floor(facts))
            .field_if("Encke-Owner", stream.owner().map(name_of_identity))
            .field_if("Encke-Producer-Timeout", stream.producer_timeout_s())
            .field_if("Encke-Metadata", stream.metadata())
            .field("Cache-Control", "no-store");
        let response = match stream.lifetime {
            Lifetime::Unbounded => response,
            Lifetime::Sliding { ttl_s } => response.field("Stream-TTL", ttl_s),
            Lifetime::Until { at } => response.field("Stream-Expires-At", timestamp(at)),
        };
        Ok(Action::Respond(ended(response, facts.closed, facts)))
    }

    /// Opens a channel that follows the stream first.
    pub(crate) fn open_channel(
        &self,
        request: &Request<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let mut parameters = Parameters::parse(request.query)?;
        parameters.resume(request.headers, admitted)?;
        if name.parse::<Pattern>().is_ok() {
            let why = "on a channel the stream's name stands for all streams below a prefix";
            return Err(error(400, "bad_path", why));
        }
        let first = channel::single(name, parameters.start(), parameters.has_times);
        Ok(self.channels.open(request.headers, admitted, Some(first)))
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
            Some(Live::WebSocket) => return Err(needs_upgrade()),
        };
        if parameters.has_times && format != Some(LiveFormat::Lines) {
            return Err(error(400, "bad_parameter", NO_TIMES));
        }
        let last_event = match format {
            Some(_) => parameters.resume(request.headers, admitted)?,
            None => None,
        };
        let stream = self.streams.find_for(name, request.now, &admitted.rights)?;
        let facts = stream.facts();
        let start = parameters.start();
        let public = admitted.is_public();
        let read = match (format, parameters.live) {
            (Some(format), live) => PlannedRead::Live(LiveRead {
                format,
                has_times: parameters.has_times,
                is_negotiated: matches!(live, Some(Live::Accepted)),
                client_cursor: parameters.cursor,
                has_end: last_event.is_some_and(|last| last.has_end),
            }),
            (None, Some(_)) => PlannedRead::LongPoll(PollRead {
                client_cursor: parameters.cursor,
                public,
            }),
            (None, None) if start == ReadStart::NOW => PlannedRead::Tail,
            (None, None) => PlannedRead::CatchUp(CatchUpRead::of(request.headers, public)?),
        };
        let now = request.now.wall;
        Ok(match start {
            ReadStart::Behind(start) => {
                let from = self.streams.begin(&stream, facts, start)?;
                self.streams.touch(&stream, request.now);
                read.begin(&self.reads, stream, facts, from, now)
            }
            ReadStart::Last(count) => {
                self.streams.touch(&stream, request.now);
                let then = Box::new(LastRead {
                    reads: self.reads.clone(),
                    stream: Arc::clone(&stream),
                    read,
                });
                let wanted = WantedMessages {
                    stream,
                    facts,
                    count,
                    bytes_max: LAST_BYTES_MAX,
                };
                find_last(&self.streams, wanted, then, now)
            }
        })
    }
}

/// A read whose beginning is known, or is being found.
#[derive(Debug)]
enum PlannedRead {
    /// Only where the stream ends.
    Tail,
    CatchUp(CatchUpRead),
    LongPoll(PollRead),
    Live(LiveRead),
}

impl PlannedRead {
    fn begin(
        self,
        reads: &ReadContext,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        now: WallTime,
    ) -> Action {
        match self {
            PlannedRead::Tail => tail(&stream, facts),
            PlannedRead::CatchUp(read) => read.begin(reads, stream, facts, from),
            PlannedRead::LongPoll(read) => read.begin(reads, stream, facts, from, now),
            PlannedRead::Live(read) => read.begin(reads, stream, facts, from, now),
        }
    }
}

/// A read that begins with the last messages of its stream.
#[derive(Debug)]
struct LastRead {
    reads: ReadContext,
    stream: Arc<Stream>,
    read: PlannedRead,
}

impl OnLastFound for LastRead {
    fn found(self: Box<Self>, from: Result<Offset, Response>, now: WallTime) -> Action {
        let facts = self.stream.facts();
        match from {
            Ok(from) => self.read.begin(&self.reads, self.stream, facts, from, now),
            Err(refused) => Action::Respond(refused),
        }
    }
}

/// The refusal of times where records have the form of the protocol, which has none.
const NO_TIMES: &str = "times=true is for records in lines of JSON, with live=true and Accept: application/x-ndjson; other forms of one \
                        stream are the protocol's own and have no times; /v1/events?stream=NAME&times=true has server-sent events with them";

/// The response to a request for a channel that is no handshake of WebSocket (RFC 9110, section 15.5.22).
fn needs_upgrade() -> Response {
    let why = "live=websocket needs a handshake of WebSocket, with Upgrade: websocket; live=sse and live=true do not";
    error(426, "upgrade_required", why).field("Upgrade", "websocket")
}

/// The last event that a client has.
#[derive(Clone, Copy, Debug)]
struct LastEvent {
    offset: Offset,
    /// It said that the stream is closed.
    has_end: bool,
}

/// What the field `Last-Event-ID` or the parameter for it names, if the client sends one.
fn last_event_id(
    headers: Headers<'_>,
    parameter: Option<String>,
) -> Result<Option<LastEvent>, Response> {
    let bad = |why: &str| error(400, "bad_field", format!("Last-Event-ID {why}"));
    let id = resume::last_event_id(headers, parameter.as_deref());
    let Some(id) = id.map_err(|_| bad("is not text"))? else {
        return Ok(None);
    };
    let (text, has_end) = match id.strip_suffix(END_MARK) {
        Some(offset) => (offset, true),
        None => (id, false),
    };
    let offset = text.parse();
    offset
        .map(|offset| Some(LastEvent { offset, has_end }))
        .map_err(|why| {
            bad(&format!(
                "is the id of an event of this stream, which is its offset: {why}; this is {id:?}"
            ))
        })
}

/// The parameters of a read. Unknown ones are ignored, but for those that are nearly one of these.
const PARAMETERS: &[&str] = &["offset", "last", "live", "times", "cursor", LAST_EVENT_ID];

/// Those that clients add to the URL of a stream that they were given.
pub(super) const FREE_PARAMETERS: &[&str] = &["offset", "last", "live", "times", "cursor"];

/// The parameters of a read.
#[derive(Debug, Default)]
struct Parameters {
    /// Where it begins: `offset`, or `last`.
    start: Option<ReadStart>,
    live: Option<Live>,
    /// Records have their times.
    has_times: bool,
    cursor: u64,
    last_event_id: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Live {
    LongPoll,
    Sse,
    /// In the form that `Accept` names. An extension of the protocol.
    Accepted,
    /// As messages of a channel. An extension of the protocol.
    WebSocket,
}

impl Parameters {
    fn parse(query: Option<&str>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut parameters = Parameters::default();
        for parameter in query::parameters(query) {
            let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
            match &*name {
                "offset" | "last" if parameters.start.is_some() => {
                    return Err(bad("a read has one of offset and last, once".into()));
                }
                "offset" => {
                    let start = value.parse().map_err(|why: BadOffset| {
                        bad(format!("{why}, or -1, or now; this is {value:?}"))
                    })?;
                    parameters.start = Some(ReadStart::Behind(start));
                }
                "last" => {
                    let last = decimal(&value).ok_or(BadLast).and_then(ReadStart::last);
                    let last = last.map_err(|why| bad(format!("last is {why}, not {value:?}")))?;
                    parameters.start = Some(last);
                }
                "live" => {
                    parameters.live = Some(match &*value {
                        "long-poll" => Live::LongPoll,
                        "sse" => Live::Sse,
                        "true" => Live::Accepted,
                        "websocket" => Live::WebSocket,
                        other => {
                            return Err(bad(format!(
                                "live is long-poll, sse, true or websocket, not {other:?}"
                            )));
                        }
                    });
                }
                "times" => parameters.has_times = truth("times", &value).map_err(bad)?,
                // A cursor is opaque to clients; one that the server did not give starts over.
                "cursor" => parameters.cursor = cursor::parse(&value).unwrap_or(0),
                LAST_EVENT_ID => parameters.last_event_id = Some(value.into_owned()),
                other => misspelled::check_parameter(other, PARAMETERS)?,
            }
        }
        if parameters.live.is_some() && parameters.start.is_none() {
            return Err(bad(
                "a live read needs an offset: offset=-1, offset=now, or one that the server gave; or last, such as last=50"
                    .into(),
            ));
        }
        Ok(parameters)
    }

    fn start(&self) -> ReadStart {
        self.start
            .unwrap_or(ReadStart::Behind(StartPosition::Start))
    }

    /// Sets where the client goes on, if it resumes, and returns the last event that it has.
    fn resume(
        &mut self,
        headers: Headers<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Option<LastEvent>, Response> {
        let Some(last) = last_event_id(headers, self.last_event_id.take())? else {
            return Ok(None);
        };
        let offset = last.offset;
        let is_behind = match self.start {
            Some(ReadStart::Behind(StartPosition::Start)) => true,
            Some(ReadStart::Behind(StartPosition::At(begin))) => offset >= begin,
            // It is another position each time.
            Some(ReadStart::Behind(StartPosition::Now) | ReadStart::Last(_)) | None => false,
        };
        if !is_behind && !admitted.leaves_parameters() && !admitted.may_go_on_anywhere() {
            return Err(admitted.goes_on_elsewhere());
        }
        // The client sends the URL of its first request again; what it has since is newer.
        self.start = Some(ReadStart::Behind(StartPosition::At(offset)));
        Ok(Some(last))
    }
}
