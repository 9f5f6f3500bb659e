//! Ephemeral messages: for those who are subscribed now, behind what was acknowledged before, and nowhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::access::{API_KEY, Guarded, bearer};
use crate::multi_stream::MultiStream;
use crate::rig::http2::*;
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Encke, JSON, data_dir, eventually, path, request};
use crate::tls::Secure;

pub(crate) const EPHEMERAL: &str = "Encke-Ephemeral: true";

const EVENTS: &str = "/v1/events";

/// Sends a message, which must be taken.
fn broadcast(connection: &mut Connection, stream: &str, body: &[u8]) {
    let answer = connection.ask("POST", &path(stream), &[JSON, EPHEMERAL], body);
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(answer.field("Stream-Next-Offset"), None);
}

/// Waits until that many are subscribed: the head of a response comes a moment before.
fn wait_for_subscribers(encke: &Encke, count: f64) {
    encke.wait_for_metric("encke_subscribers", count);
}

fn dropped(encke: &Encke, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    encke.metric("encke_ephemeral_dropped_total", &label)
}

/// The numbers of the ephemeral messages among the next messages of a channel, up to that one.
fn until(channel: &mut WebSocketClient, last: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last) {
        let message = channel.message().expect("the channel is open");
        if message["type"] == "ephemeral" {
            numbers.push(message["data"][0].as_u64().expect("it is a number"));
        }
    }
    numbers
}

#[test]
fn subscribers_of_every_form_get_a_message_and_the_log_does_not() {
    let dir = data_dir();
    let encke = Encke::start_in(dir.path(), &["--shards", "2"]);
    encke.create("chat/1");
    encke.create("other");
    let mut events = MultiStream::open(&encke, "stream=chat/1", None);
    let mut pattern = MultiStream::open(&encke, "stream=chat/**", None);
    let mut several = MultiStream::open(&encke, "stream=chat/1&stream=other", None);
    let ndjson = "Accept: application/x-ndjson";
    let mut lines = encke.connect();
    let target = format!("{EVENTS}?stream=chat/1");
    lines.send(&request("GET", &target, &[ndjson], b""));
    lines.head();
    let mut lines_of_one = encke.connect();
    let target = format!("{}?offset=now&live=true", path("chat/1"));
    lines_of_one.send(&request("GET", &target, &[ndjson], b""));
    lines_of_one.head();
    let mut channel = WebSocketClient::open(encke.address, EVENTS, &[]);
    for stream in ["chat/1", "chat/**"] {
        channel.ask(&json!({"type": "subscribe", "stream": stream}).to_string());
    }
    let mut plain = encke.subscribe("chat/1", "-1");
    let mut poll = encke.connect();
    let target = format!("{}?offset=now&live=long-poll", path("chat/1"));
    poll.send(&request("GET", &target, &[], b""));
    wait_for_subscribers(&encke, 9.0);
    let tail = encke.ask("HEAD", &path("chat/1"), &[], b"");

    broadcast(&mut encke.connect(), "chat/1", b"[1,{\"typing\":true}]");
    let data = json!({"stream": "chat/1", "messages": [1, {"typing": true}]});
    for one in [&mut events, &mut pattern, &mut several] {
        let before = one.id.clone();
        let event = one.event().expect("it comes");
        assert_eq!((&*event.name, &event.data), ("ephemeral", &data));
        assert!(one.id == before || before.is_empty(), "it has no id");
    }
    for one in [&mut lines, &mut lines_of_one] {
        let line =
            std::iter::repeat_with(|| one.json_line()).find(|line| line.get("ephemeral").is_some());
        assert_eq!(line.expect("it comes"), json!({"ephemeral": data}));
    }
    let mut got: Vec<Value> = (0..2)
        .map(|_| channel.message().expect("it comes"))
        .collect();
    got.sort_by_key(|message| message.get("subscription").is_some());
    let members = json!([1, {"typing": true}]);
    assert_eq!(
        got,
        [
            json!({"type": "ephemeral", "stream": "chat/1", "data": members}),
            json!({"type": "ephemeral", "subscription": "chat/**", "stream": "chat/1", "data": members}),
        ]
    );
    let deliveries = || encke.metric("encke_ephemeral_deliveries_total", "");
    eventually("it is counted", || deliveries() == 7.0);
    assert_eq!(encke.metric("encke_ephemeral_total", ""), 1.0);
    let head = encke.ask("HEAD", &path("chat/1"), &[], b"");
    let next = |head: &crate::rig::Response| head.field("Stream-Next-Offset").map(str::to_owned);
    assert_eq!(next(&head), next(&tail));
    // Clients of the protocol get what is stored, and nothing else.
    encke.ask("POST", &path("chat/1"), &[JSON], b"7");
    assert_eq!(plain.numbers(1), [7]);
    assert_eq!(poll.answer().body, b"[7]");
    assert_eq!(encke.numbers("chat/1"), [7]);
    encke.terminate();
    let encke = Encke::start_in(dir.path(), &[]);
    assert_eq!(encke.numbers("chat/1"), [7]);
}

