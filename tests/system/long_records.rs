//! Records that are larger than a send, or whose form is much larger than they are: every wire delivers them whole, live and from the
//! log, and no follower is cut off because of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Encke, JSON, data_dir, eventually, path, request, serve};

const TEXT: &str = "Content-Type: text/plain; charset=utf-8";
const BYTES: &str = "Content-Type: application/octet-stream";
const LINES: &str = "Accept: application/x-ndjson";

/// A stream's type, and a long record of it.
fn long_records() -> Vec<(&'static str, Vec<u8>)> {
    let ones = format!("[{}]", vec!["1"; 30_000].join(","));
    let string = format!("[0,{},2]", Value::from("\u{1}é\"\n".repeat(20_000)));
    vec![
        (JSON, ones.into_bytes()),
        (JSON, string.into_bytes()),
        (TEXT, b"\n".repeat(100_000)),
        (TEXT, b"\r\n\x01 ".repeat(30_000)),
        // It ends inside a character.
        (
            TEXT,
            [&b"\xc3\xa9\x01".repeat(30_000)[..], &b"\xe2\x82"[..]].concat(),
        ),
        (TEXT, b"\xff".repeat(150_000)),
        (BYTES, (0..=u8::MAX).cycle().take(150_001).collect()),
    ]
}

/// The content of a stream as a follower got it, independent of the wire: messages of JSON, or bytes.
#[derive(Debug, Default, PartialEq)]
struct Content {
    messages: Vec<Value>,
    bytes: Vec<u8>,
}

impl Content {
    /// Adds the data of one record, as it was appended.
    fn append(&mut self, content_type: &str, data: &[u8]) {
        match content_type {
            JSON => self.messages.extend(array(data)),
            _ => self.bytes.extend_from_slice(data),
        }
    }

    /// Adds what an object of JSON has.
    fn take(&mut self, object: &Value) {
        for (name, value) in object.as_object().into_iter().flatten() {
            match (&**name, value) {
                ("messages" | "data", Value::Array(messages)) => {
                    self.messages.extend(messages.iter().cloned());
                }
                ("text", Value::String(text)) => self.bytes.extend_from_slice(text.as_bytes()),
                ("base64", Value::String(text)) => {
                    self.bytes
                        .extend(STANDARD.decode(text).expect("it is base64"));
                }
                _ => {}
            }
        }
    }
}

fn array(data: &[u8]) -> Vec<Value> {
    serde_json::from_slice(data).expect("it is an array")
}

