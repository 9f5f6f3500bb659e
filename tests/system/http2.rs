//! HTTP/2 with prior knowledge: requests and responses are those of HTTP/1.1, and one connection carries many.

use crate::rig::http2::*;
use crate::rig::{Encke, JSON, eventually, path, request};

fn events(stream: &str, offset: &str) -> String {
    format!("{}?offset={offset}&live=sse", path(stream))
}

/// The data of events: their numbers, and the offset behind the last.
fn numbers(body: &[u8]) -> Vec<u64> {
    let text = String::from_utf8(body.to_vec()).expect("events are text");
    text.split("\n\n")
        .filter(|event| event.contains("event: data"))
        .flat_map(|event| {
            let data: String = event
                .lines()
                .filter_map(|line| line.strip_prefix("data:"))
                .collect();
            let numbers: Vec<u64> = serde_json::from_str(&data).expect("an array");
            numbers
        })
        .collect()
}

#[test]
#[ignore = "long: make test-all"]
fn many_event_streams_of_one_connection_and_one_that_takes_nothing() {
    const STREAMS: u32 = 100;
    const RECORDS: u64 = 200;
    // Heartbeats would be frames of their own.
    let encke = Encke::start(&["--tuning", "heartbeat=1h"]);
    for number in 0..STREAMS {
        encke.create(&format!("s{number}"));
    }
    // New streams have no window; each gets its own, but for one.
    let mut client = Http2Client::open(encke.address, &[(INITIAL_WINDOW_SIZE, 0)]);
    client.send(&Frame::number(WINDOW_UPDATE, 0, 1 << 30));
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        client.send(&Frame::get(stream, &events(&format!("s{number}"), "-1")));
        if number != 7 {
            client.send(&Frame::number(WINDOW_UPDATE, stream, 1 << 28));
        }
    }
    let mut publisher = encke.connect();
    for record in 0..RECORDS {
        for number in 0..STREAMS {
            // Not all at each step: the streams are at different places.
            if (record + u64::from(number)) % 4 == 0 {
                publisher.append(&format!("s{number}"), record);
            }
        }
    }
    let wanted = |number: u32| -> Vec<u64> {
        (0..RECORDS)
            .filter(|record| (record + u64::from(number)) % 4 == 0)
            .collect()
    };
    let mut bodies = vec![Vec::new(); STREAMS as usize];
    let mut complete = 0;
    while complete < STREAMS - 1 {
        let frame = client.until(DATA);
        let number = (frame.stream - 1) / 2;
        assert_ne!(number, 7, "its window is closed");
        let body = &mut bodies[number as usize];
        body.extend(&frame.payload);
        if body.ends_with(b"\n\n") && numbers(body) == wanted(number) {
            complete += 1;
        }
    }
    // When its window opens it gets everything, by single bytes and then at once.
    let mut body = Vec::new();
    for _ in 0..100 {
        client.send(&Frame::number(WINDOW_UPDATE, 15, 1));
        let frame = client.until(DATA);
        assert_eq!((frame.stream, frame.payload.len()), (15, 1));
        body.extend(frame.payload);
    }
    client.send(&Frame::number(WINDOW_UPDATE, 15, 1 << 28));
    while !body.ends_with(b"\n\n") || numbers(&body) != wanted(7) {
        let frame = client.until(DATA);
        assert_eq!(frame.stream, 15);
        body.extend(frame.payload);
    }
    encke.wait_for_metric("encke_http2_connections", 1.0);
    encke.wait_for_metric("encke_http2_streams", f64::from(STREAMS));
    encke.wait_for_metric("encke_clients_behind", 0.0);
}

#[test]
fn a_client_that_leaves_is_noticed_at_once() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let mut client = Http2Client::open(encke.address, &[]);
    for stream in [1, 3, 5] {
        client.send(&Frame::get(stream, &events("s", "now")));
        client.until(HEADERS);
    }
    // A long poll and a body that is on its way.
    client.send(&Frame::get(
        7,
        &format!("{}?offset=now&live=long-poll", path("s")),
    ));
    let target = path("s");
    client.send(&Frame::headers(
        END_HEADERS,
        9,
        &Frame::fields("POST", &target),
    ));
    encke.wait_for_metric("encke_http2_streams", 5.0);
    encke.wait_for_metric("encke_subscribers", 4.0);
    for stream in [3, 7, 9] {
        client.send(&Frame::number(RST_STREAM, stream, CANCEL));
    }
    encke.wait_for_metric("encke_subscribers", 2.0);
    encke.wait_for_metric("encke_http2_streams", 2.0);
    drop(client);
    encke.wait_for_metric("encke_subscribers", 0.0);
    encke.wait_for_metric("encke_http2_connections", 0.0);
}

