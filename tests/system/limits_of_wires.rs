//! A limit that one wire has, all have: each row of one table is reached over HTTP/1.1 and over HTTP/2.

use crate::rig::http2::*;
use crate::rig::{Connection, Encke, JSON, eventually, path};

/// A limit, and how a client reaches it.
struct Limit {
    name: &'static str,
    flags: &'static [&'static str],
    /// Over HTTP/1.1: the code of the refusal, or how else it shows.
    http1: fn(&Encke) -> String,
    /// The same over HTTP/2.
    http2: fn(&Encke) -> String,
    expected: &'static str,
}

/// From an address to which limits apply, over HTTP/2.
fn open(encke: &Encke) -> Http2Client {
    Http2Client::over(encke.connect_from(2).socket, b"", &[])
}

/// The fields of an append of JSON.
fn append() -> Vec<(&'static str, &'static str)> {
    let mut fields = Frame::fields("POST", "/v1/stream/s");
    fields.push(("content-type", "application/json"));
    fields
}

/// The status and the code of the first refusal among the answers to many requests.
fn refused_of_many(mut ask: impl FnMut(usize) -> Option<String>) -> String {
    (0..200)
        .find_map(&mut ask)
        .unwrap_or_else(|| "never refused".to_owned())
}

/// An append that is begun over HTTP/1.1 and never complete.
fn begun(encke: &Encke, length: usize, sent: usize) -> Connection {
    let mut client = encke.connect_from(2);
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: {length}\r\n\r\n",
        path("s")
    );
    client.send_anyway(&[head.as_bytes(), &vec![b' '; sent]].concat());
    client
}

/// The same over HTTP/2.
fn begun_on_stream(encke: &Encke, length: &str, sent: usize) -> Http2Client {
    let mut client = open(encke);
    let mut fields = append();
    if !length.is_empty() {
        fields.push(("content-length", length));
    }
    client.send(&Frame::headers(END_HEADERS, 1, &fields));
    for part in vec![b' '; sent].chunks(16 << 10) {
        client.send(&Frame::new(DATA, 0, 1, part));
    }
    client
}

