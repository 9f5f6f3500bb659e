//! GET and HEAD: catch-up, long poll and server-sent events (sections 5.5 to 5.8).

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use encke_stream::{Facts, Fetch, Lifetime, MediaKind, Offset, Stream};

use super::{DurableStreams, Pending, answer, cursor, error, events, failed, refused};
use crate::answer::{Answer, Failure, Subscribe, Then};
use crate::run::{Run, Style};
use crate::{Body, Request, Response, json, query};

/// A read whose data is on its way.
#[derive(Debug)]
pub(crate) struct Read {
    stream: Arc<Stream>,
    from: Offset,
    /// What was committed when the request came.
    facts: Facts,
    if_none_match: Option<Box<[u8]>>,
    /// The cursor that a long poll brought; nothing for a catch-up.
    brought: Option<u64>,
}

/// A long poll that waits at the tail.
#[derive(Debug)]
pub(crate) struct Poll {
    stream: Arc<Stream>,
    from: Offset,
    brought: u64,
}

impl DurableStreams {
    pub(crate) fn head(&self, request: &Request<'_>, name: &str) -> Result<Answer, Response> {
        let stream = self.find(name, request.now_ms)?;
        let facts = stream.facts();
        let response = answer(200)
            .field("Content-Type", &stream.media.name)
            .field("Stream-Next-Offset", facts.tail)
            .field("Cache-Control", "no-store");
        let response = match stream.lifetime {
            Lifetime::Unbounded => response,
            Lifetime::Sliding { ttl_s } => response.field("Stream-TTL", ttl_s),
            Lifetime::Until { at_ms } => response.field("Stream-Expires-At", timestamp(at_ms)),
        };
        Ok(Answer::Respond(closed(response, facts.closed)))
    }

    pub(crate) fn get(&self, request: &Request<'_>, name: &str) -> Result<Answer, Response> {
        let parameters = Parameters::parse(request.query)?;
        let stream = self.find(name, request.now_ms)?;
        stream.touch(request.now_ms);
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
        if from != Offset::START && from.sequence + 1 < stream.first() {
            return Err(error(
                410,
                "before_start",
                format!("the offset {from} is of an earlier stream of this name"),
            ));
        }
        match parameters.live {
            None => Ok(self.catch_up(request, stream, facts, from, parameters)),
            Some(Live::LongPoll) => Ok(self.long_poll(request, stream, facts, from, parameters)),
            Some(Live::Sse) => Ok(subscribe(request, stream, facts, from, parameters.cursor)),
        }
    }

    fn catch_up(
        &self,
        request: &Request<'_>,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        parameters: Parameters,
    ) -> Answer {
        let if_none_match = request.headers.first("if-none-match").map(Box::from);
        let now = matches!(parameters.offset, Some(From::Now));
        let read = Read {
            stream,
            from,
            facts,
            if_none_match,
            brought: None,
        };
        if now {
            let response = answer(200).field("Cache-Control", "no-store");
            let response = read.position(response, facts.tail, true);
            return Answer::Respond(response.body(read.data(&[])));
        }
        self.fetch_or(read, |read| {
            Answer::Respond(read.respond(&read.nothing(), request.now_ms))
        })
    }

    fn long_poll(
        &self,
        request: &Request<'_>,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        parameters: Parameters,
    ) -> Answer {
        let read = Read {
            stream,
            from,
            facts,
            if_none_match: None,
            brought: Some(parameters.cursor),
        };
        self.fetch_or(read, |read| {
            let poll = Poll {
                stream: Arc::clone(&read.stream),
                from,
                brought: parameters.cursor,
            };
            if facts.closed {
                return Answer::Respond(poll.nothing(facts, request.now_ms));
            }
            Answer::Poll(crate::Poll {
                stream: Arc::clone(&read.stream),
                from,
                until_ms: request.now_ms + self.settings.poll_wait_ms,
                then: Then(Box::new(Pending::Poll(poll))),
            })
        })
    }

