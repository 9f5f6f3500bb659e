//! PUT, POST and DELETE: create, fork, append, close, delete (sections 4.2 and 5.1 to 5.4).

use std::sync::Arc;

use encke_stream::{
    Command, DEFAULT_TYPE, Data, Fetch, ForkOf, Known, Media, MediaKind, Offset, Outcome, Refusal,
    Stream, Target,
};

use super::{DurableStreams, Pending, answer, error, failed, fields, look, refused};
use crate::action::{Action, Failure, Then};
use crate::run::Run;
use crate::{Request, Response, json};

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
    pub(crate) fn post(&self, request: &mut Request<'_>, name: &str) -> Result<Action, Response> {
        let headers = request.headers;
        let closes = fields::says_closed(headers);
        let producer = fields::producer(headers)?;
        let writer_seq = fields::writer_seq(headers)?;
        let ack = fields::ack(headers)?;
        let body = std::mem::take(&mut request.body);
        if let Some(before) = fields::truncation(headers)? {
            if !body.is_empty() || closes || producer.is_some() || writer_seq.is_some() {
                return Err(error(
                    400,
                    "bad_field",
                    "a request with Encke-Truncate does nothing else: no body, no Stream-Closed, no producer, no Stream-Seq"
                        .into(),
                ));
            }
            let command = Command::Truncate {
                target: Target::Known(self.find(name, request.now_ms)?),
                before,
                ack,
            };
            return Ok(Action::Commit(command, Then(Box::new(Pending::Truncate))));
        }
        if body.is_empty() && !closes {
            return Err(error(
                400,
                "empty_body",
                "an append needs a body, unless it closes the stream".into(),
            ));
        }
        // Without a body the type means nothing, whatever it is (section 5.2).
        let content_type = match body.is_empty() {
            true => None,
            false => Some(fields::content_type(headers)?.ok_or_else(|| {
                error(
                    400,
                    "missing_content_type",
                    "an append with a body needs a Content-Type".into(),
                )
            })?),
        };
        let stream = self.find(name, request.now_ms)?;
        let differs = content_type.filter(|asked| !stream.media.matches(asked));
        let data = if differs.is_none() && stream.media.kind == MediaKind::Json && !body.is_empty()
        {
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
            content_type: differs.map(Box::from),
            producer,
            writer_seq: writer_seq.map(Box::from),
            closes,
            ack,
            data,
        });
        let then = Then(Box::new(Pending::Append(pending)));
        Ok(Action::Commit(command, then))
    }

    pub(crate) fn put(
        &self,
        request: &mut Request<'_>,
        name: &str,
        known: Known,
    ) -> Result<Action, Response> {
        let headers = request.headers;
        let content_type = fields::content_type(headers)?;
        let lifetime = fields::lifetime(headers)?;
        let ack = fields::ack(headers)?;
        let retention = fields::retention(headers)?;
        let forking = fields::forking(headers, &self.settings.root)?;
        let mut known = vec![known];
        if let Some(forking) = &forking {
            match self.views.look(&forking.source) {
                Some(source) => known.push(source),
                None => return Ok(look(&forking.source, std::mem::take(&mut request.body))),
            }
        }
        let source = match &forking {
            Some(forking) => Some(self.source(&forking.source, name, request.now_ms)?),
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
            closed: fields::says_closed(headers),
            fork: forking.as_ref().map(|forking| ForkOf {
                source: forking.source.as_str().into(),
                at: forking.at,
            }),
            data,
            ack,
            retention,
            known,
        };
        if let (Some(forking), Some(source)) = (forking, source)
            && forking.sub_offset > 0
        {
            let asked = forking.at.unwrap_or(Offset::START);
            if !source.reaches_back_to(asked) {
                return Err(refused(&Refusal::BeforeStart { asked }));
            }
            let tail = source.facts().tail;
            return Ok(Fork {
                create,
                pending,
                source,
                tail,
                sub_offset: forking.sub_offset,
            }
            .find(asked));
        }
        let then = Then(Box::new(Pending::Create(pending)));
        Ok(Action::Commit(Command::Create(create), then))
    }

    pub(crate) fn delete(&self, request: &Request<'_>, name: &str) -> Result<Action, Response> {
        let stream = self.find(name, request.now_ms)?;
        let command = Command::Delete {
            target: Target::Known(stream),
            ack: fields::ack(request.headers)?,
        };
        Ok(Action::Commit(command, Then(Box::new(Pending::Delete))))
    }

    /// The source of a fork. A fork that is there already keeps the source that it was made of, so
    /// that its creation can be repeated even when the source is deleted.
    fn source(&self, name: &str, fork: &str, now_ms: u64) -> Result<Arc<Stream>, Response> {
        let refusal = match self.find(name, now_ms) {
            Ok(stream) => return Ok(stream),
            Err(response) if response.status == 410 => Refusal::SourceGone,
            Err(_) => Refusal::SourceNotFound,
        };
        let made = self.find(fork, now_ms).ok();
        let source = made.and_then(|fork| Some(Arc::clone(&fork.source.as_ref()?.stream)));
        source
            .filter(|source| *source.name == *name)
            .ok_or_else(|| refused(&refusal))
    }
}