#[test]
fn who_comes_later_or_again_gets_none() {
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("s");
    let mut events = MultiStream::open(&encke, "stream=s", None);
    let id = events.position();
    let mut sender = encke.connect();
    wait_for_subscribers(&encke, 1.0);
    broadcast(&mut sender, "s", b"1");
    assert_eq!(events.event().expect("it comes").name, "ephemeral");
    drop(events);
    let mut again = MultiStream::open(&encke, "stream=s@-1", Some(&id));
    let mut late = MultiStream::open(&encke, "stream=s@-1", None);
    encke.ask("POST", &path("s"), &[JSON], b"2");
    assert_eq!(again.numbers(1), [("s".to_owned(), 2)]);
    assert_eq!(late.numbers(1), [("s".to_owned(), 2)]);
}

#[test]
fn a_server_that_was_restarted_sends_messages_before_it_has_a_new_record() {
    let dir = data_dir();
    let encke = Encke::start_in(dir.path(), &[]);
    encke.create("s");
    assert_eq!(encke.ask("POST", &path("s"), &[JSON], b"1").status, 204);
    assert_eq!(encke.terminate().code, Some(0));
    let encke = Encke::start_in(dir.path(), &[]);
    let mut events = MultiStream::open(&encke, "stream=s", None);
    wait_for_subscribers(&encke, 1.0);
    broadcast(&mut encke.connect(), "s", b"2");
    assert_eq!(events.event().expect("it comes").name, "ephemeral");
    assert_eq!(dropped(&encke, "late"), 0.0);
}

#[test]
fn a_message_follows_what_its_sender_has_seen_acknowledged() {
    const ROUNDS: u64 = 400;
    for flags in [
        &["--shards", "4"][..],
        &["--shards", "4", "--ack", "accepted"],
        &["--shards", "3", "--logs", "2"],
    ] {
        let encke = Encke::start(flags);
        let streams = ["a/1", "a/2"];
        streams.iter().for_each(|stream| encke.create(stream));
        let mut subscribers: Vec<_> = (0..8)
            .map(|number| {
                let query = ["stream=a/1&stream=a/2", "stream=a/**"][number % 2];
                MultiStream::open(&encke, query, None)
            })
            .collect();
        let stops = Arc::new(AtomicBool::new(false));
        // Others keep the shards and the sequencer busy.
        let others = (0..2).map(|_| {
            let (mut connection, stops) = (encke.connect(), Arc::clone(&stops));
            std::thread::spawn(move || {
                while !stops.load(Ordering::Relaxed) {
                    connection.ask("PUT", &path("other"), &[JSON], b"");
                    connection.ask("POST", &path("other"), &[JSON], b"0");
                }
            })
        });
        let others: Vec<_> = others.collect();
        let senders = streams.map(|stream| {
            let mut appends = encke.connect();
            let mut broadcasts = encke.connect();
            std::thread::spawn(move || {
                for number in 1..=ROUNDS {
                    appends.append(stream, number);
                    broadcast(&mut broadcasts, stream, number.to_string().as_bytes());
                }
            })
        });
        for sender in senders {
            sender.join().expect("it has sent all");
        }
        stops.store(true, Ordering::Relaxed);
        for other in others {
            other.join().expect("it has ended");
        }
        for subscriber in &mut subscribers {
            let mut has = [0; 2];
            let mut got = 0;
            while has != [ROUNDS; 2] {
                let event = subscriber.event().expect("all records come");
                let stream = usize::from(event.data["stream"] == "a/2");
                let number = event.data["messages"][0].as_u64().expect("a number");
                match &*event.name {
                    "ephemeral" => {
                        assert!(number <= has[stream], "{number} behind {}", has[stream]);
                        got += 1;
                    }
                    _ => {
                        assert_eq!(number, has[stream] + 1, "no record is lost");
                        has[stream] = number;
                    }
                }
            }
            assert!(got > 0, "some come");
        }
    }
}

