//! Reads that begin so many messages before the end (`last`). An extension of the protocol.

use encke_protocol::{Feed, Subscription};

use crate::server::{Reply, Server};
use crate::{CLOSED, JSON, TEXT, get, with};

/// A server whose stream `a` has the numbers 1 to 6, in three appends.
fn numbers() -> Server {
    let mut server = with(JSON);
    for numbers in ["1", "[2,3,4]", "[5,6]"] {
        let said = server.send("POST /v1/stream/a", &[JSON], numbers.as_bytes());
        assert_eq!(said.status, 204);
    }
    server
}

fn subscription(
    server: &mut Server,
    target: &str,
    fields: &[(&str, &str)],
) -> Result<Subscription, u16> {
    match server.reply(&format!("GET /v1/stream/{target}"), fields, b"") {
        Reply::Subscribed(_, subscription) => Ok(subscription),
        Reply::Said(said) => Err(said.status),
        _ => panic!("{target} does not subscribe"),
    }
}

#[test]
fn a_read_returns_the_last_messages() {
    let mut server = numbers();
    for (last, expected) in [
        (0, "[]"),
        (1, "[6]"),
        (2, "[5,6]"),
        (3, "[4,5,6]"),
        (6, "[1,2,3,4,5,6]"),
        (7, "[1,2,3,4,5,6]"),
        (10_000, "[1,2,3,4,5,6]"),
    ] {
        let said = get(&mut server, &format!("a?last={last}"));
        assert_eq!((said.status, said.text()), (200, expected));
        assert_eq!(said.next(), server.stream("a").facts().tail);
        assert_eq!(said.field("Stream-Up-To-Date"), Some("true"));
    }
    let mut server = with(TEXT);
    for text in ["one ", "two ", "three "] {
        server.send("POST /v1/stream/a", &[TEXT], text.as_bytes());
    }
    assert_eq!(get(&mut server, "a?last=2").text(), "two three ");
}

#[test]
fn a_tag_belongs_to_where_it_begins() {
    let mut server = numbers();
    let said = get(&mut server, "a?last=2");
    let tag = said.field("ETag").unwrap().to_owned();
    let known = [("If-None-Match", "\"x\""), ("If-None-Match", &*tag)];
    let again = server.send("GET /v1/stream/a?last=2", &known, b"");
    assert_eq!((again.status, again.field("ETag")), (304, Some(&*tag)));
    assert_eq!(
        server.send("GET /v1/stream/a?last=3", &known, b"").status,
        200
    );
    server.send("POST /v1/stream/a", &[JSON], b"7");
    let said = server.send("GET /v1/stream/a?last=2", &known, b"");
    assert_eq!((said.status, said.text()), (200, "[6,7]"));
    let refused = [("Accept-Encoding", "identity;q=0")];
    assert_eq!(
        server.send("GET /v1/stream/a?last=2", &refused, b"").status,
        406
    );
}

#[test]
fn events_and_lines_begin_with_the_last_messages() {
    let mut server = numbers();
    let events = subscription(&mut server, "a?last=2&live=sse", &[]).unwrap();
    let (bytes, _) = server.follow(&events);
    let text = String::from_utf8(bytes).unwrap();
    let data: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("data:["))
        .collect();
    assert_eq!(data, ["data:[5,6]"], "{text}");
    let accept = [("Accept", "application/x-ndjson")];
    let lines = subscription(&mut server, "a?last=3&live=true", &accept).unwrap();
    let (bytes, _) = server.follow(&lines);
    let text = String::from_utf8(bytes).unwrap();
    let data = text
        .lines()
        .filter(|line| line.contains("\"data\""))
        .count();
    assert_eq!(data, 3, "{text}");
    // At the end a client learns at once that it is there.
    let Reply::Subscribed(said, _) = server.reply("GET /v1/stream/a?last=0&live=sse", &[], b"")
    else {
        panic!("it does not subscribe");
    };
    assert!(said.text().contains("\"upToDate\":true"));
}

#[test]
fn a_client_that_resumes_goes_on_where_it_was() {
    let mut server = numbers();
    let first = server.send("GET /v1/stream/a?last=5", &[], b"");
    assert_eq!(first.text(), "[2,3,4,5,6]");
    let tail = server.stream("a").facts().tail;
    server.send("POST /v1/stream/a", &[JSON], b"[7,8,9]");
    let id = tail.to_string();
    let resumed = [("Last-Event-ID", &*id)];
    let feed = subscription(&mut server, "a?last=1&live=sse", &resumed).unwrap();
    let Feed::Single { from, .. } = &feed.feed else {
        panic!("it is for one stream");
    };
    assert_eq!(*from, tail);
    let target = format!("a?last=1&live=sse&lastEventId={id}");
    let feed = subscription(&mut server, &target, &[]).unwrap();
    let Feed::Single { from, .. } = &feed.feed else {
        panic!("it is for one stream");
    };
    assert_eq!(*from, tail);
}

#[test]
fn a_long_poll_returns_the_last_messages_or_waits() {
    let mut server = numbers();
    let said = get(&mut server, "a?last=2&live=long-poll");
    assert_eq!((said.status, said.text()), (200, "[5,6]"));
    let waits = server.reply("GET /v1/stream/a?last=0&live=long-poll", &[], b"");
    let Reply::Polls(waits) = waits else {
        panic!("it waits");
    };
    assert_eq!(waits.from, server.stream("a").facts().tail);
    let mut server = with(JSON);
    let waits = server.reply("GET /v1/stream/a?last=50&live=long-poll", &[], b"");
    assert!(matches!(waits, Reply::Polls(_)), "the stream is empty");
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = get(&mut server, "a?last=50&live=long-poll");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (204, Some("true"))
    );
}

#[test]
fn a_wrong_count_is_refused_with_what_is_allowed() {
    let mut server = numbers();
    for (query, why) in [
        ("last=", "from 0 to 10000"),
        ("last=x", "from 0 to 10000"),
        ("last=-1", "from 0 to 10000"),
        ("last=%2B1", "from 0 to 10000"),
        ("last=01", "from 0 to 10000"),
        ("last=10001", "from 0 to 10000"),
        ("last=99999999999999999999", "from 0 to 10000"),
        ("last=5&offset=-1", "one of offset and last"),
        ("offset=now&last=5", "one of offset and last"),
        ("last=5&last=5", "one of offset and last"),
        ("lst=5", "did you mean \\\"last\\\"?"),
        ("live=sse", "last=50"),
    ] {
        let said = get(&mut server, &format!("a?{query}"));
        assert_eq!(
            (said.status, &*said.code()),
            (400, "bad_parameter"),
            "{query}"
        );
        assert!(said.text().contains(why), "{query}: {}", said.text());
    }
    assert_eq!(get(&mut server, "none?last=5").status, 404);
}
