//! Ephemeral messages (docs/writing.md).

use encke_protocol::Feed;
use encke_stream::{Data, MediaKind, Offset};

use crate::server::{Reply, Server};
use crate::{CLOSED, JSON, TEXT, get, with};

const EPHEMERAL: (&str, &str) = ("Encke-Ephemeral", "true");

#[test]
fn a_message_is_handed_over_and_not_stored() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"kept");
    let tail = server.send("HEAD /v1/stream/a", &[], b"").token();
    let said = server.send("POST /v1/stream/a", &[TEXT, EPHEMERAL], b"typing");
    assert_eq!((said.status, said.body.len()), (204, 0));
    assert_eq!(said.field("Stream-Next-Offset"), None);
    let message = server.broadcasts.pop().unwrap();
    assert_eq!(
        (&*message.label.name, message.label.kind),
        ("a", MediaKind::Text)
    );
    assert_eq!(message.data.bytes, b"typing");
    let behind = Offset::behind(message.after).to_string();
    assert_eq!(behind, tail, "it follows what was acknowledged before");
    assert_eq!(server.send("HEAD /v1/stream/a", &[], b"").token(), tail);
    assert_eq!(get(&mut server, "a?offset=-1").body, b"kept");
}

#[test]
fn each_element_of_an_array_of_json_is_a_message() {
    let mut server = with(JSON);
    for (body, data, units) in [
        (&b"[1, [2,3]]"[..], &b"1, [2,3]"[..], 2),
        (b" {\"a\":1} ", b"{\"a\":1}", 1),
    ] {
        let said = server.send("POST /v1/stream/a", &[JSON, EPHEMERAL], body);
        assert_eq!(said.status, 204);
        let message = server.broadcasts.pop().unwrap();
        let bytes = data.to_vec();
        assert_eq!(message.data, Data { bytes, units });
    }
}

#[test]
fn a_message_fits_its_stream_and_its_bound() {
    let mut server = with(JSON);
    let large = vec![b'1'; (16 << 10) + 1];
    for (headers, body, status, code) in [
        (&[JSON, EPHEMERAL][..], &b""[..], 400, "empty_body"),
        (&[EPHEMERAL], b"1", 400, "missing_content_type"),
        (&[TEXT, EPHEMERAL], b"1", 409, "type_differs"),
        (&[JSON, EPHEMERAL], b"{", 400, "bad_json"),
        (&[JSON, EPHEMERAL], b"[]", 400, "empty_array"),
        (&[JSON, EPHEMERAL], &large, 413, "too_large"),
        (&[JSON, ("Encke-Ephemeral", "yes")], b"1", 400, "bad_field"),
    ] {
        let said = server.send("POST /v1/stream/a", headers, body);
        assert_eq!((said.status, &*said.code()), (status, code), "{headers:?}");
    }
    let whole = format!("\"{}\"", "x".repeat((16 << 10) - 2));
    let said = server.send("POST /v1/stream/a", &[JSON, EPHEMERAL], whole.as_bytes());
    assert_eq!(said.status, 204);
    let said = server.send("POST /v1/stream/b", &[JSON, EPHEMERAL], b"1");
    assert_eq!((said.status, said.code()), (404, "not_found".into()));
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = server.send("POST /v1/stream/a", &[JSON, EPHEMERAL], b"1");
    assert_eq!((said.status, said.code()), (409, "closed".into()));
    server.send("DELETE /v1/stream/a", &[], b"");
    let said = server.send("POST /v1/stream/a", &[JSON, EPHEMERAL], b"1");
    assert_eq!(said.status, 404);
    assert_eq!(server.broadcasts.len(), 1);
}