    /// Reads what lies before the tail; `at_tail` answers when nothing does.
    fn fetch_or(&self, read: Read, at_tail: impl FnOnce(Read) -> Answer) -> Answer {
        let fetch = Fetch::new(
            &read.stream,
            read.from,
            read.facts.tail,
            self.settings.page_bytes,
        );
        if fetch.spans.is_empty() {
            return at_tail(read);
        }
        Answer::Fetch(fetch, Then(Box::new(Pending::Read(read))))
    }
}

impl Read {
    /// The answer, once the data is there.
    pub(crate) fn fetched(self, run: Result<Run<'_>, Failure>, now_ms: u64) -> Answer {
        match run {
            Ok(run) => Answer::Respond(self.respond(&run, now_ms)),
            Err(failure) => Answer::Respond(failed(failure)),
        }
    }

    fn respond(&self, run: &Run<'_>, now_ms: u64) -> Response {
        let at_tail = run.end >= self.facts.tail;
        let closed = at_tail && self.facts.closed;
        let etag = self.etag(run.end, closed);
        let response = answer(200)
            .field("ETag", &etag)
            .field("Cache-Control", cache_control(at_tail));
        let response = match self.brought {
            Some(brought) if !closed => {
                response.field("Stream-Cursor", cursor::next(now_ms, brought))
            }
            _ => response,
        };
        let response = self.position(response, run.end, at_tail);
        if let Some(tags) = &self.if_none_match
            && matches_tag(tags, &etag)
        {
            return Response {
                status: 304,
                body: Body::Empty,
                ..response
            };
        }
        response.body(self.data(run.items))
    }

    fn position(&self, response: Response, end: Offset, at_tail: bool) -> Response {
        let response = response
            .field("Content-Type", &self.stream.media.name)
            .field("Stream-Next-Offset", end)
            .field_if("Stream-Up-To-Date", at_tail.then_some("true"));
        closed(response, at_tail && self.facts.closed)
    }

    fn nothing(&self) -> Run<'static> {
        Run {
            items: &[],
            end: self.from.max(self.facts.tail),
            at_tail: true,
            closed: self.facts.closed,
        }
    }

    fn data(&self, items: &[encke_stream::Item<'_>]) -> Vec<u8> {
        let mut body = Vec::with_capacity(items.iter().map(|item| item.data.len() + 1).sum());
        join(self.stream.media.kind, items, &mut body);
        body
    }

    fn etag(&self, end: Offset, closed: bool) -> String {
        let mut etag = format!("\"{:x}:{}:{}", self.stream.no, self.from, end);
        let _ = write!(etag, "{}\"", if closed { ":c" } else { "" });
        etag
    }
}

impl Poll {
    /// The answer, once there is something to say.
    pub(crate) fn polled(self, run: Result<Run<'_>, Failure>, now_ms: u64) -> Response {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return failed(failure),
        };
        let facts = self.stream.facts();
        if run.items.is_empty() {
            return self.nothing(
                Facts {
                    tail: self.from.max(run.end),
                    closed: run.closed,
                    ..facts
                },
                now_ms,
            );
        }
        let read = Read {
            facts: Facts {
                tail: if run.at_tail { run.end } else { facts.tail },
                closed: run.closed,
                ..facts
            },
            stream: self.stream,
            from: self.from,
            if_none_match: None,
            brought: Some(self.brought),
        };
        read.respond(&run, now_ms)
    }

    /// The answer when nothing came in time.
    pub(crate) fn timed_out(self, now_ms: u64) -> Response {
        let facts = Facts {
            tail: self.from,
            closed: false,
            ..self.stream.facts()
        };
        self.nothing(facts, now_ms)
    }

    /// The answer when the stream was deleted meanwhile.
    pub(crate) fn ended(self) -> Response {
        let gone = self.stream.facts().forks > 0;
        refused(&if gone {
            encke_stream::Refusal::Gone
        } else {
            encke_stream::Refusal::NotFound
        })
    }

    fn nothing(&self, facts: Facts, now_ms: u64) -> Response {
        let response = answer(204)
            .field("Stream-Next-Offset", facts.tail)
            .field("Stream-Up-To-Date", "true")
            .field("Cache-Control", "no-store");
        if facts.closed {
            return closed(response, true);
        }
        response.field("Stream-Cursor", cursor::next(now_ms, self.brought))
    }
}

