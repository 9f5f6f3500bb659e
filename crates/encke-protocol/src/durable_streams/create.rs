//! PUT: creates a stream or a fork (sections 4.2 and 5.1).

use std::sync::Arc;

use encke_access::Operation;
use encke_clock::{Now, WallTime};
use encke_stream::{
    Command, DEFAULT_TYPE, Fetch, ForkOf, Lookup, Media, MediaKind, Offset, Outcome, Refusal,
    Stream,
};

use super::{DurableStreams, fields};
use crate::action::{Action, Failure, OnCommit, OnRead};
use crate::append::{bytes, messages};
use crate::gate::Admitted;
use crate::problem::{error, failed, refused, unexpected};
use crate::request::Request;
use crate::response::Response;
use crate::run::Run;
use crate::streams::load;

/// Waits for a creation.
#[derive(Debug)]
struct Creation {
    location: String,
    /// The caller may read the stream, and so may learn how far one is that exists already.
    may_read: bool,
}

/// Waits for the record inside which a fork begins: its position must be known before the fork can be committed.
#[derive(Debug)]
struct ForkInside {
    create: encke_stream::Create,
    creation: Creation,
    source: Arc<Stream>,
    tail: Offset,
    /// Units behind the offset.
    sub_offset: u32,
}

impl DurableStreams {
    pub(crate) fn put(
        &self,
        request: &mut Request<'_>,
        name: &str,
        known: Lookup,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let headers = request.headers;
        let content_type = fields::content_type(headers)?;
        let lifetime = fields::lifetime(headers)?;
        let ack = fields::ack(headers)?;
        let retention = fields::retention(headers)?;
        let [streams] = &self.mounts;
        let forking = fields::forking(headers, streams)?;
        let mut known = vec![known];
        if let Some(forking) = &forking {
            let readable = forking.requirement(streams, &self.streams.rights);
            let readable = admitted.meet(&readable);
            readable.map_err(|refused| match refused.status {
                404 => self::refused(&Refusal::SourceNotFound).audited(refused.audit),
                _ => refused,
            })?;
            match self.streams.known(&forking.source) {
                Some(source) => known.push(source),
                None => return Ok(load(&forking.source, std::mem::take(&mut request.body))),
            }
        }
        let source = match &forking {
            Some(forking) => Some(self.source(&forking.source, name, request.now)?),
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
        let creation = Creation {
            location: request.base() + request.path,
            may_read: admitted.may_at(Operation::Read, admitted.path),
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
            let fork = Box::new(ForkInside {
                create,
                creation,
                source,
                tail,
                sub_offset: forking.sub_offset,
            });
            return Ok(fork.find(asked));
        }
        Ok(Action::Commit(Command::Create(create), Box::new(creation)))
    }

    /// The source of a fork. A fork that is there already keeps the source that it was made of, so
    /// that its creation can be repeated even when the source is deleted.
    fn source(&self, name: &str, fork: &str, now: Now) -> Result<Arc<Stream>, Response> {
        let refusal = match self.streams.find(name, now) {
            Ok(stream) => return Ok(stream),
            Err(response) if response.status == 410 => Refusal::SourceGone,
            Err(_) => Refusal::SourceNotFound,
        };
        let made = self.streams.find(fork, now).ok();
        let source = made.and_then(|fork| Some(Arc::clone(&fork.source.as_ref()?.stream)));
        source
            .filter(|source| *source.name == *name)
            .ok_or_else(|| refused(&refusal))
    }
}

impl OnCommit for Creation {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Created {
                tail,
                content_type,
                closed,
                ack,
                retention,
                existed,
                ..
            } => {
                let shows_state = self.may_read || !existed;
                let response = Response::shared(if existed { 200 } else { 201 })
                    .field("Content-Type", content_type)
                    .field_if("Stream-Next-Offset", shows_state.then_some(tail))
                    .field("Encke-Ack", ack)
                    .field_if(
                        "Encke-Retention",
                        retention.is_limited().then_some(retention),
                    )
                    .field_if("Stream-Closed", (closed && shows_state).then_some("true"));
                if existed {
                    response
                } else {
                    response.field("Location", self.location)
                }
            }
            other => unexpected(&other),
        }
    }
}

impl ForkInside {
    /// Reads the record that the fork's offset leads into.
    fn find(self: Box<Self>, at: Offset) -> Action {
        let fetch = Fetch::new(&self.source, at, self.tail, 1);
        if fetch.spans.is_empty() {
            return Action::Respond(overshoot(0, self.sub_offset));
        }
        Action::Read(fetch, self)
    }
}

impl OnRead for ForkInside {
    /// Commits the fork, now that the record is known.
    fn read(mut self: Box<Self>, run: Result<Run<'_>, Failure>, _now: WallTime) -> Action {
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
        Action::Commit(Command::Create(self.create), Box::new(self.creation))
    }
}

fn overshoot(units: u32, asked: u32) -> Response {
    error(
        400,
        "beyond_record",
        format!("Stream-Fork-Sub-Offset is {asked}, but the record there has {units} units left"),
    )
}
