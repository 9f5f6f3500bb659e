//! Every request has one entry, when it ends.

use std::io::Read;
use std::net::Shutdown;

use serde_json::Value;

use super::{Logged, ONE_SHARD, entry, facts, lines};
use crate::rig::{Connection, JSON, eventually, path, request};

#[test]
fn every_kind_of_request_has_one_line_with_what_happened() {
    let logged = Logged::start("json", &[]);
    let encke = &logged.encke;
    let mut connection = encke.connect();
    let target = path("s");
    let read = format!("{target}?offset=-1");
    let trace = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01");

    // Each step has its line, and the lines are in order.
    let made = connection.ask("PUT", &target, &[JSON], b"");
    assert_eq!(made.status, 201);
    let fields = [
        JSON,
        "X-Request-Id: my-id",
        &trace,
        "User-Agent: a\"b",
        "Referer: http://r/",
    ];
    let appended = connection.ask("POST", &target, &fields, b"7");
    assert_eq!(appended.status, 204);
    assert_eq!(appended.field("X-Request-Id"), Some("my-id"));
    let page = connection.ask("GET", &read, &[], b"");
    assert_eq!((page.status, &page.body[..]), (200, &b"[7]"[..]));
    assert_eq!(page.field("X-Request-Id"), None);
    let head = connection.ask("HEAD", &target, &[], b"");
    assert_eq!(head.status, 200);
    let missing = connection.ask("GET", &path("none"), &[], b"");
    assert_eq!(missing.status, 404);
    // A long poll that a record of another client ends.
    let tail = page
        .field("Stream-Next-Offset")
        .expect("an offset")
        .to_owned();
    let poll = format!("{target}?offset={tail}&live=long-poll");
    connection.send(&request("GET", &poll, &[], b""));
    encke.wait_for_metric("encke_subscribers", 1.0);
    encke.connect().append("s", 8);
    let polled = connection.answer();
    assert_eq!((polled.status, &polled.body[..]), (200, &b"[8]"[..]));

    // Between them are the requests for the metrics.
    let ours = || {
        let entries = lines(&logged.file).into_iter().map(|line| entry(&line));
        let ours = entries.filter(|one| one["path"] != "/metrics");
        ours.collect::<Vec<Value>>()
    };
    eventually("all have their lines", || ours().len() >= 7);
    let ours = ours();
    let body = |bytes: &[u8]| bytes.len() as u64;
    let path = |path: &'static str| Some(path);
    let expected = [
        (Some("PUT"), path("/v1/stream/s"), 201, 0, "complete"),
        (Some("POST"), path("/v1/stream/s"), 204, 0, "complete"),
        (
            Some("GET"),
            path("/v1/stream/s?offset=-1"),
            200,
            3,
            "complete",
        ),
        (Some("HEAD"), path("/v1/stream/s"), 200, 0, "complete"),
        (
            Some("GET"),
            path("/v1/stream/none"),
            404,
            body(&missing.body),
            "complete",
        ),
        // The append ends before the poll that it answers, or after it.
        (Some("GET"), Some(&*poll), 200, 3, "complete"),
    ];
    let of_connection: Vec<_> = ours.iter().map(facts).collect();
    for one in expected {
        assert!(
            of_connection.contains(&one),
            "{one:?} in {of_connection:#?}"
        );
    }
    assert_eq!(ours.len(), expected.len() + 1, "{ours:#?}");
    let append = &ours[1];
    assert_eq!(append["request_id"], "my-id");
    assert_eq!(append["trace_id"], TRACE);
    assert_eq!(append["user_agent"], "a\"b");
    assert_eq!(append["referer"], "http://r/");
    assert_eq!(append["client"], "127.0.0.1");
    assert_eq!(append["protocol"], "HTTP/1.1");
    let read = &ours[2];
    assert_eq!(
        read["request_id"].as_str().map(str::len),
        Some(16),
        "{read}"
    );
    assert!(
        read["trace_id"].is_null() && read["user_agent"].is_null(),
        "{read}"
    );
}

