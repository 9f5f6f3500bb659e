//! Several streams over one connection: each record once, in the order of the log, also over reconnects and restarts.

use std::time::Instant;

use serde_json::Value;

use crate::rig::{Connection, Encke, JSON, data_dir, path, request, still_waits};

/// A subscriber of several streams.
pub(crate) struct MultiStream {
    pub(crate) connection: Connection,
    /// The last id that came.
    pub(crate) id: String,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) data: Value,
}

impl MultiStream {
    pub(crate) fn open(encke: &Encke, query: &str, id: Option<&str>) -> MultiStream {
        let mut several = MultiStream::ask(encke.connect(), query, id);
        let head = several.connection.head();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.field("Content-Type"), Some("text/event-stream"));
        several
    }

    pub(crate) fn ask(mut connection: Connection, query: &str, id: Option<&str>) -> MultiStream {
        let field = id.map(|id| format!("Last-Event-ID: {id}"));
        let fields: Vec<&str> = field.as_deref().into_iter().collect();
        let target = format!("/v1/events?{query}");
        connection.send(&request("GET", &target, &fields, b""));
        MultiStream {
            connection,
            id: id.unwrap_or_default().to_owned(),
        }
    }

    /// The next event; nothing when the server has hung up, which it may do only between two events.
    pub(crate) fn event(&mut self) -> Option<Event> {
        let begin = Instant::now();
        loop {
            still_waits(begin);
            let Some(block) = self.connection.event() else {
                assert!(self.connection.input().is_empty(), "cut within an event");
                return None;
            };
            let field = |name: &str| {
                let lines = block.lines();
                let values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                values.collect::<Vec<_>>().join("\n")
            };
            if !field("id").is_empty() {
                self.id = field("id");
            }
            if !field("data").is_empty() {
                return Some(Event {
                    name: field("event"),
                    id: self.id.clone(),
                    data: serde_json::from_str(&field("data")).expect("data is JSON"),
                });
            }
        }
    }

    /// The next event's id or, where an id comes alone, that.
    pub(crate) fn position(&mut self) -> String {
        let begin = Instant::now();
        loop {
            still_waits(begin);
            let block = self.connection.event().expect("an id comes");
            let mut lines = block.lines();
            if let Some(id) = lines.find_map(|line| line.strip_prefix("id:")) {
                self.id = id.to_owned();
                return self.id.clone();
            }
        }
    }

    /// The next `count` records of JSON streams: their streams and numbers.
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<(String, u64)> {
        let events = (0..count).map(|at| {
            let event = self.event();
            event.unwrap_or_else(|| panic!("event {at} of {count} did not come"))
        });
        events.map(|event| number(&event)).collect()
    }

    /// Reads these records, and continues `query` from the id of each: that leads to the records after it. The ids.
    pub(crate) fn every_id_leads_to_the_rest(
        &mut self,
        encke: &Encke,
        query: &str,
        records: &[(String, u64)],
    ) -> Vec<String> {
        let mut ids = Vec::new();
        for record in records {
            let event = self.event().expect("an event");
            assert_eq!(&number(&event), record);
            ids.push(event.id);
        }
        for (at, id) in ids.iter().enumerate() {
            let mut again = MultiStream::open(encke, query, Some(id));
            let rest = &records[at + 1..];
            assert_eq!(again.numbers(rest.len()), rest, "after {id}");
        }
        ids
    }
}

/// Whose a record is, and its number.
pub(crate) fn number(event: &Event) -> (String, u64) {
    assert_eq!(event.name, "", "{event:?}");
    let stream = event.data["stream"].as_str().expect("a name");
    let number = event.data["messages"][0].as_u64().expect("a number");
    (stream.to_owned(), number)
}

/// What ended, and why.
pub(crate) fn ending(event: &Event) -> (&str, &str) {
    assert_eq!(event.name, "end", "{event:?}");
    let text = |key: &str| event.data[key].as_str().expect("text");
    (text("stream"), text("why"))
}

/// Appends numbers to streams in turn, in no regular order; what was appended, in its order.
pub(crate) fn append_all(
    encke: &Encke,
    streams: &[&str],
    numbers: std::ops::Range<u64>,
) -> Vec<(String, u64)> {
    let mut connection = encke.connect();
    let appends = numbers.map(|number| {
        let stream = streams[(number * number / 3) as usize % streams.len()];
        connection.append(stream, number);
        (stream.to_owned(), number)
    });
    appends.collect()
}

