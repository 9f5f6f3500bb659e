//! How a stream ends, and why: reasons, stops, silent producers; what is told of it, and metadata and conditions.

use super::server::Reply;
use super::*;

const EMPTY: &[u8] = b"";

/// The bytes that a new subscriber is sent, from the beginning on.
fn events(server: &mut Server, target: &str, accept: &str) -> String {
    let line = format!("GET /v1/stream/{target}");
    match server.reply(&line, &[("Accept", accept)], b"") {
        Reply::Subscribed(said, subscription) => {
            let (bytes, _) = server.follow(&subscription);
            said.text().to_owned() + std::str::from_utf8(&bytes).unwrap()
        }
        Reply::Said(said) => said.text().to_owned(),
        _ => panic!("{target}"),
    }
}

fn post(server: &mut Server, headers: &[(&str, &str)], body: &[u8]) -> Said {
    server.send("POST /v1/stream/a", headers, body)
}

#[test]
fn the_reason_for_an_end_is_told_to_all() {
    for reason in ["done", "stopped", "failed"] {
        let mut server = with(TEXT);
        post(&mut server, &[TEXT], b"x");
        let close = [CLOSED, ("Encke-End-Reason", reason)];
        assert_eq!(post(&mut server, &close, EMPTY).status, 204);
        for line in [
            "HEAD /v1/stream/a",
            "GET /v1/stream/a",
            "GET /v1/stream/a?offset=now",
        ] {
            let said = server.send(line, &[], b"");
            assert_eq!(said.field("Encke-End-Reason"), Some(reason), "{line}");
            assert_eq!(said.field("Stream-Closed"), Some("true"), "{line}");
        }
        // Whoever goes on appending learns it as well.
        let refused = post(&mut server, &[TEXT], b"y");
        assert_eq!((refused.status, &*refused.code()), (409, "closed"));
        assert_eq!(refused.field("Encke-End-Reason"), Some(reason));
        let told = format!("\"streamClosed\":true,\"endReason\":\"{reason}\"}}");
        for (target, accept) in [
            ("a?offset=-1&live=sse", "*/*"),
            ("a?offset=-1&live=true", "application/x-ndjson"),
            ("a?offset=now&live=sse", "*/*"),
        ] {
            let events = events(&mut server, target, accept);
            assert!(events.contains(&told), "{target}: {events}");
        }
        // A repetition of the close changes nothing, and gives no other reason.
        let close = [CLOSED, ("Encke-End-Reason", "failed")];
        assert_eq!(post(&mut server, &close, EMPTY).status, 204);
        let head = server.send("HEAD /v1/stream/a", &[], b"");
        assert_eq!(head.field("Encke-End-Reason"), Some(reason));
    }
    // Without a reason nothing is said of one.
    let mut server = with(TEXT);
    post(&mut server, &[CLOSED], EMPTY);
    let head = server.send("HEAD /v1/stream/a", &[], b"");
    assert_eq!(head.field("Encke-End-Reason"), None);
    let events = events(&mut server, "a?offset=-1&live=sse", "*/*");
    assert!(events.contains("\"streamClosed\":true}"), "{events}");
}

