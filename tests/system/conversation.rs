//! Valid HTTP/1.1: any split of the bytes, any optional part of the syntax.

use std::time::Duration;

use crate::rig::{Encke, JSON, eventually, path, request};

const S: &str = "/v1/stream/s";

#[test]
fn fifty_requests_in_one_packet_are_answered_in_order() {
    let encke = Encke::start(&[]);
    encke.create("s");
    // Appends wait for the disk, reads see what was appended before them, the rest is answered at once.
    let mut packet = Vec::new();
    for number in 0..50 {
        let body = number.to_string();
        let one = match number % 5 {
            0 | 1 => request("POST", S, &[JSON], body.as_bytes()),
            2 => request("GET", "/v1/stream/s?offset=-1", &[], b""),
            3 => request("GET", &path(&format!("none-{number}")), &[], b""),
            _ => request("HEAD", S, &[], b""),
        };
        packet.extend(one);
    }
    for rounds in 1..=2 {
        let mut connection = encke.connect();
        connection.send(&packet);
        let mut appended = (rounds - 1) * 20;
        let mut tail = String::new();
        for number in 0..50 {
            let answer = connection.answer_to(if number % 5 == 4 { "HEAD" } else { "GET" });
            let next = answer.field("Stream-Next-Offset").map(str::to_owned);
            match number % 5 {
                0 | 1 => {
                    assert_eq!(answer.status, 204, "{number}: {answer:?}");
                    appended += 1;
                    let next = next.expect("an append says where the stream goes on");
                    assert!(next > tail, "{number}: {next} is behind {tail}");
                    tail = next;
                }
                2 => {
                    assert_eq!(answer.status, 200, "{number}: {answer:?}");
                    let seen: Vec<u64> = serde_json::from_slice(&answer.body).expect("JSON");
                    assert_eq!(seen.len(), appended, "{number}");
                    assert_eq!(next.as_ref(), Some(&tail));
                }
                3 => assert_eq!(answer.status, 404, "{number}: {answer:?}"),
                _ => {
                    assert_eq!(answer.status, 200, "{number}: {answer:?}");
                    assert_eq!(next.as_ref(), Some(&tail));
                }
            }
            assert!(!answer.closes(), "{number}: {answer:?}");
        }
        // The connection goes on.
        assert_eq!(connection.ask("GET", "/healthz", &[], b"").status, 200);
    }
    let expected: Vec<u64> = (0..50).filter(|number| number % 5 < 2).collect();
    assert_eq!(encke.numbers("s"), [expected.clone(), expected].concat());
}

#[test]
fn a_client_that_sends_all_and_closes_its_side_gets_every_answer() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let packet: Vec<u8> = (0..20)
        .flat_map(|number: u64| request("POST", S, &[JSON], number.to_string().as_bytes()))
        .collect();
    let mut connection = encke.connect();
    connection.send(&packet);
    connection.half_close();
    for number in 0..20 {
        let answer = connection.answer();
        assert_eq!(answer.status, 204, "{number}: {answer:?}");
    }
    connection.expect_end();
    assert_eq!(encke.numbers("s"), (0..20).collect::<Vec<_>>());
    // Large answers too, which wait for the socket, and the one behind them.
    let text = format!("\"{}\"", "x".repeat(200 << 10));
    for _ in 0..10 {
        assert_eq!(encke.ask("POST", S, &[JSON], text.as_bytes()).status, 204);
    }
    let get = request("GET", "/v1/stream/s?offset=-1", &[], b"");
    let mut connection = encke.connect();
    connection.send(&get.repeat(8));
    connection.half_close();
    eventually("answers wait for the socket", || {
        encke.metric("encke_buffered_bytes", "") > 0.0
    });
    for number in 0..8 {
        let answer = connection.answer();
        assert_eq!(answer.status, 200, "{number}");
        assert!(answer.body.len() > 200 << 10, "{number}");
    }
    connection.expect_end();
}

#[test]
fn requests_in_any_pieces() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let length = request("POST", S, &[JSON], b"[1,2]");
    let chunked = format!(
        "\r\nPOST {S} HTTP/1.1\r\nHost: x\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n\
         3;a=b\r\n[3,\r\n002\r\n4]\r\n0\r\nTrailer: x\r\n\r\n"
    );
    let both = [&length[..], chunked.as_bytes()].concat();
    for piece in [1, 2, 3, 7, 50, both.len()] {
        let mut connection = encke.connect();
        for piece in both.chunks(piece) {
            connection.send(piece);
            // Long enough that most of them are read on their own.
            std::thread::sleep(Duration::from_micros(50));
        }
        assert_eq!(connection.answer().status, 204);
        assert_eq!(connection.answer().status, 204);
    }
    assert_eq!(encke.numbers("s"), [1, 2, 3, 4].repeat(6));
}