#[test]
fn records_come_once_and_in_the_order_of_the_log() {
    for level in ["synced", "accepted"] {
        let encke = Encke::start(&["--ack", level]);
        let streams = ["a", "b/c", "d"];
        streams.iter().for_each(|stream| encke.create(stream));
        let mut expected = append_all(&encke, &streams, 0..100);
        let query = "stream=a@-1&stream=b%2Fc@-1&stream=d@-1";
        // Some come while records do.
        let appending = std::thread::scope(|scope| {
            let appending = scope.spawn(|| append_all(&encke, &streams, 100..400));
            let opened: Vec<MultiStream> = (0..8)
                .map(|_| MultiStream::open(&encke, query, None))
                .collect();
            (appending.join().expect("all are appended"), opened)
        });
        expected.extend(appending.0);
        for mut subscriber in appending.1 {
            assert_eq!(subscriber.numbers(400), expected);
        }
        encke.wait_for_metric("encke_subscribers", 0.0);
    }
}

#[test]
fn a_reconnect_resumes_at_its_position() {
    let encke = Encke::start(&[]);
    let streams = ["a", "b", "c"];
    streams.iter().for_each(|stream| encke.create(stream));
    let before = append_all(&encke, &streams, 0..30);
    let offset = encke.connect().append("b", 30);
    // From the beginning, from the middle, from now: at first their positions differ.
    let query = format!("stream=a@-1&stream=b@{offset}&stream=c");
    let mut first = MultiStream::open(&encke, &query, None);
    let later = append_all(&encke, &streams, 31..60);
    let mut expected: Vec<(String, u64)> = before;
    expected.retain(|(stream, _)| stream == "a");
    expected.extend(later);
    let ids = first.every_id_leads_to_the_rest(&encke, &query, &expected);
    // The parameter does the same, and the field beats it.
    let query = format!("{query}&after={}", ids[3]);
    let mut again = MultiStream::open(&encke, &query, None);
    assert_eq!(again.numbers(1), expected[4..5]);
    let mut again = MultiStream::open(&encke, &query, Some(&ids[5]));
    assert_eq!(again.numbers(1), expected[6..7]);
}

#[test]
fn an_id_that_came_before_any_record_is_enough_to_miss_none() {
    let encke = Encke::start(&[]);
    encke.create("a");
    encke.create("b");
    append_all(&encke, &["a", "b"], 0..10);
    let query = "stream=a&stream=b";
    let mut first = MultiStream::open(&encke, query, None);
    loop {
        let text = String::from_utf8_lossy(first.connection.input()).into_owned();
        if let Some((line, _)) = text.split_once('\n') {
            first.id = line.strip_prefix("id:").expect("the id comes first").into();
            break;
        }
        assert!(first.connection.fill());
    }
    let id = first.id.clone();
    drop(first);
    let missed = append_all(&encke, &["a", "b"], 10..20);
    let mut again = MultiStream::open(&encke, query, Some(&id));
    assert_eq!(again.numbers(10), missed);
}

