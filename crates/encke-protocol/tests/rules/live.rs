//! Live reads: long poll and server-sent events (sections 5.7, 5.8 and 10).

use encke_clock::WallTime;
use encke_protocol::{Failure, Feed};

use crate::server::{NOW_CURSOR, NOW_MS, Reply, Server, said};
use crate::{CLOSED, TEXT, get, with};

#[test]
fn a_long_poll_is_answered_at_once_when_there_is_something_to_say() {
    let mut server = with(TEXT);
    let tail = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let said = get(&mut server, "a?offset=-1&live=long-poll");
    assert_eq!((said.status, said.text()), (200, "one"));
    assert_eq!(said.field("Stream-Cursor"), Some(&*NOW_CURSOR.to_string()));
    assert_eq!(said.field("Stream-Up-To-Date"), Some("true"));
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = get(&mut server, "a?offset=-1&live=long-poll");
    assert_eq!(
        (said.text(), said.field("Stream-Closed")),
        ("one", Some("true"))
    );
    assert_eq!(said.field("Stream-Cursor"), None);
    let said = get(&mut server, &format!("a?offset={tail}&live=long-poll"));
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (204, Some("true"))
    );
    assert_eq!(said.field("Stream-Up-To-Date"), Some("true"));
    assert_eq!((said.token(), said.body.len()), (tail, 0));
}

#[test]
fn a_long_poll_waits_for_data_an_end_or_its_time() {
    let poll = |server: &mut Server, query: &str| match server.reply(
        &format!("GET /v1/stream/{query}"),
        &[],
        b"",
    ) {
        Reply::Polls(poll) => poll,
        _ => panic!("it does not wait"),
    };
    let mut server = with(TEXT);
    let tail = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let waiting = poll(&mut server, "a?offset=now&live=long-poll");
    assert_eq!(waiting.wait_ms, 20_000);
    assert_eq!(waiting.from.to_string(), tail);
    let over = said(waiting.then.timed_out(WallTime::from_ms(NOW_MS + 20_000)));
    assert_eq!((over.status, over.token()), (204, tail.clone()));
    assert_eq!(over.field("Stream-Up-To-Date"), Some("true"));
    assert_eq!(over.field("Stream-Closed"), None);
    assert_eq!(
        over.field("Stream-Cursor"),
        Some(&*(NOW_CURSOR + 1).to_string())
    );

    let waiting = poll(&mut server, &format!("a?offset={tail}&live=long-poll"));
    let new = server.send("POST /v1/stream/a", &[TEXT], b"two").token();
    let said_now = server.polled(waiting);
    assert_eq!((said_now.status, said_now.text()), (200, "two"));
    assert_eq!(
        (said_now.token(), said_now.field("Stream-Up-To-Date")),
        (new.clone(), Some("true"))
    );

    let waiting = poll(&mut server, &format!("a?offset={new}&live=long-poll"));
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let closed = server.polled(waiting);
    assert_eq!(
        (closed.status, closed.field("Stream-Closed")),
        (204, Some("true"))
    );
    assert_eq!(closed.field("Stream-Cursor"), None);

    let mut server = with(TEXT);
    let waiting = poll(&mut server, "a?offset=now&live=long-poll");
    server.send("DELETE /v1/stream/a", &[], b"");
    assert_eq!(said(waiting.then.ended()).status, 404);
    let mut server = with(TEXT);
    server.send("PUT /v1/stream/f", &[("Stream-Forked-From", "a")], b"");
    let waiting = poll(&mut server, "a?offset=now&live=long-poll");
    server.send("DELETE /v1/stream/a", &[], b"");
    assert_eq!(said(waiting.then.ended()).status, 410);
}

#[test]
fn a_long_poll_on_a_fork_waits_for_the_forks_own() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"one");
    let made = server.send("PUT /v1/stream/f", &[("Stream-Forked-From", "a")], b"");
    server.send("POST /v1/stream/a", &[TEXT], b"two");
    let said = get(&mut server, "f?offset=-1&live=long-poll");
    assert_eq!((said.text(), said.token()), ("one", made.token()));
    let line = format!("GET /v1/stream/f?offset={}&live=long-poll", made.token());
    assert!(matches!(server.reply(&line, &[], b""), Reply::Polls(_)));
}