#[test]
fn a_stop_is_told_to_readers_and_to_the_producer() {
    let mut server = with(TEXT);
    post(&mut server, &[TEXT], b"x");
    let before = server.send("GET /v1/stream/a?offset=-1", &[], b"");
    let said = post(&mut server, &[("Encke-Stop", "true")], EMPTY);
    assert_eq!((said.status, said.token()), (204, before.token()));
    // It is a state of the stream, so late readers learn it, and caches do not keep it from them.
    let tag = before.field("ETag").unwrap().to_owned();
    let after = server.send(
        "GET /v1/stream/a?offset=-1",
        &[("If-None-Match", &tag)],
        b"",
    );
    assert_eq!(after.status, 200);
    assert_eq!(after.field("Encke-Stop-Requested"), Some("true"));
    let told = "\"upToDate\":true,\"stopRequested\":true}";
    for (target, accept) in [
        ("a?offset=-1&live=sse", "*/*"),
        ("a?offset=now&live=sse", "*/*"),
        ("a?offset=-1&live=true", "application/x-ndjson"),
    ] {
        let events = events(&mut server, target, accept);
        assert!(events.contains(told), "{target}: {events}");
    }
    // The producer may end what it has begun.
    let said = post(&mut server, &[TEXT], b"y");
    assert_eq!(said.status, 204);
    assert_eq!(said.field("Encke-Stop-Requested"), Some("true"));
    // Asked twice, nothing changes.
    assert_eq!(
        post(&mut server, &[("Encke-Stop", "true")], EMPTY).status,
        204
    );
    let close = [TEXT, CLOSED, ("Encke-End-Reason", "stopped")];
    let said = post(&mut server, &close, b"bye");
    assert_eq!(
        (said.status, said.field("Encke-Stop-Requested")),
        (204, None)
    );
    let said = post(&mut server, &[("Encke-Stop", "true")], EMPTY);
    assert_eq!(
        (said.status, said.field("Encke-End-Reason")),
        (409, Some("stopped"))
    );
}

#[test]
fn a_silent_producer_ends_its_stream() {
    for asks_stop in [false, true] {
        let mut server = Server::default();
        let timeout = [TEXT, ("Encke-Producer-Timeout", "5")];
        assert_eq!(server.send("PUT /v1/stream/a", &timeout, b"").status, 201);
        // The same again is the same stream; another time is another configuration.
        assert_eq!(server.send("PUT /v1/stream/a", &timeout, b"").status, 200);
        let said = server.send("PUT /v1/stream/a", &[TEXT], b"");
        assert_eq!((said.status, &*said.code()), (409, "config_differs"));
        server.now_ms += 4_000;
        assert_eq!(post(&mut server, &[TEXT], b"x").status, 204);
        server.now_ms += 4_999;
        if asks_stop {
            // A reader does not speak for the producer.
            assert_eq!(
                post(&mut server, &[("Encke-Stop", "true")], EMPTY).status,
                204
            );
        }
        server.expire();
        let head = server.send("HEAD /v1/stream/a", &[], b"");
        assert_eq!(head.field("Stream-Closed"), None);
        assert_eq!(head.field("Encke-Producer-Timeout"), Some("5"));
        server.now_ms += 1;
        server.expire();
        let head = server.send("HEAD /v1/stream/a", &[], b"");
        let reason = if asks_stop { "stopped" } else { "abandoned" };
        assert_eq!(head.field("Encke-End-Reason"), Some(reason));
        assert_eq!(head.field("Stream-Closed"), Some("true"));
        let refused = post(&mut server, &[TEXT], b"late");
        assert_eq!(
            (refused.status, refused.field("Encke-End-Reason")),
            (409, Some(reason))
        );
    }
}

#[test]
fn an_append_may_name_where_the_stream_must_end() {
    let mut server = with(TEXT);
    let first = post(&mut server, &[TEXT], b"x").token();
    let quoted = format!("\"{first}\"");
    let second = post(&mut server, &[TEXT, ("If-Match", &quoted)], b"y");
    assert_eq!(second.status, 204);
    let second = second.token();
    for condition in [&*quoted, &first] {
        let said = post(&mut server, &[TEXT, ("If-Match", condition)], b"z");
        assert_eq!((said.status, &*said.code()), (412, "tail_differs"));
        assert_eq!(said.token(), second);
    }
    assert_eq!(get(&mut server, "a").body, b"xy");
    // Closing can be conditional, too. A repetition of a producer's request is one, whatever follows it.
    let with_producer = [&producer("0", "0")[..], &[("If-Match", &*second)]].concat();
    assert_eq!(post(&mut server, &with_producer, b"p").status, 200);
    assert_eq!(post(&mut server, &with_producer, b"p").status, 204);
    let said = post(&mut server, &[CLOSED, ("If-Match", &second)], EMPTY);
    assert_eq!(said.status, 412);
}