#[test]
fn a_connection_is_used_again_whatever_was_answered() {
    let encke = Encke::start(&[]);
    let mut connection = encke.connect();
    for round in 0..20 {
        let target = path(&format!("s-{round}"));
        assert_eq!(connection.ask("PUT", &target, &[JSON], b"1").status, 201);
        assert_eq!(connection.ask("PUT", &target, &[JSON], b"").status, 200);
        assert_eq!(connection.ask("POST", &target, &[JSON], b"2").status, 204);
        assert_eq!(connection.ask("POST", &target, &[JSON], b"{").status, 400);
        let get = connection.ask("GET", &target, &[], b"");
        assert_eq!(get.body, b"[1,2]");
        let etag = get.field("ETag").expect("a tag").to_owned();
        let same = connection.ask("GET", &target, &[&format!("If-None-Match: {etag}")], b"");
        assert_eq!(same.status, 304);
        assert_eq!(connection.ask("OPTIONS", &target, &[], b"").status, 204);
        assert_eq!(connection.ask("DELETE", &target, &[], b"").status, 204);
        assert_eq!(connection.ask("GET", &target, &[], b"").status, 404);
    }
    assert_eq!(encke.metric("encke_connections_accepted_total", ""), 2.0);
    let last = connection.ask("GET", "/healthz", &["Connection: close"], b"");
    assert!(last.closes());
    connection.expect_end();
}

#[test]
fn head_says_what_get_would_and_nothing_more() {
    let encke = Encke::start(&[]);
    let mut connection = encke.connect();
    connection.ask("PUT", S, &[JSON], b"[1,2,3]");
    let get = connection.ask("GET", S, &[], b"");
    let head = connection.ask("HEAD", S, &[], b"");
    assert_eq!(head.status, 200);
    for field in ["Content-Type", "Stream-Next-Offset"] {
        assert_eq!(head.field(field), get.field(field));
    }
    for (target, status) in [("/v1/stream/none", 404), ("/v1/stream/%", 400), ("/", 200)] {
        let answer = connection.ask("HEAD", target, &[], b"");
        assert_eq!(answer.status, status, "{target}");
        assert!(answer.body.is_empty());
    }
    // Had a body followed one of them, this would not be read as an answer.
    assert_eq!(connection.ask("GET", "/healthz", &[], b"").body, b"ok\n");
}

#[test]
fn the_word_to_go_on() {
    let encke = Encke::start(&["--body-max", "64KiB"]);
    encke.create("s");
    let head = |length: usize| {
        format!(
            "POST {S} HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        )
    };
    let mut connection = encke.connect();
    for body in ["1", "[2,3]"] {
        connection.send(head(body.len()).as_bytes());
        let word = connection.head();
        assert_eq!(word.status, 100, "{word:?}");
        assert!(word.fields.is_empty());
        connection.send(body.as_bytes());
        assert_eq!(connection.answer().status, 204);
    }
    // A client that sends the body at once gets no 100.
    connection.send(format!("{}4", head(1)).as_bytes());
    assert_eq!(connection.answer().status, 204);
    // A body that would be refused is not asked for.
    connection.send(head(64 << 20).as_bytes());
    assert_eq!(connection.answer().status, 413);
    connection.expect_end();
    // HTTP/1.0 has no 100.
    let mut connection = encke.connect();
    connection.send(head(1).replace("HTTP/1.1", "HTTP/1.0").as_bytes());
    std::thread::sleep(Duration::from_millis(50));
    connection.send(b"5");
    assert_eq!(connection.answer().status, 204);
    connection.expect_end();
    assert_eq!(encke.numbers("s"), [1, 2, 3, 4, 5]);
}

#[test]
fn http_1_0_is_answered_and_closed() {
    let encke = Encke::start(&[]);
    encke.create("s");
    for fields in ["", "Connection: keep-alive\r\n", "Host: x\r\n"] {
        let mut connection = encke.connect();
        connection.send(format!("GET {S} HTTP/1.0\r\n{fields}\r\n").as_bytes());
        let answer = connection.answer();
        assert_eq!(answer.status, 200);
        assert!(answer.closes());
        assert_eq!(answer.body, b"[]");
        connection.expect_end();
    }
}

/// HTTP/1.0 has no chunks: the events are sent as they are, and the end of the connection is the end of the response.
#[test]
fn an_event_stream_over_http_1_0_ends_with_the_connection() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let append = |number: &str| {
        let fields = [JSON];
        assert_eq!(encke.ask("POST", S, &fields, number.as_bytes()).status, 204);
    };
    append("1");
    let mut connection = encke.connect();
    let target = format!("{S}?offset=-1&live=sse");
    connection.send(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes());
    let head = connection.head();
    assert_eq!(head.status, 200);
    assert_eq!(head.field("Transfer-Encoding"), None);
    assert_eq!(head.field("Content-Length"), None);
    assert!(head.closes());
    encke.wait_for_metric("encke_subscribers", 1.0);
    append("2");
    let closed = encke.ask("POST", S, &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204);
    let events = String::from_utf8(connection.rest()).expect("events are text");
    // No length of a chunk is in between.
    let is_of_an_event = |line: &&str| {
        line.is_empty()
            || ["id: ", "event: ", "data:"]
                .iter()
                .any(|field| line.starts_with(field))
    };
    assert_eq!(
        events.lines().find(|line| !is_of_an_event(line)),
        None,
        "{events}"
    );
    assert_eq!(events.matches("event: data\n").count(), 2, "{events}");
    assert!(events.contains("\"streamClosed\":true"), "{events}");
}

