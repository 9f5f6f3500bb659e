//! Contents as members of a JSON object, for workers and for readers of results.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use crate::request::Payload;

/// Writes `"type":…,"data":…` on one line. JSON is written as it is, text as a string, and anything else in base64 with
/// `"encoding":"base64"`, as are large texts that are shorter in base64.
pub fn content(payload: &Payload, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"type\":");
    string(&payload.content_type, out);
    out.extend_from_slice(b",\"data\":");
    if is_json(&payload.content_type) && serde_json::from_slice::<&RawValue>(&payload.body).is_ok()
    {
        // In JSON a line end is never part of a value.
        out.extend(payload.body.iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            byte => *byte,
        }));
        return;
    }
    match std::str::from_utf8(&payload.body) {
        Ok(text) => {
            let before = out.len();
            string(text, out);
            // A control character takes six bytes in a string; base64 keeps large texts within one segment.
            let long = base64::encoded_len(text.len(), true);
            if text.len() >= LARGE_BYTES && long.is_some_and(|long| out.len() - before > long + 2) {
                out.truncate(before);
                encoded(&payload.body, out);
            }
        }
        Err(_) => encoded(&payload.body, out),
    }
}

fn encoded(body: &[u8], out: &mut Vec<u8>) {
    string(&STANDARD.encode(body), out);
    out.extend_from_slice(b",\"encoding\":\"base64\"");
}

/// Shorter texts are always strings.
const LARGE_BYTES: usize = 64 << 10;

/// Writes a JSON string.
pub fn string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("writes to a vector do not fail");
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(content_type: &str, body: &[u8]) -> serde_json::Value {
        let payload = Payload {
            content_type: content_type.into(),
            key: None,
            body: body.into(),
        };
        let mut out = b"{".to_vec();
        content(&payload, &mut out);
        out.push(b'}');
        assert!(!out.contains(&b'\n'));
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn each_kind_of_content_reads_back() {
        let json = shown("application/json; charset=utf-8", b"{\"a\":\n[1]}");
        assert_eq!(json["data"]["a"][0], 1);
        assert_eq!(shown("text/plain", b"a\n\"b\"")["data"], "a\n\"b\"");
        let bytes = shown("image/png", &[0xff, 0]);
        assert_eq!(
            (&bytes["data"], &bytes["encoding"]),
            (&"/wA=".into(), &"base64".into())
        );
        assert_eq!(shown("application/json", b"{no")["data"], "{no");
        let wide = shown("text/plain", &[1; LARGE_BYTES]);
        assert_eq!(wide["encoding"], "base64");
        let narrow = shown("text/plain", &[1; LARGE_BYTES - 1]);
        assert_eq!(narrow.get("encoding"), None);
    }
}
