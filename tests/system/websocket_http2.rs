//! WebSocket over HTTP/2: many channels on one connection beside requests, in raw frames of both protocols.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::access::{API_KEY, Guarded, bearer};
use crate::rig::http2::*;
use crate::rig::websocket as ws;
use crate::rig::{Connection, Encke, JSON, eventually, path};

const EVENTS: &str = "/v1/events";

/// The flag of the answer to a PING.
const ACK: u8 = 1;

/// A connection with channels.
struct Client {
    http2: Http2Client,
    channels: BTreeMap<u32, Channel>,
    next: u32,
}

/// What has come on a stream.
#[derive(Debug, Default)]
struct Channel {
    head: Option<Frame>,
    input: Vec<u8>,
    end: Option<Frame>,
}

impl Client {
    fn open(address: SocketAddr, settings: &[(u16, u32)]) -> Client {
        let mut http2 = Http2Client::open(address, settings);
        http2.send(&Frame::number(WINDOW_UPDATE, 0, 1 << 30));
        Client {
            http2,
            channels: BTreeMap::new(),
            next: 1,
        }
    }

    /// Asks for a channel. The stream, and whether its status is 200.
    fn try_channel(&mut self, target: &str, fields: &[(&str, &str)]) -> (u32, bool) {
        let mut all = Frame::fields("CONNECT", target);
        all.push((":protocol", "websocket"));
        all.push(("sec-websocket-version", "13"));
        all.extend(fields);
        let stream = self.begin(&Frame::headers(END_HEADERS, self.next, &all));
        while self.channels[&stream].head.is_none() {
            self.take_frame();
        }
        let head = self.channels[&stream].head.as_ref();
        // The status of 200 is an entry of the static table.
        let is_open = head.is_some_and(|head| head.payload.first() == Some(&0x88));
        (stream, is_open)
    }

    fn channel(&mut self, target: &str) -> u32 {
        let (stream, is_open) = self.try_channel(target, &[]);
        assert!(is_open, "{:?}", self.channels[&stream]);
        stream
    }

    fn begin(&mut self, head: &Frame) -> u32 {
        self.http2.send(head);
        self.next += 2;
        self.channels.insert(head.stream, Channel::default());
        head.stream
    }

    /// Lets a channel have so many more bytes.
    fn open_window(&mut self, stream: u32, bytes: u32) {
        self.http2
            .send(&Frame::number(WINDOW_UPDATE, stream, bytes));
    }

    fn send(&mut self, stream: u32, message: &Value) {
        let text = message.to_string();
        self.send_raw(
            stream,
            &ws::client_frame(ws::FIN | ws::TEXT, text.as_bytes()),
        );
    }

    fn send_raw(&mut self, stream: u32, bytes: &[u8]) {
        self.http2.send(&Frame::new(DATA, 0, stream, bytes));
    }

    /// Takes what comes next, for whichever stream it is.
    fn take_frame(&mut self) {
        let frame = self.http2.next().expect("the connection goes on");
        let Some(channel) = self.channels.get_mut(&frame.stream) else {
            match frame.kind {
                GOAWAY => {}
                // The server learns that the client has seen the GOAWAY.
                PING => self.http2.send(&Frame::new(PING, ACK, 0, &frame.payload)),
                _ => panic!("{frame:?}"),
            }
            return;
        };
        if frame.has(END_STREAM) && matches!(frame.kind, DATA | HEADERS) || frame.kind == RST_STREAM
        {
            channel.end.get_or_insert(frame.clone());
        }
        match frame.kind {
            HEADERS => channel.head = Some(frame),
            DATA => channel.input.extend(frame.payload),
            _ => {}
        }
    }

    /// The next frame of a channel that is no ping; pings are answered. `None`: it has ended.
    fn frame(&mut self, stream: u32) -> Option<(u8, Vec<u8>)> {
        loop {
            let channel = self.channels.get_mut(&stream)?;
            match cut_frame(&mut channel.input) {
                Some((ws::PING, payload)) => {
                    self.send_raw(stream, &ws::client_frame(ws::FIN | ws::PONG, &payload));
                }
                Some(frame) => return Some(frame),
                None if channel.end.is_some() => return None,
                None => self.take_frame(),
            }
        }
    }

