//! Server-sent events: records become a `data` event and a `control` event (section 5.8).
//!
//! The `data` event carries an id, the offset behind its records, so that a browser's EventSource resumes there after a
//! connection was cut (HTML, section 9.2). A `control` event carries one only where no `data` event precedes it.
//!
//! Bytes of a text stream that are no text make a `base64` event instead of a `data` event, because no event can hold them; clients
//! ignore events that they do not know. A character that is cut between two records is withheld until its rest comes.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_clock::WallTime;
use encke_stream::{Item, MediaKind};

use super::cursor;
use crate::encoded_run::{EncodedRun, Mark};
use crate::encoder::{Encoder, Farewell, LINE_OVERHEAD, RecordHead, Variant};
use crate::long_record::{DataForm, RecordForm, WrittenData};
use crate::payload::{EVENT_BYTES, join, shared_overhead, together};
use crate::run::Run;
use crate::sse::{self, lines};
use crate::text;

/// Encodes records as pairs of events. The option of its variant is a number that the cursors of the subscriber must
/// exceed; 0 for most.
#[derive(Debug)]
pub(crate) struct EventEncoder;

impl Encoder for EventEncoder {
    fn encode(&self, variant: Variant<'_>, run: &Run<'_>, now: WallTime, out: &mut EncodedRun) {
        match variant.kind {
            MediaKind::Text => encode_text(variant.option, run, now, out),
            MediaKind::Json | MediaKind::Binary => {
                encode(variant, run, now, &mut out.bytes, &mut out.marks);
            }
        }
    }

    fn overhead(&self, variant: Variant<'_>, item: &Item<'_>) -> usize {
        shared_overhead(variant.kind, item, 2 * LINE_OVERHEAD)
    }

    fn form(&self, variant: Variant<'_>, record: &RecordHead<'_>, now: WallTime) -> RecordForm {
        let end = record.facts.end;
        let (name, open, data, close) = match record.facts.data {
            WrittenData::Messages => ("data", "data:[", DataForm::EventMessages, "]\n\n"),
            WrittenData::Text => ("data", "", DataForm::EventText, "\n\n"),
            WrittenData::Bytes if variant.kind == MediaKind::Text => {
                ("base64", "data:", DataForm::Base64, "\n\n")
            }
            WrittenData::Bytes => ("data", "data:", DataForm::Base64, "\n\n"),
        };
        let mut tail = close.as_bytes().to_vec();
        control(variant.option, &Run::position(end), now, &mut tail);
        RecordForm {
            head: format!("id: {end}\nevent: {name}\n{open}").into_bytes(),
            data,
            tail,
        }
    }

    /// A comment for human readers, and the event that says where to continue.
    fn farewell(
        &self,
        variant: Variant<'_>,
        farewell: &Farewell,
        now: WallTime,
        out: &mut Vec<u8>,
    ) {
        // Writing to a vector does not fail.
        let _ = write!(out, ": closed by the server: {}; ", farewell.why);
        let _ = match (farewell.resumable, farewell.at) {
            (true, Some(at)) => writeln!(out, "continue at offset {at}"),
            (true, None) => writeln!(out, "continue where the last event says"),
            (false, _) => writeln!(out, "offset=-1 returns what is left"),
        };
        sse::retry(farewell.retry_ms, out);
        out.push(b'\n');
        let Some(at) = farewell.at else {
            return;
        };
        // Clients of the protocol continue there, and ignore the member for scripts of an EventSource, which see no comments.
        let _ = write!(out, "id: {at}\nevent: control\ndata:");
        control_members(variant.option, &Run::position(at), now, out);
        out.extend_from_slice(b",\"disconnect\":");
        sse::disconnect(farewell, out);
        out.extend_from_slice(b"}\n\n");
    }

    fn heartbeat(&self) -> &'static [u8] {
        sse::HEARTBEAT
    }
}

fn encode(
    variant: Variant<'_>,
    run: &Run<'_>,
    now: WallTime,
    out: &mut Vec<u8>,
    marks: &mut Vec<Mark>,
) {
    let Variant {
        kind,
        option: cursor_floor,
        ..
    } = variant;
    let mut items = run.items;
    let mut payload = Vec::new();
    while !items.is_empty() {
        let (first, later) = items.split_at(together(items));
        items = later;
        payload.clear();
        join(kind, first, &mut payload);
        let last = items.is_empty();
        let reached = Run {
            end: if last {
                run.end
            } else {
                first.last().map_or(run.end, |item| item.end)
            },
            ..state_behind(run, last)
        };
        // Writing to a vector does not fail.
        let _ = write!(out, "id: {}\nevent: data\n", reached.end);
        if kind == MediaKind::Binary {
            base64(&payload, out);
        } else {
            lines(&payload, out);
        }
        out.push(b'\n');
        control(cursor_floor, &reached, now, out);
        marks.push(Mark {
            end: out.len(),
            at: reached.end,
        });
    }
    // A subscriber that is at the tail with nothing to read learns that.
    if run.items.is_empty() && says_state(run) {
        position(cursor_floor, run, now, out);
        marks.push(Mark {
            end: out.len(),
            at: run.end,
        });
    }
}