#[test]
fn the_sender_gets_its_own_message_unless_it_asks_not_to() {
    let encke = Encke::start(&["--shards", "4"]);
    encke.create("s");
    let mut channels: Vec<_> = (0..8)
        .map(|number| {
            let mut channel = WebSocketClient::open(encke.address, EVENTS, &[]);
            let stream = ["s", "**"][number % 2];
            channel.ask(&json!({"type": "subscribe", "stream": stream}).to_string());
            channel
        })
        .collect();
    wait_for_subscribers(&encke, 8.0);
    for sender in 0..channels.len() {
        let number = sender as u64 * 2;
        let message = |number, echo| json!({"type": "ephemeral", "id": 1, "stream": "s", "data": number, "echo": echo});
        channels[sender].send(&message(number, false).to_string());
        channels[sender].send(&message(number + 1, true).to_string());
        for (place, channel) in channels.iter_mut().enumerate() {
            let got = until(channel, number + 1);
            match place == sender {
                true => assert_eq!(got, [number + 1]),
                false => assert_eq!(got, [number, number + 1]),
            }
        }
    }
}

#[test]
fn a_slow_subscriber_loses_messages_and_no_record() {
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("s");
    let mut slow = Connection::open_narrow(encke.address);
    slow.send(&request("GET", "/v1/events?stream=s", &[], b""));
    slow.head();
    let mut slow = MultiStream {
        connection: slow,
        id: String::new(),
    };
    let mut fast = MultiStream::open(&encke, "stream=s", None);
    let body = format!("\"{}\"", "x".repeat(16_000));
    let mut sender = encke.connect();
    let mut sent = 0_u64;
    wait_for_subscribers(&encke, 2.0);
    let lost = || dropped(&encke, "blocked") + dropped(&encke, "behind");
    while lost() < 100.0 {
        broadcast(&mut sender, "s", body.as_bytes());
        sent += 1;
        if sent.is_multiple_of(10) {
            sender.append("s", sent / 10);
        }
        assert!(sent < 5_000, "the kernel does not swallow so much");
        // The fast one takes all of it.
        let event = fast.event().expect("it is there");
        if event.name != "ephemeral" {
            assert_eq!(fast.event().expect("it is there").name, "ephemeral");
        }
    }
    sender.append("s", sent / 10 + 1);
    let mut records = 0;
    let mut messages = 0;
    while records < sent / 10 + 1 {
        let event = slow.event().expect("it is not closed");
        match &*event.name {
            "ephemeral" => messages += 1,
            _ => {
                records += 1;
                assert_eq!(event.data["messages"][0], records);
            }
        }
    }
    assert!(messages < sent, "{messages} of {sent}");
    let label = "reason=\"lag_age_max\"";
    assert_eq!(encke.metric("encke_connections_closed_total", label), 0.0);
    // It has everything, and gets the next one.
    eventually("it is up to date", || {
        encke.metric("encke_clients_behind", "") == 0.0
    });
    broadcast(&mut sender, "s", b"1");
    assert_eq!(slow.event().expect("it comes").name, "ephemeral");
}

#[test]
fn a_flood_costs_a_bounded_amount_of_memory_and_appends_go_on() {
    let encke = Encke::start(&["--shards", "1", "--ring", "1MiB"]);
    encke.create("s");
    encke.create("other");
    let mut subscribers: Vec<_> = (0..50)
        .map(|_| {
            let mut connection = Connection::open_narrow(encke.address);
            connection.send(&request("GET", "/v1/events?stream=s", &[], b""));
            connection.head();
            connection
        })
        .collect();
    let body = format!("\"{}\"", "x".repeat(16_000));
    let senders = (0..4).map(|_| {
        let (mut connection, body) = (encke.connect(), body.clone());
        std::thread::spawn(move || {
            let one = request("POST", &path("s"), &[JSON, EPHEMERAL], body.as_bytes());
            for _ in 0..50 {
                connection.send(&one.repeat(10));
                for _ in 0..10 {
                    assert_eq!(connection.answer().status, 204);
                }
            }
        })
    });
    let senders: Vec<_> = senders.collect();
    let mut appends = encke.connect();
    for number in 1..=50 {
        appends.append("other", number);
    }
    for sender in senders {
        sender.join().expect("all are taken");
    }
    assert_eq!(encke.metric("encke_ephemeral_total", ""), 2_000.0);
    let queued = encke.metric("encke_mailbox_bytes", "mailbox=\"shard-0\"");
    assert!(queued <= f64::from(1 << 20), "{queued}");
    let buffered = encke.metric("encke_buffered_bytes", "");
    assert!(
        buffered < 50.0 * 64.0 * 1024.0,
        "a message each at most: {buffered}"
    );
    // Each of them still gets all that is stored.
    appends.append("s", 1);
    for subscriber in &mut subscribers {
        while !subscriber
            .event()
            .expect("it is open")
            .contains("nextOffset")
        {}
    }
}

