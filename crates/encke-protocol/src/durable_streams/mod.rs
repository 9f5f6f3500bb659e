//! The Durable Streams protocol, version 1.0: a stream is a URL.
//!
//! `read` answers GET and HEAD by way of `catch_up`, `poll` and `follow`; `write` answers PUT, POST
//! and DELETE, and `fields` reads what their fields say; `events` writes the records of live
//! subscribers, `start` says from where. Section numbers are those of the protocol's text.

mod catch_up;
mod cursor;
mod events;
mod fields;
mod follow;
mod poll;
mod read;
mod start;
mod write;

use std::sync::Arc;

use encke_stream::{Life, Refusal, Stream, Views};

use crate::query;
use crate::{Action, Failure, Request, Response};

pub(crate) use catch_up::{CatchUp, Page};
pub(crate) use events::{encode, farewell, lines};
pub(crate) use poll::Poll;
pub(crate) use read::push_items;
pub(crate) use start::{From, check_own};
pub(crate) use write::{Append, Create, Fork, deleted, truncated};

/// The face over the committed streams.
#[derive(Clone, Debug)]
pub(crate) struct DurableStreams {
    pub(crate) views: Arc<Views>,
    pub(crate) settings: Arc<DurableStreamsSettings>,
}

/// What can be set about the face.
#[derive(Clone, Debug)]
pub struct DurableStreamsSettings {
    /// The path under which the streams are found; starts and ends with `/`.
    pub root: String,
    /// Bytes of a stream's name, decoded.
    pub name_bytes_max: usize,
    /// How long a long poll waits for data, in milliseconds.
    pub poll_wait_ms: u64,
    /// About how much data is read at a time, and one answer to a long poll holds, in bytes.
    pub page_bytes: usize,
    /// About how much of a long answer is read first. Each part is twice as large as the one before it, up to `page_bytes`: a
    /// client that reads nothing has cost little by then.
    pub first_page_bytes: usize,
}

impl Default for DurableStreamsSettings {
    fn default() -> Self {
        DurableStreamsSettings {
            root: "/v1/stream/".into(),
            name_bytes_max: 1024,
            poll_wait_ms: 20_000,
            page_bytes: 256 << 10,
            first_page_bytes: 32 << 10,
        }
    }
}

/// What the face remembers of a request that waits.
#[derive(Debug)]
pub(crate) enum Pending {
    Create(Create),
    Append(Append),
    Truncate,
    Delete,
    Fork(Box<Fork>),
    CatchUp(CatchUp),
    Page(Page),
    Poll(Poll),
    /// Another face's: a question that pools answer.
    Pool(crate::pool::Asked),
}

impl DurableStreams {
    /// Answers a request for the path below the root.
    pub(crate) fn request(&self, mut request: Request<'_>, path: &str) -> Action {
        if request.method == "OPTIONS" {
            return Action::Respond(preflight());
        }
        let name = match self.name(path) {
            Ok(name) => name,
            Err(response) => return Action::Respond(response),
        };
        if !["GET", "HEAD", "POST", "PUT", "DELETE"].contains(&request.method) {
            let refused = error(
                405,
                "method_not_allowed",
                format!(
                    "{} is not a method of streams: {METHODS} are",
                    request.method
                ),
            );
            return Action::Respond(refused.field("Allow", METHODS));
        }
        // Held until the answer is made, so that it stays in memory.
        let Some(known) = self.views.look(&name) else {
            return look(&name, request.body);
        };
        let answer = match request.method {
            "GET" => self.get(&request, &name),
            "HEAD" => self.head(&request, &name),
            "POST" => self.post(&mut request, &name),
            "PUT" => self.put(&mut request, &name, known),
            _ => self.delete(&request, &name),
        };
        answer.unwrap_or_else(Action::Respond)
    }

    /// The stream's name that a path below the root says, percent-decoded once.
    fn name(&self, path: &str) -> Result<String, Response> {
        let bad = |why: String| Err(error(400, "bad_path", why));
        let Ok(name) = query::decode(path) else {
            return bad("the path is not percent-encoded UTF-8".into());
        };
        self.check_name(&name)?;
        Ok(name.into_owned())
    }

    /// Refuses what can't be a stream's name.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), Response> {
        let bad = |why: String| Err(error(400, "bad_path", why));
        if name.is_empty() {
            return bad("the path names no stream".into());
        }
        if name.len() > self.settings.name_bytes_max {
            return bad(format!(
                "the stream's name has {} bytes, at most {} are allowed",
                name.len(),
                self.settings.name_bytes_max
            ));
        }
        if name.chars().any(char::is_control) {
            return bad("the stream's name holds a control character".into());
        }
        if name.split('/').any(|part| part == "." || part == "..") {
            return bad("the stream's name holds `.` or `..` as a segment".into());
        }
        if name == RESERVED || name.starts_with(RESERVED_PREFIX) {
            return Err(error(
                501,
                "not_implemented",
                "subscriptions are not served yet".into(),
            ));
        }
        Ok(())
    }

    /// The stream of that name, if clients may use it.
    pub(crate) fn find(&self, name: &str, now_ms: u64) -> Result<Arc<Stream>, Response> {
        let Some(stream) = self.views.find(name) else {
            return Err(refused(&Refusal::NotFound));
        };
        let facts = stream.facts();
        match facts.life {
            Life::Live if !stream.expired(now_ms) => Ok(stream),
            Life::Live if facts.forks == 0 => Err(refused(&Refusal::NotFound)),
            Life::Ended => Err(refused(&Refusal::NotFound)),
            Life::Live | Life::Kept => Err(refused(&Refusal::Gone)),
        }
    }
}

