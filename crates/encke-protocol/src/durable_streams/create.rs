//! PUT: creates a stream or a fork (sections 4.2 and 5.1).

use std::sync::Arc;

use std::time::Duration;

use encke_access::{Access, CanonicalPath, Operation, SignError, UrlToSign, name_of_identity};
use encke_clock::{Now, WallTime};
use encke_stream::{
    Command, CreateExtras, DEFAULT_TYPE, Fetch, ForkOf, Lookup, Media, MediaKind, Offset, Outcome,
    Refusal, Stream, StreamNo, Viewer,
};

use super::fields::NamedOwner;
use super::{DurableStreams, fields};
use crate::action::{Action, Failure, OnCommit, OnRead};
use crate::append::{bytes, messages};
use crate::gate::{Admitted, Rights};
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
    /// The signed URL to read it that its creator asks for.
    read_url: Option<ReadUrl>,
}

/// What a signed URL to read a stream needs, once the stream has a number.
#[derive(Debug)]
struct ReadUrl {
    access: Arc<Access>,
    /// The name of the key that signs.
    kid: Box<str>,
    /// The scheme and authority of the server, as the creator knows it.
    base: String,
    /// The path, as the creator has sent it.
    target: Box<str>,
    path: CanonicalPath<'static>,
    expires_s: u64,
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
        fields::refuse(headers, &ONLY_AT_APPEND, "POST")?;
        let [streams] = &self.mounts;
        let forking = fields::forking(headers, streams)?;
        let read_url = self.read_url(request, admitted)?;
        let extras = CreateExtras {
            owner: self.owner(request, admitted)?,
            producer_timeout_s: fields::producer_timeout_s(headers)?,
            metadata: fields::metadata(headers)?,
            viewer: self.streams.viewer(name, &admitted.rights),
            source_viewer: forking.as_ref().map_or(Viewer::All, |forking| {
                self.streams.viewer(&forking.source, &admitted.rights)
            }),
            // A URL outlives a crash, which must not give the stream's number to another one.
            acks_synced: read_url.is_some(),
            // Who pays is known where quotas are counted.
            payer: None,
        };
        let mut known = vec![known];
        if let Some(forking) = &forking {
            self.streams.check_name(&forking.source)?;
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
            Some(forking) => {
                Some(self.source(&forking.source, name, request.now, &admitted.rights)?)
            }
            None => None,
        };
        let media = Media::new(match (&source, content_type) {
            (Some((source, _)), _) => &source.media.name,
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
            read_url,
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
            extras,
            known,
        };
        if let (Some(forking), Some((source, tail))) = (forking, source)
            && forking.sub_offset > 0
        {
            let asked = forking.at.unwrap_or(Offset::START);
            if !source.reaches_back_to(asked) {
                return Err(refused(&Refusal::BeforeStart { asked }));
            }
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

    /// Whose the new stream is, as its creator says.
    fn owner(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Option<Box<str>>, Response> {
        let Some(named) = fields::owner(request.headers)? else {
            return Ok(None);
        };
        let bad = |why: String| error(400, "bad_field", why);
        let (Some(access), Some(caller)) = (&self.access, admitted.rights.caller()) else {
            return Err(bad(
                "Encke-Owner needs access control, which knows the callers".into(),
            ));
        };
        let own = caller.identity();
        let owner = match named {
            NamedOwner::Caller => own.clone().ok_or_else(|| {
                bad("Encke-Owner: self needs a token with a subject, an API key or a client certificate".into())
            })?,
            NamedOwner::Subject { subject, issuer } => {
                let found = access.subject_identity(subject, issuer);
                found.map_err(|unknown| {
                    bad(format!(
                        "Encke-Owner names the subject of an issuer: SUBJECT; issuer=NAME, where NAME is one of {:?}",
                        unknown.names
                    ))
                })?
            }
        };
        fields::check_owner(name_of_identity(&owner))?;
        if own.as_deref() != Some(&*owner) {
            // It makes streams for others.
            admitted.require(Operation::Own)?;
        }
        Ok(Some(owner.into()))
    }

    /// The signed URL to read the stream that its creator asks for. It ends with the credentials of the creator, if these end before.
    fn read_url(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Option<ReadUrl>, Response> {
        let Some(seconds) = fields::read_url_s(request.headers)? else {
            return Ok(None);
        };
        admitted.require(Operation::Read)?;
        let bad = |why: String| error(400, "bad_field", why);
        let access = self.access.as_ref();
        let kid = access.and_then(|access| access.first_signing_kid());
        let (Some(access), Some(kid)) = (access, kid) else {
            return Err(bad(
                "Encke-Read-URL needs a key in access.signing-keys, of which the first one signs"
                    .into(),
            ));
        };
        let path = CanonicalPath::from_decoded(admitted.path.to_owned());
        let path = path.map_err(|why| bad(why.to_string()))?;
        let asked = request.now.wall.after(Duration::from_secs(seconds.into()));
        let caller = admitted.rights.caller();
        let ends_at = caller.and_then(|caller| caller.ends_at());
        let expires = ends_at.map_or(asked, |ends_at| ends_at.min(asked));
        Ok(Some(ReadUrl {
            access: Arc::clone(access),
            kid,
            base: request.base(),
            target: request.path.into(),
            path,
            expires_s: expires.as_ms() / 1_000,
        }))
    }

    /// The source of a fork, and its end. A fork that is there already keeps the source that it was made of, so that its creation can be
    /// repeated even when the source is deleted or belongs to somebody else. Then it stands for its source itself, up to where it begins:
    /// it tells its owner nothing of what has become of the source.
    fn source(
        &self,
        name: &str,
        fork: &str,
        now: Now,
        rights: &Rights,
    ) -> Result<(Arc<Stream>, Offset), Response> {
        let refusal = match self.streams.find_for(name, now, rights) {
            Ok(stream) => {
                let tail = stream.facts().tail;
                return Ok((stream, tail));
            }
            Err(response) if response.status == 410 => Refusal::SourceGone,
            Err(_) => Refusal::SourceNotFound,
        };
        let made = self.streams.find_for(fork, now, rights).ok();
        let made = made.and_then(|fork| {
            let source = fork.source.as_ref()?;
            let at = source.at;
            (*source.stream.name == *name).then_some((fork, at))
        });
        made.ok_or_else(|| refused(&refusal))
    }
}

impl ReadUrl {
    fn sign(&self, stream: StreamNo) -> Result<String, SignError> {
        let signed = self.access.sign_url(
            &self.kid,
            &UrlToSign {
                method: "GET",
                target: &self.target,
                path: &self.path,
                fields: &[],
                stream: Some(stream),
                expires_s: self.expires_s,
            },
        )?;
        Ok(format!("{}{signed}", self.base))
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
                no,
            } => {
                let signed = self.read_url.map(|url| url.sign(no)).transpose();
                let read_url = match signed {
                    Ok(read_url) => read_url,
                    // The key was withdrawn meanwhile. The creation can be repeated.
                    Err(why) => return error(503, "not_signed", why.to_string()),
                };
                let shows_state = self.may_read || !existed;
                let response = Response::shared(if existed { 200 } else { 201 })
                    .field("Content-Type", content_type)
                    .field_if("Stream-Next-Offset", shows_state.then_some(tail))
                    .field("Encke-Ack", ack)
                    .field_if(
                        "Encke-Retention",
                        retention.is_limited().then_some(retention),
                    )
                    .field_if("Stream-Closed", (closed && shows_state).then_some("true"))
                    .field_if("Encke-Read-URL", read_url);
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

/// Fields that only an append can have.
const ONLY_AT_APPEND: [&str; 4] = [
    "Encke-End-Reason",
    "Encke-Ephemeral",
    "Encke-Stop",
    "If-Match",
];