#[test]
fn metadata_is_kept_and_replaced() {
    let mut server = Server::default();
    let title = r#"{"title":"ä 🙂"}"#;
    let create = [TEXT, ("Encke-Metadata", title)];
    assert_eq!(server.send("PUT /v1/stream/a", &create, b"").status, 201);
    let shown = |server: &mut Server| {
        let head = server.send("HEAD /v1/stream/a", &[], b"");
        head.field("Encke-Metadata").map(ToOwned::to_owned)
    };
    // In characters that every client can read in a field.
    let ascii = r#"{"title":"\u00e4 \ud83d\ude42"}"#;
    assert_eq!(shown(&mut server).as_deref(), Some(ascii));
    let tail = server.send("HEAD /v1/stream/a", &[], b"").token();
    let said = post(&mut server, &[("Encke-Metadata", "{\"n\":1}")], EMPTY);
    assert_eq!((said.status, said.token()), (204, tail));
    assert_eq!(shown(&mut server).as_deref(), Some("{\"n\":1}"));
    let said = post(&mut server, &[TEXT, ("Encke-Metadata", "{}")], b"x");
    assert_eq!(said.status, 204);
    assert_eq!(shown(&mut server).as_deref(), Some("{}"));
}

#[test]
fn what_is_wrong_is_named_and_changes_nothing() {
    let mut server = with(TEXT);
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(2048));
    for (field, value, named) in [
        ("Encke-End-Reason", "done", "needs Stream-Closed"),
        ("Encke-End-Reason", "abandoned", "done, stopped or failed"),
        ("Encke-Stop", "yes", "Encke-Stop is true"),
        ("Encke-Metadata", "[1]", "object of JSON"),
        ("Encke-Metadata", "{", "object of JSON"),
        ("Encke-Metadata", &long, "at most 2048"),
        ("If-Match", "*", "at which the stream must end"),
        ("If-Match", "\"a\", \"b\"", "such as"),
        ("Encke-Owner", "self", "a field of PUT only"),
        ("Encke-Producer-Timeout", "5", "a field of PUT only"),
        ("Encke-Read-URL", "5", "a field of PUT only"),
    ] {
        let said = post(&mut server, &[TEXT, (field, value)], b"x");
        assert_eq!(
            (said.status, &*said.code()),
            (400, "bad_field"),
            "{field}: {value}"
        );
        assert!(
            said.text().contains(&named.replace('"', "\\\"")),
            "{}",
            said.text()
        );
    }
    for more in [
        (&[TEXT][..], &b"x"[..]),
        (&[CLOSED], b""),
        (&[("Stream-Seq", "1")], b""),
        (&[("Encke-Metadata", "{}")], b""),
    ] {
        let fields = [more.0, &[("Encke-Stop", "true")]].concat();
        assert_eq!(post(&mut server, &fields, more.1).status, 400, "{more:?}");
    }
    for (field, value, named) in [
        ("Encke-Producer-Timeout", "0", "1 to 604800"),
        ("Encke-Producer-Timeout", "604801", "1 to 604800"),
        ("Encke-Producer-Timeout", "1.5", "whole number"),
        ("Encke-Read-URL", "86401", "1 to 86400"),
        ("Encke-Read-URL", "60", "access.signing-keys"),
        ("Encke-Owner", "self", "access control"),
        ("Encke-Owner", "", "subject of a token"),
        ("Encke-Stop", "true", "a field of POST only"),
        ("Encke-End-Reason", "done", "a field of POST only"),
        ("If-Match", "1_0", "a field of POST only"),
    ] {
        let said = server.send("PUT /v1/stream/new", &[TEXT, (field, value)], b"x");
        assert_eq!(
            (said.status, &*said.code()),
            (400, "bad_field"),
            "{field}: {value}"
        );
        assert!(said.text().contains(named), "{field}: {}", said.text());
    }
    assert_eq!(get(&mut server, "new").status, 404);
    let head = server.send("HEAD /v1/stream/a", &[], b"");
    assert_eq!(head.field("Encke-Stop-Requested"), None);
    assert_eq!(get(&mut server, "a").body, b"");
}