/// Has a name looked up in the store.
pub(crate) fn look(name: &str, body: Vec<u8>) -> Action {
    Action::Look(crate::Look {
        name: name.into(),
        body,
    })
}

/// The answer to a command that was refused.
pub(crate) fn refused(refusal: &Refusal) -> Response {
    let (status, code) = match refusal {
        Refusal::NotFound => (404, "not_found"),
        Refusal::Gone => (410, "gone"),
        Refusal::NameKept => (409, "name_kept"),
        Refusal::Differs { .. } => (409, "config_differs"),
        Refusal::Closed { .. } => (409, "closed"),
        Refusal::TypeDiffers { .. } => (409, "type_differs"),
        Refusal::WriterSeq { .. } => (409, "stream_seq"),
        Refusal::StaleEpoch { .. } => (403, "stale_epoch"),
        Refusal::EpochStart { .. } => (400, "epoch_start"),
        Refusal::SeqGap { .. } => (409, "sequence_gap"),
        Refusal::SourceNotFound => (404, "source_not_found"),
        Refusal::SourceGone => (409, "source_gone"),
        Refusal::BeyondTail { .. } | Refusal::TruncateBeyondTail { .. } => (400, "beyond_tail"),
        Refusal::BeforeStart { .. } => (400, "before_start"),
        Refusal::NoLongerKept { .. } => (410, "no_longer_kept"),
        Refusal::TooDeep { .. } => (409, "fork_too_deep"),
        Refusal::TooLarge { .. } => (413, "too_large"),
        Refusal::NoSpace => (507, "disk_full"),
        Refusal::Stalled(_) => (503, "log_stalled"),
        Refusal::LetGo => (503, "let_go"),
        Refusal::NameBusy => (503, "name_busy"),
        Refusal::LogFailed(_) => (503, "log_failed"),
    };
    let response = error(status, code, refusal.to_string());
    match refusal {
        Refusal::Closed { tail } => response
            .field("Stream-Closed", "true")
            .field("Stream-Next-Offset", tail),
        Refusal::StaleEpoch { current } => response.field("Producer-Epoch", current),
        Refusal::SeqGap { expected, received } => response
            .field("Producer-Expected-Seq", expected)
            .field("Producer-Received-Seq", received),
        Refusal::Stalled(_) | Refusal::LetGo | Refusal::NameBusy => {
            response.field("Retry-After", RETRY_AFTER_S)
        }
        _ => response,
    }
}

/// The answer when something that was waited for will not come.
pub(crate) fn failed(failure: Failure) -> Response {
    match failure {
        Failure::Overloaded => error(
            503,
            "overloaded",
            "more requests wait than the server takes; try again".into(),
        )
        .field("Retry-After", RETRY_AFTER_S),
        Failure::NoLongerKept => error(
            410,
            "no_longer_kept",
            "what was asked for is no longer kept; -1 gives what is left".into(),
        ),
        Failure::Unreadable => error(
            500,
            "unreadable",
            "the data could not be read; the server's log says why".into(),
        ),
        Failure::Stopping => error(
            503,
            "stopping",
            "the server is going away; try again".into(),
        )
        .field("Retry-After", RETRY_AFTER_S),
    }
}

/// An answer that says what was wrong.
pub(crate) fn error(status: u16, code: &'static str, message: String) -> Response {
    let body = serde_json::json!({ "error": { "code": code, "message": message } });
    answer(status)
        .field("Content-Type", "application/json")
        .field("Cache-Control", "no-store")
        .body(body.to_string())
}

/// A response with the fields that all have: for browsers that read across origins, and against
/// those that guess types (section 12.7).
pub(crate) fn answer(status: u16) -> Response {
    Response::new(status).fields(COMMON_FIELDS)
}

/// The answer to a browser that asks whether it may.
pub(crate) fn preflight() -> Response {
    answer(204)
        .field("Access-Control-Allow-Methods", METHODS)
        .field("Access-Control-Allow-Headers", REQUEST_FIELDS)
        .field("Access-Control-Max-Age", "86400")
}

const METHODS: &str = "GET, HEAD, PUT, POST, DELETE, OPTIONS";

const REQUEST_FIELDS: &str = "Content-Type, Authorization, If-None-Match, Last-Event-ID, \
    Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, Stream-Forked-From, \
    Stream-Fork-Offset, Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq, \
    Encke-Ack, Encke-Retention, Encke-Truncate";

const COMMON_FIELDS: &[u8] = b"X-Content-Type-Options: nosniff\r\n\
    Cross-Origin-Resource-Policy: cross-origin\r\n\
    Access-Control-Allow-Origin: *\r\n\
    Access-Control-Expose-Headers: Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, \
    Stream-Closed, Stream-TTL, Stream-Expires-At, Stream-SSE-Data-Encoding, Producer-Epoch, \
    Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, ETag, Location, Retry-After, \
    Encke-Ack, Encke-Retention, Encke-Floor, Job-Id, Job-Attempt, Job-Deadline, Job-Key\r\n";

/// Control paths (section 6); no stream's name starts with this segment.
const RESERVED: &str = "__ds";
const RESERVED_PREFIX: &str = "__ds/";

const RETRY_AFTER_S: u32 = 1;
