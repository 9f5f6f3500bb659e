//! Server-sent events as they are written.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_stream::MediaKind;

use super::id;
use crate::encoder::{MergeEncoder, MergedPosition, MergedRecord, StreamEnd};
use crate::payload::push_items;
use crate::sse::{self, lines};
use crate::text::CutCharacter;

/// Encodes each record as an event whose id is the subscriber's position.
#[derive(Debug)]
pub(super) struct MergedEvents;

impl MergeEncoder for MergedEvents {
    fn record(&self, record: &MergedRecord<'_>, out: &mut Vec<u8>) {
        id::write(&record.at, out);
        let data = [b"{", &*members(record), b"}"].concat();
        lines(&data, out);
        out.push(b'\n');
    }

    fn ended(&self, name: &str, end: StreamEnd, at: Option<MergedPosition<'_>>, out: &mut Vec<u8>) {
        if let Some(at) = at {
            id::write(&at, out);
        }
        // Writing to a vector does not fail.
        let _ = write!(out, "event:end\ndata:{}\n\n", end_object(name, end));
    }

    fn gap(&self, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        id::write(&at, out);
        // Writing to a vector does not fail.
        let _ = write!(out, "event:gap\ndata:{}\n\n", gap_object(name));
    }

    fn position(&self, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        id::write(&at, out);
        out.push(b'\n');
    }

    fn farewell(&self, why: &str, resumable: bool, out: &mut Vec<u8>) {
        let then = match resumable {
            true => "reconnect with the id of the last event",
            false => "reconnect without an id, a pattern with @-1, for what is left",
        };
        // Writing to a vector does not fail.
        let _ = write!(out, ": closed by the server: {why}; {then}\n\n");
    }

    fn heartbeat(&self) -> &'static [u8] {
        sse::HEARTBEAT
    }
}

/// That a stream has no further records, as an object.
pub(super) fn end_object(name: &str, end: StreamEnd) -> String {
    let why = match end {
        StreamEnd::Closed => "closed",
        StreamEnd::Deleted => "deleted",
    };
    let name = serde_json::Value::from(name);
    format!("{{\"stream\":{name},\"why\":\"{why}\"}}")
}

/// That a stream lacks records that are removed, as an object.
pub(super) fn gap_object(name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!("{{\"stream\":{name},\"why\":\"no_longer_kept\"}}")
}

/// A record as the members of an object: its stream, the offset behind it, and its data in the form of the stream's type.
pub(super) fn members(record: &MergedRecord<'_>) -> Vec<u8> {
    let MergedRecord { kind, item, .. } = record;
    let [before, behind] = record.cut.each_ref().map(CutCharacter::as_bytes);
    let name = serde_json::Value::from(record.name);
    let end = match behind.len() {
        0 => item.end,
        cut => item.position_before(cut),
    };
    let mut text = format!("\"stream\":{name},\"nextOffset\":\"{end}\",").into_bytes();
    let mut data = Vec::with_capacity(before.len() + item.data.len());
    data.extend_from_slice(before);
    push_items(*kind, std::slice::from_ref(item), true, &mut data);
    data.truncate(data.len().saturating_sub(behind.len()));
    match kind {
        MediaKind::Json => {
            text.extend_from_slice(b"\"messages\":[");
            text.extend_from_slice(&data);
            text.push(b']');
        }
        MediaKind::Text | MediaKind::Binary => {
            let decoded = std::str::from_utf8(&data).ok();
            match decoded.filter(|_| *kind == MediaKind::Text) {
                Some(data) => {
                    let data = serde_json::Value::from(data);
                    let _ = write!(text, "\"text\":{data}");
                }
                // A record of text can end inside a character, or be no text at all: nothing is replaced.
                None => {
                    let _ = write!(text, "\"base64\":\"{}\"", STANDARD.encode(&data));
                }
            }
        }
    }
    text
}
