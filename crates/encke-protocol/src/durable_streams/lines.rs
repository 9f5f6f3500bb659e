//! Lines of JSON for a client that follows a stream: a line for each record, or for each message of a JSON stream.
//!
//! A line of data has the offset behind it, where a client may continue. A `control` line has what a `control` event has (section 5.8):
//! it follows where the client has everything, or where the stream is closed. Bytes that are no text are in base64, and a character that
//! is cut between two records is withheld until its rest comes, as in events. All other bytes come as they were appended.

use encke_clock::WallTime;
use encke_stream::{EphemeralMessage, Item, MediaKind, Offset};

use super::encode::{control_object, says_state};
use crate::encoded_run::EncodedRun;
use crate::encoder::{Encoder, Farewell, RecordHead, Variant};
use crate::events::ephemeral_object;
use crate::json;
use crate::long_record::{DataForm, RecordForm, WrittenData};
use crate::ndjson;
use crate::run::Run;
use crate::text;

/// Encodes records as lines. The option of its variant is that of `EventEncoder`.
#[derive(Debug)]
pub(crate) struct LineEncoder {
    /// Lines of data have the time of their record.
    pub(crate) has_times: bool,
}

impl Encoder for LineEncoder {
    fn encode(&self, variant: Variant<'_>, run: &Run<'_>, now: WallTime, out: &mut EncodedRun) {
        let marks_before = out.marks.len();
        let mut reached = run.end;
        let time = |time: WallTime| self.has_times.then_some(time);
        match variant.kind {
            MediaKind::Text => {
                // Each record is a line of its own.
                let (parts, withheld_at) = text::split(run, 0);
                out.withheld_at = withheld_at;
                reached = withheld_at.unwrap_or(run.end);
                for part in parts {
                    ndjson::begin_record(part.end, time(part.time), &mut out.bytes);
                    match std::str::from_utf8(&part.bytes)
                        .ok()
                        .filter(|_| part.is_text)
                    {
                        Some(text) => text_data(text, &mut out.bytes),
                        None => base64_data(&part.bytes, &mut out.bytes),
                    }
                    out.mark(part.end);
                }
            }
            MediaKind::Json | MediaKind::Binary => {
                for (number, item) in (1..).zip(run.items) {
                    // Changes without data may follow the last record.
                    let end = match number == run.items.len() {
                        true => run.end,
                        false => item.end,
                    };
                    match variant.kind {
                        MediaKind::Json => {
                            message_lines(item, end, time(item.time), &mut out.bytes);
                        }
                        _ => {
                            ndjson::begin_record(end, time(item.time), &mut out.bytes);
                            base64_data(item.part(), &mut out.bytes);
                        }
                    }
                    out.mark(end);
                }
            }
        }
        if !says_state(run) {
            return;
        }
        let here = Run {
            items: &[],
            end: reached,
            ..*run
        };
        control(variant.option, &here, now, &mut out.bytes);
        // A client that is left behind the last record has this line too.
        if out.marks.len() > marks_before {
            out.marks.pop();
        }
        out.mark(reached);
    }

    fn overhead(&self, variant: Variant<'_>, item: &Item<'_>) -> usize {
        let lines = match variant.kind {
            MediaKind::Json => item.take.saturating_sub(item.skip).max(1),
            MediaKind::Text | MediaKind::Binary => 1,
        };
        lines as usize * LINE_BYTES
    }

    fn form(&self, _: Variant<'_>, record: &RecordHead<'_>, _now: WallTime) -> RecordForm {
        let facts = record.facts;
        let time = self.has_times.then_some(facts.time);
        let (name, data) = match facts.data {
            WrittenData::Messages => {
                return RecordForm {
                    head: Vec::new(),
                    data: DataForm::MessageLines(time),
                    tail: Vec::new(),
                };
            }
            WrittenData::Text => (&b",\"data\":\""[..], DataForm::String),
            WrittenData::Bytes => (&b",\"base64\":\""[..], DataForm::Base64),
        };
        let mut head = Vec::new();
        ndjson::begin_record(facts.end, time, &mut head);
        head.extend_from_slice(name);
        RecordForm {
            head,
            data,
            tail: b"\"}\n".to_vec(),
        }
    }

    fn farewell(
        &self,
        variant: Variant<'_>,
        farewell: &Farewell,
        now: WallTime,
        out: &mut Vec<u8>,
    ) {
        ndjson::disconnect(farewell.why, farewell.resumable, out);
        let Some(at) = farewell.at else {
            return;
        };
        control(variant.option, &Run::position(at), now, out);
    }

    fn ephemeral(&self, message: &EphemeralMessage, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"ephemeral\":");
        ndjson::json(&ephemeral_object(message, self.has_times), out);
        out.extend_from_slice(b"}\n");
    }

    fn has_ephemeral(&self) -> bool {
        true
    }

    fn heartbeat(&self) -> &'static [u8] {
        ndjson::HEARTBEAT
    }
}

/// Bytes of a line without its data: an offset of 33 digits, and a time.
const LINE_BYTES: usize = 96;

/// Appends the line that states the client's position.
pub(super) fn control(cursor_floor: u64, run: &Run<'_>, now: WallTime, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"control\":");
    control_object(cursor_floor, run, now, out);
    out.extend_from_slice(b"}\n");
}

/// Appends the messages of a record, behind which the client's position is `end`.
fn message_lines(item: &Item<'_>, end: Offset, time: Option<WallTime>, out: &mut Vec<u8>) {
    // Most records are one message, which need not be searched for its end.
    if (item.skip, item.take, item.end.units) == (0, 1, 0) {
        return message_line(end, time, item.data, out);
    }
    json::each(item.data, item.skip, item.take, |number, message| {
        let at = match number < item.take {
            true => item.position(number),
            false => end,
        };
        message_line(at, time, message, out);
    });
}

fn message_line(end: Offset, time: Option<WallTime>, message: &[u8], out: &mut Vec<u8>) {
    ndjson::begin_record(end, time, out);
    out.extend_from_slice(b",\"data\":");
    ndjson::json(message, out);
    out.extend_from_slice(b"}\n");
}

fn text_data(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"data\":");
    ndjson::string(text, out);
    out.extend_from_slice(b"}\n");
}

fn base64_data(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"base64\":");
    ndjson::base64(bytes, out);
    out.extend_from_slice(b"}\n");
}
