//! Server-sent events (HTML, section 9.2).

use crate::data_lines::DataLines;
use crate::encoder::Farewell;
use crate::problem::retry_after_s;
use crate::response::Response;

/// The head of a stream of events.
pub(crate) fn head() -> Response {
    Response::shared(200)
        .field("Content-Type", MEDIA_TYPE)
        .field("Cache-Control", "no-cache")
        // Proxies that buffer responses would delay events.
        .field("X-Accel-Buffering", "no")
}

/// What an `EventSource` gets instead of a refusal that ends by itself: events that end at once, and the time after which it
/// connects again. At any status but 200 it would give up for good (HTML, section 9.2.3).
pub fn for_event_source(refusal: &Response) -> Option<Response> {
    if !matches!(refusal.status, 429 | 503) {
        return None;
    }
    let retry_ms = retry_after_s(refusal)
        .unwrap_or(RETRY_S)
        .saturating_mul(1_000);
    let why = String::from_utf8_lossy(refusal.body.as_ref()).replace(['\r', '\n'], " ");
    let events = format!("retry: {retry_ms}\n: {} {why}\n\n", refusal.status);
    Some(head().body(events.into_bytes()))
}

/// Appends the field that says when an `EventSource` comes back, if there is one.
pub(crate) fn retry(retry_ms: Option<u32>, out: &mut Vec<u8>) {
    if let Some(retry_ms) = retry_ms {
        out.extend_from_slice(format!("retry: {retry_ms}\n").as_bytes());
    }
}

/// Appends why a response ends before its stream, as an object.
pub(crate) fn disconnect(farewell: &Farewell, out: &mut Vec<u8>) {
    let why = serde_json::Value::from(farewell.why);
    let resumable = farewell.resumable;
    out.extend_from_slice(format!("{{\"why\":{why},\"resumable\":{resumable}}}").as_bytes());
}

/// The media type.
pub(crate) const MEDIA_TYPE: &str = "text/event-stream";

/// When an `EventSource` connects again if a refusal does not say, in seconds.
const RETRY_S: u64 = 5;

/// Appends a payload as `data` lines. Every kind of line end in it starts a new one, so that a
/// payload can't end the event or begin another.
pub(crate) fn lines(payload: &[u8], out: &mut Vec<u8>) {
    let mut lines = DataLines::begin();
    lines.write(payload, out);
    lines.finish(out);
    out.push(b'\n');
}

/// The bytes that keep a quiet connection alive: a comment.
pub(crate) const HEARTBEAT: &[u8] = b":\n\n";

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
