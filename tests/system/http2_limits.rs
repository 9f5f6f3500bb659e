//! The bounds of HTTP/2 connections, each reached by raw frames: the client learns which one it was, the metrics count it, and
//! other clients are not disturbed.

use crate::rig::http2::*;
use crate::rig::{Bystanders, Encke, JSON, eventually, path};

/// How many connections the server closed for that reason.
fn closed(encke: &Encke, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    encke.metric("encke_connections_closed_total", &label)
}

/// How many streams it cut for that reason.
fn cut(encke: &Encke, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    encke.metric("encke_http2_streams_cut_total", &label)
}

/// A connection with an event stream that has begun.
fn subscriber(encke: &Encke, stream: &str, settings: &[(u16, u32)]) -> Http2Client {
    let mut client = Http2Client::open(encke.address, settings);
    client.send(&Frame::get(
        1,
        &format!("{}?offset=-1&live=sse", path(stream)),
    ));
    let head = client.until(HEADERS);
    assert!(head.stream == 1 && !head.has(END_STREAM), "{head:?}");
    client
}

#[test]
fn floods_of_frames_without_content() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let frames = [
        Frame::new(PING, 0, 0, b"12345678"),
        Frame::new(SETTINGS, 0, 0, b""),
        Frame::new(PRIORITY, 0, 9, &[0, 0, 0, 0, 1]),
        Frame::number(WINDOW_UPDATE, 0, 1),
        Frame::new(77, 0, 0, b""),
    ];
    for (number, frame) in frames.iter().enumerate() {
        // Each connection also has a subscriber, whose stream ends with it.
        let mut client = subscriber(&encke, "s", &[]);
        let some = frame.bytes().repeat(1_000);
        let mut sender = client.socket.try_clone().expect("a descriptor");
        let sending = std::thread::spawn(move || {
            use std::io::Write;
            // A client as fast as any, until the server hangs up.
            while sender.write_all(&some).is_ok() {}
        });
        assert_eq!(client.end(), ENHANCE_YOUR_CALM, "{frame:?}");
        drop(client);
        sending.join().expect("it only sends");
        eventually("it is counted", || {
            closed(&encke, "http2_flood") == (number + 1) as f64
        });
    }
    eventually("nothing is left of them", || {
        encke.metric("encke_http2_connections", "") == 0.0
            && encke.metric("encke_http2_streams", "") == 0.0
    });
    bystanders.were_not_disturbed();
}

#[test]
fn a_flood_of_continuations() {
    let encke = Encke::start(&[]);
    let bystanders = Bystanders::of(&encke);
    // Without content, and with fields that never end.
    let mut field = vec![0, 1, b'a', 100];
    field.resize(104, b'b');
    for (number, payload) in [Vec::new(), field.repeat(100)].iter().enumerate() {
        let mut client = Http2Client::open(encke.address, &[]);
        client.send(&Frame::headers(
            END_STREAM,
            1,
            &Frame::fields("GET", "/healthz"),
        ));
        for _ in 0..100 {
            client.send(&Frame::new(CONTINUATION, 0, 1, payload));
        }
        assert_eq!(client.end(), ENHANCE_YOUR_CALM);
        eventually("it is counted", || {
            closed(&encke, "http2_excess") == (number + 1) as f64
        });
    }
    bystanders.were_not_disturbed();
}

#[test]
fn rapid_resets() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    // Requests that are reset before the server has looked at them.
    let mut client = Http2Client::open(encke.address, &[]);
    let mut bytes = Vec::new();
    for number in 0..500 {
        bytes.extend(Frame::get(2 * number + 1, "/healthz").bytes());
        bytes.extend(Frame::number(RST_STREAM, 2 * number + 1, CANCEL).bytes());
    }
    client.send_bytes(&bytes);
    assert_eq!(client.end(), ENHANCE_YOUR_CALM);
    // And those that it has answered, again and again.
    let mut client = Http2Client::open(encke.address, &[]);
    let target = format!("{}?offset=-1&live=sse", path("s"));
    let mut number = 1;
    let code = 'ended: loop {
        let first = number;
        for _ in 0..100 {
            client.send(&Frame::get(number, &target));
            number += 2;
        }
        for _ in 0..100 {
            loop {
                match client.next() {
                    Some(frame) if frame.kind == HEADERS => break,
                    Some(frame) if frame.kind == GOAWAY => break 'ended frame.code(),
                    Some(_) => {}
                    None => panic!("it ended without a reason"),
                }
            }
        }
        for reset in (first..number).step_by(2) {
            client.send(&Frame::number(RST_STREAM, reset, CANCEL));
        }
    };
    assert_eq!(code, ENHANCE_YOUR_CALM);
    assert!(number > 2 * 1_000, "a page may leave all its streams");
    eventually("both are counted", || {
        closed(&encke, "http2_resets") == 1.0 && closed(&encke, "http2_excess") == 1.0
    });
    eventually("no stream is left", || {
        encke.metric("encke_http2_streams", "") == 0.0
    });
    bystanders.were_not_disturbed();
}

