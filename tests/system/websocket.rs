//! WebSocket: many subscriptions and appends over one connection, in raw frames.

use serde_json::{Value, json};

use crate::rig::websocket::{
    BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, TEXT, WebSocketClient, client_frame,
};
use crate::rig::{Encke, JSON, data_dir, eventually, path};

const EVENTS: &str = "/v1/events";

fn subscribe(stream: &str, offset: &str) -> String {
    json!({"type": "subscribe", "stream": stream, "offset": offset}).to_string()
}

/// The numbers in the records that a client gets up to `last`, and the offset behind it.
fn numbers_until(client: &mut WebSocketClient, stream: &str, last: u64) -> (Vec<u64>, String) {
    let mut numbers = Vec::new();
    loop {
        let message = client.message().expect("the channel is open");
        if message["type"] != "records" || message["stream"] != stream {
            continue;
        }
        let data = message["data"].as_array().expect("the stream has JSON");
        numbers.extend(data.iter().map(number));
        if numbers.last() == Some(&last) {
            let offset = message["offset"].as_str().expect("it is stated");
            return (numbers, offset.to_owned());
        }
    }
}

fn number(value: &Value) -> u64 {
    let number = value["n"].as_u64().or(value.as_u64());
    number.expect("it has a number")
}

#[test]
fn subscriptions_come_and_go_on_one_connection() {
    let encke = Encke::start(&[]);
    for stream in ["a", "b"] {
        encke.create(stream);
        encke.ask("POST", &path(stream), &[JSON], b"1");
    }
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    let answer = client
        .ask(&json!({"type": "subscribe", "id": 1, "stream": "a", "offset": "-1"}).to_string());
    assert_eq!(
        (&answer["type"], &answer["id"]),
        (&json!("subscribed"), &json!(1))
    );
    assert_eq!(numbers_until(&mut client, "a", 1).0, [1]);
    client.send(&subscribe("b", "now"));
    assert_eq!(
        client.message().expect("it is answered")["type"],
        "subscribed"
    );
    encke.ask("POST", &path("b"), &[JSON], b"2");
    assert_eq!(numbers_until(&mut client, "b", 2).0, [2], "from now on");
    // An error belongs to its message, and closes nothing.
    let answer = client.ask(&json!({"type": "subscribe", "id": 7, "stream": "none"}).to_string());
    assert_eq!(
        (&answer["type"], &answer["id"], &answer["status"]),
        (&json!("error"), &json!(7), &json!(404))
    );
    client.send(&json!({"type": "unsubscribe", "id": 2, "stream": "a"}).to_string());
    assert_eq!(
        client.message().expect("it is answered")["type"],
        "unsubscribed"
    );
    encke.ask("POST", &path("a"), &[JSON], b"3");
    encke.ask("POST", &path("b"), &[JSON], b"4");
    let message = client.message().expect("b is subscribed still");
    assert_eq!(message["stream"], "b", "{message}");
}

#[test]
fn appends_are_acknowledged_by_their_numbers_and_in_order() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    for id in 0..500 {
        client.send(&json!({"type": "append", "id": id, "stream": "s", "data": id}).to_string());
    }
    for id in 0..500 {
        let answer = client.message().expect("it is acknowledged");
        assert_eq!(
            (&answer["type"], &answer["id"]),
            (&json!("appended"), &json!(id)),
            "{answer}"
        );
    }
    let all: Vec<u64> = (0..500).collect();
    assert_eq!(encke.numbers("s"), all);
}

#[test]
fn a_client_resumes_after_a_kill_with_every_record_once() {
    let dir = data_dir();
    let encke = Encke::start_in(dir.path(), &[]);
    encke.create("s");
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    client.send(&subscribe("s", "-1"));
    for n in 1..=50 {
        encke.ask(
            "POST",
            &path("s"),
            &[JSON],
            format!("{{\"n\":{n}}}").as_bytes(),
        );
    }
    let (first, offset) = numbers_until(&mut client, "s", 50);
    encke.kill();
    assert!(client.message().is_none(), "the connection is cut");
    let encke = Encke::start_in(dir.path(), &[]);
    for n in 51..=60 {
        encke.ask(
            "POST",
            &path("s"),
            &[JSON],
            format!("{{\"n\":{n}}}").as_bytes(),
        );
    }
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    client.send(&subscribe("s", &offset));
    let (rest, _) = numbers_until(&mut client, "s", 60);
    let all: Vec<u64> = (1..=60).collect();
    assert_eq!([first, rest].concat(), all);
}