    fn message(&mut self, stream: u32) -> Value {
        let (opcode, payload) = self.frame(stream).expect("the channel goes on");
        assert_eq!(opcode, ws::TEXT, "{payload:?}");
        serde_json::from_slice(&payload).expect("it is JSON")
    }

    fn ask(&mut self, stream: u32, message: &Value) -> Value {
        self.send(stream, message);
        self.message(stream)
    }

    fn subscribe(&mut self, channel: u32, stream: &str, offset: &str) -> Value {
        let message = json!({"type": "subscribe", "stream": stream, "offset": offset});
        self.ask(channel, &message)
    }

    /// The code of the close frame, behind which the stream has ended properly.
    fn close_code(&mut self, stream: u32) -> u16 {
        let code = loop {
            match self.frame(stream).expect("the server says why it closes") {
                (ws::CLOSE, payload) => break u16::from_be_bytes([payload[0], payload[1]]),
                _ => continue,
            }
        };
        assert_eq!(self.frame(stream), None, "nothing follows");
        let end = self.channels[&stream].end.as_ref().expect("it has ended");
        assert_eq!(end.kind, DATA, "its end is no reset: {end:?}");
        code
    }

    /// The numbers of a stream's records on a channel up to `last`.
    fn numbers_until(&mut self, channel: u32, stream: &str, last: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        while numbers.last() != Some(&last) {
            let message = self.message(channel);
            if message["type"] == "records" && message["stream"] == stream {
                numbers.extend(numbers_in(&message));
            }
        }
        numbers
    }
}

fn numbers_in(message: &Value) -> Vec<u64> {
    let data = message["data"].as_array().expect("the stream has JSON");
    let number = |value: &Value| value["n"].as_u64().or(value.as_u64());
    data.iter().filter_map(number).collect()
}

/// Takes a complete frame of WebSocket off the input.
fn cut_frame(input: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let (length, head) = match *input.get(1)? {
        126 => (
            usize::from(u16::from_be_bytes(input.get(2..4)?.try_into().ok()?)),
            4,
        ),
        127 => (
            u64::from_be_bytes(input.get(2..10)?.try_into().ok()?) as usize,
            10,
        ),
        short => (usize::from(short), 2),
    };
    let opcode = input[0] & 0x0f;
    let payload = input.get(head..head + length)?.to_vec();
    input.drain(..head + length);
    Some((opcode, payload))
}

#[test]
fn the_server_offers_extended_connect() {
    let encke = Encke::start(&[]);
    let mut client = Http2Client::open(encke.address, &[]);
    let mut head = [0; 9];
    client
        .socket
        .read_exact(&mut head)
        .expect("it sends settings");
    assert_eq!((head[3], head[4]), (SETTINGS, 0));
    let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
    client
        .socket
        .read_exact(&mut payload)
        .expect("they are whole");
    // SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441, section 3).
    assert!(
        payload
            .chunks(6)
            .any(|setting| setting == [0, 8, 0, 0, 0, 1])
    );
}

#[test]
fn many_channels_share_a_connection_with_requests() {
    const CHANNELS: u64 = 20;
    let encke = Encke::start(&[]);
    let mut client = Client::open(encke.address, &[]);
    let mut channels = Vec::new();
    for n in 0..CHANNELS {
        let stream = format!("s{n}");
        encke.create(&stream);
        let channel = client.channel(EVENTS);
        assert_eq!(
            client.subscribe(channel, &stream, "-1")["type"],
            "subscribed"
        );
        channels.push(channel);
    }
    for n in 0..CHANNELS {
        let to = channels[n as usize];
        let other = (n + 1) % CHANNELS;
        client.send(
            to,
            &json!({"type": "append", "id": n, "stream": format!("s{other}"), "data": n}),
        );
    }
    for n in 0..CHANNELS {
        let before = (n + CHANNELS - 1) % CHANNELS;
        let mut seen = (false, false);
        while seen != (true, true) {
            let message = client.message(channels[n as usize]);
            match message["type"].as_str() {
                Some("records") => {
                    assert_eq!(numbers_in(&message), [before]);
                    seen.0 = true;
                }
                Some("appended") => {
                    assert_eq!(message["id"], n);
                    seen.1 = true;
                }
                _ => {}
            }
        }
    }
    let read = client.begin(&Frame::get(
        client.next,
        &format!("{}?offset=-1", path("s0")),
    ));
    while client.channels[&read].end.is_none() {
        client.take_frame();
    }
    assert_eq!(
        client.channels[&read].input,
        format!("[{}]", CHANNELS - 1).as_bytes()
    );
}