#[test]
fn an_event_stream_has_one_line_when_it_ends() {
    let logged = Logged::start("json", &[]);
    let encke = &logged.encke;
    encke.create("s");
    encke.create("t");
    let target = format!("{}?offset=-1&live=sse", path("s"));
    let mut reader = encke.connect();
    reader.send(&request("GET", &target, &["X-Request-Id: sub"], b""));
    // Raw bytes, so that the frames of chunks count.
    let mut received = read_until(&mut reader, b"upToDate");
    encke.connect().append("s", 1);
    received.extend(read_until(&mut reader, b"upToDate"));
    let entries = logged.entries(3);
    let is_get = |one: &Value| one["method"] == "GET";
    assert!(!entries.iter().any(is_get), "no line before its end");
    reader.socket.shutdown(Shutdown::Both).expect("it is open");
    let entries = logged.entries(4);
    let head = received
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head")
        + 4;
    let bytes = (received.len() - head) as u64;
    assert_eq!(
        facts(&entries[3]),
        (Some("GET"), Some(&*target), 200, bytes, "hang_up")
    );
    assert_eq!(entries[3]["request_id"], "sub");
    assert!(String::from_utf8_lossy(&received[..head]).contains("\r\nX-Request-Id: sub\r\n"));

    // One whose stream is closed ends as such.
    let mut subscriber = encke.subscribe("t", "-1");
    let closed = encke.ask("POST", &path("t"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204);
    assert_eq!(subscriber.rest(), [0_u64; 0]);
    let entries = logged.entries(6);
    let ended = entries[4..]
        .iter()
        .find(|one| one["method"] == "GET")
        .expect("its line");
    assert_eq!(ended["end"], "ended", "{ended}");

    // One that the server ends as it stops.
    let _last = encke.subscribe("s", "-1");
    assert_eq!(logged.encke.terminate().code, Some(0));
    let lines = lines(&logged.file);
    assert_eq!(lines.len(), 7, "{lines:#?}");
    assert_eq!(entry(&lines[6])["end"], "stopping");
}

#[test]
fn requests_that_are_refused_or_given_up_have_their_line() {
    let small = ["--body-max", "1KiB", "--pool-job-max", "1KiB"];
    let logged = Logged::start("json", &[&ONE_SHARD[..], &small].concat());
    let encke = &logged.encke;
    encke.create("s");
    let refused = |bytes: &[u8], status: u16| {
        let mut connection = encke.connect();
        connection.send(bytes);
        let answer = connection.answer();
        assert_eq!(answer.status, status, "{answer:?}");
        answer.body.len() as u64
    };
    let host = "Host: x\r\n";
    let bodies = [
        refused(b"\x16\x03\x01 what\r\n\r\n", 400),
        refused(
            format!("GET /a HTTP/1.1\r\n{host}{host}\r\n").as_bytes(),
            400,
        ),
        refused(format!("GET /a HTTP/2.0\r\n{host}\r\n").as_bytes(), 505),
        refused(
            &request(
                "POST",
                "/b",
                &["Content-Length: 9999", "X-Request-Id: big"],
                b"",
            ),
            413,
        ),
        refused(
            &request(
                "POST",
                &path("s"),
                &[JSON, "Transfer-Encoding: chunked\r\n\r\nzz"],
                b"",
            ),
            400,
        ),
    ];
    let entries = logged.entries(6);
    let cut = path("s");
    let expected = [
        (None, None, 400, bodies[0], "complete"),
        (Some("GET"), Some("/a"), 400, bodies[1], "complete"),
        (Some("GET"), Some("/a"), 505, bodies[2], "complete"),
        (Some("POST"), Some("/b"), 413, bodies[3], "complete"),
        (Some("POST"), Some(&*cut), 400, bodies[4], "complete"),
    ];
    for (entry, expected) in entries[1..].iter().zip(expected) {
        assert_eq!(facts(entry), expected);
    }
    assert!(entries[1]["protocol"].is_null());
    assert_eq!(entries[4]["request_id"], "big");
    // A client that hangs up before its response.
    let mut connection = encke.connect();
    let target = format!("{}?offset=now&live=long-poll", path("s"));
    connection.send(&request("GET", &target, &[], b""));
    encke.wait_for_metric("encke_subscribers", 1.0);
    connection
        .socket
        .shutdown(Shutdown::Both)
        .expect("it is open");
    eventually("the line is written", || {
        lines(&logged.file)
            .iter()
            .any(|line| line.contains("long-poll"))
    });
    let lines = lines(&logged.file);
    let line = lines
        .iter()
        .find(|line| line.contains("long-poll"))
        .expect("it is there");
    assert_eq!(
        facts(&entry(line)),
        (Some("GET"), Some(&*target), 499, 0, "hang_up")
    );
    // A connection without a request has none.
    let before = lines.len();
    drop(encke.connect());
    encke.ask("GET", "/healthz", &[], b"");
    let entries = logged.entries(before + 1);
    assert_eq!(entries[before]["path"], "/healthz");
}

#[test]
fn pipelined_requests_have_a_line_each_in_order() {
    let logged = Logged::start("json", &[]);
    let mut connection = logged.encke.connect();
    let target = path("s");
    let mut all = request("PUT", &target, &[JSON], b"");
    for number in 0..20 {
        let id = format!("X-Request-Id: id-{number}");
        all.extend(request(
            "POST",
            &target,
            &[JSON, &id],
            number.to_string().as_bytes(),
        ));
        all.extend(request("GET", &format!("{target}?offset=-1"), &[], b""));
    }
    connection.send(&all);
    let answers: Vec<_> = (0..41).map(|_| connection.answer()).collect();
    let entries = logged.entries(41);
    for (answer, entry) in answers.iter().zip(&entries) {
        assert_eq!(u64::from(answer.status), entry["status"]);
        assert_eq!(entry["bytes"], answer.body.len());
        match entry["method"].as_str() {
            Some("POST") => assert_eq!(answer.field("X-Request-Id"), entry["request_id"].as_str()),
            _ => assert_eq!(answer.field("X-Request-Id"), None),
        }
    }
    let mut ids: Vec<&str> = entries
        .iter()
        .filter_map(|one| one["request_id"].as_str())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 41, "ids differ");
}

