//! Pages of allowed origins can read every refusal, over both wires.

use std::time::Duration;

use encke_protocol::Gate;

use super::http2::{Pair, WINDOW};
use super::{received, with_body};
use crate::connection::Event;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::testing::{ID, Rig, TestServer};
use crate::settings::NetSettings;

/// A refusal, and how a client reaches it.
struct Refusal {
    status: u16,
    code: &'static str,
    /// Sends something over HTTP/1.1. The second argument is a field line with the origin.
    http1: fn(&mut Rig, &str),
    /// The number of the refused exchange. `None`: HTTP/2 has no such refusal.
    http2: Option<fn(&mut Pair) -> usize>,
}

const ORIGIN: &str = "https://a.example";
const STREAM: &str = "/v1/stream/a";

fn settings() -> NetSettings {
    NetSettings {
        body_bytes_max: 1_000,
        head_bytes_max: 4_096,
        request_rate: 1,
        request_burst: 3,
        exempt: crate::networks::Networks::default(),
        ..NetSettings::default()
    }
}

/// A connection whose client is at its limit of requests after three.
fn rig(origins: &str) -> Rig {
    let gate = Gate {
        origins: origins.parse().unwrap(),
        ..Gate::default()
    };
    let mut server = TestServer::behind(gate, settings());
    server.peer = [192, 0, 2, 1].into();
    let owner = server
        .clients
        .admit(Some(server.peer), server.clock.now())
        .unwrap();
    server.clients.set_owner(ID, owner);
    Rig::of(server, ConnectionFacts::default())
}

/// The beginning of an append whose body is still to come.
fn begun(origin: &str, framing: &str) -> String {
    format!("POST {STREAM} HTTP/1.1\r\nHost: a\r\n{origin}\r\n{framing}\r\n\r\n")
}

fn get_with(field: &str, origin: &str) -> String {
    format!("GET {STREAM} HTTP/1.1\r\nHost: a\r\n{field}\r\n{origin}\r\n\r\n")
}

/// Begins an append over HTTP/2.
fn begun_on_stream(pair: &mut Pair, length: Option<&str>) -> usize {
    let request = http::Request::builder()
        .method("POST")
        .uri(format!("http://a{STREAM}"))
        .header("origin", ORIGIN);
    let request = length.into_iter().fold(request, |request, length| {
        request.header("content-length", length)
    });
    let number = pair.client.begin(request.body(()).unwrap(), false);
    pair.pump();
    number
}

fn get_on_stream(pair: &mut Pair, fields: &[(&str, &str)]) -> usize {
    let fields = [fields, &[("origin", ORIGIN)]].concat();
    let number = pair.client.request("GET", STREAM, &fields, b"");
    pair.pump();
    number
}

const REFUSALS: &[Refusal] = &[
    Refusal {
        status: 413,
        code: "body_too_large",
        http1: |rig, origin| rig.receive(begun(origin, "Content-Length: 1001").as_bytes()),
        http2: Some(|pair| begun_on_stream(pair, Some("1001"))),
    },
    Refusal {
        status: 413,
        code: "body_too_large",
        http1: |rig, origin| {
            rig.receive(begun(origin, "Transfer-Encoding: chunked").as_bytes());
            rig.receive(b"3e9\r\n");
        },
        http2: Some(|pair| {
            let number = begun_on_stream(pair, None);
            pair.client.send(number, &[b'x'; 1_001]);
            pair.pump();
            number
        }),
    },
    Refusal {
        status: 408,
        code: "timeout",
        http1: |rig, origin| {
            rig.receive(begun(origin, "Content-Length: 9").as_bytes());
            rig.pass(settings().request_timeout);
        },
        http2: Some(|pair| {
            let number = begun_on_stream(pair, Some("9"));
            pair.rig.pass(settings().request_timeout);
            pair.pump();
            number
        }),
    },
    // A head that is not complete.
    Refusal {
        status: 408,
        code: "timeout",
        http1: |rig, origin| {
            rig.receive(format!("GET / HTTP/1.1\r\n{origin}\r\nHo").as_bytes());
            rig.pass(settings().request_timeout);
        },
        http2: None,
    },
    Refusal {
        status: 431,
        code: "head_too_large",
        http1: |rig, origin| {
            let long = format!("X: {}", "x".repeat(4_096));
            rig.receive(get_with(&long, origin).as_bytes());
        },
        http2: Some(|pair| get_on_stream(pair, &[("x", &"x".repeat(4_096))])),
    },
    Refusal {
        status: 431,
        code: "too_many_fields",
        http1: |rig, origin| {
            rig.receive(get_with("A: b\r\n".repeat(100).trim_end(), origin).as_bytes());
        },
        http2: Some(|pair| get_on_stream(pair, &[("a", ""); 100])),
    },
    Refusal {
        status: 417,
        code: "expectation",
        http1: |rig, origin| rig.receive(get_with("Expect: miracles", origin).as_bytes()),
        http2: Some(|pair| get_on_stream(pair, &[("expect", "miracles")])),
    },
    Refusal {
        status: 501,
        code: "transfer_encoding",
        http1: |rig, origin| rig.receive(begun(origin, "Transfer-Encoding: gzip").as_bytes()),
        http2: None,
    },
    Refusal {
        status: 400,
        code: "bad_chunk",
        http1: |rig, origin| {
            rig.receive(begun(origin, "Transfer-Encoding: chunked").as_bytes());
            rig.receive(b"no\r\n");
        },
        http2: None,
    },
    Refusal {
        status: 503,
        code: "buffers_max",
        http1: |rig, origin| {
            rig.receive(begun(origin, "Content-Length: 9").as_bytes());
            rig.on(Event::NoMemory(ID));
        },
        http2: Some(|pair| {
            let number = begun_on_stream(pair, Some("9"));
            let grown = pair.rig.noted.iter().rev().find_map(|effect| match effect {
                ConnectionEffect::Grow(id) => Some(*id),
                _ => None,
            });
            if let Some(grown) = grown {
                pair.rig.on(Event::NoMemory(grown));
                pair.pump();
            }
            number
        }),
    },
    Refusal {
        status: 429,
        code: "request_rate",
        http1: |rig, origin| {
            for _ in 0..2 {
                rig.receive(get_with("A: b", origin).as_bytes());
            }
            rig.taken.clear();
            rig.receive(get_with("A: b", origin).as_bytes());
        },
        http2: Some(|pair| {
            for _ in 0..2 {
                get_on_stream(pair, &[]);
            }
            get_on_stream(pair, &[])
        }),
    },
    // A stream that does not exist.
    Refusal {
        status: 404,
        code: "not_found",
        http1: |rig, origin| rig.receive(get_with("A: b", origin).as_bytes()),
        http2: Some(|pair| get_on_stream(pair, &[])),
    },
];