fn subscribe(
    request: &Request<'_>,
    stream: Arc<Stream>,
    facts: Facts,
    from: Offset,
    brought: u64,
) -> Answer {
    let kind = stream.media.kind;
    let floor = if cursor::next(request.now_ms, 0) > brought {
        0
    } else {
        brought
    };
    let style = Style::DurableStreams {
        kind,
        cursor_floor: floor,
    };
    let mut first = Vec::new();
    let at_tail = stream.spans(from, facts.tail).is_empty();
    if at_tail {
        let end = Run {
            items: &[],
            end: from.max(facts.tail),
            at_tail: true,
            closed: facts.closed,
        };
        events::control(floor, &end, request.now_ms, &mut first);
    }
    let response = answer(200)
        .field("Content-Type", "text/event-stream")
        .field("Cache-Control", "no-cache")
        .field_if(
            "Stream-SSE-Data-Encoding",
            (kind == MediaKind::Binary).then_some("base64"),
        )
        // Proxies that gather responses would hold back events.
        .field("X-Accel-Buffering", "no")
        .body(Body::Open(first));
    if at_tail && facts.closed {
        return Answer::Respond(response);
    }
    Answer::Subscribe(Subscribe {
        stream,
        from: if at_tail { from.max(facts.tail) } else { from },
        response,
        style,
    })
}

/// The records' data as one body.
pub(crate) fn join(kind: MediaKind, items: &[encke_stream::Item<'_>], body: &mut Vec<u8>) {
    if kind == MediaKind::Json {
        body.push(b'[');
    }
    for (index, item) in items.iter().enumerate() {
        if index > 0 && kind == MediaKind::Json {
            body.push(b',');
        }
        body.extend_from_slice(&part(kind, item));
    }
    if kind == MediaKind::Json {
        body.push(b']');
    }
}

/// The part of a record that is the reader's: all of it, but for forks that cut one.
fn part<'a>(kind: MediaKind, item: &encke_stream::Item<'a>) -> Cow<'a, [u8]> {
    match kind {
        MediaKind::Json if item.skip == 0 && item.end.units == 0 => item.data.into(),
        MediaKind::Json => json::part(item.data, item.skip, item.take).into(),
        MediaKind::Text | MediaKind::Binary => {
            let end = item.data.len().min(item.take as usize);
            item.data[end.min(item.skip as usize)..end].into()
        }
    }
}

fn closed(response: Response, closed: bool) -> Response {
    response.field_if("Stream-Closed", closed.then_some("true"))
}

/// What lies before the tail never changes; what reaches the tail may be followed at any time.
fn cache_control(at_tail: bool) -> &'static str {
    if at_tail {
        "no-cache"
    } else {
        "public, max-age=60, stale-while-revalidate=300"
    }
}

fn matches_tag(tags: &[u8], etag: &str) -> bool {
    tags.split(|byte| *byte == b',').any(|tag| {
        let tag = tag.trim_ascii();
        tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes()
    })
}

fn timestamp(at_ms: u64) -> String {
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
enum From {
    Start,
    Now,
    At(Offset),
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
                    parameters.offset = Some(match &*value {
                        "-1" => From::Start,
                        "now" => From::Now,
                        token => From::At(token.parse().map_err(|why| {
                            bad(format!("{why}, or -1, or now; this is {token:?}"))
                        })?),
                    });
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
                "cursor" => parameters.cursor = value.parse().unwrap_or(0),
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
