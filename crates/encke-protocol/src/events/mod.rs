//! Several streams over one connection: `GET /v1/events?stream=NAME[@OFFSET]&stream=...`, by name or by pattern (`chat/**`).
//!
//! The response is one stream of server-sent events with the records of all of them, each once and in the order of the log.
//! An event's id is the client's position in every stream, so that a client that resumes with `Last-Event-ID` misses nothing
//! and gets nothing twice. `parameters` reads requests, `plan` decides what a subscriber gets, `starts` finds where last messages begin, `feed_response` begins the
//! response, `id` reads and writes ids, `encode` writes events, `lines` lines of JSON for clients that ask for them.

mod encode;
mod feed_response;
mod id;
mod lines;
mod merge_plan;
mod parameters;
mod plan;
mod refusals;
mod starts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::action::Action;
use crate::channel::{self, Channels};
use crate::encoder::{EncoderForms, Encoders, MergeEncoderId};
use crate::gate::Admitted;
use crate::known_field::{KnownField, KnownFields};
use crate::live_format::LiveFormat;
use crate::mount::Mount;
use crate::moved_channel::MovedChannel;
use crate::problem::not_allowed;
use crate::protocol::{ChannelMovedIn, Protocol};
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;

use encke_access::CallersIn;
use encke_clock::{Now, SteadyTime};
pub(crate) use encode::ephemeral_object;
use feed_response::FeedResponse;
pub(crate) use id::position_text;
pub(crate) use merge_plan::{MergePlan, OnPlanned};
pub(crate) use parameters::{Named, Parameters};
pub(crate) use plan::MergePlanner;

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

impl EventsSettings {
    /// Streams that one subscriber may name.
    pub(crate) fn streams_max(&self) -> usize {
        self.streams_per_subscriber_max.min(STREAMS_MAX)
    }
}

/// The protocol over the committed streams.
#[derive(Debug)]
pub(crate) struct Events {
    mounts: [Mount; 1],
    planner: MergePlanner,
    channels: Channels,
    /// Of server-sent events.
    event_encoders: EncoderForms<MergeEncoderId>,
    /// Of lines of JSON.
    line_encoders: EncoderForms<MergeEncoderId>,
    /// When an old form of a pattern is logged again, by the steady clock.
    warns_again_ms: AtomicU64,
}

/// How long after one of them no other old form of a pattern is logged.
const OLD_FORMS_LOGGED: Duration = Duration::from_secs(60);

impl Events {
    pub(crate) fn new(planner: MergePlanner, channels: Channels, encoders: &mut Encoders) -> Self {
        Events {
            mounts: [Mount::at("/v1/events")],
            planner,
            channels,
            event_encoders: EncoderForms {
                plain: encoders.add_merge("events", encode::MergedEvents { has_times: false }),
                timed: encoders.add_merge("events-timed", encode::MergedEvents { has_times: true }),
            },
            line_encoders: EncoderForms {
                plain: encoders.add_merge("lines", lines::MergedLines { has_times: false }),
                timed: encoders.add_merge("lines-timed", lines::MergedLines { has_times: true }),
            },
            warns_again_ms: AtomicU64::default(),
        }
    }

    /// Opens a channel. The subscription that its URL names, if it names one, is the channel's first.
    fn open_channel(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let parameters = Parameters::parse(request.query, request.headers)?;
        let named = &parameters.named;
        if named.is_empty() && parameters.after.is_none() {
            return Ok(self.channels.open(request.headers, admitted, None));
        }
        if !parameters.goes_on_behind_its_url() && !admitted.may_go_on_anywhere() {
            return Err(admitted.goes_on_elsewhere());
        }
        self.planner.check_count(named)?;
        // A client without credentials learns from the first message that it must send some.
        if !admitted.is_unidentified() {
            self.planner
                .allowed(&parameters, admitted, &mut Vec::new())?;
        }
        let first = channel::several(&parameters);
        Ok(self.channels.open(request.headers, admitted, Some(first)))
    }

    /// Says that a pattern is written as earlier versions wrote it: to the client with the text that is returned, and in the log now
    /// and then.
    fn warn_of_old_form(&self, name: &str, now: Now) -> String {
        let due = SteadyTime::from_ms(self.warns_again_ms.load(Ordering::Relaxed));
        if now.steady >= due {
            let again = now.steady.after(OLD_FORMS_LOGGED);
            self.warns_again_ms.store(again.as_ms(), Ordering::Relaxed);
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
        let format = LiveFormat::accepted(request.headers);
        let forms = match format {
            LiveFormat::Events => &self.event_encoders,
            LiveFormat::Lines => &self.line_encoders,
        };
        let old_forms = parameters.named.iter().filter(|one| one.has_old_form());
        let warnings = old_forms.map(|one| self.warn_of_old_form(&one.name, request.now));
        let then = FeedResponse {
            format,
            encoder: forms.choose(parameters.has_times),
            is_head: request.method == "HEAD",
            goes_on: parameters.after.is_some(),
            warnings: warnings.collect(),
        };
        self.planner.plan(
            &parameters,
            admitted,
            request.now,
            request.barriers,
            Box::new(then),
        )
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
        let needed = named
            .flat_map(|named| named.requirements(&self.planner.root, &self.planner.streams.rights));
        Ok(needed.collect())
    }

    /// A request has no body, so that its rights are asked for with the streams that it names.
    fn authorise(&self, request: &Request<'_>, _admitted: &Admitted<'_>) -> Result<(), Response> {
        check_method(request.method)
    }

    fn opens_events(&self, _below: &str, _query: Option<&str>) -> bool {
        true
    }

    fn move_in(&self, channel: &MovedChannel, callers: &CallersIn) -> Option<ChannelMovedIn> {
        match channel {
            MovedChannel::Messages(moved) => Some(self.channels.move_in(moved.clone(), callers)),
            MovedChannel::Pusher(_) => None,
        }
    }

    fn opens_channel(&self, _below: &str, _query: Option<&str>) -> bool {
        true
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = check_method(request.method).and_then(|()| match request.upgrade {
            true => self.open_channel(&request, admitted),
            false => self.subscribe(&request, admitted),
        });
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