impl Create {
    pub(crate) fn committed(self, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Created {
                tail,
                content_type,
                closed,
                ack,
                retention,
                existed,
            } => {
                let response = answer(if existed { 200 } else { 201 })
                    .field("Content-Type", content_type)
                    .field("Stream-Next-Offset", tail)
                    .field("Encke-Ack", ack)
                    .field_if(
                        "Encke-Retention",
                        retention.is_limited().then_some(retention),
                    )
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

/// The answer to a truncation.
pub(crate) fn truncated(outcome: &Outcome) -> Response {
    match outcome {
        Outcome::Truncated { floor, tail } => answer(204)
            .field("Encke-Floor", floor)
            .field("Stream-Next-Offset", tail),
        other => refusal(other),
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
    fn find(self, at: Offset) -> Action {
        let fetch = Fetch::new(&self.source, at, self.tail, 1);
        if fetch.spans.is_empty() {
            return Action::Respond(overshoot(0, self.sub_offset));
        }
        Action::Fetch(fetch, Then(Box::new(Pending::Fork(Box::new(self)))))
    }

    /// Commits the fork, now that the record is known.
    pub(crate) fn fetched(mut self, run: Result<Run<'_>, Failure>) -> Action {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return Action::Respond(failed(failure)),
        };
        if self.source.has_ended() {
            return Action::Respond(refused(&Refusal::SourceNotFound));
        }
        let Some(item) = run.items.first() else {
            // Only changes without data stood there.
            return self.find(run.end);
        };
        let units = item.take - item.skip;
        if self.sub_offset > units {
            return Action::Respond(overshoot(units, self.sub_offset));
        }
        let at = if self.sub_offset == units {
            item.end
        } else {
            Offset {
                // The record's own sequence is one more.
                sequence: match item.end.units {
                    0 => item.end.sequence.saturating_sub(1),
                    _ => item.end.sequence,
                },
                units: item.skip + self.sub_offset,
            }
        };
        if let Some(fork) = &mut self.create.fork {
            fork.at = Some(at);
        }
        let then = Then(Box::new(Pending::Create(self.pending)));
        Action::Commit(Command::Create(self.create), then)
    }
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

/// The URL of the request, as the client addressed it.
fn location(request: &Request<'_>) -> String {
    let sent = || request.headers.text("Host").ok().flatten();
    let host = request.via.host.or_else(sent).unwrap_or("");
    let scheme = if request.via.tls { "https" } else { "http" };
    if host.is_empty() {
        request.path.to_owned()
    } else {
        format!("{scheme}://{host}{}", request.path)
    }
}