#[test]
fn a_request_that_is_no_handshake_ends_its_stream_only() {
    let encke = Encke::start(&[]);
    let mut client = Client::open(encke.address, &[]);
    let foreign = [("origin", "https://evil.example")];
    let (refused, is_open) = client.try_channel(EVENTS, &foreign);
    assert!(!is_open);
    while client.channels[&refused].end.is_none() {
        client.take_frame();
    }
    let body: Value =
        serde_json::from_slice(&client.channels[&refused].input).expect("it says why");
    assert_eq!(body["error"]["code"], "origin", "{body}");
    let channel = client.channel(EVENTS);
    let answer = client.subscribe(channel, "none", "now");
    assert_eq!(answer["status"], 404, "{answer}");
}

#[test]
fn a_channel_without_a_window_gets_everything_later_and_the_others_at_once() {
    const RECORDS: u64 = 300;
    let encke = Encke::start(&["--tuning", "heartbeat=1h"]);
    encke.create("s");
    let mut client = Client::open(encke.address, &[(INITIAL_WINDOW_SIZE, 2000)]);
    let (slow, fast) = (client.channel(EVENTS), client.channel(EVENTS));
    client.open_window(fast, 1 << 28);
    for channel in [slow, fast] {
        assert_eq!(client.subscribe(channel, "s", "-1")["type"], "subscribed");
    }
    let mut publisher = encke.connect();
    for n in 1..=RECORDS {
        publisher.append("s", n);
    }
    let all: Vec<u64> = (1..=RECORDS).collect();
    assert_eq!(client.numbers_until(fast, "s", RECORDS), all);
    assert!(client.channels[&slow].input.len() <= 2000);
    for _ in 0..50 {
        client.open_window(slow, 1);
    }
    client.open_window(slow, 1 << 28);
    assert_eq!(client.numbers_until(slow, "s", RECORDS), all);
}

#[test]
fn feeds_of_a_channel_that_catch_up_in_turn_do_not_tear_each_others_messages() {
    const STREAMS: usize = 4;
    const RECORDS: u64 = 40;
    // What is not among the recent records is read from files.
    let encke = Encke::start(&["--ring", "64KiB", "--tuning", "heartbeat=1h"]);
    let pad = "p".repeat(20_000);
    for stream in 0..STREAMS {
        encke.create(&format!("s{stream}"));
        for n in 1..=RECORDS {
            let record = json!({"n": n, "pad": pad}).to_string();
            let answer = encke.ask(
                "POST",
                &path(&format!("s{stream}")),
                &[JSON],
                record.as_bytes(),
            );
            assert_eq!(answer.status, 204);
        }
    }
    let mut client = Client::open(encke.address, &[(INITIAL_WINDOW_SIZE, 1000)]);
    let channel = client.channel(EVENTS);
    for stream in 0..STREAMS {
        let stream = format!("s{stream}");
        client.send(
            channel,
            &json!({"type": "subscribe", "stream": stream, "offset": "-1"}),
        );
    }
    let mut numbers = vec![Vec::new(); STREAMS];
    while numbers
        .iter()
        .any(|numbers| numbers.len() < RECORDS as usize)
    {
        // A little at a time, so that the parts of one wait while those of another are read.
        client.open_window(channel, 7000);
        client.take_frame();
        while let Some((opcode, payload)) = {
            let input = &mut client.channels.get_mut(&channel).expect("it is open").input;
            cut_frame(input)
        } {
            assert_eq!(opcode, ws::TEXT);
            let message: Value = serde_json::from_slice(&payload).expect("messages are whole");
            if message["type"] == "records" {
                let name = message["stream"].as_str().expect("a name");
                let stream: usize = name[1..].parse().expect("a number");
                numbers[stream].extend(numbers_in(&message));
            }
        }
    }
    let all: Vec<u64> = (1..=RECORDS).collect();
    assert!(numbers.iter().all(|numbers| *numbers == all), "{numbers:?}");
}

