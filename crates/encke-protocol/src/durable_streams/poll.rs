//! Live reads by long poll (section 5.7): data at once if there is some, else when it comes.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{Facts, Fetch, Offset, Refusal, Stream};

use super::catch_up::{rest_of_messages, rest_of_record};
use super::cursor;
use super::response_fields::{cacheable, ended, etag, position};
use super::state::ReadContext;
use crate::action::{Action, Failure, OnRead, OnRecord, Wait};
use crate::payload::data;
use crate::problem::{failed, refused};
use crate::response::Response;
use crate::run::Run;

/// What a request says of its long poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollRead {
    /// The cursor that the client sent.
    pub(super) client_cursor: u64,
    /// A cache may give the response to others.
    pub(super) public: bool,
}

/// A long poll, reading or waiting at the tail.
#[derive(Debug)]
struct LongPoll {
    stream: Arc<Stream>,
    from: Offset,
    page_bytes: usize,
    read: PollRead,
}

impl PollRead {
    /// Responds with what is behind a position, or waits for it.
    pub(super) fn begin(
        self,
        cx: &ReadContext,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        now: WallTime,
    ) -> Action {
        let fetch = Fetch::for_response(&stream, from, facts.tail, cx.page_bytes);
        let poll = LongPoll {
            stream: Arc::clone(&stream),
            from,
            page_bytes: cx.page_bytes,
            read: self,
        };
        if !fetch.spans.is_empty() {
            return Action::Read(fetch, Box::new(poll));
        }
        if facts.closed {
            return Action::Respond(poll.nothing(facts.tail, true, now));
        }
        Action::Wait(Wait {
            stream,
            from,
            wait_ms: cx.poll_wait_ms,
            then: Box::new(poll),
        })
    }
}

impl OnRead for LongPoll {
    fn read(self: Box<Self>, run: Result<Run<'_>, Failure>, now: WallTime) -> Action {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return Action::Respond(failed(failure)),
        };
        if self.stream.has_ended() {
            return Action::Respond(self.arrived(run, now));
        }
        match (run.large, run.items) {
            // Only records without data so far.
            ([], []) if !run.at_tail => {
                let tail = self.stream.facts().tail;
                let fetch = Fetch::for_response(&self.stream, run.end, tail, self.page_bytes);
                Action::Read(fetch, self)
            }
            // A large record has a response of its own, which is sent in parts.
            ([_, ..], _) => {
                let end = match run.cut {
                    0 => run.end,
                    _ => Offset::behind(run.end.sequence + 1),
                };
                rest_of_record(self.response_up_to(end, now), self.stream, end, &run)
            }
            ([], [cut]) if run.ends_cut => {
                rest_of_messages(self.response_up_to(cut.end, now), self.stream, cut)
            }
            ([], [before @ .., last, _]) if run.ends_cut => {
                let items = &run.items[..=before.len()];
                let run = Run::position(last.end).with(items);
                Action::Respond(self.arrived(run, now))
            }
            _ => Action::Respond(self.arrived(run, now)),
        }
    }
}

impl OnRecord for LongPoll {
    fn arrived(self: Box<Self>, run: Run<'_>, now: WallTime) -> Response {
        if self.stream.has_ended() {
            return self.ended();
        }
        let facts = self.stream.facts();
        let at_tail = run.at_tail && run.end >= facts.tail;
        let over = run.closed || at_tail && facts.closed;
        let end = self.stream.position(run.end);
        if run.items.is_empty() {
            return self.nothing(self.from.max(end), over, now);
        }
        let response = self.response(end, at_tail, over, now);
        response.body(data(self.stream.media.kind, run.items))
    }

    fn timed_out(self: Box<Self>, now: WallTime) -> Response {
        self.nothing(self.from, false, now)
    }

    fn ended(self: Box<Self>) -> Response {
        let kept = self.stream.facts().forks > 0;
        refused(&if kept {
            Refusal::Gone
        } else {
            Refusal::NotFound
        })
    }
}

impl LongPoll {
    fn response_up_to(&self, end: Offset, now: WallTime) -> Response {
        let facts = self.stream.facts();
        let at_tail = end >= facts.tail;
        self.response(end, at_tail, at_tail && facts.closed, now)
    }

    /// The response with data up to a position. `at_tail`: the position is the tail; `over`: the stream is closed there.
    fn response(&self, end: Offset, at_tail: bool, over: bool, now: WallTime) -> Response {
        let response = Response::shared(200)
            .field("ETag", etag(&self.stream, self.from, end, over))
            .field_if(
                "Stream-Cursor",
                (!over).then(|| cursor::next(now, self.read.client_cursor)),
            );
        let response = cacheable(response, over, self.read.public);
        position(response, &self.stream, end, at_tail, over)
    }

    fn nothing(&self, tail: Offset, over: bool, now: WallTime) -> Response {
        let response = Response::shared(204)
            .field("Stream-Next-Offset", tail)
            .field("Stream-Up-To-Date", "true")
            .field("Cache-Control", "no-store");
        let response = ended(response, over, self.stream.facts());
        if over {
            return response;
        }
        response.field("Stream-Cursor", cursor::next(now, self.read.client_cursor))
    }
}
