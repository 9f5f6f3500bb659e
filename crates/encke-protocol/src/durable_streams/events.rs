//! Server-sent events: each run of records is a `data` event and a `control` event (section 5.8).

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_stream::{Item, MediaKind};

use super::cursor;
use super::read::join;
use crate::run::{Farewell, Mark, Run};

/// Writes a run as events and marks where each pair of events ends.
pub(crate) fn encode(
    kind: MediaKind,
    cursor_floor: u64,
    run: &Run<'_>,
    now_ms: u64,
    out: &mut Vec<u8>,
    marks: &mut Vec<Mark>,
) {
    let mut items = run.items;
    let mut payload = Vec::new();
    while !items.is_empty() {
        let (now, later) = items.split_at(together(items));
        items = later;
        payload.clear();
        join(kind, now, &mut payload);
        out.extend_from_slice(b"event: data\n");
        if kind == MediaKind::Binary {
            out.extend_from_slice(b"data:");
            let start = out.len();
            out.resize(start + payload.len().div_ceil(3) * 4, 0);
            // The room is just what the encoding of this length needs.
            let _ = STANDARD.encode_slice(&payload, &mut out[start..]);
            out.push(b'\n');
        } else {
            lines(&payload, out);
        }
        out.push(b'\n');
        let last = items.is_empty();
        let reached = Run {
            items: &[],
            end: if last {
                run.end
            } else {
                now.last().map_or(run.end, |item| item.end)
            },
            at_tail: last && run.at_tail,
            closed: last && run.closed,
        };
        control(cursor_floor, &reached, now_ms, out);
        marks.push(Mark {
            end: out.len(),
            at: reached.end,
        });
    }
    // Who is at the tail with nothing to read is told so.
    if run.items.is_empty() && (run.at_tail || run.closed) {
        control(cursor_floor, run, now_ms, out);
        marks.push(Mark {
            end: out.len(),
            at: run.end,
        });
    }
}

/// Writes the event that tells where the client is.
pub(crate) fn control(cursor_floor: u64, run: &Run<'_>, now_ms: u64, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(
        out,
        "event: control\ndata:{{\"streamNextOffset\":\"{}\"",
        run.end
    );
    if !run.closed {
        let _ = write!(
            out,
            ",\"streamCursor\":\"{}\"",
            cursor::above(now_ms, cursor_floor)
        );
    }
    if run.at_tail || run.closed {
        out.extend_from_slice(b",\"upToDate\":true");
    }
    if run.closed {
        out.extend_from_slice(b",\"streamClosed\":true");
    }
    out.extend_from_slice(b"}\n\n");
}

/// Writes the last word: a comment for whoever looks, and the event that says where to go on.
pub(crate) fn farewell(cursor_floor: u64, farewell: &Farewell, now_ms: u64, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(out, ": closed by the server: {}; ", farewell.why);
    let _ = match farewell.goes_on {
        true => write!(out, "go on at offset {}\n\n", farewell.at),
        false => write!(out, "offset=-1 gives what is left\n\n"),
    };
    let here = Run {
        items: &[],
        end: farewell.at,
        at_tail: false,
        closed: false,
    };
    control(cursor_floor, &here, now_ms, out);
}

/// How many records go into one event: as many as stay small, and at least one.
fn together(items: &[Item<'_>]) -> usize {
    let mut bytes = 0;
    items
        .iter()
        .take_while(|item| {
            bytes += item.data.len();
            bytes <= EVENT_BYTES
        })
        .count()
        .max(1)
}

/// Writes a payload as `data` lines. Every kind of line end in it starts a new one, so that a
/// payload can't end the event or begin another.
pub(crate) fn lines(payload: &[u8], out: &mut Vec<u8>) {
    let mut rest = payload;
    loop {
        out.extend_from_slice(b"data:");
        if rest.first() == Some(&b' ') {
            // Readers drop one space behind the colon.
            out.push(b' ');
        }
        let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
            out.extend_from_slice(rest);
            out.push(b'\n');
            return;
        };
        out.extend_from_slice(&rest[..end]);
        out.push(b'\n');
        let crlf = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + 1 + usize::from(crlf)..];
    }
}

/// Records are put into one event up to this size. Less makes more events and so more bytes; more
/// makes a partly written event, which a slow connection keeps, larger.
const EVENT_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(payload: &str) -> String {
        let mut out = Vec::new();
        lines(payload.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn no_line_end_leaves_the_event() {
        assert_eq!(text("a"), "data:a\n");
        assert_eq!(text(" a"), "data:  a\n");
        assert_eq!(text(""), "data:\n");
        assert_eq!(
            text("a\r\n\r\nevent: x\rb\n"),
            "data:a\ndata:\ndata:event: x\ndata:b\ndata:\n"
        );
    }
}