const LIMITS: &[Limit] = &[
    Limit {
        name: "requests of an address in a second",
        flags: &["--request-rate", "1", "--tuning", "request-burst=10"],
        http1: |encke| {
            let mut client = encke.connect_from(2);
            refused_of_many(|_| {
                let answer = client.ask("GET", "/healthz", &[], b"");
                (answer.status != 200).then(|| answer.error_code())
            })
        },
        http2: |encke| {
            let mut client = open(encke);
            refused_of_many(|number| {
                client.send(&Frame::get(2 * number as u32 + 1, "/healthz"));
                let body = client.body(2 * number as u32 + 1);
                let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
                Some(body["error"]["code"].as_str()?.to_owned())
            })
        },
        expected: "request_rate",
    },
    Limit {
        name: "connections of an address",
        flags: &["--connections-per-address", "2"],
        http1: |encke| {
            let mut inside = [encke.connect_from(2), encke.connect_from(2)];
            for client in &mut inside {
                assert_eq!(client.ask("GET", "/healthz", &[], b"").status, 200);
            }
            encke.connect_from(2).answer().status.to_string()
        },
        http2: |encke| {
            let mut inside = [open(encke), open(encke)];
            for client in &mut inside {
                client.send(&Frame::get(1, "/healthz"));
                client.until(HEADERS);
            }
            // It is refused before it has said which version it speaks.
            encke.connect_from(2).answer().status.to_string()
        },
        expected: "429",
    },
    Limit {
        name: "fields of a request",
        flags: &[],
        http1: |encke| {
            let many: Vec<String> = (0..200).map(|number| format!("x-{number}: 1")).collect();
            let many: Vec<&str> = many.iter().map(String::as_str).collect();
            encke
                .connect_from(2)
                .ask("GET", "/healthz", &many, b"")
                .error_code()
        },
        http2: |encke| {
            let mut client = open(encke);
            let many: Vec<String> = (0..200).map(|number| format!("x-{number}")).collect();
            let mut fields = Frame::fields("GET", "/healthz");
            fields.extend(many.iter().map(|name| (&**name, "1")));
            client.send(&Frame::headers(END_STREAM | END_HEADERS, 1, &fields));
            client.error_code(1)
        },
        expected: "too_many_fields",
    },
    Limit {
        name: "bytes of a body, by its length",
        flags: &["--body-max", "1KiB"],
        http1: |encke| begun(encke, 1_025, 0).answer().error_code(),
        http2: |encke| begun_on_stream(encke, "1025", 0).error_code(1),
        expected: "body_too_large",
    },
    Limit {
        name: "bytes of a body, as they come",
        flags: &["--body-max", "1KiB"],
        http1: |encke| {
            let mut client = encke.connect_from(2);
            let head = format!(
                "POST {} HTTP/1.1\r\nHost: x\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n401\r\n",
                path("s")
            );
            client.send_anyway(head.as_bytes());
            client.answer().error_code()
        },
        http2: |encke| begun_on_stream(encke, "", 1_025).error_code(1),
        expected: "body_too_large",
    },
    Limit {
        name: "time of a pause in a body",
        flags: &["--tuning", "request-timeout=1s"],
        http1: |encke| begun(encke, 100, 1).answer().error_code(),
        http2: |encke| begun_on_stream(encke, "100", 1).error_code(1),
        expected: "timeout",
    },
    Limit {
        name: "time of a whole body",
        flags: &["--tuning", "body-timeout=1s"],
        http1: |encke| begun(encke, 100, 1).answer().error_code(),
        http2: |encke| begun_on_stream(encke, "100", 1).error_code(1),
        expected: "body_timeout",
    },
    Limit {
        name: "time of a head",
        flags: &["--tuning", "request-timeout=1s"],
        http1: |encke| {
            let mut client = encke.connect_from(2);
            client.send(b"GET / HTTP/1.1\r\n");
            assert_eq!(client.answer().error_code(), "timeout");
            "closed".to_owned()
        },
        http2: |encke| {
            let mut client = open(encke);
            client.send(&Frame::new(PING, 0, 0, b"12345678"));
            client.until(PING);
            let fields = Frame::fields("GET", "/healthz");
            client.send(&Frame::headers(END_STREAM, 1, &fields));
            assert_eq!(client.end(), NO_ERROR);
            "closed".to_owned()
        },
        expected: "closed",
    },
    Limit {
        name: "time without a request",
        flags: &["--tuning", "idle-timeout=1s"],
        http1: |encke| {
            encke.connect_from(2).expect_end();
            "closed".to_owned()
        },
        http2: |encke| {
            assert_eq!(open(encke).end(), NO_ERROR);
            "closed".to_owned()
        },
        expected: "closed",
    },
    Limit {
        name: "requests of a connection",
        flags: &["--tuning", "requests-per-connection=2"],
        http1: |encke| {
            let mut client = encke.connect_from(2);
            let closes = |client: &mut Connection| client.ask("GET", "/healthz", &[], b"").closes();
            format!("{} {}", closes(&mut client), closes(&mut client))
        },
        http2: |encke| {
            let mut client = open(encke);
            client.send(&Frame::get(1, "/healthz"));
            let first = client.body(1);
            client.send(&Frame::get(3, "/healthz"));
            let second = client.body(3);
            assert_eq!(first, second);
            client.until(GOAWAY);
            "false true".to_owned()
        },
        expected: "false true",
    },
    Limit {
        name: "memory of a client",
        flags: &["--tuning", "buffers-per-client=50KiB"],
        http1: |encke| begun(encke, 1_000_000, 60_000).answer().error_code(),
        http2: |encke| begun_on_stream(encke, "1000000", 60_000).error_code(1),
        expected: "buffers_max",
    },
];

#[test]
#[ignore = "long: make test-all"]
fn a_limit_of_one_wire_is_a_limit_of_all() {
    for limit in LIMITS {
        let flags = [&["--exempt", "127.0.0.1/32"], limit.flags].concat();
        for (wire, reach) in [("HTTP/1.1", limit.http1), ("HTTP/2", limit.http2)] {
            let encke = Encke::start(&flags);
            encke.create("s");
            assert_eq!(reach(&encke), limit.expected, "{} over {wire}", limit.name);
            // Another client is not concerned.
            let mut other = encke.connect_from(3);
            assert_eq!(other.ask("GET", "/healthz", &[], b"").status, 200);
            drop(other);
            eventually("nothing is left", || {
                encke.metric("encke_buffered_bytes", "") == 0.0
            });
        }
    }
}
