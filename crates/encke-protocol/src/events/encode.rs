//! Events as they are written.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_stream::MediaKind;

use super::id;
use crate::encoder::{MergeEncoder, MergedPosition, MergedRecord, StreamEnd};
use crate::payload::push_items;
use crate::sse::{self, lines};

/// Encodes each record as an event whose id is the subscriber's position.
#[derive(Debug)]
pub(super) struct MergedEvents;

impl MergeEncoder for MergedEvents {
    fn record(&self, record: &MergedRecord<'_>, out: &mut Vec<u8>) {
        id::write(&record.at, out);
        lines(&json(record), out);
        out.push(b'\n');
    }

    fn ended(&self, name: &str, end: StreamEnd, at: Option<MergedPosition<'_>>, out: &mut Vec<u8>) {
        if let Some(at) = at {
            id::write(&at, out);
        }
        ended(name, end, out);
    }

    fn gap(&self, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>) {
        id::write(&at, out);
        let name = serde_json::Value::from(name);
        // Writing to a vector does not fail.
        let _ = write!(
            out,
            "event:gap\ndata:{{\"stream\":{name},\"why\":\"no_longer_kept\"}}\n\n"
        );
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

/// Appends that a stream has no further records.
pub(super) fn ended(name: &str, end: StreamEnd, out: &mut Vec<u8>) {
    let why = match end {
        StreamEnd::Closed => "closed",
        StreamEnd::Deleted => "deleted",
    };
    let name = serde_json::Value::from(name);
    // Writing to a vector does not fail.
    let _ = write!(
        out,
        "event:end\ndata:{{\"stream\":{name},\"why\":\"{why}\"}}\n\n"
    );
}

/// A record as JSON: its stream, the offset behind it, and its data in the form of the stream's type.
fn json(record: &MergedRecord<'_>) -> Vec<u8> {
    let MergedRecord { kind, item, .. } = record;
    let name = serde_json::Value::from(record.name);
    let mut text = format!("{{\"stream\":{name},\"nextOffset\":\"{}\",", item.end).into_bytes();
    let mut data = Vec::with_capacity(item.data.len());
    push_items(*kind, std::slice::from_ref(item), true, &mut data);
    match kind {
        MediaKind::Json => {
            text.extend_from_slice(b"\"messages\":[");
            text.extend_from_slice(&data);
            text.push(b']');
        }
        MediaKind::Text => {
            // A fork may cut a character in two, and appended data may be no text at all.
            let data = serde_json::Value::from(String::from_utf8_lossy(&data));
            let _ = write!(text, "\"text\":{data}");
        }
        MediaKind::Binary => {
            let _ = write!(text, "\"base64\":\"{}\"", STANDARD.encode(&data));
        }
    }
    text.push(b'}');
    text
}
