//! Catch-up reads (section 5.6): everything from an offset to the tail, however much that is.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{Facts, Fetch, LargeData, MediaKind, Offset, PartRead, Refusal, Stream};

use super::response_fields::{cacheable, etag, has_already, known_tags, position};
use super::state::ReadContext;
use crate::action::{Action, BodyPart, Failure, NextPart, OnPart, OnRead};
use crate::coding::{CodingOffer, negotiate};
use crate::payload::{data, push_items};
use crate::problem::{error, failed, refused};
use crate::request::Headers;
use crate::response::{Body, Response};
use crate::run::Run;

/// What a request says of its catch-up read.
#[derive(Debug)]
pub(super) struct CatchUpRead {
    known_tags: Vec<u8>,
    coding: Option<CodingOffer>,
    public: bool,
}

/// Waits for the first data.
#[derive(Debug)]
struct CatchUp {
    stream: Arc<Stream>,
    /// Where the response begins.
    first_kept: Offset,
    /// What was committed when the request arrived; the response goes up to there.
    facts: Facts,
    coding: Option<CodingOffer>,
    /// A cache may give it to others.
    public: bool,
    page_bytes: usize,
    page_bytes_max: usize,
}

/// Waits for a further part of a response that has begun.
#[derive(Debug)]
struct Page {
    stream: Arc<Stream>,
    tail: Offset,
    /// Bytes of the last part, and at most.
    page_bytes: usize,
    page_bytes_max: usize,
    /// No message has been written yet, so the next one needs no comma.
    first: bool,
}

impl CatchUpRead {
    /// What the fields of a request say. `public`: a cache may give the response to others.
    pub(super) fn of(headers: Headers<'_>, public: bool) -> Result<Self, Response> {
        let Ok(coding) = negotiate(headers) else {
            let response = error(
                406,
                "not_acceptable",
                "Accept-Encoding excludes everything that this server has: zstd, gzip and no coding",
            );
            return Err(response.field("Vary", VARY));
        };
        Ok(CatchUpRead {
            known_tags: known_tags(headers),
            coding,
            public,
        })
    }

    /// Reads everything from a position to the tail.
    pub(super) fn begin(
        self,
        cx: &ReadContext,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
    ) -> Action {
        let CatchUpRead {
            known_tags,
            coding,
            public,
        } = self;
        let first_kept = cx.streams.first_kept(&stream, from);
        let tag = etag(&stream, first_kept, facts.tail, facts.closed);
        if let Some(tag) = has_already(&known_tags, &tag) {
            let response = Response::shared(304).field("ETag", tag).field("Vary", VARY);
            let response = cacheable(response, facts.closed, public);
            return Action::Respond(position(response, &stream, facts.tail, true, facts.closed));
        }
        let page_bytes_max = cx.page_bytes;
        let page_bytes = cx.first_page_bytes.min(page_bytes_max);
        let mut fetch = Fetch::new(&stream, from, facts.tail, page_bytes);
        // Where a message of a record begins is known only when the record is read whole.
        let begins_inside = stream.media.kind == MediaKind::Json && from.units > 0;
        fetch.parts = (!begins_inside).then(|| PartRead::behind(0));
        let shrinks = !is_compressed(&stream.media.name);
        let catch_up = CatchUp {
            stream,
            first_kept,
            facts,
            coding: coding.filter(|coding| coding.required || shrinks),
            public,
            page_bytes,
            page_bytes_max,
        };
        if fetch.spans.is_empty() {
            let nothing = data(catch_up.stream.media.kind, &[]);
            return Action::Respond(catch_up.response().body(nothing));
        }
        Action::Read(fetch, Box::new(catch_up))
    }
}

/// The response to `offset=now`: where the tail is, and no data.
pub(super) fn tail(stream: &Stream, facts: Facts) -> Action {
    let response = Response::shared(200).field("Cache-Control", "no-store");
    let response = position(response, stream, facts.tail, true, facts.closed);
    Action::Respond(response.body(data(stream.media.kind, &[])))
}