#[test]
fn a_message_goes_over_every_wire() {
    let secure = Secure::start(&["--shards", "2"]);
    let mut tls = secure.connect();
    tls.ask("PUT", &path("s"), &[JSON], b"");
    let mut subscriber = secure.connect();
    let target = format!("{EVENTS}?stream=s");
    let sent = subscriber.send(&request("GET", &target, &[], b""));
    sent.expect("the server listens");
    subscriber.until("\r\n\r\n");
    eventually("it is subscribed", || {
        secure.metric("encke_subscribers", "") == 1.0
    });
    let head = tls.ask("POST", &path("s"), &[JSON, EPHEMERAL], b"\"over tls\"");
    assert!(head.0.contains(" 204 "), "{head:?}");
    let event = subscriber.until("\"over tls\"]}");
    assert!(event.contains("event:ephemeral"), "{event}");

    let encke = Encke::start(&["--shards", "2"]);
    encke.create("s");
    let mut http2 = Http2Client::open(encke.address, &[]);
    http2.send(&Frame::get(1, &target));
    http2.until(HEADERS);
    wait_for_subscribers(&encke, 1.0);
    let mut fields = Frame::fields("POST", "/v1/stream/s");
    fields.extend([
        ("content-type", "application/json"),
        ("encke-ephemeral", "true"),
    ]);
    http2.send(&Frame::headers(END_HEADERS, 3, &fields));
    http2.send(&Frame::new(DATA, END_STREAM, 3, b"\"over http2\""));
    let mut input = Vec::new();
    let mut is_answered = false;
    while !String::from_utf8_lossy(&input).contains("over http2") || !is_answered {
        let frame = http2.next().expect("it comes");
        match (frame.kind, frame.stream) {
            (DATA, 1) => input.extend(frame.payload),
            (HEADERS, 3) => is_answered = frame.has(END_STREAM),
            _ => {}
        }
    }
    assert!(String::from_utf8_lossy(&input).contains("event:ephemeral"));
}

#[test]
fn messages_have_a_bound_and_need_the_right_to_append() {
    let encke = Encke::start(&["--tuning", "ephemeral-bytes=1KiB"]);
    encke.create("s");
    let body = format!("\"{}\"", "x".repeat(1_024));
    let answer = encke.ask("POST", &path("s"), &[JSON, EPHEMERAL], body.as_bytes());
    assert_eq!(
        (answer.status, answer.error_code()),
        (413, "too_large".into())
    );
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(said.contains("1024"), "{said}");
    let answer = encke.ask("POST", &path("s"), &[JSON, "Encke-Ephemral: true"], b"1");
    assert_eq!(answer.status, 400);
    let closed = [JSON, "Stream-Closed: true"];
    encke.ask("POST", &path("s"), &closed, b"");
    let answer = encke.ask("POST", &path("s"), &[JSON, EPHEMERAL], b"1");
    assert_eq!((answer.status, answer.error_code()), (409, "closed".into()));
    encke.ask("DELETE", &path("s"), &[], b"");
    let answer = encke.ask("POST", &path("s"), &[JSON, EPHEMERAL], b"1");
    assert_eq!(answer.status, 404);

    let guarded = Guarded::start(&[]);
    guarded.create("/v1/stream/chat/1", b"");
    let reader = guarded.allowed("reader", "read=/v1/stream/**");
    let writer = guarded.allowed("writer", "append=/v1/stream/**");
    let send = |credentials: &str| {
        let fields = [JSON, EPHEMERAL, credentials];
        guarded
            .encke
            .ask("POST", &path("chat/1"), &fields, b"1")
            .status
    };
    assert_eq!(send(&reader), 403);
    assert_eq!(send(&writer), 204);
    assert_eq!(send(&bearer(API_KEY)), 204);
}
