//! Catch-up reads (section 5.6): everything from an offset to the tail, however much that is.

use std::sync::Arc;

use encke_stream::{Facts, Fetch, MediaKind, Offset, Refusal, Stream};

use super::read::{cache_control, data, etag, has_already, position, push_items};
use super::{DurableStreams, Pending, answer, failed, refused};
use crate::action::{Action, Failure, Part, Then};
use crate::run::Run;
use crate::{Body, Request, Response};

/// A catch-up whose first data is on its way.
#[derive(Debug)]
pub(crate) struct CatchUp {
    stream: Arc<Stream>,
    /// Where the answer begins.
    left: Offset,
    /// What was committed when the request came; the answer goes up to there.
    facts: Facts,
    page_bytes: usize,
    page_bytes_max: usize,
}

/// A catch-up whose answer has begun.
#[derive(Debug)]
pub(crate) struct Page {
    stream: Arc<Stream>,
    tail: Offset,
    /// How much was read last, and at most.
    page_bytes: usize,
    page_bytes_max: usize,
    /// Nothing was written yet that the next message must be set apart from.
    first: bool,
}

impl DurableStreams {
    pub(super) fn catch_up(
        &self,
        request: &Request<'_>,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
    ) -> Action {
        let left = self.left(&stream, from);
        let tag = etag(&stream, left, facts.tail, facts.closed);
        if has_already(request.headers, &tag) {
            let response = answer(304).field("ETag", tag);
            let response = response.field("Cache-Control", cache_control(facts.closed));
            return Action::Respond(position(response, &stream, facts.tail, true, facts.closed));
        }
        let page_bytes_max = self.settings.page_bytes;
        let page_bytes = self.settings.first_page_bytes.min(page_bytes_max);
        let fetch = Fetch::new(&stream, from, facts.tail, page_bytes);
        let catch_up = CatchUp {
            stream,
            left,
            facts,
            page_bytes,
            page_bytes_max,
        };
        if fetch.spans.is_empty() {
            let nothing = data(catch_up.stream.media.kind, &[]);
            return Action::Respond(catch_up.response().body(nothing));
        }
        Action::Fetch(fetch, Then(Box::new(Pending::CatchUp(catch_up))))
    }

    /// The answer to `offset=now`: where the tail is, and no data.
    pub(super) fn tail(&self, stream: &Stream, facts: Facts) -> Action {
        let response = answer(200).field("Cache-Control", "no-store");
        let response = position(response, stream, facts.tail, true, facts.closed);
        Action::Respond(response.body(data(stream.media.kind, &[])))
    }
}

impl CatchUp {
    /// The answer or its beginning, once the first data is there.
    pub(crate) fn fetched(self, run: Result<Run<'_>, Failure>) -> Action {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return Action::Respond(failed(failure)),
        };
        if self.stream.has_ended() {
            return Action::Respond(refused(&Refusal::NotFound));
        }
        let kind = self.stream.media.kind;
        if run.at_tail {
            return Action::Respond(self.response().body(data(kind, run.items)));
        }
        let mut first = Vec::new();
        if kind == MediaKind::Json {
            first.push(b'[');
        }
        push_items(kind, run.items, true, &mut first);
        let response = self.response().body(Body::Parts(first));
        let page = Page {
            stream: self.stream,
            tail: self.facts.tail,
            page_bytes: self.page_bytes,
            page_bytes_max: self.page_bytes_max,
            first: run.items.is_empty(),
        };
        let (fetch, then) = page.next(run.end);
        Action::Stream(response, fetch, then)
    }

    fn response(&self) -> Response {
        let Facts { tail, closed, .. } = self.facts;
        let response = answer(200)
            .field("ETag", etag(&self.stream, self.left, tail, closed))
            .field("Cache-Control", cache_control(closed));
        position(response, &self.stream, tail, true, closed)
    }
}

impl Page {
    /// The next part of the answer, and what to read for the one after it. Nothing if the stream has
    /// ended meanwhile: the answer must not look like all of it.
    pub(crate) fn fetched(mut self, run: &Run<'_>) -> Option<Part> {
        if self.stream.has_ended() {
            return None;
        }
        let kind = self.stream.media.kind;
        let mut bytes = Vec::new();
        push_items(kind, run.items, self.first, &mut bytes);
        self.first &= run.items.is_empty();
        if run.at_tail {
            if kind == MediaKind::Json {
                bytes.push(b']');
            }
            return Some(Part { bytes, next: None });
        }
        Some(Part {
            bytes,
            next: Some(self.next(run.end)),
        })
    }

    fn next(mut self, from: Offset) -> (Fetch, Then) {
        self.page_bytes = self.page_bytes.saturating_mul(2).min(self.page_bytes_max);
        let fetch = Fetch::new(&self.stream, from, self.tail, self.page_bytes);
        (fetch, Then(Box::new(Pending::Page(self))))
    }
}