#[test]
fn a_page_shows_the_last_messages_and_what_follows() {
    let dir = data_dir();
    let encke = Encke::start_in(dir.path(), &[]);
    let append = |encke: &Encke, numbers: std::ops::RangeInclusive<u64>| {
        for n in numbers {
            encke.ask("POST", &path("s"), &[JSON], format!("[{n}]").as_bytes());
        }
    };
    encke.create("s");
    append(&encke, 1..=30);
    encke.kill();
    let encke = Encke::start_in(dir.path(), &[]);
    append(&encke, 31..=40);
    // The records of both processes, then live ones.
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    let subscribe = json!({"type": "subscribe", "id": 1, "stream": "s", "last": 20});
    let subscribed = client.ask(&subscribe.to_string());
    assert_eq!(subscribed["type"], "subscribed", "{subscribed}");
    append(&encke, 41..=42);
    let expected: Vec<u64> = (21..=42).collect();
    let (numbers, _) = numbers_until(&mut client, "s", 42);
    assert_eq!(numbers, expected);
    // Its offset leads to the same place, and the URL of a stream knows it too.
    let mut other = WebSocketClient::open(encke.address, EVENTS, &[]);
    let offset = subscribed["offset"].as_str().expect("it is stated");
    other.send(&self::subscribe("s", offset));
    assert_eq!(numbers_until(&mut other, "s", 42).0, expected);
    let target = format!("{}?last=2&live=websocket", path("s"));
    let mut third = WebSocketClient::open(encke.address, &target, &[]);
    assert_eq!(numbers_until(&mut third, "s", 42).0, [41, 42]);
    let page = encke.ask("GET", &format!("{}?last=3", path("s")), &[], b"");
    assert_eq!(page.body, b"[40,41,42]");
}

#[test]
fn feeds_that_catch_up_in_turn_do_not_tear_each_others_messages() {
    const STREAMS: usize = 4;
    const RECORDS: u64 = 100;
    // What is not among the recent records is read from files.
    let encke = Encke::start(&["--ring", "64KiB"]);
    let pad = "p".repeat(20_000);
    for stream in 0..STREAMS {
        encke.create(&format!("s{stream}"));
        let mut publisher = encke.connect();
        for n in 1..=RECORDS {
            let record = json!({"n": n, "pad": pad}).to_string();
            let answer = publisher.ask(
                "POST",
                &path(&format!("s{stream}")),
                &[JSON],
                record.as_bytes(),
            );
            assert_eq!(answer.status, 204);
        }
    }
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    for stream in 0..STREAMS {
        client.send(&subscribe(&format!("s{stream}"), "-1"));
    }
    // The client reads more slowly than the server writes, so that the parts of one wait while those of another are read.
    let mut numbers = vec![Vec::new(); STREAMS];
    while numbers
        .iter()
        .any(|numbers| numbers.len() < RECORDS as usize)
    {
        let message = client.message().expect("messages are whole");
        if message["type"] == "records" {
            let name = message["stream"].as_str().expect("a name");
            let stream: usize = name[1..].parse().expect("a number");
            let data = message["data"].as_array().expect("the stream has JSON");
            numbers[stream].extend(data.iter().map(number));
        }
    }
    let all: Vec<u64> = (1..=RECORDS).collect();
    assert!(numbers.iter().all(|numbers| *numbers == all), "{numbers:?}");
}

#[test]
fn one_stream_has_a_channel_of_its_own() {
    let encke = Encke::start(&[]);
    encke.create("s");
    encke.ask("POST", &path("s"), &[JSON], b"1");
    let target = format!("{}?offset=-1&live=websocket", path("s"));
    let mut client = WebSocketClient::open(encke.address, &target, &[]);
    assert_eq!(numbers_until(&mut client, "s", 1).0, [1]);
    let target = format!("{}?offset=-1&live=websocket", path("none"));
    let mut client = WebSocketClient::open(encke.address, &target, &[]);
    let answer = client.message().expect("it says why");
    assert_eq!(answer["status"], 404, "{answer}");
    let target = format!("{}?offset=-1&live=websocket", path("s"));
    let answer = encke.ask("GET", &target, &[], b"");
    assert_eq!(answer.status, 426, "{answer:?}");
    assert_eq!(answer.field("Upgrade"), Some("websocket"));
}

