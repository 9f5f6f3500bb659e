//! Several streams over one connection: `GET /v1/events?stream=NAME[@OFFSET]&stream=...`, by name or by pattern (`chat/**`).
//!
//! The response is one stream of server-sent events with the records of all of them, each once and in the order of the log.
//! An event's id is the client's position in every stream, so that a client that resumes with `Last-Event-ID` misses nothing
//! and gets nothing twice. `parameters` reads requests, `id` reads and writes ids, `encode` writes events, `lines` lines of
//! JSON for clients that ask for them.

mod encode;
mod id;
mod lines;
mod parameters;
mod refusals;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use encke_stream::{Life, Now, Offset, Sequence, log_of};

use crate::action::{Action, Feed, MergeSource, SourceKind, Subscription};
use crate::encoder::{
    AheadStream, Encoders, MergeEncoder, MergeEncoderId, MergedPosition, StreamEnd,
};
use crate::gate::Admitted;
use crate::known_field::{KnownField, KnownFields};
use crate::live_format::LiveFormat;
use crate::mount::Mount;
use crate::problem::{error, not_allowed};
use crate::protocol::Protocol;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::{Body, Response};
use crate::streams::{StartPosition, StreamAccess, load};
use id::Id;
use parameters::{Named, Parameters};
use refusals::{check_count, check_id, earlier, missing};

/// The most streams that one subscriber may ever name, because an id marks them by bits.
pub const STREAMS_MAX: usize = id::PLACES_MAX;

/// The settings of the protocol.
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

/// The protocol over the committed streams.
#[derive(Debug)]
pub(crate) struct Events {
    mounts: [Mount; 1],
    streams: StreamAccess,
    settings: EventsSettings,
    /// The path above the streams.
    root: Box<str>,
    /// Of server-sent events.
    event_encoder: MergeEncoderId,
    /// Of lines of JSON.
    line_encoder: MergeEncoderId,
    /// When an old form of a pattern is logged again, by the steady clock.
    warns_again_ms: AtomicU64,
}

/// How long after one of them no other old form of a pattern is logged.
const OLD_FORMS_LOGGED_MS: u64 = 60_000;

impl Events {
    pub(crate) fn new(
        streams: StreamAccess,
        settings: EventsSettings,
        root: &str,
        encoders: &mut Encoders,
    ) -> Self {
        Events {
            mounts: [Mount::at("/v1/events")],
            streams,
            settings,
            root: root.into(),
            event_encoder: encoders.add_merge(encode::MergedEvents),
            line_encoder: encoders.add_merge(lines::MergedLines),
            warns_again_ms: AtomicU64::default(),
        }
    }

    /// What the caller may read of what it names, with its place in the request. What is hidden from a caller that resumes
    /// is over.
    fn allowed<'a>(
        &self,
        parameters: &'a Parameters,
        admitted: &Admitted<'_>,
        over: &mut Vec<(&'a str, StreamEnd)>,
    ) -> Result<Vec<(usize, &'a Named)>, Response> {
        let mut allowed = Vec::with_capacity(parameters.named.len());
        for (place, named) in parameters.named.iter().enumerate() {
            if let Some(pattern) = &named.pattern {
                if let Some(segments) = pattern.prefix().strip_suffix('/') {
                    self.streams.check_name(segments)?;
                }
                for needed in named.requirements(&self.root, &self.streams.rights) {
                    admitted.meet(&needed)?;
                }
                allowed.push((place, named));
                continue;
            }
            self.streams.check_name(&named.name)?;
            let needed = named.requirements(&self.root, &self.streams.rights);
            match needed.iter().try_for_each(|needed| admitted.meet(needed)) {
                Ok(()) => allowed.push((place, named)),
                // The same answers as for a stream that does not exist.
                Err(refused) if refused.status == 404 && parameters.after.is_some() => {
                    over.push((&named.name, StreamEnd::Deleted));
                }
                Err(refused) if refused.status == 404 => {
                    return Err(missing(&named.name, 404).audited(refused.audit));
                }
                Err(refused) => return Err(refused),
            }
        }
        Ok(allowed)
    }

    /// Says that a pattern is written as earlier versions wrote it: to the client with the text that is returned, and in the log now
    /// and then.
    fn warn_of_old_form(&self, name: &str, now: Now) -> String {
        let due_ms = self.warns_again_ms.load(Ordering::Relaxed);
        if now.steady_ms >= due_ms {
            let again_ms = now.steady_ms + OLD_FORMS_LOGGED_MS;
            self.warns_again_ms.store(again_ms, Ordering::Relaxed);
            tracing::warn!(
                pattern = name,
                "a subscription names a pattern in its old form, which the next version will take for one segment: write /** for all below"
            );
        }
        let prefix = name.trim_end_matches('*').escape_debug();
        let shown = name.escape_debug();
        format!("{shown} stands for {prefix}**, and will mean one segment in the next version")
    }