#[test]
fn an_end_is_told_from_a_cut() {
    let encke = Encke::start(&[]);
    for stream in ["closed", "deleted", "stopped"] {
        encke.create(stream);
    }
    let mut client = Http2Client::open(encke.address, &[]);
    for (stream, name) in [(1, "closed"), (3, "deleted"), (5, "stopped")] {
        client.send(&Frame::get(stream, &events(name, "-1")));
        client.until(HEADERS);
    }
    encke.ask(
        "POST",
        &path("closed"),
        &[JSON, "Stream-Closed: true"],
        b"1",
    );
    let body = client.body(1);
    assert_eq!(numbers(&body), [1]);
    encke.ask("DELETE", &path("deleted"), &[], b"");
    client.body(3);
    // A body that waits, and a subscriber: the first may be sent again, the second ends behind its last event, before the GOAWAY.
    let target = path("stopped");
    client.send(&Frame::headers(
        END_HEADERS,
        7,
        &Frame::fields("POST", &target),
    ));
    encke.wait_for_metric("encke_http2_streams", 2.0);
    let stopped = std::thread::spawn(move || encke.terminate());
    let mut codes = Vec::new();
    let (mut goaway, mut has_ended) = (None, false);
    while let Some(frame) = client.next() {
        match frame.kind {
            RST_STREAM => codes.push((frame.stream, frame.code())),
            GOAWAY => {
                assert!(has_ended, "some clients drop what comes behind it");
                goaway = Some(frame.code());
            }
            _ if frame.kind <= HEADERS && frame.has(END_STREAM) => {
                assert_eq!((frame.kind, frame.stream), (DATA, 5), "{frame:?}");
                let farewell = String::from_utf8_lossy(&frame.payload);
                assert!(farewell.contains("\"disconnect\":{\"why\":\"the server stops\""));
                has_ended = true;
            }
            _ => {}
        }
    }
    assert_eq!(codes, [(7, REFUSED_STREAM)]);
    assert_eq!(goaway, Some(NO_ERROR));
    assert_eq!(stopped.join().expect("it stops").code, Some(0));
}

#[test]
fn heads_that_two_readers_could_read_in_two_ways() {
    let encke = Encke::start(&[]);
    let mut client = Http2Client::open(encke.address, &[]);
    let get = Frame::fields("GET", "/healthz");
    let mut stream = 1;
    let mut ask = |fields: &[(&str, &str)]| {
        let flags = END_STREAM | END_HEADERS;
        client.send(&Frame::headers(flags, stream, fields));
        let code = loop {
            let frame = client.next().expect("the connection goes on");
            if frame.kind == RST_STREAM {
                assert_eq!(frame.code(), PROTOCOL_ERROR);
                break "reset".to_owned();
            }
            if frame.kind == HEADERS {
                assert_eq!(frame.stream, stream);
                break match frame.payload[0] {
                    0x88 => "200".to_owned(),
                    _ => client.error_code(stream),
                };
            }
        };
        stream += 2;
        code
    };
    let with = |field: (&'static str, &'static str)| [&get[..], &[field]].concat();
    let path = |path: &'static str| Frame::fields("GET", path);
    for (fields, expected) in [
        (get.clone(), "200"),
        (with(("host", "encke.localhost")), "200"),
        (with(("host", "other.test")), "host"),
        (get[..2].iter().chain(&get[3..]).copied().collect(), "host"),
        (path("*"), "bad_target"),
        (path("/<a>"), "reset"),
        (path("healthz"), "reset"),
        (path(""), "reset"),
        (path("http://encke.localhost/healthz"), "reset"),
        (Frame::fields("CONNECT", "/"), "reset"),
        (with(("connection", "close")), "reset"),
        (with(("transfer-encoding", "chunked")), "reset"),
        (with(("expect", "miracles")), "expectation"),
    ] {
        assert_eq!(ask(&fields), expected, "{fields:?}");
    }
    eventually("no stream is left", || {
        encke.metric("encke_http2_streams", "") == 0.0
    });
}

#[test]
fn a_browser_sends_a_field_for_each_cookie() {
    let encke = Encke::start(&[]);
    let mut client = Http2Client::open(encke.address, &[]);
    let mut stream = 1;
    let mut ask = |fields: &[(&str, &str)]| {
        let fields = [&Frame::fields("GET", "/healthz")[..], fields].concat();
        client.send(&Frame::headers(END_STREAM | END_HEADERS, stream, &fields));
        let code = match client.until(HEADERS).payload[0] {
            0x88 => "200".to_owned(),
            _ => client.error_code(stream),
        };
        stream += 2;
        code
    };
    // They are one field (RFC 9113, section 8.2.3).
    let cookies: Vec<String> = (0..120).map(|number| format!("c{number}=1")).collect();
    let cookies: Vec<(&str, &str)> = cookies.iter().map(|c| ("cookie", c.as_str())).collect();
    assert_eq!(ask(&cookies), "200");
    // With the host, the cookies are the 100th field.
    let others = vec![("a", "b"); 98];
    assert_eq!(ask(&[&others[..], &cookies].concat()), "200");
    let others = vec![("a", "b"); 99];
    assert_eq!(ask(&[&others[..], &cookies].concat()), "too_many_fields");
}