#[test]
fn cursors_go_on_from_what_was_brought() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"one");
    let mut ask = |cursor: &str| {
        let said = get(
            &mut server,
            &format!("a?offset=-1&live=long-poll&cursor={cursor}"),
        );
        said.field("Stream-Cursor").unwrap().parse::<u64>().unwrap()
    };
    for old in [
        "0",
        "5",
        "",
        "x",
        "-7",
        &(NOW_CURSOR - 1).to_string(),
        "99999999999999999999",
    ] {
        assert_eq!(ask(old), NOW_CURSOR, "{old:?}");
    }
    let mut last = NOW_CURSOR;
    for _ in 0..50 {
        let next = ask(&last.to_string());
        assert!(last < next && next <= last + 180);
        last = next;
    }
    // Two with the same cursor go on with the same one.
    assert_eq!(ask("9999999999"), ask("9999999999"));
}

#[test]
fn following_says_where_one_is_first_when_there_is_nothing_to_read() {
    let mut server = with(TEXT);
    let subscribe = |server: &mut Server, query: &str| match server.reply(
        &format!("GET /v1/stream/a?live=sse&{query}"),
        &[],
        b"",
    ) {
        Reply::Subscribed(said, subscribe) => (said, subscribe),
        _ => panic!("it does not subscribe"),
    };
    let (said, subscribed) = subscribe(&mut server, "offset=now");
    assert_eq!((said.status, said.open), (200, true));
    assert_eq!(said.field("Content-Type"), Some("text/event-stream"));
    assert_eq!(said.field("Stream-SSE-Data-Encoding"), None);
    let tail = server.send("HEAD /v1/stream/a", &[], b"").token();
    let control = format!(
        "id: {tail}\nevent: control\ndata:{{\"streamNextOffset\":\"{tail}\",\"streamCursor\":\"{NOW_CURSOR}\",\
         \"upToDate\":true}}\n\n"
    );
    assert_eq!(said.text(), control);
    let Feed::Single { from, .. } = &subscribed.feed else {
        panic!("it is for one stream");
    };
    assert_eq!(from.to_string(), tail);
    // Whether there is something behind the beginning, the log must say.
    let (said, subscribed) = subscribe(&mut server, "offset=-1");
    assert_eq!(said.text(), "");
    assert_eq!(server.follow(&subscribed).0, control.as_bytes());

    let new = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let (said, subscribed) = subscribe(&mut server, "offset=-1");
    assert_eq!(said.text(), "", "the data says where it ends");
    let (sent, marks) = server.follow(&subscribed);
    let sent = String::from_utf8(sent).unwrap();
    assert!(
        sent.starts_with(&format!(
            "id: {new}\nevent: data\ndata:one\n\nevent: control\ndata:{{"
        )),
        "{sent}"
    );
    assert_eq!(marks.last().unwrap().at.to_string(), new);

    let ahead = NOW_CURSOR + 1000;
    let (said, _) = subscribe(&mut server, &format!("offset=now&cursor={ahead}"));
    let cursor = said.text().split("streamCursor\":\"").nth(1).unwrap();
    let cursor: u64 = cursor.split('"').next().unwrap().parse().unwrap();
    assert!(cursor > ahead);

    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = get(&mut server, "a?offset=now&live=sse");
    assert!(!said.open, "the response is complete");
    let control = format!(
        "id: {new};end\nevent: control\ndata:{{\"streamNextOffset\":\"{new}\",\"upToDate\":true,\
         \"streamClosed\":true}}\n\n"
    );
    assert_eq!(said.text(), control);

    let mut server = with(("Content-Type", "image/png"));
    let (said, _) = subscribe(&mut server, "offset=-1");
    assert_eq!(said.field("stream-sse-data-encoding"), Some("base64"));
}