#[test]
fn targets_in_absolute_form() {
    let encke = Encke::start(&[]);
    let mut connection = encke.connect();
    for (number, target) in [
        format!("http://encke.localhost{S}"),
        format!("http://Encke.localhost:80{S}"),
        format!("HTTPS://encke.localhost:443{S}"),
    ]
    .iter()
    .enumerate()
    {
        let put = connection.ask("PUT", target, &[JSON], b"");
        assert_eq!(put.status, if number == 0 { 201 } else { 200 }, "{put:?}");
        let post = connection.ask("POST", target, &[JSON], number.to_string().as_bytes());
        assert_eq!(post.status, 204, "{post:?}");
    }
    let target = format!("http://encke.localhost{S}?offset=-1");
    assert_eq!(connection.ask("GET", &target, &[], b"").body, b"[0,1,2]");
    let target = "http://encke.localhost?y";
    assert_eq!(connection.ask("GET", target, &[], b"").status, 200);
    // The request is for one host.
    let other = connection.ask("GET", &format!("http://x{S}?offset=-1"), &[], b"");
    assert_eq!((other.status, &*other.error_code()), (400, "host"));
}

#[test]
fn line_ends_and_spaces_that_are_allowed() {
    let encke = Encke::start(&[]);
    for bytes in [
        "\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhOST:\tx \t \r\n\r\n",
        "GET /healthz?what=%2e HTTP/1.1\r\nHost: x\r\nX:\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: x\r\nX: \u{e4}\r\n\r\n",
    ] {
        let mut connection = encke.connect();
        connection.send(bytes.as_bytes());
        assert_eq!(connection.answer().status, 200, "{bytes:?}");
    }
}

#[test]
fn names_are_texts_whatever_is_in_them() {
    let encke = Encke::start(&[]);
    let mut connection = encke.connect();
    let long = "n".repeat(1024);
    let names = [
        "a",
        "A",
        "a%20b",
        "%C3%A4/%F0%9F%8C%8A",
        "a%2Fb",
        "...",
        "%25",
        "%2520",
        "__dsx",
        "a?b".split('?').next().expect("a name"),
        "'\"<>&",
        &long,
    ];
    for empty in ["a//b", "a/", "%2Fa"] {
        let put = connection.ask("PUT", &path(empty), &[JSON], b"0");
        assert_eq!(
            (put.status, &*put.error_code()),
            (400, "bad_path"),
            "{empty}"
        );
    }
    let mut different = std::collections::HashSet::new();
    for (number, name) in names.iter().enumerate() {
        let target = path(name);
        let put = connection.ask("PUT", &target, &[JSON], number.to_string().as_bytes());
        if put.status == 400 {
            // Only what may not stand in a target as it is.
            assert!(name.contains('"'), "{name}: {put:?}");
            connection = encke.connect();
            continue;
        }
        // `a%2Fb` is `a/b`, and the plain one stands in the list twice.
        if different.insert(*name) {
            assert_eq!(put.status, 201, "{name}: {put:?}");
        }
        let get = connection.ask("GET", &target, &[], b"");
        assert_eq!(
            get.body,
            format!(
                "[{}]",
                names.iter().position(|n| n == name).expect("it is one")
            )
            .as_bytes()
        );
    }
    assert_eq!(
        connection.ask("GET", "/v1/stream/a/b", &[], b"").body,
        b"[4]"
    );
}
