//! Several streams over one connection: `GET /v1/events?stream=NAME[@OFFSET]&stream=...`.
//!
//! The answer is one stream of server-sent events with the records of all of them, each once and in the order of the log.
//! An event's id says up to where the client has everything of every stream, so that a client that comes back with
//! `Last-Event-ID` misses nothing and gets nothing twice. `id` knows how ids are written and read, `tell` how events are.

mod id;
mod tell;

use std::sync::Arc;

use encke_stream::{Life, Offset, Sequence, Stream, log_of};

use crate::action::{Action, Member, SubscribeAll};
use crate::durable_streams::{self, DurableStreams, From, answer, check_own, error, look};
use crate::{Body, Request, Response, query};

pub use id::Ahead;
pub(crate) use tell::tell;
pub use tell::{Ending, HEARTBEAT, Told};

/// Where the endpoint is found.
pub(crate) const PATH: &str = "/v1/events";

/// More streams than this are never allowed for one subscriber, because an id marks them by bits.
pub const STREAMS_MAX: usize = id::PLACES_MAX;

/// What can be set about the face.
#[derive(Clone, Copy, Debug)]
pub struct EventsSettings {
    /// Streams that one subscriber may name, from 1 to [`STREAMS_MAX`].
    pub streams_per_subscriber_max: usize,
}

impl Default for EventsSettings {
    fn default() -> Self {
        EventsSettings {
            streams_per_subscriber_max: 64,
        }
    }
}

/// Answers a request for the endpoint.
pub(crate) fn request(
    streams: &DurableStreams,
    settings: EventsSettings,
    request: &Request<'_>,
) -> Action {
    let answer = match request.method {
        "OPTIONS" => return Action::Respond(durable_streams::preflight()),
        "GET" | "HEAD" => subscribe(streams, settings, request),
        method => Err(error(
            405,
            "method_not_allowed",
            format!("{method} is not a method of events: GET and HEAD are"),
        )
        .field("Allow", "GET, HEAD, OPTIONS")),
    };
    answer.unwrap_or_else(Action::Respond)
}

fn subscribe(
    streams: &DurableStreams,
    settings: EventsSettings,
    request: &Request<'_>,
) -> Result<Action, Response> {
    let parameters = Parameters::parse(request)?;
    check_count(&parameters.named, settings)?;
    // Read before any stream's facts, so that nothing up to here is missing from them.
    let committed = streams.views.all_committed();
    let resumed = parameters.after.as_ref();
    if let Some(id) = resumed
        && id.after.len() != committed.len()
    {
        let why = format!(
            "the event id has {} positions, one for each log, and this server has {} logs: it never gave it",
            id.after.len(),
            committed.len()
        );
        return Err(error(400, "bad_parameter", why));
    }
    if let Some(id) = resumed
        && id
            .after
            .iter()
            .zip(&committed)
            .any(|(after, committed)| after > committed)
    {
        return Err(error(
            400,
            "beyond_tail",
            "the event id is beyond the end of the log: this server never gave it, or has lost what \
             was only accepted or written"
                .into(),
        ));
    }
    let mut first = Vec::new();
    let mut members = Vec::with_capacity(parameters.named.len());
    let mut over = Vec::new();
    let mut held = Vec::with_capacity(parameters.named.len());
    for (place, named) in parameters.named.iter().enumerate() {
        streams.check_name(&named.name)?;
        // Held until the answer is made, so that it stays in memory.
        let Some(known) = streams.views.look(&named.name) else {
            return Ok(look(&named.name, Vec::new()));
        };
        held.push(known);
        let stream = match streams.find(&named.name, request.now_ms) {
            Ok(stream) => stream,
            // Who comes back is told what ended meanwhile, and goes on with the rest.
            Err(_) if resumed.is_some() => {
                over.push((named.name.as_str(), Ending::Deleted));
                continue;
            }
            Err(response) => return Err(missing(&named.name, response.status)),
        };
        let committed = committed[log_of(stream.no)];
        let from = named.start(streams, &stream, place, resumed, committed)?;
        let facts = stream.facts();
        stream.touch(request.now_ms);
        if from >= facts.tail && (facts.closed || facts.life != Life::Live) {
            over.push((named.name.as_str(), Ending::Closed));
            continue;
        }
        members.push(Member {
            stream,
            from,
            place: place as u8,
        });
    }
    if members.is_empty() && resumed.is_some() {
        // What tells a browser not to come back (HTML, section 9.2.3).
        return Ok(Action::Respond(answer(204)));
    }
    let after = match resumed {
        Some(id) => id.after.clone(),
        // Whoever waits at the tail everywhere has everything.
        None => {
            let mut after = committed;
            for member in &members {
                let after = &mut after[log_of(member.stream.no)];
                *after = member.from.sequence.min(*after);
            }
            after
        }
    };
    let ahead: Vec<Ahead> = members
        .iter()
        .filter_map(|member| Ahead::of(&member.stream, member.from, member.place, &after))
        .collect();
    id::write(&after, &ahead, &mut first);
    first.push(b'\n');
    for (name, why) in over {
        tell(&Told::Ended { name, why }, &mut first);
    }
    let response = answer(200)
        .field("Content-Type", "text/event-stream")
        .field("Cache-Control", "no-cache")
        // Proxies that gather responses would hold back events.
        .field("X-Accel-Buffering", "no")
        .body(Body::Open(first));
    if members.is_empty() || request.method == "HEAD" {
        return Ok(Action::Respond(response));
    }
    Ok(Action::SubscribeAll(SubscribeAll {
        members,
        after,
        response,
    }))
}