    fn subscribe(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let parameters = Parameters::parse(request.query, request.headers)?;
        if !parameters.goes_on_behind_its_url() && !admitted.may_go_on_anywhere() {
            return Err(admitted.goes_on_elsewhere());
        }
        let count_max = self.settings.streams_per_subscriber_max.min(STREAMS_MAX);
        check_count(&parameters.named, count_max, self.streams.views.logs())?;
        let resumed = parameters.after.as_ref();
        let mut over = Vec::new();
        let allowed = self.allowed(&parameters, admitted, &mut over)?;
        let logs = self.streams.views.logs();
        if self.streams.in_fleet && !allowed.is_empty() && request.barriers < logs {
            return Ok(Action::AwaitOrder(request.barriers, Vec::new()));
        }
        // Read before any stream's facts, so that they include everything up to here.
        let committed = self.streams.views.all_committed();
        if let Some(id) = resumed {
            check_id(id, &committed)?;
        }
        let mut sources = Vec::with_capacity(allowed.len());
        let mut recreated = None;
        // Streams that have ended, and what the client has of them.
        let mut had = Vec::new();
        let mut begun = Vec::new();
        let mut held = Vec::with_capacity(allowed.len());
        for (place, named) in allowed {
            if let Some(pattern) = &named.pattern {
                for (log, committed) in (0..).zip(&committed) {
                    let from = self.pattern_start(named, log, place, resumed, *committed)?;
                    sources.push(MergeSource {
                        kind: SourceKind::Pattern {
                            pattern: Arc::clone(pattern),
                            log,
                        },
                        from,
                        place: place as u8,
                    });
                }
                continue;
            }
            // Held until the action is decided, so that the stream stays in memory.
            let Some(known) = self.streams.known(&named.name) else {
                return Ok(load(&named.name, Vec::new()));
            };
            held.push(known);
            let stream = match self.streams.find(&named.name, request.now) {
                Ok(stream) => stream,
                // A client that resumes learns what has ended meanwhile, and continues with the rest.
                Err(_) if resumed.is_some() => {
                    over.push((named.name.as_str(), StreamEnd::Deleted));
                    continue;
                }
                Err(response) => return Err(missing(&named.name, response.status)),
            };
            // The client's position is one of the stream that it had, and leads nowhere in another one.
            if resumed.is_some_and(|id| id.is_of_an_earlier(&stream, place)) {
                over.push((named.name.as_str(), StreamEnd::Deleted));
                recreated.get_or_insert(named);
                continue;
            }
            if resumed.is_none_or(|id| id.generation(place).is_none()) {
                id::note_generation(&mut begun, &stream, place);
            }
            let committed = committed[log_of(stream.no)];
            let from = named.start(&self.streams, &stream, place, resumed, committed)?;
            let facts = stream.facts();
            self.streams.touch(&stream, request.now);
            if from >= facts.tail && (facts.closed || facts.life != Life::Live) {
                over.push((named.name.as_str(), StreamEnd::Closed));
                had.push((log_of(stream.no), from, place as u8));
                continue;
            }
            sources.push(MergeSource {
                kind: SourceKind::Stream(stream),
                from,
                place: place as u8,
            });
        }
        if sources.is_empty()
            && let Some(named) = recreated
        {
            return Err(earlier(&named.name));
        }
        if sources.is_empty() && resumed.is_some() {
            // This status stops a browser's EventSource (HTML, section 9.2.3).
            return Ok(Action::Respond(Response::shared(204)));
        }
        let after = match resumed {
            Some(id) => id.after.clone(),
            None => common_position(&sources, committed),
        };
        let ended = had
            .iter()
            .filter_map(|(log, at, place)| AheadStream::of(*log, *at, *place, &after));
        let ended: Vec<AheadStream> = ended.collect();
        let ahead = sources.iter().filter_map(|source| {
            AheadStream::of(source.kind.log(), source.from, source.place, &after)
        });
        let ahead: Vec<AheadStream> = ahead.chain(ended.iter().copied()).collect();
        let known = resumed.map_or(&[][..], |id| &id.generations);
        let generations = [known, &begun].concat();
        let position = MergedPosition {
            after: &after,
            ahead: &ahead,
            generations: &generations,
        };
        let format = LiveFormat::accepted(request.headers);
        let (encoder_id, encoder): (_, &dyn MergeEncoder) = match format {
            LiveFormat::Events => (self.event_encoder, &encode::MergedEvents),
            LiveFormat::Lines => (self.line_encoder, &lines::MergedLines),
        };
        let mut first = Vec::new();
        encoder.position(position, &mut first);
        for named in parameters.named.iter().filter(|one| one.has_old_form()) {
            let warning = self.warn_of_old_form(&named.name, request.now);
            match format {
                LiveFormat::Events => {
                    first.extend_from_slice(format!(": {warning}\n\n").as_bytes());
                }
                LiveFormat::Lines => lines::warning(&warning, &mut first),
            }
        }
        for (name, end) in over {
            encoder.ended(name, end, None, &mut first);
        }
        let response = format.head().field("Vary", "Accept");
        if sources.is_empty() {
            return Ok(Action::Respond(response.body(first)));
        }
        let response = response.body(Body::Open(first));
        if request.method == "HEAD" {
            return Ok(Action::Respond(response));
        }
        Ok(Action::Subscribe(Subscription {
            response,
            feed: Feed::Merged {
                sources,
                after,
                generations: generations.into(),
                encoder: encoder_id,
                ended,
            },
        }))
    }