#[test]
fn a_stop_says_goodbye_on_every_channel() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let mut client = Client::open(encke.address, &[]);
    let channels = [client.channel(EVENTS), client.channel(EVENTS)];
    assert_eq!(
        client.subscribe(channels[0], "s", "now")["type"],
        "subscribed"
    );
    let stopped = std::thread::spawn(move || encke.terminate());
    for channel in channels {
        assert_eq!(client.close_code(channel), 1001);
    }
    drop(client);
    assert_eq!(stopped.join().expect("it stops").code, Some(0));
}

#[test]
fn a_client_that_answers_no_ping_loses_its_channel_only() {
    let encke = Encke::start(&["--tuning", "heartbeat=5s"]);
    encke.create("s");
    let mut client = Client::open(encke.address, &[]);
    let (silent, alive) = (client.channel(EVENTS), client.channel(EVENTS));
    client.subscribe(alive, "s", "now");
    // Pings are answered where they are read.
    while client.channels[&silent].end.is_none() {
        client.take_frame();
        let input = &mut client.channels.get_mut(&alive).expect("it is open").input;
        if let Some((ws::PING, payload)) = cut_frame(input) {
            client.send_raw(alive, &ws::client_frame(ws::FIN | ws::PONG, &payload));
        }
    }
    assert_eq!(client.close_code(silent), 4408);
    encke.ask("POST", &path("s"), &[JSON], b"1");
    assert_eq!(client.numbers_until(alive, "s", 1), [1]);
}

#[test]
fn nothing_is_left_of_a_channel_that_is_closed_or_reset() {
    let encke = Encke::start(&[]);
    let mut client = Client::open(encke.address, &[]);
    let channels: Vec<u32> = (0..3).map(|_| client.channel(EVENTS)).collect();
    for n in 0..6 {
        encke.create(&format!("s{n}"));
        let channel = channels[n % channels.len()];
        assert_eq!(
            client.subscribe(channel, &format!("s{n}"), "now")["type"],
            "subscribed"
        );
    }
    encke.wait_for_metric("encke_subscribers", 6.0);
    let close = ws::client_frame(ws::FIN | ws::CLOSE, &1000_u16.to_be_bytes());
    client.send_raw(channels[0], &close);
    assert_eq!(client.close_code(channels[0]), 1000);
    client
        .http2
        .send(&Frame::new(DATA, END_STREAM, channels[0], b""));
    encke.wait_for_metric("encke_subscribers", 4.0);
    client
        .http2
        .send(&Frame::number(RST_STREAM, channels[1], CANCEL));
    encke.wait_for_metric("encke_subscribers", 2.0);
    eventually("only the open stream is left", || {
        encke.metric("encke_http2_streams", "") == 1.0
    });
    drop(client);
    encke.wait_for_metric("encke_subscribers", 0.0);
}

#[test]
fn a_channel_ends_with_its_token() {
    let guarded = Guarded::start(&[]);
    guarded.create("/v1/stream/a", b"[1]");
    let mut client = Client::open(guarded.encke.address, &[]);
    let (channel, is_open) = client.try_channel(EVENTS, &[]);
    assert!(is_open, "whoever has no credentials may read something");
    let refused = client.subscribe(channel, "a", "-1");
    assert_eq!(refused["status"], 401, "{refused}");
    let token = guarded.token(&["--jti", "t", "--expires", "1h", "--allow", "read=/v1/**"]);
    let answer = client.ask(channel, &json!({"type": "authenticate", "token": token}));
    assert_eq!(answer["type"], "authenticated", "{answer}");
    assert_eq!(client.subscribe(channel, "a", "-1")["type"], "subscribed");
    assert_eq!(client.numbers_until(channel, "a", 1), [1]);
    let backend = bearer(API_KEY);
    let key = backend.trim_start_matches("Authorization: ");
    let (other, is_open) = client.try_channel(EVENTS, &[("authorization", key)]);
    assert!(is_open);
    let mut operator = Connection::open(guarded.operators);
    let body = json!({"jti": "t"}).to_string();
    let answer = operator.ask("POST", "/v1/admin/revoke", &[JSON], body.as_bytes());
    assert_eq!(answer.status, 204);
    assert_eq!(client.close_code(channel), 4403);
    assert_eq!(client.subscribe(other, "a", "-1")["type"], "subscribed");
}