#[test]
fn a_request_behind_others_of_http_1_is_none_of_http_2() {
    let encke = Encke::start(&[]);
    let mut client = encke.connect();
    assert_eq!(client.ask("GET", "/healthz", &[], b"").status, 200);
    client.send(PREFACE);
    let answer = client.answer();
    assert_eq!(
        (answer.status, answer.error_code()),
        (505, "version".into())
    );
    // Nor is a body that looks like it.
    let text = "Content-Type: text/plain";
    encke.ask("PUT", &path("s"), &[text], b"");
    let mut client = encke.connect();
    let fields = [text, "Content-Length: 24"];
    client.send(&request("POST", &path("s"), &fields, b""));
    client.send(PREFACE);
    assert_eq!(client.answer().status, 204);
    let read = client.ask("GET", &format!("{}?offset=-1", path("s")), &[], b"");
    assert_eq!(read.body, PREFACE);
}

#[test]
fn a_proxy_carries_several_clients_over_one_connection() {
    let encke = Encke::start(&[
        "--trust",
        "127.0.0.1",
        "--exempt",
        "none",
        "--connections-per-address",
        "1",
    ]);
    encke.create("s");
    let mut proxy = Http2Client::open(encke.address, &[]);
    let target = events("s", "now");
    let mut ask = |stream: u32, client: &'static str| {
        let mut fields = Frame::fields("GET", &target);
        fields.push(("x-forwarded-for", client));
        proxy.send(&Frame::headers(END_STREAM | END_HEADERS, stream, &fields));
        let head = proxy.until(HEADERS);
        assert_eq!(head.stream, stream);
        // 200 is in the table of fields, 429 is not.
        let served = head.payload[0] == 0x88;
        if !served {
            assert_eq!(proxy.error_code(stream), "connections_per_address");
        }
        served
    };
    assert!(ask(1, "192.0.2.1") && ask(3, "192.0.2.2"));
    assert!(!ask(5, "192.0.2.1") && ask(7, "192.0.2.3"));
    encke.wait_for_metric("encke_addresses", 3.0);
    proxy.send(&Frame::number(RST_STREAM, 1, CANCEL));
    encke.wait_for_metric("encke_http2_streams", 2.0);
    drop(proxy);
    encke.wait_for_metric("encke_http2_streams", 0.0);
    encke.wait_for_metric("encke_addresses", 0.0);
}

/// Trailers that RFC 9113 calls malformed (sections 8.1, 8.2 and 8.3): the request is none, and its stream is reset.
#[test]
fn a_request_with_malformed_trailers_is_not_served() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let append = |trailers: &[(&str, &str)], flags: u8| {
        let mut client = Http2Client::open(encke.address, &[]);
        let target = path("s");
        let mut fields = Frame::fields("POST", &target);
        fields.push(("content-type", "application/json"));
        client.send(&Frame::headers(END_HEADERS, 1, &fields));
        client.send(&Frame::new(DATA, 0, 1, b"1"));
        client.send(&Frame::headers(flags | END_HEADERS, 1, trailers));
        let mut frames = std::iter::from_fn(|| client.next());
        frames.find(|frame| matches!(frame.kind, HEADERS | RST_STREAM | GOAWAY))
    };
    for trailers in [
        (":path", "/v1/stream/other"),
        (":method", "DELETE"),
        (":status", "200"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("te", "gzip"),
        ("upgrade", "websocket"),
    ] {
        for trailers in [&[trailers][..], &[("x-sum", "1"), trailers]] {
            let refused = append(trailers, END_STREAM).expect("an answer");
            assert_eq!(
                (refused.kind, refused.code()),
                (RST_STREAM, PROTOCOL_ERROR),
                "{trailers:?}"
            );
        }
    }
    // A name that is no field's ends the connection, and trailers that do not end the stream are none.
    for (trailers, flags) in [
        (("X-Sum", "1"), END_STREAM),
        ((":unknown", "1"), END_STREAM),
        (("x-sum", "1"), 0),
    ] {
        let refused = append(&[trailers], flags).expect("an answer");
        assert_ne!(refused.kind, HEADERS, "{trailers:?}");
        assert_eq!(refused.code(), PROTOCOL_ERROR, "{trailers:?}");
    }
    assert!(encke.numbers("s").is_empty());
    let served = append(&[("x-sum", "1")], END_STREAM).expect("an answer");
    assert_eq!(served.kind, HEADERS);
    assert_eq!(encke.numbers("s"), [1]);
}