    /// The position behind which the records of a pattern are delivered, in one of the logs.
    fn pattern_start(
        &self,
        named: &Named,
        log: u8,
        place: usize,
        resumed: Option<&Id>,
        committed: Sequence,
    ) -> Result<Offset, Response> {
        let order_from = self.streams.views.log(usize::from(log)).order_from();
        let kept_behind = order_from.saturating_sub(1).min(committed);
        if let Some(id) = resumed {
            let had = id.position(place, usize::from(log));
            if had.units > 0 {
                return Err(error(
                    400,
                    "bad_parameter",
                    format!(
                        "the event id has a position inside a record for the pattern {}, and this server gives none",
                        named.name
                    ),
                ));
            }
            if had.sequence < kept_behind {
                return Err(error(
                    410,
                    "no_longer_kept",
                    format!(
                        "records behind this id are no longer in the order of all streams, of which the server keeps \
                         order-size; begin again with {}@-1 and without the id",
                        named.name
                    ),
                ));
            }
            return Ok(had);
        }
        match named.from {
            StartPosition::Start => Ok(Offset::behind(kept_behind)),
            StartPosition::Now => Ok(Offset::behind(committed)),
            StartPosition::At(_) => Err(error(
                400,
                "bad_parameter",
                format!(
                    "the pattern {} begins at an offset, but offsets are of one stream: use -1 or now, or the id of an event",
                    named.name
                ),
            )),
        }
    }
}

impl Protocol for Events {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        METHODS
    }

    fn fields(&self) -> &'static KnownFields {
        &FIELDS
    }

    fn overview(&self) -> &'static str {
        "Follow many  GET /v1/events?stream={name}&stream=chat/**  (chat/* is every stream below chat/)\n"
    }

    /// The rights to read all that the request names.
    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        check_method(head.method)?;
        let parameters = Parameters::parse(head.query, head.headers)?;
        let named = parameters.named.iter();
        let needed = named.flat_map(|named| named.requirements(&self.root, &self.streams.rights));
        Ok(needed.collect())
    }

    /// A request has no body, so that its rights are asked for with the streams that it names.
    fn authorise(&self, head: &RequestHead<'_>, _admitted: &Admitted<'_>) -> Result<(), Response> {
        check_method(head.method)
    }

    fn opens_events(&self, _below: &str, _query: Option<&str>) -> bool {
        true
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = check_method(request.method).and_then(|()| self.subscribe(&request, admitted));
        action.unwrap_or_else(Action::Respond)
    }
}

/// The methods of the endpoint.
const METHODS: &[&str] = &["GET", "HEAD", "OPTIONS"];

/// The header fields of the endpoint. `Accept` chooses the form of the records. A client goes on behind the last event that it got; with a signed URL positions before the
/// signed ones are refused.
const FIELDS: KnownFields = KnownFields {
    request: &[
        KnownField::harmless("Accept"),
        KnownField::harmless("Last-Event-ID"),
    ],
    response: &[],
};

fn check_method(method: &str) -> Result<(), Response> {
    match method {
        "GET" | "HEAD" => Ok(()),
        method => Err(not_allowed(method, METHODS)),
    }
}

/// The positions up to which a new client has everything of all its streams: those at the tail need nothing before it.
fn common_position(sources: &[MergeSource], committed: Vec<Sequence>) -> Vec<Sequence> {
    let mut after = committed;
    for source in sources {
        let after = &mut after[source.kind.log()];
        *after = source.from.sequence.min(*after);
    }
    after
}