#[test]
fn a_message_has_nothing_that_changes_its_stream() {
    let mut server = with(JSON);
    for (name, value) in [
        ("Producer-Id", "p"),
        ("Producer-Epoch", "0"),
        ("Producer-Seq", "0"),
        ("Stream-Seq", "1"),
        ("Stream-Closed", "true"),
        ("If-Match", "-1"),
        ("Encke-Ack", "synced"),
        ("Encke-End-Reason", "done"),
        ("Encke-Metadata", "{}"),
        ("Encke-Owner", "self"),
    ] {
        let fields = [JSON, EPHEMERAL, (name, value)];
        let said = server.send("POST /v1/stream/a", &fields, b"1");
        assert_eq!((said.status, &*said.code()), (400, "bad_field"), "{name}");
        let body = String::from_utf8(said.body).unwrap();
        assert!(body.contains(name), "{body}");
        assert!(
            name == "Encke-Owner" || body.contains("Encke-Ephemeral"),
            "{body}"
        );
    }
    for name in ["Encke-Stop", "Encke-Truncate"] {
        let fields = [JSON, EPHEMERAL, (name, "true")];
        let said = server.send("POST /v1/stream/a", &fields, b"1");
        assert_eq!((said.status, &*said.code()), (400, "bad_field"), "{name}");
    }
    let said = server.send("PUT /v1/stream/c", &[JSON, EPHEMERAL], b"1");
    assert_eq!((said.status, said.code()), (400, "bad_field".into()));
    let said = server.send(
        "POST /v1/stream/a",
        &[JSON, ("Encke-Ephemerel", "true")],
        b"1",
    );
    assert_eq!(said.status, 400);
    assert!(server.broadcasts.is_empty());
}

/// What a subscriber gets of the last message.
fn written(server: &mut Server, target: &str, accept: &str) -> String {
    let message = server.broadcasts.pop().unwrap();
    let encoders = server.router.encoders().clone();
    let mut out = Vec::new();
    let feed = match server.reply(target, &[("Accept", accept)], b"") {
        Reply::Subscribed(_, one) | Reply::SubscribedAll(_, one) => one.feed,
        _ => panic!("{target} follows nothing"),
    };
    match feed {
        Feed::Single { encoder, .. } | Feed::Awaited { encoder, .. } => {
            let encoder = encoders.encoder(encoder);
            encoder.ephemeral(&message, &mut out);
            assert_eq!(encoder.has_ephemeral(), !out.is_empty());
        }
        Feed::Merged { encoder, .. } => {
            encoders
                .merge_encoder(encoder)
                .ephemeral("", &message, &mut out);
        }
    }
    server.broadcasts.push(message);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_message_says_what_it_is_and_has_no_position() {
    const LINES: &str = "application/x-ndjson";
    let mut server = with(JSON);
    server.send("POST /v1/stream/a", &[JSON, EPHEMERAL], b"[1,\"b\"]");
    let time = server.broadcasts[0].time.as_ms();
    let events = written(&mut server, "GET /v1/events?stream=a", "*/*");
    let data = "{\"stream\":\"a\",\"messages\":[1,\"b\"]}";
    assert_eq!(events, format!("event:ephemeral\ndata:{data}\n\n"));
    let lines = written(&mut server, "GET /v1/events?stream=a", LINES);
    assert_eq!(lines, format!("{{\"ephemeral\":{data}}}\n"));
    let lines = written(&mut server, "GET /v1/stream/a?offset=-1&live=true", LINES);
    assert_eq!(lines, format!("{{\"ephemeral\":{data}}}\n"));
    let timed = written(&mut server, "GET /v1/events?stream=a&times=true", LINES);
    let data = format!("{{\"stream\":\"a\",\"timeMs\":{time},\"messages\":[1,\"b\"]}}");
    assert_eq!(timed, format!("{{\"ephemeral\":{data}}}\n"));
    // Clients of the protocol know nothing of it.
    let target = "GET /v1/stream/a?offset=-1&live=sse";
    assert_eq!(written(&mut server, target, "*/*"), "");
}

#[test]
fn text_that_is_none_and_bytes_are_in_base64() {
    for (content_type, body, data) in [
        ("text/plain", &b"a\nb"[..], "\"text\":\"a\\nb\""),
        ("text/plain", b"\xe2\x82", "\"base64\":\"4oI=\""),
        ("image/png", b"\x00", "\"base64\":\"AA==\""),
    ] {
        let content_type = ("Content-Type", content_type);
        let mut server = with(content_type);
        server.send("POST /v1/stream/a", &[content_type, EPHEMERAL], body);
        let events = written(&mut server, "GET /v1/events?stream=a", "*/*");
        let expected = format!("event:ephemeral\ndata:{{\"stream\":\"a\",{data}}}\n\n");
        assert_eq!(events, expected);
    }
}