/// The answer when one of the streams can't be followed.
fn missing(name: &str, status: u16) -> Response {
    match status {
        410 => error(410, "gone", format!("the stream {name:?} was deleted")),
        _ => error(404, "not_found", format!("there is no stream {name:?}")),
    }
}

fn check_count(named: &[Named], settings: EventsSettings) -> Result<(), Response> {
    let max = settings.streams_per_subscriber_max.min(STREAMS_MAX);
    if named.is_empty() {
        return Err(error(
            400,
            "no_streams",
            "name at least one stream: stream=NAME, or stream=NAME@OFFSET".into(),
        ));
    }
    if named.len() > max {
        return Err(error(
            400,
            "too_many_streams",
            format!(
                "{} streams are named, at most {max} are allowed for one subscriber",
                named.len()
            ),
        ));
    }
    for (place, one) in named.iter().enumerate() {
        if named[..place].iter().any(|other| other.name == one.name) {
            let why = format!("the stream {:?} is named more than once", one.name);
            return Err(error(400, "named_twice", why));
        }
    }
    Ok(())
}

/// What a request asks for.
struct Parameters {
    named: Vec<Named>,
    after: Option<id::Id>,
}

/// A stream that the request names, and from where.
struct Named {
    name: String,
    from: From,
}

impl Parameters {
    fn parse(request: &Request<'_>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut named = Vec::new();
        let mut after = None;
        for parameter in query::parameters(request.query) {
            let Ok((name, value)) = parameter else {
                return Err(bad("the query is not percent-encoded UTF-8".into()));
            };
            match &*name {
                "stream" => named.push(Named::parse(&value)),
                "after" => after = Some(value.into_owned()),
                _ => {}
            }
        }
        let field = request.headers.text("Last-Event-ID");
        let field = field.map_err(|_| bad("Last-Event-ID is not text".into()))?;
        // A client that comes back knows better than the address it was given once.
        if let Some(id) = field.filter(|id| !id.is_empty()) {
            after = Some(id.to_owned());
        }
        let after = after.map(|id| {
            id.parse().map_err(|_| {
                bad(format!(
                    "{id:?} is not an event id that this server gives out"
                ))
            })
        });
        Ok(Parameters {
            named,
            after: after.transpose()?,
        })
    }
}

impl Named {
    /// What stands behind the last `@` is an offset if it can be one; else it belongs to the name.
    fn parse(value: &str) -> Named {
        let split = value.rsplit_once('@');
        let split = split.and_then(|(name, token)| Some((name, token.parse().ok()?)));
        let (name, from) = split.unwrap_or((value, From::Now));
        Named {
            name: name.to_owned(),
            from,
        }
    }

    /// The position from which the stream's records are the client's.
    fn start(
        &self,
        streams: &DurableStreams,
        stream: &Arc<Stream>,
        place: usize,
        resumed: Option<&id::Id>,
        committed: Sequence,
    ) -> Result<Offset, Response> {
        let asked = match self.from {
            From::Start => Offset::START,
            From::Now if resumed.is_some() => Offset::START,
            From::Now => return Ok(Offset::behind(committed).max(stream.facts().tail)),
            From::At(offset) => offset,
        };
        let tail = stream.facts().tail;
        if asked > tail && asked > Offset::behind(committed) {
            return Err(error(
                400,
                "beyond_tail",
                format!(
                    "the offset {asked} is beyond the end of the stream {:?} at {tail}",
                    self.name
                ),
            ));
        }
        check_own(stream, asked)?;
        let had = resumed.map_or(Offset::START, |id| id.position(place, log_of(stream.no)));
        let had = had.max(asked);
        // A stream that was made since: all of it is new.
        let had = match stream.reaches_back_to(had) {
            true => had,
            false => Offset::START,
        };
        streams.check_kept(stream, had)?;
        Ok(streams.left(stream, had))
    }
}