#[test]
fn streams_of_a_connection() {
    let encke = Encke::start(&["--tuning", "http2-streams-max=3"]);
    encke.create("s");
    let mut client = Http2Client::open(encke.address, &[]);
    let target = format!("{}?offset=-1&live=sse", path("s"));
    for stream in [1, 3, 5] {
        client.send(&Frame::get(stream, &target));
        assert_eq!(client.until(HEADERS).stream, stream);
    }
    encke.wait_for_metric("encke_http2_streams", 3.0);
    client.send(&Frame::get(7, &target));
    let refused = client.until(RST_STREAM);
    assert_eq!((refused.stream, refused.code()), (7, REFUSED_STREAM));
    // One leaves, one may come.
    client.send(&Frame::number(RST_STREAM, 3, CANCEL));
    client.send(&Frame::get(9, &target));
    assert_eq!(client.until(HEADERS).stream, 9);
    encke.wait_for_metric("encke_subscribers", 3.0);
}

#[test]
fn windows_that_stay_closed() {
    let encke = Encke::start(&["--tuning", "stall-timeout=1s"]);
    encke.create("s");
    encke.ask("POST", &path("s"), &[JSON], b"1");
    let mut client = subscriber(&encke, "s", &[(INITIAL_WINDOW_SIZE, 0)]);
    // Frames that open no window are no reading.
    let mut pings = client.socket.try_clone().expect("a descriptor");
    let pinging = std::thread::spawn(move || {
        use std::io::Write;
        let ping = Frame::new(PING, 0, 0, b"12345678").bytes();
        while pings.write_all(&ping).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let reset = client.until(RST_STREAM);
    assert_eq!((reset.stream, reset.code()), (1, INTERNAL_ERROR));
    eventually("it is counted", || cut(&encke, "stalled") == 1.0);
    encke.wait_for_metric("encke_subscribers", 0.0);
    // The connection goes on.
    client.send(&Frame::get(3, "/healthz"));
    client.send(&Frame::number(WINDOW_UPDATE, 3, 100_000));
    assert_eq!(client.until(HEADERS).stream, 3);
    client
        .socket
        .shutdown(std::net::Shutdown::Both)
        .expect("it is open");
    pinging.join().expect("it only sends");
}

#[test]
fn a_socket_that_nothing_reads() {
    let encke = Encke::start(&["--tuning", "stall-timeout=1s", "--ring", "1MiB"]);
    encke.create("s");
    let window = (INITIAL_WINDOW_SIZE, 1 << 30);
    let mut client = subscriber(&encke, "s", &[window]);
    client.send(&Frame::number(WINDOW_UPDATE, 0, 1 << 30));
    let big = format!("\"{}\"", "x".repeat(1 << 20));
    eventually("the socket is full and the connection closed", || {
        let appended = encke.ask("POST", &path("s"), &[JSON], big.as_bytes());
        assert_eq!(appended.status, 204, "{appended:?}");
        // Of the socket's bytes that wait, not more than the bound is kept.
        assert!(encke.metric("encke_buffered_bytes", "") < 3e6);
        closed(&encke, "stalled") == 1.0
    });
    encke.wait_for_metric("encke_http2_streams", 0.0);
}

#[test]
fn connections_without_streams() {
    let encke = Encke::start(&[
        "--tuning",
        "idle-timeout=4s",
        "--tuning",
        "request-timeout=4s",
    ]);
    // One that has sent only its settings, one that pings, one whose request is over, one in the middle of a head.
    let mut clients: Vec<Http2Client> = (0..4)
        .map(|_| Http2Client::open(encke.address, &[]))
        .collect();
    clients[1].send(&Frame::new(PING, 0, 0, b"12345678"));
    clients[2].send(&Frame::get(1, "/healthz"));
    // The settings of the server are acknowledged first: nothing else may come within a head.
    clients[3].send(&Frame::new(PING, 0, 0, b"12345678"));
    clients[3].until(PING);
    let partial = Frame::headers(END_STREAM, 1, &Frame::fields("GET", "/healthz"));
    clients[3].send(&partial);
    for client in &mut clients {
        assert_eq!(client.end(), NO_ERROR);
    }
    eventually("each is counted", || closed(&encke, "idle") == 4.0);
    // A preface that is never complete is a request that is never complete.
    let mut slow = encke.connect();
    slow.send(&PREFACE[..20]);
    let answer = slow.answer();
    assert_eq!(
        (answer.status, answer.error_code()),
        (408, "timeout".into())
    );
}

#[test]
fn bodies() {
    let encke = Encke::start(&["--body-max", "1KiB", "--tuning", "request-timeout=1s"]);
    encke.create("s");
    let mut client = Http2Client::open(encke.address, &[]);
    let target = path("s");
    let mut fields = Frame::fields("POST", &target);
    fields.push(("content-type", "application/json"));
    // Too large by its length, by its bytes, and one that never ends.
    let with_length = [&fields[..], &[("content-length", "1025")]].concat();
    client.send(&Frame::headers(END_HEADERS, 1, &with_length));
    assert_eq!(client.error_code(1), "body_too_large");
    let reset = client.until(RST_STREAM);
    assert_eq!((reset.stream, reset.code()), (1, NO_ERROR));
    client.send(&Frame::headers(END_HEADERS, 3, &fields));
    client.send(&Frame::new(DATA, 0, 3, &[b'1'; 1025]));
    assert_eq!(client.error_code(3), "body_too_large");
    assert_eq!(client.until(RST_STREAM).code(), NO_ERROR);
    client.send(&Frame::headers(END_HEADERS, 5, &fields));
    client.send(&Frame::new(DATA, 0, 5, b"1"));
    assert_eq!(client.error_code(5), "timeout");
    assert_eq!(client.until(RST_STREAM).code(), NO_ERROR);
    eventually("each is counted", || {
        encke.refused("body_too_large") == 2 && encke.refused("timeout") == 1
    });
    // A body as large as allowed, behind all that.
    client.send(&Frame::headers(END_HEADERS, 7, &fields));
    let largest = format!("\"{}\"", "x".repeat(1022));
    client.send(&Frame::new(DATA, END_STREAM, 7, largest.as_bytes()));
    assert!(client.until(HEADERS).has(END_STREAM));
    assert_eq!(encke.messages("s").len(), 1);
}

#[test]
fn requests_of_a_connection() {
    let encke = Encke::start(&["--tuning", "requests-per-connection=2"]);
    let mut client = Http2Client::open(encke.address, &[]);
    for stream in [1, 3, 5] {
        client.send(&Frame::get(stream, "/healthz"));
    }
    let mut ended = Vec::new();
    let mut goaway = None;
    while let Some(frame) = client.next() {
        if frame.has(END_STREAM) && matches!(frame.kind, DATA | HEADERS) {
            ended.push(frame.stream);
        }
        if frame.kind == RST_STREAM {
            assert_eq!((frame.stream, frame.code()), (5, REFUSED_STREAM));
        }
        if frame.kind == GOAWAY {
            goaway = Some(frame.code());
        }
    }
    assert_eq!((ended, goaway), (vec![1, 3], Some(NO_ERROR)));
    eventually("it is counted", || {
        closed(&encke, "requests_per_connection") == 1.0
    });
}

#[test]
fn violations() {
    let encke = Encke::start(&[]);
    // DATA of a stream that was never opened, a frame that is too long, a preface with another end.
    for bytes in [
        Frame::new(DATA, 0, 1, b"x").bytes(),
        Frame::new(PING, 0, 0, b"short").bytes(),
    ] {
        let mut client = Http2Client::open(encke.address, &[]);
        client.send_bytes(&bytes);
        assert_ne!(client.end(), NO_ERROR);
    }
    let mut client = encke.connect();
    client.send(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n");
    eventually("each is counted", || {
        closed(&encke, "http2_violation") == 3.0
    });
}