#[test]
fn an_event_source_resumes_where_it_was() {
    let mut server = with(TEXT);
    let first = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let second = server.send("POST /v1/stream/a", &[TEXT], b"two").token();
    let resume = |server: &mut Server, id: &str| {
        // The URL stays that of the first request.
        server.reply(
            "GET /v1/stream/a?offset=-1&live=sse",
            &[("Last-Event-ID", id)],
            b"",
        )
    };
    let Reply::Subscribed(_, subscribed) = resume(&mut server, &first) else {
        panic!("it does not subscribe");
    };
    let Feed::Single { from, .. } = &subscribed.feed else {
        panic!("it is for one stream");
    };
    assert_eq!(from.to_string(), first);
    assert!(
        server
            .follow(&subscribed)
            .0
            .starts_with(format!("id: {second}\n").as_bytes())
    );
    let Reply::Subscribed(said, _) = resume(&mut server, &second) else {
        panic!("it does not subscribe");
    };
    assert!(
        said.text()
            .starts_with(&format!("id: {second}\nevent: control\n"))
    );

    let reason = ("Encke-End-Reason", "done");
    server.send("POST /v1/stream/a", &[CLOSED, reason], b"");
    let mut resumed = |id: &str| match resume(&mut server, id) {
        Reply::Said(said) => (said.status, said.text().to_owned()),
        _ => panic!("it goes on"),
    };
    // A client that was cut off before the end learns it, and why.
    let (status, text) = resumed(&second);
    let end = format!("{second};end");
    assert_eq!(status, 200);
    assert!(
        text.starts_with(&format!("id: {end}\nevent: control\n")),
        "{text}"
    );
    assert!(
        text.contains("\"streamClosed\":true,\"endReason\":\"done\""),
        "{text}"
    );
    assert_eq!(resumed(&end), (204, String::new()), "it connects no more");
    for bad in ["7", "-1", "now", "x", ";end", "now;end"] {
        let (status, text) = resumed(bad);
        assert_eq!(status, 400, "{bad}");
        assert!(
            text.contains("Last-Event-ID") && text.contains(bad),
            "{text}"
        );
    }
}

#[test]
fn an_event_source_that_sends_no_fields_resumes_by_a_parameter() {
    let mut server = with(TEXT);
    let first = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let second = server.send("POST /v1/stream/a", &[TEXT], b"two").token();
    let mut begin = |parameter: &str, field: Option<&str>| {
        let line = format!("GET /v1/stream/a?offset=-1&live=sse&lastEventId={parameter}");
        let field = field.map(|id| ("Last-Event-ID", id));
        match server.reply(&line, &Vec::from_iter(field), b"") {
            Reply::Subscribed(_, subscribed) => match subscribed.feed {
                Feed::Single { from, .. } => Ok(from.to_string()),
                _ => panic!("it is for one stream that exists"),
            },
            Reply::Said(said) => Err(said.code()),
            _ => panic!("it does not subscribe"),
        }
    };
    assert_eq!(begin(&first, None), Ok(first.clone()));
    // Before its first event it has none.
    assert_eq!(begin("", None), begin("", Some("")));
    // If the field is present, the parameter is ignored; of several parameters the last one counts.
    assert_eq!(begin(&first, Some("")), begin("", None));
    assert_eq!(begin(&first, Some(&second)), Ok(second.clone()));
    let added = format!("{first}&lastEventId={second}");
    assert_eq!(begin(&added, None), Ok(second.clone()));
    assert_eq!(begin("7", None), Err("bad_field".to_owned()));
}

#[test]
fn failures_say_whether_to_come_back() {
    let mut server = with(TEXT);
    for (failure, status, again) in [
        (Failure::Overloaded, 503, true),
        (Failure::Unreadable, 500, false),
        (Failure::Stopping, 503, true),
    ] {
        let line = "GET /v1/stream/a?offset=now&live=long-poll";
        let Reply::Polls(_) = server.reply(line, &[], b"") else {
            panic!("it does not wait")
        };
        let failed = said(encke_protocol::problem::failed(failure));
        assert_eq!(failed.status, status);
        assert_eq!(failed.field("Retry-After").is_some(), again, "{failure:?}");
        assert!(!failed.code().is_empty());
    }
}
