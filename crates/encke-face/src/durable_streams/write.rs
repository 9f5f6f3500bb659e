//! PUT, POST and DELETE: create, fork, append, close, delete (sections 4.2 and 5.1 to 5.4).

use std::sync::Arc;

use encke_stream::{
    Command, DEFAULT_TYPE, Data, Fetch, ForkOf, Lifetime, Media, MediaKind, Offset, Outcome,
    ProducerId, Refusal, Stream, Target,
};

use super::{DurableStreams, Pending, answer, error, failed, refused};
use crate::answer::{Answer, Failure, Then};
use crate::run::Run;
use crate::{Headers, Request, Response, json, query};

/// A creation that is being committed.
#[derive(Debug)]
pub(crate) struct Create {
    location: String,
}

/// A fork inside a record: where that is must be read before it can be committed.
#[derive(Debug)]
pub(crate) struct Fork {
    create: encke_stream::Create,
    pending: Create,
    source: Arc<Stream>,
    tail: Offset,
    /// Units behind the offset.
    sub_offset: u32,
}

/// An append that is being committed.
#[derive(Debug)]
pub(crate) struct Append {
    /// There was data, so that success is told apart from repetition.
    data: bool,
}

impl DurableStreams {
    pub(crate) fn post(&self, request: &mut Request<'_>, name: &str) -> Result<Answer, Response> {
        let headers = Headers(request.headers.0);
        let closes = says_closed(headers);
        let producer = producer(headers)?;
        let writer_seq = text(headers, "Stream-Seq")?;
        let content_type = text(headers, "Content-Type")?;
        let body = std::mem::take(&mut request.body);
        if body.is_empty() && !closes {
            return Err(error(
                400,
                "empty_body",
                "an append needs a body, unless it closes the stream".into(),
            ));
        }
        if !body.is_empty() && content_type.is_none_or(str::is_empty) {
            return Err(error(
                400,
                "missing_content_type",
                "an append with a body needs a Content-Type".into(),
            ));
        }
        let stream = self.find(name, request.now_ms)?;
        let matches = content_type.is_some_and(|asked| stream.media.matches(asked));
        let data = if matches && stream.media.kind == MediaKind::Json && !body.is_empty() {
            match messages(body)? {
                Data { units: 0, .. } => {
                    return Err(error(
                        400,
                        "empty_array",
                        "an array of no messages appends nothing".into(),
                    ));
                }
                data => data,
            }
        } else {
            bytes(body)?
        };
        let pending = Append {
            data: data.units > 0,
        };
        let command = Command::Append(encke_stream::Append {
            target: Target::Known(stream),
            content_type: content_type.filter(|_| !matches).map(Box::from),
            producer,
            writer_seq: writer_seq.map(Box::from),
            closes,
            data,
        });
        let then = Then(Box::new(Pending::Append(pending)));
        Ok(Answer::Commit(command, then))
    }

    pub(crate) fn put(&self, request: &mut Request<'_>, name: &str) -> Result<Answer, Response> {
        let headers = Headers(request.headers.0);
        let content_type = text(headers, "Content-Type")?.filter(|value| !value.is_empty());
        let lifetime = lifetime(headers)?;
        let forking = self.forking(headers)?;
        let source = match &forking {
            Some(forking) => Some(self.fork_source(&forking.source, request.now_ms)?),
            None => None,
        };
        let media = Media::new(match (&source, content_type) {
            (Some(source), _) => &source.media.name,
            (None, Some(asked)) => asked,
            (None, None) => DEFAULT_TYPE,
        });
        let body = std::mem::take(&mut request.body);
        let data = if media.kind == MediaKind::Json && !body.is_empty() {
            messages(body)?
        } else {
            bytes(body)?
        };
        let pending = Create {
            location: location(request),
        };
        let create = encke_stream::Create {
            name: name.into(),
            content_type: content_type.map(Box::from),
            lifetime,
            closed: says_closed(headers),
            fork: forking.as_ref().map(|forking| ForkOf {
                source: forking.source.as_str().into(),
                at: forking.at,
            }),
            data,
        };
        if let (Some(forking), Some(source)) = (forking, source)
            && forking.sub_offset > 0
        {
            let at = forking.at.unwrap_or(Offset::START);
            let tail = source.facts().tail;
            return Ok(Fork {
                create,
                pending,
                source,
                tail,
                sub_offset: forking.sub_offset,
            }
            .find(at));
        }
        let then = Then(Box::new(Pending::Create(pending)));
        Ok(Answer::Commit(Command::Create(create), then))
    }