#[test]
fn a_stream_ends_and_the_others_go_on() {
    let encke = Encke::start(&[]);
    let streams = ["closed", "deleted", "stays"];
    streams.iter().for_each(|stream| encke.create(stream));
    let query = "stream=closed@-1&stream=deleted@-1&stream=stays@-1";
    let mut several = MultiStream::open(&encke, query, None);
    let appended = append_all(&encke, &streams, 0..12);
    assert_eq!(several.numbers(12), appended);
    // With the last record of its own.
    let last = encke.ask(
        "POST",
        &path("closed"),
        &[JSON, "Stream-Closed: true"],
        b"99",
    );
    assert_eq!(last.status, 204);
    assert_eq!(number(&several.event().unwrap()), ("closed".into(), 99));
    assert_eq!(ending(&several.event().unwrap()), ("closed", "closed"));
    let id = several.id.clone();
    assert_eq!(encke.ask("DELETE", &path("deleted"), &[], b"").status, 204);
    assert_eq!(ending(&several.event().unwrap()), ("deleted", "deleted"));
    encke.connect().append("stays", 7);
    assert_eq!(several.numbers(1), [("stays".to_owned(), 7)]);
    // A client that reconnects gets the ends, and continues.
    let mut again = MultiStream::open(&encke, query, Some(&id));
    assert_eq!(ending(&again.event().unwrap()), ("closed", "closed"));
    assert_eq!(ending(&again.event().unwrap()), ("deleted", "deleted"));
    assert_eq!(again.numbers(1), [("stays".to_owned(), 7)]);
    // With the last stream the connection ends, and there is nothing to come back for.
    let closed = encke.ask("POST", &path("stays"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204);
    for mut subscriber in [several, again] {
        assert_eq!(ending(&subscriber.event().unwrap()), ("stays", "closed"));
        assert_eq!(subscriber.event(), None);
    }
    let field = format!("Last-Event-ID: {id}");
    let target = format!("/v1/events?{query}");
    let over = encke.ask("GET", &target, &[&field], b"");
    // What it has not had yet it gets first.
    assert_eq!(over.status, 200);
    let text = String::from_utf8(over.body).expect("text");
    assert!(text.contains("\"messages\":[7]"), "{text}");
    encke.wait_for_metric("encke_subscribers", 0.0);
}

#[test]
fn slow_readers_catch_up_from_the_log_in_order() {
    let encke = Encke::start(&["--ring", "64KiB"]);
    let streams = ["a", "b", "c", "d"];
    streams.iter().for_each(|stream| encke.create(stream));
    let query = "stream=a@-1&stream=b@-1&stream=c@-1&stream=d@-1";
    let connection = Connection::open_narrow(encke.address);
    let mut slow = MultiStream::ask(connection, query, None);
    assert_eq!(slow.connection.head().status, 200);
    // Far more than sockets and recent records hold, while it does not read.
    let mut publisher = encke.connect();
    let filler = "x".repeat(20_000);
    for number in 0..600_u64 {
        let stream = streams[(number * 7 % 11) as usize % streams.len()];
        let body = format!("[{number},\"{filler}\"]");
        let answer = publisher.ask("POST", &path(stream), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
    }
    for expected in 0..600 {
        let (_, got) = number(&slow.event().expect("an event"));
        assert_eq!(got, expected);
    }
    assert!(encke.metric("encke_catch_ups_total", "") > 0.0);
}

#[test]
fn a_fork_and_its_source_each_get_shared_records() {
    let encke = Encke::start(&[]);
    encke.create("source");
    let mut connection = encke.connect();
    let offsets: Vec<String> = (0..6)
        .map(|number| connection.append("source", number))
        .collect();
    let at = format!("Stream-Fork-Offset: {}", offsets[3]);
    let made = encke.ask(
        "PUT",
        &path("fork"),
        &["Stream-Forked-From: /v1/stream/source", &at],
        b"",
    );
    assert_eq!(made.status, 201, "{made:?}");
    connection.append("fork", 100);
    connection.append("source", 6);
    let mut expected = Vec::new();
    for number in 0..4 {
        expected.push(("source".to_owned(), number));
        expected.push(("fork".to_owned(), number));
    }
    expected.extend([("source".to_owned(), 4), ("source".to_owned(), 5)]);
    expected.extend([("fork".to_owned(), 100), ("source".to_owned(), 6)]);
    let query = "stream=source@-1&stream=fork@-1";
    let mut several = MultiStream::open(&encke, query, None);
    several.every_id_leads_to_the_rest(&encke, query, &expected);
}

#[test]
fn data_has_the_form_of_its_type() {
    let encke = Encke::start(&[]);
    for (stream, kind, data) in [
        ("text", "Content-Type: text/plain", &b"one\r\n\r\ntwo\""[..]),
        (
            "bytes",
            "Content-Type: application/octet-stream",
            &[0, 255, 10],
        ),
        ("json", JSON, b"[{\"a\":\n1}, 2]"),
    ] {
        assert_eq!(encke.ask("PUT", &path(stream), &[kind], b"").status, 201);
        assert_eq!(encke.ask("POST", &path(stream), &[kind], data).status, 204);
    }
    let query = "stream=text@-1&stream=bytes@-1&stream=json@-1";
    let mut several = MultiStream::open(&encke, query, None);
    assert_eq!(several.event().unwrap().data["text"], "one\r\n\r\ntwo\"");
    assert_eq!(several.event().unwrap().data["base64"], "AP8K");
    let json = several.event().unwrap().data;
    assert_eq!(json["messages"], serde_json::json!([{"a": 1}, 2]));
    // The offset of an event is one of its stream.
    let offset = json["nextOffset"].as_str().expect("an offset").to_owned();
    encke.connect().append("json", 3);
    let query = format!("stream=json@{offset}");
    let mut single = MultiStream::open(&encke, &query, None);
    assert_eq!(single.numbers(1), [("json".to_owned(), 3)]);
}

#[test]
fn what_is_wrong_is_said_before_anything_begins() {
    let encke = Encke::start(&["--tuning", "streams-per-subscriber-max=3"]);
    for stream in ["a", "b", "c", "d"] {
        encke.create(stream);
    }
    let far = "00000000000fffff_0000000000000000";
    for (query, status, code) in [
        ("", 400, "no_streams"),
        ("?stream=", 400, "bad_path"),
        (
            "?stream=a&stream=b&stream=c&stream=d",
            400,
            "too_many_streams",
        ),
        ("?stream=a&stream=b&stream=a@-1", 400, "named_twice"),
        ("?stream=a&stream=nobody", 404, "not_found"),
        ("?stream=a@nwo", 404, "not_found"),
        (&format!("?stream=a&stream=b@{far}"), 400, "beyond_tail"),
        ("?stream=a&after=1", 400, "bad_parameter"),
        ("?stream=a&after=ffffffffffffffff", 400, "beyond_tail"),
        ("?stream=%FF", 400, "bad_parameter"),
    ] {
        let answer = encke.ask("GET", &format!("/v1/events{query}"), &[], b"");
        assert_eq!(answer.status, status, "{query}: {answer:?}");
        assert_eq!(answer.error_code(), code, "{query}");
    }
    let answer = encke.ask("POST", "/v1/events?stream=a", &[], b"");
    assert_eq!(answer.status, 405);
    assert_eq!(encke.metric("encke_subscribers", ""), 0.0);
    // As many as are allowed are served.
    MultiStream::open(&encke, "stream=a&stream=b&stream=c", None);
}

#[test]
fn closed_connections_leave_all_lists() {
    let encke = Encke::start(&["--shards", "1"]);
    let streams = ["a", "b", "c"];
    streams.iter().for_each(|stream| encke.create(stream));
    let query = "stream=a&stream=b&stream=c";
    let mut stays = MultiStream::open(&encke, query, None);
    for round in 0..20 {
        let come = (0..10).map(|_| MultiStream::open(&encke, query, None));
        let come: Vec<MultiStream> = come.collect();
        let single = encke.subscribe("b", "now");
        encke.wait_for_metric("encke_subscribers", 12.0);
        drop(come);
        drop(single);
        encke.wait_for_metric("encke_subscribers", 1.0);
        let appended = append_all(&encke, &streams, round * 5..round * 5 + 5);
        assert_eq!(stays.numbers(5), appended);
    }
}

#[test]
fn streams_in_several_logs_go_on_where_they_were_in_each() {
    let data = data_dir();
    let flags = ["--logs", "3"];
    let encke = Encke::start_in(data.path(), &flags);
    let streams = ["a", "b", "c", "d", "e", "f", "g"];
    streams.iter().for_each(|stream| encke.create(stream));
    let query: Vec<String> = streams
        .iter()
        .map(|name| format!("stream={name}@-1"))
        .collect();
    let query = query.join("&");
    // Between logs there is no order, within a stream there is.
    let by_stream = |mut records: Vec<(String, u64)>| {
        records.sort_by(|(one, _), (other, _)| one.cmp(other));
        records
    };
    let mut expected = append_all(&encke, &streams, 0..60);
    let mut subscriber = MultiStream::open(&encke, &query, None);
    expected.extend(append_all(&encke, &streams, 60..120));
    let seen = subscriber.numbers(120);
    assert_eq!(by_stream(seen), by_stream(expected));
    // A client that left in the middle continues there, after a crash as well.
    let mut left = MultiStream::open(&encke, &query, None);
    let mut had = left.numbers(47);
    let id = left.id.clone();
    assert_eq!(
        id.split(';').next().map(|after| after.split(',').count()),
        Some(3),
        "{id}"
    );
    append_all(&encke, &streams, 120..150);
    encke.kill();
    let encke = Encke::start_in(data.path(), &flags);
    let mut back = MultiStream::open(&encke, &query, Some(&id));
    had.extend(back.numbers(150 - 47));
    append_all(&encke, &streams, 150..160);
    had.extend(back.numbers(10));
    let all = MultiStream::open(&encke, &query, None).numbers(160);
    assert_eq!(by_stream(had), by_stream(all));
    // An id of a server with one log says too little.
    let query = format!("/v1/events?{query}");
    let field = "Last-Event-ID: 0000000000000001";
    let refused = encke.ask("GET", &query, &[field], b"");
    assert_eq!(
        (refused.status, &*refused.error_code()),
        (400, "bad_parameter"),
        "{refused:?}"
    );
}