#[test]
fn a_subscriber_learns_that_its_stream_was_deleted() {
    let soon = "streams-idle=100ms";
    let encke = Encke::start(&[
        "--tuning",
        soon,
        "--tuning",
        "heartbeat=1m",
        "--ring",
        "1MiB",
    ]);
    // It is sent at once: inside a longer record the channel could only be closed.
    let large = format!("[\"{}\"]", "x".repeat(60 << 10));
    for stream in ["rest", "behind", "kept"] {
        encke.create(stream);
    }
    let mut resting = WebSocketClient::open(encke.address, EVENTS, &[]);
    for stream in ["rest", "kept"] {
        resting.send(&subscribe(stream, "now"));
        assert_eq!(resting.message().expect("answered")["type"], "subscribed");
    }
    // This one is deleted while its subscriber has no more than a part of what was there.
    for _ in 0..600 {
        encke.ask("POST", &path("behind"), &[JSON], large.as_bytes());
    }
    let mut behind = WebSocketClient::open(encke.address, EVENTS, &[]);
    encke.wait_for_metric("encke_streams_in_memory", 0.0);
    behind.send(&subscribe("behind", "-1"));
    assert_eq!(behind.message().expect("answered")["type"], "subscribed");
    for stream in ["rest", "behind"] {
        assert_eq!(encke.ask("DELETE", &path(stream), &[], b"").status, 204);
    }
    let ended = json!({"type": "ended", "stream": "rest", "reason": "deleted"});
    assert_eq!(resting.message(), Some(ended));
    encke.ask("POST", &path("kept"), &[JSON], b"7");
    assert_eq!(numbers_until(&mut resting, "kept", 7).0, [7]);
    let last = loop {
        let message = behind.message().expect("the channel is open");
        if !["subscribed", "records"].contains(&message["type"].as_str().unwrap()) {
            break message;
        }
    };
    let ended = json!({"type": "ended", "stream": "behind", "reason": "deleted"});
    assert_eq!(last, ended);
}

#[test]
fn the_cases_of_the_standard() {
    let encke = Encke::start(&["--body-max", "64KiB"]);
    let big = vec![b'x'; 70 << 10];
    let frame = client_frame;
    for (name, bytes, code) in [
        ("reserved bit", frame(FIN | 0x40 | TEXT, b"{}"), 1002),
        ("reserved opcode", frame(FIN | 3, b""), 1002),
        ("fragmented ping", frame(PING, b""), 1002),
        ("long ping", frame(FIN | PING, &[b'x'; 126]), 1002),
        ("no beginning", frame(FIN | CONTINUATION, b"x"), 1002),
        (
            "two beginnings",
            [frame(TEXT, b"{"), frame(FIN | TEXT, b"}")].concat(),
            1002,
        ),
        ("no mask", vec![FIN | TEXT, 2, b'{', b'}'], 1002),
        ("not UTF-8", frame(FIN | TEXT, b"\xff"), 1007),
        (
            "not UTF-8 in its second frame",
            [frame(TEXT, b"\xe2\x82"), frame(FIN | CONTINUATION, b"x")].concat(),
            1007,
        ),
        ("binary", frame(FIN | BINARY, b"x"), 1003),
        ("too large", frame(FIN | TEXT, &big), 1009),
        ("one byte of a close", frame(FIN | CLOSE, b"\x03"), 1002),
        (
            "a code that is not sent",
            frame(FIN | CLOSE, &1006u16.to_be_bytes()),
            1002,
        ),
        (
            "its own close",
            frame(FIN | CLOSE, &1000u16.to_be_bytes()),
            1000,
        ),
    ] {
        let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
        client.send_raw(&bytes);
        assert_eq!(client.close_code(), code, "{name}");
        assert!(client.frame().is_none(), "{name}: nothing follows");
    }
    // What is allowed, in one message of one byte a frame with a ping in between.
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    let text = br#"{"type":"unsubscribe","id":5,"stream":"s"}"#;
    for (place, byte) in text.iter().enumerate() {
        let first = if place == 0 { TEXT } else { CONTINUATION };
        let fin = if place + 1 == text.len() { FIN } else { 0 };
        client.send_raw(&frame(FIN | PING, b"hi"));
        let pong = client.frame().expect("it is answered");
        assert_eq!((pong.opcode, &pong.payload[..]), (PONG, &b"hi"[..]));
        client.send_raw(&frame(fin | first, &[*byte]));
    }
    assert_eq!(client.message().expect("it is answered")["id"], 5);
}