#[test]
fn a_long_response_that_a_slow_client_reads_counts_all_of_its_bytes() {
    let logged = Logged::start("json", &ONE_SHARD);
    let encke = &logged.encke;
    let made = encke.ask(
        "PUT",
        &path("s"),
        &["Content-Type: application/octet-stream"],
        b"",
    );
    assert_eq!(made.status, 201);
    let block = vec![b'x'; 1 << 20];
    for _ in 0..8 {
        let fields = ["Content-Type: application/octet-stream"];
        assert_eq!(encke.ask("POST", &path("s"), &fields, &block).status, 204);
    }
    let mut slow = Connection::open_narrow(encke.address);
    slow.send(&request(
        "GET",
        &format!("{}?offset=-1", path("s")),
        &[],
        b"",
    ));
    let answer = slow.answer();
    assert_eq!(answer.body.len(), 8 << 20);
    let entries = logged.entries(10);
    // With the frames of the chunks, of which there are few.
    let bytes = entries[9]["bytes"].as_u64().expect("a number");
    assert!((8 << 20..(8 << 20) + 4096).contains(&bytes), "{bytes}");
    assert_eq!(entries[9]["end"], "complete");
}

fn read_until(connection: &mut Connection, what: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(what) {
        connection.socket.read_exact(&mut byte).expect("more comes");
        all.push(byte[0]);
    }
    // The rest of the chunk.
    while !all.ends_with(b"\n\n\r\n") {
        connection.socket.read_exact(&mut byte).expect("more comes");
        all.push(byte[0]);
    }
    all
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
