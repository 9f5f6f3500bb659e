//! All faces behind one door.

use std::sync::Arc;

use encke_stream::{Outcome, Views};

use crate::answer::{Answer, Failure, Part, Then};
use crate::durable_streams::{self, DurableStreams, Pending};
use crate::events::{self, Told};
use crate::pool::{self, Pools, Saying};
use crate::run::{Farewell, Mark, Run, Style};
use crate::{Admin, Request, Response};

/// All faces over the same streams.
#[derive(Clone, Debug)]
pub struct Faces {
    durable_streams: DurableStreams,
    events: events::Settings,
    pools: Pools,
    admin: Admin,
}

/// What can be set about the faces.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Of the Durable Streams face.
    pub durable_streams: durable_streams::Settings,
    /// Of subscriptions to several streams.
    pub events: events::Settings,
    /// Of the face of pools.
    pub pool: pool::Settings,
}

impl Faces {
    /// Faces over the committed streams.
    pub fn new(views: Arc<Views>, settings: Settings, admin: Admin) -> Self {
        Faces {
            durable_streams: DurableStreams {
                views,
                settings: Arc::new(settings.durable_streams),
            },
            events: settings.events,
            pools: Pools {
                settings: Arc::new(settings.pool),
            },
            admin,
        }
    }

    /// Answers a request.
    pub fn request(&self, request: Request<'_>) -> Answer {
        if request.path == events::PATH {
            return events::request(&self.durable_streams, self.events, &request);
        }
        match request
            .path
            .strip_prefix(&*self.durable_streams.settings.root)
        {
            Some(path) => self.durable_streams.request(request, path),
            None => match self.pools.path(request.path) {
                Some(path) => self.pools.request(request, path),
                None => self.admin.request(&request),
            },
        }
    }

    /// Goes on after a commit.
    pub fn committed(&self, then: Then, outcome: Outcome) -> Response {
        match *then.0 {
            Pending::Create(create) => create.committed(outcome),
            Pending::Append(append) => append.committed(outcome),
            Pending::Truncate => durable_streams::truncated(&outcome),
            Pending::Delete => durable_streams::deleted(&outcome),
            pending => misplaced(&pending),
        }
    }

    /// Goes on after a read.
    pub fn fetched(&self, then: Then, run: Result<Run<'_>, Failure>, now_ms: u64) -> Answer {
        match *then.0 {
            Pending::CatchUp(catch_up) => catch_up.fetched(run),
            Pending::Fork(fork) => fork.fetched(run),
            Pending::Poll(poll) => Answer::Respond(poll.polled(run, now_ms)),
            pending => Answer::Respond(misplaced(&pending)),
        }
    }

    /// Goes on with a long answer after a read. Nothing if the stream has ended, and the answer must be
    /// cut off.
    pub fn continued(&self, then: Then, run: &Run<'_>) -> Option<Part> {
        match *then.0 {
            Pending::Page(page) => page.fetched(run),
            _ => None,
        }
    }

    /// Goes on when a long poll's records are there, or never will be.
    pub fn polled(&self, then: Then, run: Result<Run<'_>, Failure>, now_ms: u64) -> Response {
        match *then.0 {
            Pending::Poll(poll) => poll.polled(run, now_ms),
            pending => misplaced(&pending),
        }
    }

    /// Goes on when a long poll has waited long enough.
    pub fn timed_out(&self, then: Then, now_ms: u64) -> Response {
        match *then.0 {
            Pending::Poll(poll) => poll.timed_out(now_ms),
            pending => misplaced(&pending),
        }
    }

    /// Goes on when the stream that a long poll waits for was deleted.
    pub fn ended(&self, then: Then) -> Response {
        match *then.0 {
            Pending::Poll(poll) => poll.ended(),
            pending => misplaced(&pending),
        }
    }

    /// Goes on with what the pools say.
    pub fn told(&self, then: &Then, told: encke_jobs::PoolResponse) -> Saying {
        match &*then.0 {
            Pending::Pool(asked) => pool::told(asked, told),
            pending => Saying::Respond(misplaced(pending)),
        }
    }

    /// What keeps a worker's quiet connection alive.
    pub fn worker_heartbeat(&self) -> &'static [u8] {
        Pools::heartbeat()
    }

    /// The answer when what was asked for can't be had.
    pub fn failed(&self, failure: Failure) -> Response {
        durable_streams::failed(failure)
    }

    /// Writes a run for all subscribers with that style, and marks where they may be left.
    pub fn encode(
        &self,
        style: Style,
        run: &Run<'_>,
        now_ms: u64,
        out: &mut Vec<u8>,
        marks: &mut Vec<Mark>,
    ) {
        match style {
            Style::DurableStreams { kind, cursor_floor } => {
                durable_streams::encode(kind, cursor_floor, run, now_ms, out, marks);
            }
        }
    }

    /// Writes the last word to a subscriber of that style.
    pub fn farewell(&self, style: Style, farewell: &Farewell, now_ms: u64, out: &mut Vec<u8>) {
        match style {
            Style::DurableStreams { cursor_floor, .. } => {
                durable_streams::farewell(cursor_floor, farewell, now_ms, out);
            }
        }
    }

    /// Writes an event for a subscriber of several streams.
    pub fn tell(&self, told: &Told<'_>, out: &mut Vec<u8>) {
        events::tell(told, out);
    }

    /// What keeps a quiet connection of that style alive.
    pub fn heartbeat(&self, style: Style) -> &'static [u8] {
        match style {
            Style::DurableStreams { .. } => b":\n\n",
        }
    }
}

fn misplaced(pending: &Pending) -> Response {
    durable_streams::error(
        500,
        "internal",
        format!("a request was gone on with out of turn: {pending:?}"),
    )
}