/// The value of `Access-Control-Allow-Origin` that pages of [`ORIGIN`] get.
const ALLOWED: [(&str, Option<&str>); 3] = [
    (ORIGIN, Some(ORIGIN)),
    ("*", Some("*")),
    ("https://b.example", None),
];

#[test]
fn pages_of_allowed_origins_can_read_every_refusal() {
    for (origins, expected) in ALLOWED {
        // Without access control the requests of other origins' pages are refused as such, where their heads are complete.
        let is_foreign = expected.is_none();
        for refusal in REFUSALS {
            let name = format!("{} {} for {origins}", refusal.status, refusal.code);
            let mut rig_1 = rig(origins);
            (refusal.http1)(&mut rig_1, &format!("Origin: {ORIGIN}"));
            let last = received(&rig_1.text()).pop();
            let last = last.unwrap_or_else(|| panic!("no response: {name}"));
            assert_eq!(
                last.field("Access-Control-Allow-Origin"),
                expected,
                "{name}"
            );
            assert!(is_foreign || last.text().contains(refusal.code), "{last:?}");
            assert!(is_foreign || last.status == refusal.status, "{last:?}");

            let Some(http2) = refusal.http2 else {
                continue;
            };
            let mut pair = Pair::of(rig(origins), WINDOW);
            let number = http2(&mut pair);
            let exchange = &pair.client.exchanges[number];
            let allowed = exchange.fields.get("access-control-allow-origin");
            let allowed = allowed.map(|value| value.to_str().unwrap());
            assert_eq!(allowed, expected, "HTTP/2: {name}");
            assert!(is_foreign || exchange.status == Some(refusal.status));
            assert!(is_foreign || exchange.text().contains(refusal.code));
        }
    }
}

/// A response to a request whose origin has not arrived names all origins where all are allowed, and none otherwise.
#[test]
fn a_refusal_before_the_origin_arrives_names_no_single_one() {
    for (origins, expected) in [(ORIGIN, None), ("*", Some("*"))] {
        let mut rig = rig(origins);
        rig.receive(format!("GET / HTTP/1.1\r\nOrigin: {ORIGIN}").as_bytes());
        rig.pass(Duration::from_secs(100));
        let refusal = received(&rig.text()).pop().unwrap();
        assert_eq!(refusal.status, 408);
        assert_eq!(refusal.field("Access-Control-Allow-Origin"), expected);
    }
}

/// A value that is cut off, or has bytes that no browser sends, must not be repeated.
#[test]
fn only_origins_that_browsers_send_are_repeated() {
    for value in [
        "http://localhost:1\rX: y",
        "http://localhost:1\u{1}",
        "http://localhost:1 x",
    ] {
        let mut rig = rig("loopback");
        rig.receive(
            get_with(
                "A: b\r\n".repeat(100).trim_end(),
                &format!("Origin: {value}"),
            )
            .as_bytes(),
        );
        let refusal = received(&rig.text()).pop().unwrap();
        assert_eq!(refusal.field("Access-Control-Allow-Origin"), None);
    }
}

#[test]
fn a_refused_request_without_an_origin_gets_no_field() {
    let mut rig = rig("*");
    rig.receive(with_body("POST /v1/stream/a", "Expect: miracles\r\n", "x").as_bytes());
    let refusal = received(&rig.text()).pop().unwrap();
    assert_eq!(refusal.status, 417);
    assert_eq!(refusal.field("Access-Control-Allow-Origin"), None);
}
