//! Events as they are written.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use encke_stream::{Item, MediaKind, Sequence, Stream};

use super::id::{self, Ahead};
use crate::durable_streams::{lines, push_items};

/// What keeps a quiet connection alive.
pub const HEARTBEAT: &[u8] = b":\n\n";

/// Something that a subscriber of several streams is told.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// A record.
    Record {
        /// Of which stream.
        stream: &'a Stream,
        /// Its data.
        item: Item<'a>,
        /// Everything up to these sequences was told, one for each log.
        after: &'a [Sequence],
        /// What was told beyond.
        ahead: &'a [Ahead],
    },
    /// A stream has no more records, now or ever.
    Ended {
        /// The stream's name.
        name: &'a str,
        /// Why.
        why: Ending,
    },
    /// The server closes the connection though more would follow; the last event's id says where to go on.
    Farewell {
        /// Why, in words to the client: one line.
        why: &'static str,
        /// Otherwise what follows in one of the streams is no longer kept.
        goes_on: bool,
    },
}

/// Why a stream has no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was closed; its records can still be read.
    Closed,
    /// It was deleted, or its lifetime is over.
    Deleted,
}

/// Writes an event.
pub(crate) fn tell(told: &Told<'_>, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    match told {
        Told::Record {
            stream,
            item,
            after,
            ahead,
        } => {
            id::write(after, ahead, out);
            lines(&record(stream, item), out);
        }
        Told::Ended { name, why } => {
            let why = match why {
                Ending::Closed => "closed",
                Ending::Deleted => "deleted",
            };
            let name = serde_json::Value::from(*name);
            let _ = writeln!(
                out,
                "event:end\ndata:{{\"stream\":{name},\"why\":\"{why}\"}}"
            );
        }
        Told::Farewell { why, goes_on } => {
            let then = match goes_on {
                true => "go on behind the last event's id",
                false => "begin anew, without it, for what is left",
            };
            let _ = writeln!(out, ": closed by the server: {why}; {then}");
        }
    }
    out.push(b'\n');
}

/// A record as JSON: its stream, the offset behind it, and its data as the stream's type has it.
fn record(stream: &Stream, item: &Item<'_>) -> Vec<u8> {
    let name = serde_json::Value::from(&*stream.name);
    let mut text = format!("{{\"stream\":{name},\"nextOffset\":\"{}\",", item.end).into_bytes();
    let kind = stream.media.kind;
    let mut data = Vec::with_capacity(item.data.len());
    push_items(kind, std::slice::from_ref(item), true, &mut data);
    match kind {
        MediaKind::Json => {
            text.extend_from_slice(b"\"messages\":[");
            text.extend_from_slice(&data);
            text.push(b']');
        }
        MediaKind::Text => {
            // A fork may cut a character in two; what was appended may be no text at all.
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