impl OnRead for CatchUp {
    /// The response, or its beginning.
    fn read(self: Box<Self>, run: Result<Run<'_>, Failure>, _now: WallTime) -> Action {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return Action::Respond(failed(failure)),
        };
        if self.stream.has_ended() {
            return Action::Respond(refused(&Refusal::NotFound));
        }
        let kind = self.stream.media.kind;
        if run.at_tail && run.large.is_empty() {
            return Action::Respond(self.response().body(data(kind, run.items)));
        }
        let mut first = Vec::new();
        if kind == MediaKind::Json {
            first.push(b'[');
        }
        push_items(kind, run.items, true, &mut first);
        for part in run.large {
            // Nothing lies in a file before the response has begun.
            if let LargeData::Bytes(bytes) = &part.data {
                first.extend_from_slice(bytes);
            }
        }
        let response = self.response().body(Body::Parts(first));
        let page = Page {
            stream: self.stream,
            tail: self.facts.tail,
            page_bytes: self.page_bytes,
            page_bytes_max: self.page_bytes_max,
            first: run.items.is_empty() && run.large.is_empty(),
        };
        Action::Stream(response, Box::new(page).next(&run))
    }
}

impl CatchUp {
    fn response(&self) -> Response {
        let Facts { tail, closed, .. } = self.facts;
        let response =
            Response::shared(200).field("ETag", etag(&self.stream, self.first_kept, tail, closed));
        let response = Response {
            coding: self.coding,
            ..response.field("Vary", VARY)
        };
        let response = cacheable(response, closed, self.public);
        position(response, &self.stream, tail, true, closed)
    }
}

impl OnPart for Page {
    /// The next part. `None` if the stream has ended meanwhile: the response must not look complete.
    fn part(mut self: Box<Self>, run: &Run<'_>) -> Option<BodyPart> {
        if self.stream.has_ended() {
            return None;
        }
        let kind = self.stream.media.kind;
        let mut bytes = Vec::new();
        push_items(kind, run.items, self.first, &mut bytes);
        self.first &= run.items.is_empty();
        let mut files = Vec::new();
        for large in run.large {
            if kind == MediaKind::Json && large.begins && !self.first {
                bytes.push(b',');
            }
            self.first = false;
            match &large.data {
                LargeData::Bytes(data) => bytes.extend_from_slice(data),
                LargeData::File(range) => files.push((std::mem::take(&mut bytes), range.clone())),
            }
        }
        let behind: &[u8] = match run.at_tail && kind == MediaKind::Json {
            true => b"]",
            false => b"",
        };
        Some(BodyPart {
            bytes,
            files,
            behind,
            next: (!run.at_tail).then(|| self.next(run)),
        })
    }
}

impl Page {
    /// The part behind a run.
    fn next(mut self: Box<Self>, run: &Run<'_>) -> NextPart {
        self.page_bytes = self.page_bytes.saturating_mul(2).min(self.page_bytes_max);
        let mut fetch = Fetch::new(&self.stream, run.end, self.tail, self.page_bytes);
        // The first page ends behind a record if it has begun inside one.
        fetch.parts = Some(PartRead::behind(run.cut));
        NextPart { fetch, then: self }
    }
}

/// Whether data of a media type is compressed already, as far as its name says.
fn is_compressed(media: &str) -> bool {
    let name = media.split(';').next().unwrap_or_default().trim();
    let name = name.to_ascii_lowercase();
    let (kind, format) = name.split_once('/').unwrap_or((&name, ""));
    match kind {
        "image" => format != "svg+xml" && format != "bmp",
        "audio" | "video" => true,
        "application" => ["gzip", "zip", "zstd", "x-7z-compressed", "x-xz"].contains(&format),
        _ => false,
    }
}

/// What the choice of a response depends on, beside the URL.
const VARY: &str = "Accept-Encoding";