/// Encodes records of text. Where a cut character is withheld, the last position is before it.
fn encode_text(cursor_floor: u64, run: &Run<'_>, now: WallTime, out: &mut EncodedRun) {
    let (parts, withheld_at) = text::split(run, EVENT_BYTES);
    out.withheld_at = withheld_at;
    let count = parts.len();
    for (number, part) in (1..).zip(&parts) {
        let last = number == count;
        let reached = Run {
            items: &[],
            end: part.end,
            ..state_behind(run, last)
        };
        let name = if part.is_text { "data" } else { "base64" };
        // Writing to a vector does not fail.
        let _ = write!(out.bytes, "id: {}\nevent: {name}\n", part.end);
        match part.is_text {
            true => lines(&part.bytes, &mut out.bytes),
            false => base64(&part.bytes, &mut out.bytes),
        }
        out.bytes.push(b'\n');
        control(cursor_floor, &reached, now, &mut out.bytes);
        out.mark(part.end);
    }
    // A subscriber that is at the tail with nothing to read learns that.
    if parts.is_empty() && says_state(run) {
        let here = Run {
            end: withheld_at.unwrap_or(run.end),
            ..*run
        };
        position(cursor_floor, &here, now, &mut out.bytes);
        out.mark(here.end);
    }
}

/// Appends bytes as a line of data in base64.
fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"data:");
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room is just what the encoding of this length needs.
    let _ = STANDARD.encode_slice(bytes, &mut out[start..]);
    out.push(b'\n');
}

/// Appends the event that states the client's position, with an id.
pub(super) fn position(cursor_floor: u64, run: &Run<'_>, now: WallTime, out: &mut Vec<u8>) {
    if !run.closed {
        // Writing to a vector does not fail.
        let _ = writeln!(out, "id: {}", run.end);
    }
    control(cursor_floor, run, now, out);
}

/// Appends the event that states the client's position. The one that says that the stream is closed has an id of its own: a client that
/// has the last data and not this event learns the end when it comes back, and one that has it needs to come back no more.
fn control(cursor_floor: u64, run: &Run<'_>, now: WallTime, out: &mut Vec<u8>) {
    if run.closed {
        // Writing to a vector does not fail.
        let _ = writeln!(out, "id: {}{END_MARK}", run.end);
    }
    out.extend_from_slice(b"event: control\ndata:");
    control_object(cursor_floor, run, now, out);
    out.extend_from_slice(b"\n\n");
}

/// Appends the client's position as JSON (section 5.8).
pub(super) fn control_object(cursor_floor: u64, run: &Run<'_>, now: WallTime, out: &mut Vec<u8>) {
    control_members(cursor_floor, run, now, out);
    out.push(b'}');
}

/// Appends the object without its closing brace, for members that follow.
fn control_members(cursor_floor: u64, run: &Run<'_>, now: WallTime, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(out, "{{\"streamNextOffset\":\"{}\"", run.end);
    if !run.closed {
        let _ = write!(
            out,
            ",\"streamCursor\":\"{}\"",
            cursor::above(now, cursor_floor)
        );
    }
    if run.at_tail || run.closed {
        out.extend_from_slice(b",\"upToDate\":true");
    }
    if run.closed {
        out.extend_from_slice(b",\"streamClosed\":true");
    }
    if let Some(reason) = run.end_reason.filter(|_| run.closed) {
        let _ = write!(out, ",\"endReason\":\"{reason}\"");
    }
    if run.stop_asked {
        out.extend_from_slice(b",\"stopRequested\":true");
    }
}

/// What the id of the event that says that a stream is closed has behind the offset.
pub(super) const END_MARK: &str = ";end";

/// What is known of the stream behind a part of a run: the last part is followed by what follows the run.
pub(super) fn state_behind<'a>(run: &Run<'a>, is_last: bool) -> Run<'a> {
    match is_last {
        true => Run { items: &[], ..*run },
        false => Run::position(run.end),
    }
}

/// Whether a run without records says something of its stream.
pub(super) fn says_state(run: &Run<'_>) -> bool {
    run.at_tail || run.closed || run.stop_asked
}
