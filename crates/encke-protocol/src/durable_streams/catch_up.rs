//! Catch-up reads (section 5.6): everything from an offset to the tail, however much that is.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{
    Facts, Fetch, Item, LargeData, LargeRecords, MediaKind, Offset, PartRead, RECORD_BYTES,
    Refusal, Stream,
};

use super::response_fields::{cacheable, etag, has_already, known_tags, position};
use super::state::ReadContext;
use crate::action::{Action, BodyPart, Failure, NextPart, OnPart, OnRead};
use crate::coding::{CodingOffer, negotiate};
use crate::encoded_run::EncodedRun;
use crate::long_record::{DataForm, LongRecord, LongStep, RecordForm};
use crate::payload::{data, push_run};
use crate::problem::{error, failed, refused};
use crate::request::Headers;
use crate::response::{Body, Response};
use crate::run::Run;
use crate::text::CutCharacter;

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

/// Waits for a part of a large record of which the reader has the first messages.
#[derive(Debug)]
struct RestOfMessages {
    page: Page,
    record: LongRecord,
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
        let fetch = Fetch::for_response(&stream, from, facts.tail, page_bytes);
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
        if let (true, [before @ .., cut]) = (run.ends_cut, run.items) {
            let page = self.page();
            let (items, next) = match before.last() {
                None => (&[][..], page.rest_of_messages(cut)),
                Some(last) => {
                    let run = Run::position(last.end);
                    (
                        before,
                        Box::new(Page {
                            first: false,
                            ..page
                        })
                        .next(&run),
                    )
                }
            };
            let first = first_part(kind, &run.with(items));
            return Action::Stream(self.response().body(Body::Parts(first)), next);
        }
        if run.at_tail && run.large.is_empty() {
            return Action::Respond(self.response().body(data(kind, run.items)));
        }
        let response = self.response().body(Body::Parts(first_part(kind, &run)));
        let page = Page {
            first: run.items.is_empty() && run.large.is_empty(),
            ..self.page()
        };
        Action::Stream(response, Box::new(page).next(&run))
    }
}

/// The beginning of a body whose rest follows in parts.
fn first_part(kind: MediaKind, run: &Run<'_>) -> Vec<u8> {
    let mut first = Vec::new();
    if kind == MediaKind::Json {
        first.push(b'[');
    }
    push_run(kind, run, true, &mut first);
    for part in run.large {
        // Nothing lies in a file before the response has begun.
        if let LargeData::Bytes(bytes) = &part.data {
            first.extend_from_slice(bytes);
        }
    }
    first
}

/// A large record up to the position `end` behind it: a run has the beginning of its data.
pub(super) fn rest_of_record(
    response: Response,
    stream: Arc<Stream>,
    end: Offset,
    run: &Run<'_>,
) -> Action {
    let response = response.body(Body::Parts(first_part(stream.media.kind, run)));
    Action::Stream(response, Box::new(page_of_record(stream, end)).next(run))
}

/// The messages of a large record that the reader lacks.
pub(super) fn rest_of_messages(
    response: Response,
    stream: Arc<Stream>,
    record: &Item<'_>,
) -> Action {
    let response = response.body(Body::Parts(b"[".to_vec()));
    let page = page_of_record(stream, record.end);
    Action::Stream(response, page.rest_of_messages(record))
}

fn page_of_record(stream: Arc<Stream>, end: Offset) -> Page {
    Page {
        stream,
        tail: end,
        page_bytes: RECORD_BYTES,
        page_bytes_max: RECORD_BYTES,
        first: false,
    }
}

impl CatchUp {
    /// The parts behind the first one.
    fn page(&self) -> Page {
        Page {
            stream: Arc::clone(&self.stream),
            tail: self.facts.tail,
            page_bytes: self.page_bytes,
            page_bytes_max: self.page_bytes_max,
            first: true,
        }
    }

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
    fn takes_joined(&self) -> bool {
        self.stream.media.kind != MediaKind::Json
    }

    /// The next part. `None` if the stream has ended meanwhile: the response must not look complete.
    fn part(mut self: Box<Self>, run: &Run<'_>) -> Option<BodyPart> {
        if self.stream.has_ended() {
            return None;
        }
        let kind = self.stream.media.kind;
        let mut bytes = Vec::new();
        push_run(kind, run, self.first, &mut bytes);
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

impl OnPart for RestOfMessages {
    fn part(mut self: Box<Self>, run: &Run<'_>) -> Option<BodyPart> {
        if self.page.stream.has_ended() {
            return None;
        }
        let (data, is_end) = match (run.large, run.items) {
            ([part, ..], _) => match &part.data {
                LargeData::Bytes(bytes) => (&bytes[..], run.cut == 0),
                LargeData::File(_) => return None,
            },
            ([], [item, ..]) => (item.data.get(self.record.next_byte() as usize..)?, true),
            ([], []) => return None,
        };
        let mut out = EncodedRun::default();
        let step = self.record.step(data, is_end, &mut |_, _, _| {}, &mut out);
        let RestOfMessages { page, record, .. } = *self;
        let behind = Run::position(record.end());
        let is_last = step == LongStep::Written && behind.end >= page.tail;
        Some(BodyPart {
            bytes: out.bytes,
            files: Vec::new(),
            behind: if is_last { b"]" } else { b"" },
            next: match step {
                _ if is_last => None,
                LongStep::Written => Some(Box::new(page).next(&behind)),
                _ => Some(page.next_messages(record)),
            },
        })
    }
}

impl Page {
    /// The messages of a large record that the reader lacks.
    fn rest_of_messages(self, record: &Item<'_>) -> NextPart {
        let form = RecordForm {
            head: Vec::new(),
            data: DataForm::Messages,
            tail: Vec::new(),
        };
        let mut record = LongRecord::new(MediaKind::Json, record, CutCharacter::default(), false);
        record.begin(form);
        let page = Page {
            first: false,
            ..self
        };
        page.next_messages(record)
    }

    fn next_messages(self, record: LongRecord) -> NextPart {
        let sequence = record.sequence();
        let no = self.stream.source_of(sequence);
        NextPart {
            fetch: Fetch::rest_of_record(no, sequence, record.next_byte(), RECORD_BYTES),
            then: Box::new(RestOfMessages { page: self, record }),
        }
    }

    /// The part behind a run.
    fn next(mut self: Box<Self>, run: &Run<'_>) -> NextPart {
        self.page_bytes = self.page_bytes.saturating_mul(2).min(self.page_bytes_max);
        let mut fetch = Fetch::new(&self.stream, run.end, self.tail, self.page_bytes);
        // The first page ends behind a record if it has begun inside one.
        fetch.large = LargeRecords::Parts(PartRead::behind(run.cut));
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
