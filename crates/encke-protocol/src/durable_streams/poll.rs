//! Live reads by long poll (section 5.7): data at once if there is some, else when it comes.

use std::sync::Arc;

use encke_stream::{Facts, Fetch, Offset, Refusal, Stream};

use super::read::{cache_control, closed, data, etag, position};
use super::{DurableStreams, Pending, answer, cursor, failed, refused};
use crate::action::{Action, Failure, Then};
use crate::run::Run;
use crate::{Request, Response};

/// A long poll, reading or waiting at the tail.
#[derive(Debug)]
pub(crate) struct Poll {
    stream: Arc<Stream>,
    from: Offset,
    /// The cursor that the client brought.
    brought: u64,
}

impl DurableStreams {
    pub(super) fn long_poll(
        &self,
        request: &Request<'_>,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        brought: u64,
    ) -> Action {
        let fetch = Fetch::new(&stream, from, facts.tail, self.settings.page_bytes);
        let poll = Poll {
            stream: Arc::clone(&stream),
            from,
            brought,
        };
        if !fetch.spans.is_empty() {
            return Action::Fetch(fetch, Then(Box::new(Pending::Poll(poll))));
        }
        if facts.closed {
            return Action::Respond(poll.nothing(facts.tail, true, request.now_ms));
        }
        Action::Poll(crate::Poll {
            stream,
            from,
            until_ms: request.now_ms + self.settings.poll_wait_ms,
            then: Then(Box::new(Pending::Poll(poll))),
        })
    }
}

impl Poll {
    /// The answer, once there is something to say.
    pub(crate) fn polled(self, run: Result<Run<'_>, Failure>, now_ms: u64) -> Response {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return failed(failure),
        };
        if self.stream.has_ended() {
            return self.ended();
        }
        let facts = self.stream.facts();
        let at_tail = run.at_tail && run.end >= facts.tail;
        let over = run.closed || at_tail && facts.closed;
        if run.items.is_empty() {
            return self.nothing(self.from.max(run.end), over, now_ms);
        }
        let response = answer(200)
            .field("ETag", etag(&self.stream, self.from, run.end, over))
            .field("Cache-Control", cache_control(over))
            .field_if(
                "Stream-Cursor",
                (!over).then(|| cursor::next(now_ms, self.brought)),
            );
        position(response, &self.stream, run.end, at_tail, over)
            .body(data(self.stream.media.kind, run.items))
    }

    /// The answer when nothing came in time.
    pub(crate) fn timed_out(self, now_ms: u64) -> Response {
        self.nothing(self.from, false, now_ms)
    }

    /// The answer when the stream was deleted meanwhile.
    pub(crate) fn ended(self) -> Response {
        let kept = self.stream.facts().forks > 0;
        refused(&if kept {
            Refusal::Gone
        } else {
            Refusal::NotFound
        })
    }

    fn nothing(&self, tail: Offset, over: bool, now_ms: u64) -> Response {
        let response = answer(204)
            .field("Stream-Next-Offset", tail)
            .field("Stream-Up-To-Date", "true")
            .field("Cache-Control", "no-store");
        if over {
            return closed(response, true);
        }
        response.field("Stream-Cursor", cursor::next(now_ms, self.brought))
    }
}
