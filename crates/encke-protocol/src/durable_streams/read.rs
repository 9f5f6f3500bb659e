//! GET and HEAD (sections 5.5 to 5.8): the parameters of a read, and which kind of read they ask for.

use encke_access::LAST_EVENT_ID;
use encke_stream::{Lifetime, Offset, Pattern};

use super::follow::LiveRead;
use super::response_fields::{closed, floor, retention, timestamp};
use super::{DurableStreams, cursor};
use crate::action::Action;
use crate::channel;
use crate::gate::Admitted;
use crate::live_format::LiveFormat;
use crate::misspelled;
use crate::problem::error;
use crate::query;
use crate::request::{Headers, Request};
use crate::response::Response;
use crate::resume;
use crate::streams::StartPosition;

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
        let start = parameters.offset.unwrap_or(StartPosition::Start);
        let first = channel::single(name, start);
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
        let resumed_at = match format {
            Some(_) => parameters.resume(request.headers, admitted)?,
            None => None,
        };
        let stream = self.streams.find(name, request.now)?;
        let facts = stream.facts();
        let start = parameters.offset.unwrap_or(StartPosition::Start);
        let from = self.streams.begin(&stream, facts, start)?;
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

/// The response to a request for a channel that is no handshake of WebSocket (RFC 9110, section 15.5.22).
fn needs_upgrade() -> Response {
    let why = "live=websocket needs a handshake of WebSocket, with Upgrade: websocket; live=sse and live=true do not";
    error(426, "upgrade_required", why).field("Upgrade", "websocket")
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
                        "websocket" => Live::WebSocket,
                        other => {
                            return Err(bad(format!(
                                "live is long-poll, sse, true or websocket, not {other:?}"
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

    /// Sets where the client goes on, if it resumes, and returns that position.
    fn resume(
        &mut self,
        headers: Headers<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Option<Offset>, Response> {
        let Some(offset) = last_event_id(headers, self.last_event_id.take())? else {
            return Ok(None);
        };
        let is_behind = match self.offset {
            Some(StartPosition::Start) => true,
            Some(StartPosition::At(begin)) => offset >= begin,
            Some(StartPosition::Now) | None => false,
        };
        if !is_behind && !admitted.may_go_on_anywhere() {
            return Err(admitted.goes_on_elsewhere());
        }
        // The client sends the URL of its first request again; what it has since is newer.
        self.offset = Some(StartPosition::At(offset));
        Ok(Some(offset))
    }
}