    pub(crate) fn delete(&self, request: &Request<'_>, name: &str) -> Result<Answer, Response> {
        let stream = self.find(name, request.now_ms)?;
        let command = Command::Delete {
            target: Target::Known(stream),
        };
        Ok(Answer::Commit(command, Then(Box::new(Pending::Delete))))
    }

    fn fork_source(&self, name: &str, now_ms: u64) -> Result<Arc<Stream>, Response> {
        self.find(name, now_ms).map_err(|response| {
            refused(&match response.status {
                410 => Refusal::SourceGone,
                _ => Refusal::SourceNotFound,
            })
        })
    }

    /// What the request says about a fork.
    fn forking(&self, headers: Headers<'_>) -> Result<Option<Forking>, Response> {
        let from = text(headers, "Stream-Forked-From")?;
        let at = text(headers, "Stream-Fork-Offset")?;
        let sub_offset = text(headers, "Stream-Fork-Sub-Offset")?;
        let Some(from) = from else {
            if at.is_some() || sub_offset.is_some() {
                return Err(bad_field(
                    "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From",
                ));
            }
            return Ok(None);
        };
        let path = from.strip_prefix(&self.settings.root).unwrap_or(from);
        let source = query::decode(path)
            .map_err(|_| bad_field("Stream-Forked-From is not percent-encoded UTF-8"))?;
        let sub_offset = match sub_offset {
            None => 0,
            Some(digits) => decimal(digits)
                .and_then(|units| u32::try_from(units).ok())
                .ok_or_else(|| bad_field("Stream-Fork-Sub-Offset is a whole number of units"))?,
        };
        let at =
            match at {
                None if sub_offset > 0 => {
                    return Err(bad_field("Stream-Fork-Sub-Offset needs Stream-Fork-Offset"));
                }
                None => None,
                Some("-1") => Some(Offset::START),
                Some(token) => Some(token.parse().map_err(|_| {
                    bad_field("Stream-Fork-Offset is not an offset of this server")
                })?),
            };
        Ok(Some(Forking {
            source: source.into_owned(),
            at,
            sub_offset,
        }))
    }
}

impl Create {
    pub(crate) fn committed(self, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Created {
                tail,
                content_type,
                closed,
                existed,
            } => {
                let response = answer(if existed { 200 } else { 201 })
                    .field("Content-Type", content_type)
                    .field("Stream-Next-Offset", tail)
                    .field_if("Stream-Closed", closed.then_some("true"));
                if existed {
                    response
                } else {
                    response.field("Location", self.location)
                }
            }
            other => refusal(&other),
        }
    }
}

impl Append {
    pub(crate) fn committed(self, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Appended {
                tail,
                closed,
                producer,
                duplicate,
            } => {
                let status = match producer {
                    // New data of a producer is told apart from a repetition (section 5.2.1).
                    Some(_) if self.data && !duplicate => 200,
                    _ => 204,
                };
                answer(status)
                    .field("Stream-Next-Offset", tail)
                    .field_if("Stream-Closed", closed.then_some("true"))
                    .field_if("Producer-Epoch", producer.map(|(epoch, _)| epoch))
                    .field_if("Producer-Seq", producer.map(|(_, seq)| seq))
            }
            other => refusal(&other),
        }
    }
}

/// The answer to a deletion.
pub(crate) fn deleted(outcome: &Outcome) -> Response {
    match outcome {
        Outcome::Deleted => answer(204),
        other => refusal(other),
    }
}

impl Fork {
    /// Asks for the record that the fork's offset leads into.
    fn find(self, at: Offset) -> Answer {
        let fetch = Fetch::new(&self.source, at, self.tail, 1);
        if fetch.spans.is_empty() {
            return Answer::Respond(overshoot(0, self.sub_offset));
        }
        Answer::Fetch(fetch, Then(Box::new(Pending::Fork(Box::new(self)))))
    }

    /// Commits the fork, now that the record is known.
    pub(crate) fn fetched(mut self, run: Result<Run<'_>, Failure>) -> Answer {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return Answer::Respond(failed(failure)),
        };
        let Some(item) = run.items.first() else {
            // Only changes without data stood there.
            return self.find(run.end);
        };
        let units = item.take - item.skip;
        if self.sub_offset > units {
            return Answer::Respond(overshoot(units, self.sub_offset));
        }
        let at = if self.sub_offset == units {
            item.end
        } else {
            Offset {
                sequence: match item.end.units {
                    0 => item.end.sequence - 1,
                    _ => item.end.sequence,
                },
                units: item.skip + self.sub_offset,
            }
        };
        if let Some(fork) = &mut self.create.fork {
            fork.at = Some(at);
        }
        let then = Then(Box::new(Pending::Create(self.pending)));
        Answer::Commit(Command::Create(self.create), then)
    }
}

