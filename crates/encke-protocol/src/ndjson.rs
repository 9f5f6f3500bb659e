//! Lines of JSON: each line is one object, and ends with a line feed (ndjson.org).

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_clock::WallTime;
use encke_stream::Offset;

use crate::response::Response;

/// The head of a response of lines.
pub(crate) fn head() -> Response {
    Response::shared(200)
        .field("Content-Type", MEDIA_TYPE)
        .field("Cache-Control", "no-cache")
        // Proxies that buffer responses would delay lines.
        .field("X-Accel-Buffering", "no")
}

/// Appends a text as a string.
pub(crate) fn string(text: &str, out: &mut Vec<u8>) {
    // Writing to a vector does not fail, and a text is always a string of JSON.
    let _ = serde_json::to_writer(out, text);
}

/// Appends the inside of a string: valid UTF-8, or a part of it.
pub(crate) fn escape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| needs_escape(*byte)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            byte @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            // Writing to a vector does not fail.
            other => drop(write!(out, "\\u{other:04x}")),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

fn needs_escape(byte: u8) -> bool {
    matches!(byte, 0..0x20 | b'"' | b'\\')
}

/// Appends bytes as a string in base64.
pub(crate) fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room is just what the encoding of this length needs.
    let _ = STANDARD.encode_slice(bytes, &mut out[start..]);
    out.push(b'"');
}

/// Appends valid JSON without its line ends, which can stand only between its tokens.
pub(crate) fn json(json: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(json);
    for byte in &mut out[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

/// Appends the member that says when a record was appended, for readers that ask for it.
pub(crate) fn time_member(time: WallTime, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(out, ",\"{TIME_MEMBER}\":{}", time.as_ms());
}

/// Begins the line of a record, with the position behind it and its time if that is asked for. The data must follow.
pub(crate) fn begin_record(end: Offset, time: Option<WallTime>, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(out, "{{\"offset\":\"{end}\"");
    if let Some(time) = time {
        time_member(time, out);
    }
}

/// Appends the line that says why the server closes the connection although more would follow.
pub(crate) fn disconnect(why: &str, resumable: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"disconnect\":{\"why\":");
    string(why, out);
    // Writing to a vector does not fail.
    let _ = writeln!(out, ",\"resumable\":{resumable}}}}}");
}

/// The media type. It is not registered; this is the name that clients send.
pub(crate) const MEDIA_TYPE: &str = "application/x-ndjson";

/// The member of a record that has its time, in milliseconds since 1970.
pub(crate) const TIME_MEMBER: &str = "timeMs";

/// The line that keeps a quiet connection alive. It is no empty line, because not all readers skip those.
pub(crate) const HEARTBEAT: &[u8] = b"{\"heartbeat\":true}\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_on_its_line() {
        let mut out = Vec::new();
        json(b"{\r\n \"a\": [1,\n2, \"x\\ny\"]\r}", &mut out);
        assert_eq!(out, b"{   \"a\": [1, 2, \"x\\ny\"] }");
    }

    #[test]
    fn a_disconnect_is_one_line() {
        let mut out = Vec::new();
        disconnect("a \"b\"\n", false, &mut out);
        assert_eq!(
            out,
            b"{\"disconnect\":{\"why\":\"a \\\"b\\\"\\n\",\"resumable\":false}}\n"
        );
    }
}