#[test]
fn a_handshake_that_breaks_a_rule_is_refused() {
    let encke = Encke::start(&[]);
    let ask = |fields: &[&str]| encke.ask("GET", EVENTS, fields, b"");
    let upgrade = ["Upgrade: websocket", "Connection: Upgrade"];
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let answer = ask(&[upgrade[0], upgrade[1], key, "Sec-WebSocket-Version: 12"]);
    assert_eq!(answer.status, 426, "{answer:?}");
    let answer = ask(&[upgrade[0], upgrade[1], "Sec-WebSocket-Version: 13"]);
    assert_eq!(answer.status, 400, "{answer:?}");
    let answer = ask(&[upgrade[0], key, "Sec-WebSocket-Version: 13"]);
    assert_eq!(answer.status, 400, "{answer:?}");
    let (refused, _) =
        WebSocketClient::try_open(encke.address, EVENTS, &["Origin: https://evil.example"]);
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[test]
fn a_client_that_answers_no_ping_is_closed() {
    let encke = Encke::start(&["--tuning", "heartbeat=5s"]);
    encke.create("s");
    // The first, so that it is asked before the other one is closed.
    let mut alive = WebSocketClient::open(encke.address, EVENTS, &[]);
    assert_eq!(alive.ask(&subscribe("s", "now"))["type"], "subscribed");
    let mut silent = WebSocketClient::open(encke.address, EVENTS, &[]);
    silent.answers_pings = false;
    let reads = std::thread::spawn(move || {
        let (numbers, _) = numbers_until(&mut alive, "s", 1);
        (numbers, alive.pings)
    });
    assert_eq!(silent.close_code(), 4408);
    encke.ask("POST", &path("s"), &[JSON], b"1");
    let (numbers, pings) = reads.join().expect("it is served");
    assert_eq!(numbers, [1]);
    assert!(pings > 0, "it was asked as well");
}

#[test]
fn a_stop_says_goodbye() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    assert_eq!(client.ask(&subscribe("s", "now"))["type"], "subscribed");
    let stopped = std::thread::spawn(move || encke.terminate());
    assert_eq!(client.close_code(), 1001);
    assert_eq!(stopped.join().expect("it stops").code, Some(0));
}

#[test]
fn nothing_is_left_when_the_client_is_gone() {
    let encke = Encke::start(&[]);
    for n in 0..20 {
        encke.create(&format!("s{n}"));
    }
    let mut client = WebSocketClient::open(encke.address, EVENTS, &[]);
    for n in 0..20 {
        client.send(&subscribe(&format!("s{n}"), "now"));
        assert_eq!(
            client.message().expect("it is answered")["type"],
            "subscribed"
        );
    }
    encke.wait_for_metric("encke_subscribers", 20.0);
    drop(client);
    encke.wait_for_metric("encke_subscribers", 0.0);
    eventually("no connection is left but the one that asks", || {
        encke.metric("encke_connections", "") <= 1.0
    });
}

#[test]
fn a_refused_handshake_says_what_is_allowed() {
    let encke = Encke::start(&[]);
    let request = "GET /v1/events HTTP/1.1\r\nHost: encke\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 12\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut connection = encke.connect();
    connection.send(request.as_bytes());
    let response = connection.answer();
    assert_eq!(response.status, 426);
    assert_eq!(response.field("Sec-WebSocket-Version"), Some("13"));
    assert_eq!(response.field("Upgrade"), Some("websocket"));
}