struct Forking {
    source: String,
    at: Option<Offset>,
    sub_offset: u32,
}

fn overshoot(units: u32, asked: u32) -> Response {
    error(
        400,
        "beyond_record",
        format!("Stream-Fork-Sub-Offset is {asked}, but the record there has {units} units left"),
    )
}

fn refusal(outcome: &Outcome) -> Response {
    match outcome {
        Outcome::Refused(refusal) => refused(refusal),
        // The machine answers each command with an outcome of its kind.
        other => error(
            500,
            "internal",
            format!("an outcome out of place: {other:?}"),
        ),
    }
}

fn says_closed(headers: Headers<'_>) -> bool {
    headers
        .first("Stream-Closed")
        .is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"true"))
}

fn text<'a>(headers: Headers<'a>, name: &'static str) -> Result<Option<&'a str>, Response> {
    headers
        .text(name)
        .map_err(|_| bad_field(format!("{name} is not UTF-8")))
}

fn bad_field(why: impl Into<String>) -> Response {
    error(400, "bad_field", why.into())
}

fn messages(body: Vec<u8>) -> Result<Data, Response> {
    json::messages(body).map_err(|why| error(400, "bad_json", why.to_string()))
}

fn bytes(bytes: Vec<u8>) -> Result<Data, Response> {
    match u32::try_from(bytes.len()) {
        Ok(units) => Ok(Data { bytes, units }),
        Err(_) => Err(error(
            413,
            "too_large",
            format!("a record holds at most {} bytes", u32::MAX),
        )),
    }
}

/// The three fields of an idempotent producer: all, or none.
fn producer(headers: Headers<'_>) -> Result<Option<ProducerId>, Response> {
    let id = text(headers, "Producer-Id")?;
    let epoch = text(headers, "Producer-Epoch")?;
    let seq = text(headers, "Producer-Seq")?;
    let (id, epoch, seq) = match (id, epoch, seq) {
        (None, None, None) => return Ok(None),
        (Some(id), Some(epoch), Some(seq)) => (id, epoch, seq),
        _ => {
            return Err(bad_field(
                "Producer-Id, Producer-Epoch and Producer-Seq come together or not at all",
            ));
        }
    };
    if id.is_empty() || id.len() > PRODUCER_ID_BYTES_MAX {
        return Err(bad_field(format!(
            "Producer-Id has 1 to {PRODUCER_ID_BYTES_MAX} bytes"
        )));
    }
    let number = |name: &str, digits: &str| {
        decimal(digits)
            .filter(|number| *number <= NUMBER_MAX)
            .ok_or_else(|| bad_field(format!("{name} is a whole number from 0 to {NUMBER_MAX}")))
    };
    Ok(Some(ProducerId {
        id: id.into(),
        epoch: number("Producer-Epoch", epoch)?,
        seq: number("Producer-Seq", seq)?,
    }))
}

fn lifetime(headers: Headers<'_>) -> Result<Option<Lifetime>, Response> {
    let ttl = text(headers, "Stream-TTL")?;
    let until = text(headers, "Stream-Expires-At")?;
    match (ttl, until) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(bad_field(
            "Stream-TTL and Stream-Expires-At exclude each other",
        )),
        (Some(ttl), None) => decimal(ttl)
            .map(|ttl_s| Some(Lifetime::Sliding { ttl_s }))
            .ok_or_else(|| {
                bad_field("Stream-TTL is a whole number of seconds without sign or leading zeros")
            }),
        (None, Some(until)) => until
            .parse::<jiff::Timestamp>()
            .ok()
            .and_then(|until| u64::try_from(until.as_millisecond()).ok())
            .map(|at_ms| Some(Lifetime::Until { at_ms }))
            .ok_or_else(|| {
                bad_field("Stream-Expires-At is a time like 2026-01-31T12:00:00Z (RFC 3339)")
            }),
    }
}

/// A whole number in plain decimal notation: digits only, no leading zeros.
fn decimal(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = digits == "0" || !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain && canonical)
}

/// The URL of the request, as the client addressed it.
fn location(request: &Request<'_>) -> String {
    let host = request.headers.text("Host").ok().flatten().unwrap_or("");
    if host.is_empty() {
        request.path.to_owned()
    } else {
        format!("http://{host}{}", request.path)
    }
}

/// What JavaScript can count up to (section 5.2.1).
const NUMBER_MAX: u64 = (1 << 53) - 1;

const PRODUCER_ID_BYTES_MAX: usize = 256;