/// A follower of the stream over one wire.
enum Follower {
    /// Events of one stream, or of several.
    Events(Connection, &'static str),
    /// Lines of one stream, or of several.
    Lines(Connection, &'static str),
    Messages(Box<WebSocketClient>),
}

/// The wires.
const WIRES: [&str; 7] = [
    "events",
    "lines",
    "merged events",
    "merged lines",
    "pattern",
    "websocket",
    "websocket pattern",
];

impl Follower {
    /// Follows a stream from its beginning.
    fn open(encke: &Encke, wire: &str, stream: &str, content_type: &'static str) -> Follower {
        let follow = |target: &str, field: &str| {
            let mut connection = encke.connect();
            connection.send(&request("GET", target, &[field], b""));
            assert_eq!(connection.head().status, 200, "{target}");
            connection
        };
        let subscribe = |stream: &str| {
            let mut client = WebSocketClient::open(encke.address, "/v1/events", &[]);
            client
                .send(&json!({"type": "subscribe", "stream": stream, "offset": "-1"}).to_string());
            Follower::Messages(Box::new(client))
        };
        let one = format!("{}?offset=-1&live", path(stream));
        let several = format!("/v1/events?stream={stream}@-1");
        match wire {
            "events" => Follower::Events(follow(&format!("{one}=sse"), "A: b"), content_type),
            "lines" => Follower::Lines(follow(&format!("{one}=true"), LINES), content_type),
            "merged events" => Follower::Events(follow(&several, "A: b"), ""),
            "merged lines" => Follower::Lines(follow(&several, LINES), ""),
            "pattern" => Follower::Lines(follow("/v1/events?stream=l/**@-1", LINES), ""),
            "websocket pattern" => subscribe("l/**"),
            _ => subscribe(stream),
        }
    }

    /// Adds what comes next. False: it said nothing of a record.
    fn read(&mut self, content: &mut Content) {
        match self {
            Follower::Messages(client) => {
                let message = client.message().expect("the channel is open");
                content.take(&message);
            }
            Follower::Lines(connection, content_type) => {
                let line = connection.json_line();
                match (*content_type, line.get("data")) {
                    (JSON, Some(message)) => content.messages.push(message.clone()),
                    (_, Some(Value::String(text))) => {
                        content.bytes.extend_from_slice(text.as_bytes());
                    }
                    _ => content.take(&line),
                }
            }
            Follower::Events(connection, content_type) => {
                let event = connection.event().expect("the response is open");
                let lines = |name: &str| {
                    let lines = event.lines().filter_map(|line| line.strip_prefix(name));
                    let lines: Vec<&str> = lines
                        .map(|line| line.strip_prefix(' ').unwrap_or(line))
                        .collect();
                    lines.join("\n")
                };
                let data = lines("data:");
                match (*content_type, &*lines("event:")) {
                    ("", "") if !data.is_empty() => {
                        content.take(&serde_json::from_str(&data).expect("it is JSON"));
                    }
                    (BYTES, "data") | (_, "base64") => {
                        content
                            .bytes
                            .extend(STANDARD.decode(data).expect("it is base64"));
                    }
                    (JSON, "data") => content.messages.extend(array(data.as_bytes())),
                    (TEXT, "data") => content.bytes.extend_from_slice(data.as_bytes()),
                    _ => {}
                }
            }
        }
    }
}

/// Bytes as events of text have them, which have one kind of line end.
fn in_lines(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    text.replace("\r\n", "\n").replace('\r', "\n").into_bytes()
}

fn follows_to_the_end(mut follower: Follower, wire: &str, content_type: &str, expected: &Content) {
    let is_text_of_events = wire == "events" && content_type == TEXT;
    let mut content = Content::default();
    let has_all = |content: &Content| match is_text_of_events {
        true => content.bytes.ends_with(b"end") && content.bytes.len() > 10,
        false => {
            content.messages.len() >= expected.messages.len()
                && content.bytes.len() >= expected.bytes.len()
        }
    };
    while !has_all(&content) {
        follower.read(&mut content);
    }
    match is_text_of_events && expected.bytes.contains(&b'\r') {
        true => assert!(content.bytes == in_lines(&expected.bytes), "{wire}"),
        false => assert!(content == *expected, "{wire} {content_type}"),
    }
}

#[test]
fn every_wire_delivers_long_records_live_and_from_the_log() {
    for flags in [
        &[][..],
        &["--ring", "64KiB"],
        &["--logs", "2", "--ack", "accepted"],
    ] {
        let encke = Encke::start(flags);
        for (number, (content_type, long)) in long_records().into_iter().enumerate() {
            let stream = format!("l/{number}");
            let made = encke.ask("PUT", &path(&stream), &[content_type], b"");
            assert_eq!(made.status, 201, "{made:?}");
            let small: [&[u8]; 2] = match content_type {
                JSON => [b"[\"begin\"]", b"[\"end\"]"],
                // The first byte does not complete the character before it.
                _ => [b"begin\n", b"end"],
            };
            let live: Vec<Follower> = WIRES
                .iter()
                .map(|wire| Follower::open(&encke, wire, &stream, content_type))
                .collect();
            let mut expected = Content::default();
            let mut connection = encke.connect();
            for data in [small[0], &long, &long, small[1]] {
                let answer = connection.ask("POST", &path(&stream), &[content_type], data);
                assert_eq!(answer.status, 204, "{answer:?}");
                expected.append(content_type, data);
            }
            for (wire, follower) in WIRES.iter().zip(live) {
                let is_pattern = wire.ends_with("pattern");
                if !is_pattern || number == 0 {
                    follows_to_the_end(follower, wire, content_type, &expected);
                }
            }
            for wire in WIRES {
                if !wire.ends_with("pattern") || number == 0 {
                    let late = Follower::open(&encke, wire, &stream, content_type);
                    follows_to_the_end(late, wire, content_type, &expected);
                }
            }
        }
        drop(encke);
    }
}

/// The ids of events and the streams that they are of, up to the record of a stream that holds `last`.
fn streams_until(connection: &mut Connection, last: &str) -> (String, Vec<String>) {
    let mut streams = Vec::new();
    loop {
        let line = connection.json_line();
        let Some(stream) = line["stream"].as_str() else {
            continue;
        };
        streams.push(stream.to_owned());
        if stream == last {
            return (line["id"].as_str().expect("an id").to_owned(), streams);
        }
    }
}

#[test]
fn a_long_record_of_one_tenant_does_not_keep_a_backend_from_the_others() {
    let encke = Encke::start(&["--tuning", "buffers-per-client=4MiB", "--ring", "1MiB"]);
    let mut connection = encke.connect();
    let append = |connection: &mut Connection, stream: &str, data: &[u8]| {
        encke.ask("PUT", &path(stream), &[TEXT], b"");
        let answer = connection.ask("POST", &path(stream), &[TEXT], data);
        assert_eq!(answer.status, 204, "{answer:?}");
    };
    append(&mut connection, "u/a/1", b"a");
    append(&mut connection, "u/m/long", &b"\x01".repeat(3_000_000));
    append(&mut connection, "u/b/1", b"b");
    let target = "/v1/events?stream=u/**@-1";
    // Cut off inside the long record three times.
    for _ in 0..3 {
        let mut backend = encke.connect();
        backend.send(&request("GET", target, &[LINES], b""));
        assert_eq!(backend.head().status, 200);
        backend.take(500_000);
    }
    let mut backend = encke.connect();
    backend.send(&request("GET", target, &[LINES], b""));
    assert_eq!(backend.head().status, 200);
    let (id, streams) = streams_until(&mut backend, "u/b/1");
    assert_eq!(streams, ["u/a/1", "u/m/long", "u/b/1"]);
    append(&mut connection, "u/c/1", b"c");
    let id = format!("Last-Event-ID: {id}");
    let mut again = encke.connect();
    again.send(&request("GET", target, &[LINES, &id], b""));
    assert_eq!(again.head().status, 200);
    assert_eq!(streams_until(&mut again, "u/c/1").1, ["u/c/1"]);
}

#[test]
fn the_messages_of_other_subscriptions_wait_for_the_last_fragment() {
    let encke = Encke::start(&[]);
    for stream in ["long", "short"] {
        encke.create(stream);
    }
    let socket = Connection::open_narrow(encke.address);
    let (response, mut client) = WebSocketClient::try_open_on(socket, "/v1/events", &[]);
    assert_eq!(response.status, 101, "{response:?}");
    for stream in ["long", "short"] {
        let subscribe = json!({"type": "subscribe", "stream": stream, "offset": "-1"});
        client.send(&subscribe.to_string());
    }
    // It answers while the long message is under way, and is read when that has its end.
    let long = format!("[{}]", Value::from("x".repeat(4_000_000)));
    let mut connection = encke.connect();
    for (stream, data) in [("long", &*long), ("short", "[1]"), ("short", "[2]")] {
        let answer = connection.ask("POST", &path(stream), &[JSON], data.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    client.send(&json!({"type": "append", "id": 7, "stream": "short", "data": [3]}).to_string());
    let mut short = Vec::new();
    let mut has_long = false;
    let mut is_acknowledged = false;
    while short.len() < 3 || !has_long || !is_acknowledged {
        let message = client.message().expect("the channel is open");
        let data = message["data"].as_array().cloned().unwrap_or_default();
        is_acknowledged |= message["id"] == 7;
        match message["stream"].as_str() {
            Some("short") => short.extend(data),
            Some("long") => has_long |= !data.is_empty(),
            _ => {}
        }
    }
    assert_eq!(short, [1, 2, 3].map(Value::from));
    assert!(client.fragments_seen > 50, "{}", client.fragments_seen);
}

#[test]
fn a_list_of_many_members_comes_whole() {
    const MEMBERS: usize = 500;
    let folder = data_dir();
    let config = folder.path().join("encke.toml");
    let rules = "[[presence.streams]]\nnames = 'chat/**'\n";
    std::fs::write(&config, rules).expect("a file can be written");
    let data = data_dir();
    let encke = Encke::start_by(serve(data.path(), &[]).arg("--config").arg(config));
    encke.create("chat/1");
    let id = |number: usize| format!("{number:0200}");
    let data_of = "x".repeat(700);
    let _members: Vec<Connection> = (0..MEMBERS)
        .map(|number| {
            let id = id(number);
            let stream = path("chat/1");
            let target =
                format!("{stream}?offset=-1&live=sse&member={id}&member-data=%22{data_of}%22");
            let mut member = encke.connect();
            member.send(&request("GET", &target, &[], b""));
            assert_eq!(member.head().status, 200);
            member
        })
        .collect();
    let mut follower = encke.connect();
    follower.send(&request("GET", "/v1/presence/chat/1?live=sse", &[], b""));
    assert_eq!(follower.head().status, 200);
    let event = follower.event().expect("the list");
    let list = event
        .strip_prefix("event: members\ndata:")
        .expect("the list of the members");
    assert!(list.len() > 256 << 10);
    let list: Value = serde_json::from_str(list).expect("it is JSON");
    let listed = list["members"].as_array().expect("members").iter();
    let mut listed: Vec<&str> = listed.filter_map(|member| member["id"].as_str()).collect();
    listed.sort_unstable();
    let expected: Vec<String> = (0..MEMBERS).map(id).collect();
    assert!(listed == expected);
    let mut counter = encke.connect();
    let target = "/v1/presence/chat/1?live=sse&only=count";
    counter.send(&request("GET", target, &[], b""));
    assert_eq!(counter.head().status, 200);
    let event = counter.event().expect("the number");
    assert_eq!(
        event,
        format!("event: count\ndata:{{\"count\":{MEMBERS}}}\n\n")
    );
}

#[test]
fn a_read_that_begins_inside_a_long_record_has_the_rest() {
    const MESSAGES: usize = 60_000;
    let encke = Encke::start(&[]);
    encke.create("s");
    let all: Vec<usize> = (0..MESSAGES).collect();
    let body = serde_json::to_vec(&all).expect("it is JSON");
    let mut connection = encke.connect();
    let appended = connection.ask("POST", &path("s"), &[JSON], &body);
    let end = appended.field("Stream-Next-Offset").expect("an offset");
    for begin in [1, 30_000, MESSAGES - 1] {
        let sequence = end.split_once('_').expect("two numbers").0;
        let sequence = u64::from_str_radix(sequence, 16).expect("a number");
        let inside = format!("{:016x}_{begin:016x}", sequence - 1);
        for live in ["", "&live=long-poll"] {
            let target = format!("{}?offset={inside}{live}", path("s"));
            let answer = connection.ask("GET", &target, &[], b"");
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.field("Stream-Next-Offset"), Some(end), "{live}");
            let messages: Vec<usize> = serde_json::from_slice(&answer.body).expect("an array");
            assert!(messages == all[begin..], "{begin} {live}");
        }
    }
}

#[test]
fn a_long_poll_gets_a_long_record_whole() {
    for (content_type, data) in long_records() {
        let encke = Encke::start(&[]);
        let made = encke.ask("PUT", &path("s"), &[content_type], b"");
        assert_eq!(made.status, 201, "{made:?}");
        let mut poller = encke.connect();
        let target = format!("{}?offset=now&live=long-poll", path("s"));
        poller.send(&request("GET", &target, &[], b""));
        encke.wait_for_metric("encke_subscribers", 1.0);
        let appended = encke.ask("POST", &path("s"), &[content_type], &data);
        assert_eq!(appended.status, 204, "{appended:?}");
        let answer = poller.answer();
        assert_eq!(answer.status, 200);
        let behind = appended.field("Stream-Next-Offset");
        assert_eq!(answer.field("Stream-Next-Offset"), behind);
        match content_type {
            JSON => assert!(array(&answer.body) == array(&data)),
            _ => assert!(answer.body == data),
        }
    }
}

#[test]
fn long_polls_of_a_large_record_buffer_only_parts_of_it() {
    let encke = Encke::start(&[]);
    let data = "x".repeat(8_000_000);
    // The polls read on behind the record that creates the stream, which has no data.
    let made = encke.ask("PUT", &path("s"), &[TEXT], b"");
    assert_eq!(made.status, 201, "{made:?}");
    let appended = encke.ask("POST", &path("s"), &[TEXT], data.as_bytes());
    assert_eq!(appended.status, 204, "{appended:?}");
    let target = format!("{}?offset=-1&live=long-poll", path("s"));
    let mut polls: Vec<_> = (0..10)
        .map(|_| Connection::open_narrow(encke.address))
        .collect();
    for poll in &mut polls {
        poll.send(&request("GET", &target, &[], b""));
    }
    eventually("each response has begun", || {
        polls.iter().all(Connection::has_input)
    });
    assert!(encke.metric("encke_buffered_bytes", "") < 8_000_000.0);
    for mut poll in polls {
        assert!(poll.answer().body == data.as_bytes());
    }
}

#[test]
fn a_long_record_that_retention_removes_meanwhile_comes_whole() {
    let encke = Encke::start(&[]);
    let made = encke.ask(
        "PUT",
        &path("long"),
        &[JSON, "Encke-Retention: records=1"],
        b"",
    );
    assert_eq!(made.status, 201, "{made:?}");
    let socket = Connection::open_narrow(encke.address);
    let (response, mut client) = WebSocketClient::try_open_on(socket, "/v1/events", &[]);
    assert_eq!(response.status, 101, "{response:?}");
    client.send(&json!({"type": "subscribe", "stream": "long", "offset": "-1"}).to_string());
    client.message().expect("it is subscribed");
    let long = format!("[{}]", Value::from("x".repeat(4_000_000)));
    let mut connection = encke.connect();
    for data in [&*long, "[1]"] {
        let answer = connection.ask("POST", &path("long"), &[JSON], data.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    let mut sizes = Vec::new();
    while sizes.len() < 2 {
        let message = client.message().expect("the channel is open");
        let data = message["data"].as_array().cloned().unwrap_or_default();
        sizes.extend(data.iter().map(|one| one.as_str().map_or(0, str::len)));
    }
    assert_eq!(sizes, [4_000_000, 0]);
}

#[test]
fn a_stream_that_a_long_record_closes_ends_its_subscription_only() {
    let encke = Encke::start(&[]);
    for stream in ["long", "short"] {
        encke.create(stream);
    }
    let mut client = WebSocketClient::open(encke.address, "/v1/events", &[]);
    for stream in ["long", "short"] {
        let subscribe = json!({"type": "subscribe", "stream": stream, "offset": "-1"});
        client.send(&subscribe.to_string());
    }
    let long = format!("[{}]", Value::from("x".repeat(2_000_000)));
    let fields = [JSON, "Stream-Closed: true"];
    let closed = encke.ask("POST", &path("long"), &fields, long.as_bytes());
    assert_eq!(closed.status, 204, "{closed:?}");
    let mut has_long = false;
    loop {
        let message = client.message().expect("the channel is open");
        has_long |= message["stream"] == "long" && message["data"].is_array();
        if message["type"] == "ended" {
            break;
        }
    }
    assert!(has_long);
    let appended = encke.ask("POST", &path("short"), &[JSON], b"[1]");
    assert_eq!(appended.status, 204, "{appended:?}");
    while client.message().expect("the channel is open")["data"] != json!([1]) {}
}

#[test]
fn a_request_to_stop_before_a_long_record_does_not_hide_it() {
    let encke = Encke::start(&[]);
    let made = encke.ask("PUT", &path("s"), &[TEXT], b"");
    assert_eq!(made.status, 201, "{made:?}");
    let mut connection = encke.connect();
    // The first byte of a character is withheld until its rest comes.
    let long = [b"\x82\xac".to_vec(), b"\n".repeat(200_000), b"end".to_vec()].concat();
    for (fields, data) in [
        (&[TEXT][..], &b"\xe2"[..]),
        (&["Encke-Stop: true"], b""),
        (&[TEXT], &long),
    ] {
        let answer = connection.ask("POST", &path("s"), fields, data);
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    for wire in ["events", "lines", "websocket"] {
        let mut follower = Follower::open(&encke, wire, "s", TEXT);
        let mut content = Content::default();
        while !content.bytes.ends_with(b"end") {
            follower.read(&mut content);
        }
        assert!(content.bytes == [b"\xe2", &long[..]].concat(), "{wire}");
    }
}
