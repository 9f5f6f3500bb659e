//! The rules of the Durable Streams protocol, one by one. Section numbers are those of its text.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use encke_face::Failure;
use server::{NOW_CURSOR, NOW_MS, Reply, Said, Server, said};

const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const CLOSED: (&str, &str) = ("Stream-Closed", "true");

/// A server with an empty stream `a` of a type.
fn with(content_type: (&str, &str)) -> Server {
    let mut server = Server::default();
    assert_eq!(
        server.send("PUT /v1/stream/a", &[content_type], b"").status,
        201
    );
    server
}

fn producer<'a>(epoch: &'a str, seq: &'a str) -> [(&'a str, &'a str); 4] {
    [
        TEXT,
        ("Producer-Id", "p"),
        ("Producer-Epoch", epoch),
        ("Producer-Seq", seq),
    ]
}

fn get(server: &mut Server, target: &str) -> Said {
    server.send(&format!("GET /v1/stream/{target}"), &[], b"")
}

#[test]
fn creating_says_where_what_and_how_far() {
    let mut server = Server::default();
    let made = server.send("PUT /v1/stream/a%20b", &[("Host", "h:1")], b"123");
    assert_eq!(made.status, 201);
    assert_eq!(made.field("Location"), Some("http://h:1/v1/stream/a%20b"));
    assert_eq!(made.field("Content-Type"), Some("application/octet-stream"));
    assert_eq!(made.field("Stream-Closed"), None);
    let again = server.send("PUT /v1/stream/a%20b", &[], b"456");
    assert_eq!((again.status, again.field("Location")), (200, None));
    assert_eq!(
        again.token(),
        made.token(),
        "a repeated creation adds nothing"
    );
    assert_eq!(get(&mut server, "a%20b").body, b"123");
    let relative = server.send("PUT /v1/stream/c", &[], b"");
    assert_eq!(relative.field("Location"), Some("/v1/stream/c"));
}

#[test]
fn a_repeated_creation_must_say_the_same() {
    let mut server = Server::default();
    let ttl = ("Stream-TTL", "60");
    let type_and_ttl = [("Content-Type", "Text/Plain; charset=utf-8"), ttl];
    assert_eq!(
        server.send("PUT /v1/stream/a", &type_and_ttl, b"").status,
        201
    );
    for (headers, status) in [
        (&[TEXT, ttl][..], 200),
        (&[("Content-Type", "TEXT/PLAIN"), ttl], 200),
        (&[("Content-Type", "text/html"), ttl], 409),
        (&[ttl], 409),
        (&[TEXT], 409),
        (&[TEXT, ("Stream-TTL", "61")], 409),
        (&[TEXT, ("Stream-Expires-At", "2030-01-01T00:00:00Z")], 409),
        (&[TEXT, ttl, CLOSED], 409),
        (&[TEXT, ttl, ("Stream-Closed", "false")], 200),
        (&[TEXT, ttl, ("Stream-Forked-From", "/v1/stream/a")], 409),
    ] {
        let said = server.send("PUT /v1/stream/a", headers, b"");
        assert_eq!(said.status, status, "{headers:?}");
        if status == 409 {
            assert_eq!(said.code(), "config_differs");
        }
    }
    let closed = server.send("PUT /v1/stream/b", &[TEXT, CLOSED], b"all");
    assert_eq!(
        (closed.status, closed.field("Stream-Closed")),
        (201, Some("true"))
    );
    let again = server.send("PUT /v1/stream/b", &[TEXT, CLOSED], b"all");
    assert_eq!(
        (again.status, again.field("Stream-Closed")),
        (200, Some("true"))
    );
    assert_eq!(server.send("PUT /v1/stream/b", &[TEXT], b"").status, 409);
}

#[test]
fn only_true_closes() {
    for (value, closes) in [
        ("true", true),
        ("TRUE", true),
        (" True ", true),
        ("false", false),
        ("1", false),
        ("yes", false),
        ("", false),
        ("true,true", false),
    ] {
        let mut server = Server::default();
        let made = server.send("PUT /v1/stream/a", &[TEXT, ("Stream-Closed", value)], b"x");
        assert_eq!(made.status, 201);
        assert_eq!(made.field("Stream-Closed").is_some(), closes, "{value:?}");
        let mut server = with(TEXT);
        let said = server.send("POST /v1/stream/a", &[TEXT, ("stream-closed", value)], b"x");
        assert_eq!(said.status, 204);
        assert_eq!(said.field("Stream-Closed").is_some(), closes, "{value:?}");
    }
}

#[test]
fn appending_needs_a_body_and_its_type() {
    let mut server = with(TEXT);
    for (headers, body, status, code) in [
        (&[TEXT][..], &b""[..], 400, "empty_body"),
        (&[], b"x", 400, "missing_content_type"),
        (&[("Content-Type", " ")], b"x", 400, "missing_content_type"),
        (&[("Content-Type", "text/html")], b"x", 409, "type_differs"),
        (&[("Content-Type", "text/\x01")], b"x", 400, "bad_field"),
    ] {
        let said = server.send("POST /v1/stream/a", headers, body);
        assert_eq!((said.status, &*said.code()), (status, code), "{headers:?}");
    }
    let parameters = ("Content-Type", "TEXT/plain;charset=latin-1");
    assert_eq!(
        server.send("POST /v1/stream/a", &[parameters], b"x").status,
        204
    );
    let long = "x".repeat(257);
    let said = server.send("POST /v1/stream/a", &[("Content-Type", &long)], b"x");
    assert_eq!((said.status, said.code()), (400, "bad_field".into()));
    let said = server.send("POST /v1/stream/a", &[TEXT, ("Stream-Seq", &long)], b"x");
    assert_eq!((said.status, said.code()), (400, "bad_field".into()));
    let body = vec![b'x'; 2 << 20];
    let said = server.send("POST /v1/stream/a", &[TEXT], &body);
    assert_eq!((said.status, said.code()), (413, "too_large".into()));
    assert_eq!(get(&mut server, "a").body, b"x");
}

#[test]
fn closing_without_data_asks_for_no_type_and_can_be_repeated() {
    let mut server = with(JSON);
    let request: [(&str, &[u8]); 2] = [("Stream-Closed", b"true"), ("Content-Type", b"\xff\x01")];
    for _ in 0..2 {
        let reply = server.request("POST", "/v1/stream/a", None, &request, b"");
        let Reply::Said(said) = reply else { panic!() };
        assert_eq!(
            (said.status, said.field("Stream-Closed")),
            (204, Some("true"))
        );
    }
    // With data it can't: the data is not there.
    let said = server.send("POST /v1/stream/a", &[JSON, CLOSED], b"1");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (409, Some("true"))
    );
    let tail = server.send("HEAD /v1/stream/a", &[], b"").token();
    assert_eq!(said.token(), tail);
    // That it is closed comes before everything else that is wrong.
    let said = server.send("POST /v1/stream/a", &[TEXT, ("Stream-Seq", "0")], b"1");
    assert_eq!((said.code(), said.token()), ("closed".into(), tail));
}

#[test]
fn stream_seq_grows_byte_by_byte() {
    let mut server = with(TEXT);
    let seq = |server: &mut Server, seq: &str| {
        let said = server.send("POST /v1/stream/a", &[TEXT, ("Stream-Seq", seq)], b"x");
        said.status
    };
    assert_eq!(seq(&mut server, "2"), 204);
    assert_eq!(seq(&mut server, "2"), 409);
    assert_eq!(seq(&mut server, "10"), 409, "1 comes before 2");
    assert_eq!(seq(&mut server, "20"), 204);
    assert_eq!(seq(&mut server, "a"), 204);
    assert_eq!(seq(&mut server, "Z"), 409);
    assert_eq!(seq(&mut server, "ä"), 204);
    // An append without one is none of its business, and a refused one leaves it.
    assert_eq!(server.send("POST /v1/stream/a", &[TEXT], b"x").status, 204);
    let wrong = [("Content-Type", "text/html"), ("Stream-Seq", "ö")];
    assert_eq!(server.send("POST /v1/stream/a", &wrong, b"x").status, 409);
    assert_eq!(seq(&mut server, "å"), 204);
    // A fork is another stream.
    let from = ("Stream-Forked-From", "/v1/stream/a");
    assert_eq!(server.send("PUT /v1/stream/f", &[from], b"").status, 201);
    let said = server.send("POST /v1/stream/f", &[TEXT, ("Stream-Seq", "0")], b"x");
    assert_eq!(said.status, 204);
}

#[test]
fn producers_are_told_how_far_they_are() {
    let mut server = with(TEXT);
    let expect = |server: &mut Server, epoch, seq, status, fields: &[(&str, &str)]| {
        let said = server.send("POST /v1/stream/a", &producer(epoch, seq), b"x");
        assert_eq!(said.status, status, "epoch {epoch}, seq {seq}");
        for (name, value) in fields {
            assert_eq!(said.field(name), Some(*value), "{name}");
        }
        said
    };
    let gap = |expected, received| {
        [
            ("Producer-Expected-Seq", expected),
            ("Producer-Received-Seq", received),
        ]
    };
    expect(&mut server, "0", "1", 409, &gap("0", "1"));
    expect(
        &mut server,
        "0",
        "0",
        200,
        &[("Producer-Epoch", "0"), ("Producer-Seq", "0")],
    );
    expect(&mut server, "0", "1", 200, &[("Producer-Seq", "1")]);
    let highest = [("Producer-Epoch", "0"), ("Producer-Seq", "1")];
    expect(&mut server, "0", "0", 204, &highest);
    expect(&mut server, "0", "3", 409, &gap("2", "3"));
    expect(&mut server, "7", "1", 400, &[]);
    expect(
        &mut server,
        "7",
        "0",
        200,
        &[("Producer-Epoch", "7"), ("Producer-Seq", "0")],
    );
    let stale = expect(&mut server, "0", "2", 403, &[("Producer-Epoch", "7")]);
    assert_eq!(stale.field("Producer-Seq"), None);
    let close = [&producer("7", "1")[..], &[CLOSED]].concat();
    let said = server.send("POST /v1/stream/a", &close, b"end");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (200, Some("true"))
    );
    let said = server.send("POST /v1/stream/a", &close, b"end");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (204, Some("true"))
    );
    let said = server.send("POST /v1/stream/a", &producer("7", "0"), b"x");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (409, Some("true"))
    );
    assert_eq!(get(&mut server, "a").body, b"xxxend");
    // Without data there is nothing new to tell.
    let mut server = with(TEXT);
    let close = [&producer("0", "0")[1..], &[CLOSED]].concat();
    for _ in 0..2 {
        let said = server.send("POST /v1/stream/a", &close, b"");
        assert_eq!((said.status, said.field("Producer-Seq")), (204, Some("0")));
    }
}

#[test]
fn producers_say_all_three_and_say_them_plainly() {
    let mut server = with(TEXT);
    let all = producer("0", "0");
    for left_out in 1..4 {
        let mut some = all.to_vec();
        some.remove(left_out);
        assert_eq!(server.send("POST /v1/stream/a", &some, b"x").status, 400);
        let one = [TEXT, all[left_out]];
        assert_eq!(server.send("POST /v1/stream/a", &one, b"x").status, 400);
    }
    for (name, value) in [
        ("Producer-Id", ""),
        ("Producer-Id", "  "),
        ("Producer-Id", &"x".repeat(257)),
        ("Producer-Epoch", ""),
        ("Producer-Epoch", "-1"),
        ("Producer-Epoch", "1.0"),
        ("Producer-Epoch", "00"),
        ("Producer-Seq", "+1"),
        ("Producer-Seq", "1e3"),
        ("Producer-Seq", "9007199254740992"),
        ("Producer-Seq", "x"),
    ] {
        let mut headers = all.to_vec();
        headers.retain(|(field, _)| *field != name);
        headers.push((name, value));
        let said = server.send("POST /v1/stream/a", &headers, b"x");
        assert_eq!(
            (said.status, said.code()),
            (400, "bad_field".into()),
            "{name}: {value}"
        );
    }
    let said = server.send(
        "POST /v1/stream/a",
        &producer("9007199254740991", "0"),
        b"x",
    );
    assert_eq!(said.field("Producer-Epoch"), Some("9007199254740991"));
    assert_eq!(get(&mut server, "a").body, b"x");
}

#[test]
fn a_lifetime_is_said_once_and_plainly() {
    let mut server = Server::default();
    let both = [
        ("Stream-TTL", "1"),
        ("Stream-Expires-At", "2030-01-01T00:00:00Z"),
    ];
    assert_eq!(server.send("PUT /v1/stream/a", &both, b"").status, 400);
    for (name, value) in [
        ("Stream-TTL", ""),
        ("Stream-TTL", "-1"),
        ("Stream-TTL", "+60"),
        ("Stream-TTL", "060"),
        ("Stream-TTL", "6e1"),
        ("Stream-TTL", "60.0"),
        ("Stream-TTL", "18446744073709551616"),
        ("Stream-Expires-At", ""),
        ("Stream-Expires-At", "tomorrow"),
        ("Stream-Expires-At", "2030-01-01"),
        ("Stream-Expires-At", "2030-01-01 00:00:00"),
        ("Stream-Expires-At", "1893456000"),
    ] {
        let said = server.send("PUT /v1/stream/a", &[(name, value)], b"");
        assert_eq!(
            (said.status, said.code()),
            (400, "bad_field".into()),
            "{name}: {value}"
        );
    }
    for (name, value, shown) in [
        ("Stream-TTL", "60", "60"),
        ("Stream-TTL", "18446744073709551615", "18446744073709551615"),
        (
            "Stream-Expires-At",
            "2030-01-01T01:00:00+01:00",
            "2030-01-01T00:00:00Z",
        ),
        (
            "Stream-Expires-At",
            "2030-01-01t00:00:00.5z",
            "2030-01-01T00:00:00.5Z",
        ),
    ] {
        let mut server = Server::default();
        assert_eq!(
            server
                .send("PUT /v1/stream/a", &[(name, value)], b"")
                .status,
            201
        );
        let head = server.send("HEAD /v1/stream/a", &[], b"");
        assert_eq!(head.field(name), Some(shown));
        // The same moment, or window, is the same setting.
        assert_eq!(
            server
                .send("PUT /v1/stream/a", &[(name, shown)], b"")
                .status,
            200
        );
    }
}

/// The method and the target, the fields, the body.
type Asked<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8]);

#[test]
fn reads_and_writes_renew_a_window_and_head_does_not() {
    let ttl = [TEXT, ("Stream-TTL", "10")];
    let touches: [Asked<'_>; 7] = [
        ("GET /v1/stream/a", &[], b""),
        ("GET /v1/stream/a?offset=now", &[], b""),
        ("GET /v1/stream/a?offset=-1&live=long-poll", &[], b""),
        ("GET /v1/stream/a?offset=-1&live=sse", &[], b""),
        ("POST /v1/stream/a", &[TEXT], b"x"),
        ("POST /v1/stream/a", &[CLOSED], b""),
        ("PUT /v1/stream/a", &ttl, b""),
    ];
    let leaves: [Asked<'_>; 5] = [
        ("HEAD /v1/stream/a", &[], b""),
        ("OPTIONS /v1/stream/a", &[], b""),
        ("GET /v1/stream/a?offset=x", &[], b""),
        ("POST /v1/stream/a", &[("Content-Type", "text/html")], b"x"),
        ("PUT /v1/stream/a", &[], b""),
    ];
    let all = touches.map(|request| (request, true)).into_iter();
    for ((line, headers, body), renews) in all.chain(leaves.map(|request| (request, false))) {
        let mut server = Server::default();
        server.send("PUT /v1/stream/a", &ttl, b"x");
        server.now_ms += 9_000;
        server.reply(line, headers, body);
        server.now_ms += 9_000;
        let status = server.send("HEAD /v1/stream/a", &[], b"").status;
        assert_eq!(status, if renews { 200 } else { 404 }, "{line}");
    }
}

#[test]
fn what_has_expired_is_gone_whether_or_not_it_was_ended_yet() {
    for ended in [false, true] {
        let mut server = Server::default();
        let at = ("Stream-Expires-At", "2025-01-01T00:00:10Z");
        server.send("PUT /v1/stream/a", &[TEXT, at], b"x");
        server.send("PUT /v1/stream/b", &[TEXT, at], b"x");
        let own = ("Stream-TTL", "3600");
        let from = ("Stream-Forked-From", "b");
        assert_eq!(
            server.send("PUT /v1/stream/f", &[from, own], b"y").status,
            201
        );
        server.now_ms += 9_999;
        assert_eq!(get(&mut server, "a").status, 200);
        server.now_ms += 1;
        if ended {
            server.expire();
        }
        for line in ["GET", "HEAD", "DELETE"] {
            let status = server
                .send(&format!("{line} /v1/stream/a"), &[], b"")
                .status;
            assert_eq!(status, 404, "{line}, ended: {ended}");
            let status = server
                .send(&format!("{line} /v1/stream/b"), &[], b"")
                .status;
            assert_eq!(status, 410, "{line}, ended: {ended}");
        }
        assert_eq!(server.send("POST /v1/stream/a", &[TEXT], b"x").status, 404);
        assert_eq!(
            server.send("PUT /v1/stream/b", &[TEXT, at], b"").status,
            409
        );
        assert_eq!(get(&mut server, "f").body, b"xy");
        assert_eq!(server.send("PUT /v1/stream/a", &[JSON], b"[]").status, 201);
    }
}

#[test]
fn a_deleted_stream_stays_for_its_forks_and_its_name_with_it() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"old");
    let from = [("Stream-Forked-From", "/v1/stream/a")];
    assert_eq!(server.send("PUT /v1/stream/f", &from, b"").status, 201);
    assert_eq!(server.send("DELETE /v1/stream/a", &[], b"").status, 204);
    for line in ["GET", "HEAD", "DELETE", "POST"] {
        let said = server.send(&format!("{line} /v1/stream/a"), &[TEXT], b"x");
        assert_eq!((said.status, said.code()), (410, "gone".into()), "{line}");
    }
    let said = server.send("PUT /v1/stream/a", &[TEXT], b"");
    assert_eq!((said.status, said.code()), (409, "name_kept".into()));
    let said = server.send("PUT /v1/stream/g", &from, b"");
    assert_eq!((said.status, said.code()), (409, "source_gone".into()));
    // What is there already can be confirmed all the same.
    assert_eq!(server.send("PUT /v1/stream/f", &from, b"").status, 200);
    assert_eq!(get(&mut server, "f").body, b"old");
    assert_eq!(server.send("DELETE /v1/stream/f", &[], b"").status, 204);
    assert_eq!(server.send("HEAD /v1/stream/a", &[], b"").status, 404);
    assert_eq!(server.send("DELETE /v1/stream/f", &[], b"").status, 404);
    assert_eq!(server.send("PUT /v1/stream/a", &[TEXT], b"").status, 201);
}

#[test]
fn a_new_stream_of_an_old_name_has_nothing_of_it() {
    let mut server = with(TEXT);
    let old = server.send("POST /v1/stream/a", &[TEXT], b"old");
    let tag = get(&mut server, "a").field("ETag").unwrap().to_owned();
    server.send("DELETE /v1/stream/a", &[], b"");
    server.send("PUT /v1/stream/a", &[TEXT], b"new");
    let said = get(&mut server, &format!("a?offset={}", old.token()));
    assert_eq!((said.status, said.code()), (410, "before_start".into()));
    let said = server.send("GET /v1/stream/a", &[("If-None-Match", &tag)], b"");
    assert_eq!((said.status, said.text()), (200, "new"));
    for sub_offset in ["0", "1"] {
        let fork = [
            ("Stream-Forked-From", "a"),
            ("Stream-Fork-Offset", &*old.token()),
            ("Stream-Fork-Sub-Offset", sub_offset),
        ];
        let said = server.send("PUT /v1/stream/f", &fork, b"");
        assert_eq!((said.status, said.code()), (400, "before_start".into()));
    }
}

/// `source` holds `ab`, `cde`, `f`; of JSON messages where the type says so.
fn forkable(content_type: (&str, &str)) -> (Server, Vec<String>) {
    let mut server = Server::default();
    let bodies: [&[u8]; 3] = match content_type == JSON {
        true => [br#"["a","b"]"#, br#"["c", {"d" : [1,2]} ,"e"]"#, br#""f""#],
        false => [b"ab", b"cde", b"f"],
    };
    let mut tokens = Vec::new();
    let line = "PUT /v1/stream/dir/source";
    tokens.push(server.send(line, &[content_type], bodies[0]).token());
    for body in &bodies[1..] {
        let line = "POST /v1/stream/dir/source";
        tokens.push(server.send(line, &[content_type], body).token());
    }
    (server, tokens)
}

#[test]
fn a_fork_begins_where_it_is_told_to() {
    for content_type in [TEXT, JSON] {
        let (mut server, tokens) = forkable(content_type);
        let zero = "0000000000000000_0000000000000000";
        let text = |letters: &str| match content_type == JSON {
            true => {
                let array: Vec<_> = letters
                    .chars()
                    .map(|letter| match letter {
                        'd' => r#"{"d" : [1,2]}"#.to_owned(),
                        letter => format!("\"{letter}\""),
                    })
                    .collect();
                format!("[{}]", array.join(","))
            }
            false => letters.to_owned(),
        };
        let same = |a: &str, b: &str| match content_type == JSON {
            true => {
                let a: serde_json::Value = serde_json::from_str(a).unwrap();
                a == serde_json::from_str::<serde_json::Value>(b).unwrap()
            }
            false => a == b,
        };
        for (number, (at, sub_offset, inherited)) in [
            (None, None, "abcdef"),
            (Some(&*tokens[2]), Some("0"), "abcdef"),
            (Some(&tokens[1]), None, "abcde"),
            (Some(&tokens[1]), Some("1"), "abcdef"),
            (Some(&tokens[0]), Some("0"), "ab"),
            (Some(&tokens[0]), Some("1"), "abc"),
            (Some(&tokens[0]), Some("2"), "abcd"),
            (Some(&tokens[0]), Some("3"), "abcde"),
            (Some("-1"), None, ""),
            (Some("-1"), Some("1"), "a"),
            (Some(zero), Some("2"), "ab"),
            (Some(zero), None, ""),
        ]
        .into_iter()
        .enumerate()
        {
            let mut headers = vec![("Stream-Forked-From", "/v1/stream/dir/source")];
            headers.extend(at.map(|at| ("Stream-Fork-Offset", at)));
            headers.extend(sub_offset.map(|sub| ("Stream-Fork-Sub-Offset", sub)));
            let line = format!("PUT /v1/stream/f{number}");
            let made = server.send(&line, &headers, b"");
            assert_eq!(made.status, 201, "{headers:?}: {}", made.text());
            assert_eq!(made.field("Content-Type"), Some(content_type.1));
            let read = get(&mut server, &format!("f{number}"));
            assert!(
                same(read.text(), &text(inherited)),
                "{headers:?}: {}",
                read.text()
            );
            assert_eq!(read.token(), made.token());
            assert_eq!(server.send(&line, &headers, b"").status, 200, "{headers:?}");
            // What comes to the source stays there, what comes to the fork follows.
            let own = match content_type == JSON {
                true => &br#""g""#[..],
                false => b"g",
            };
            let line = format!("POST /v1/stream/f{number}");
            assert_eq!(server.send(&line, &[content_type], own).status, 204);
            let all = format!("{inherited}g");
            let read = get(&mut server, &format!("f{number}"));
            assert!(
                same(read.text(), &text(&all)),
                "{headers:?}: {}",
                read.text()
            );
            // A reader goes on from where the inheritance ends.
            let rest = get(&mut server, &format!("f{number}?offset={}", made.token()));
            assert!(
                same(rest.text(), &text("g")),
                "{headers:?}: {}",
                rest.text()
            );
        }
        let source = get(&mut server, "dir/source");
        assert!(same(source.text(), &text("abcdef")));
    }
}

#[test]
fn a_fork_can_begin_inside_what_a_fork_inherited() {
    let (mut server, tokens) = forkable(TEXT);
    let first = [
        ("Stream-Forked-From", "dir/source"),
        ("Stream-Fork-Offset", &*tokens[0]),
        ("Stream-Fork-Sub-Offset", "2"),
    ];
    let made = server.send("PUT /v1/stream/f", &first, b"xyz");
    assert_eq!(made.status, 201);
    // From its source's offset: the record that was cut is one of two bytes here.
    for (at, sub_offset, inherited) in [
        (&*tokens[0], "1", "abc"),
        (&tokens[0], "2", "abcd"),
        (&made.token(), "0", "abcdxyz"),
        ("-1", "2", "ab"),
    ] {
        let headers = [
            ("Stream-Forked-From", "f"),
            ("Stream-Fork-Offset", at),
            ("Stream-Fork-Sub-Offset", sub_offset),
        ];
        server.send("DELETE /v1/stream/g", &[], b"");
        let said = server.send("PUT /v1/stream/g", &headers, b"");
        assert_eq!(said.status, 201, "{headers:?}: {}", said.text());
        assert_eq!(get(&mut server, "g").text(), inherited, "{headers:?}");
    }
    // An offset inside a record is one too, once a fork has ended there.
    let inside = [
        ("Stream-Forked-From", "dir/source"),
        ("Stream-Fork-Offset", &*tokens[0]),
        ("Stream-Fork-Sub-Offset", "1"),
    ];
    let inside = server.send("PUT /v1/stream/i", &inside, b"").token();
    for (sub_offset, inherited) in [("0", "abc"), ("1", "abcd"), ("2", "abcde")] {
        let headers = [
            ("Stream-Forked-From", "dir/source"),
            ("Stream-Fork-Offset", &*inside),
            ("Stream-Fork-Sub-Offset", sub_offset),
        ];
        server.send("DELETE /v1/stream/g", &[], b"");
        assert_eq!(server.send("PUT /v1/stream/g", &headers, b"").status, 201);
        assert_eq!(get(&mut server, "g").text(), inherited, "{headers:?}");
    }
    let rest = get(&mut server, &format!("dir/source?offset={inside}"));
    assert_eq!(rest.text(), "def");
    let over = [
        ("Stream-Forked-From", "f"),
        ("Stream-Fork-Offset", &*tokens[0]),
        ("Stream-Fork-Sub-Offset", "3"),
    ];
    let said = server.send("PUT /v1/stream/h", &over, b"");
    assert_eq!((said.status, said.code()), (400, "beyond_record".into()));
}

#[test]
fn forks_are_refused_for_a_reason() {
    let (mut server, tokens) = forkable(TEXT);
    let from = ("Stream-Forked-From", "/v1/stream/dir/source");
    let tail = &*tokens[2];
    let at = |at| ("Stream-Fork-Offset", at);
    let sub = |sub| ("Stream-Fork-Sub-Offset", sub);
    for (headers, status, code) in [
        (
            &[("Stream-Forked-From", "/v1/stream/none")][..],
            404,
            "source_not_found",
        ),
        (&[("Stream-Forked-From", "")], 404, "source_not_found"),
        (
            &[("Stream-Forked-From", "/v1/stream/new")],
            404,
            "source_not_found",
        ),
        (&[("Stream-Forked-From", "%zz")], 400, "bad_field"),
        (&[("Stream-Forked-From", "%ff")], 400, "bad_field"),
        (&[at(tail)], 400, "bad_field"),
        (&[sub("0")], 400, "bad_field"),
        (&[from, at("0")], 400, "bad_field"),
        (&[from, at("now")], 400, "bad_field"),
        (&[from, at("")], 400, "bad_field"),
        (
            &[from, at("00000000000000ff_0000000000000000")],
            400,
            "beyond_tail",
        ),
        (
            &[from, at("ffffffffffffffff_00000000ffffffff")],
            400,
            "beyond_tail",
        ),
        (&[from, sub("1")], 400, "bad_field"),
        (&[from, at(tail), sub("1")], 400, "beyond_record"),
        (&[from, at(&tokens[1]), sub("2")], 400, "beyond_record"),
        (
            &[from, at(&tokens[1]), sub("4294967295")],
            400,
            "beyond_record",
        ),
        (&[from, at(&tokens[1]), sub("4294967296")], 400, "bad_field"),
        (&[from, at(&tokens[1]), sub("-1")], 400, "bad_field"),
        (&[from, at(&tokens[1]), sub("01")], 400, "bad_field"),
        (
            &[from, at("ffffffffffffffff_00000000ffffffff"), sub("1")],
            400,
            "beyond_record",
        ),
        (&[from, JSON], 409, "type_differs"),
        (&[from, ("Stream-TTL", "x")], 400, "bad_field"),
    ] {
        let said = server.send("PUT /v1/stream/new", headers, b"");
        assert_eq!((said.status, &*said.code()), (status, code), "{headers:?}");
    }
    let mut source = "dir/source".to_owned();
    for depth in 1..=4 {
        let line = format!("PUT /v1/stream/d{depth}");
        let said = server.send(&line, &[("Stream-Forked-From", &source)], b"");
        assert_eq!(said.status, 201);
        source = format!("d{depth}");
    }
    let said = server.send("PUT /v1/stream/d5", &[("Stream-Forked-From", &source)], b"");
    assert_eq!((said.status, said.code()), (409, "fork_too_deep".into()));
}

#[test]
fn a_fork_of_a_closed_stream_is_open() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT, CLOSED], b"end");
    let from = ("Stream-Forked-From", "a");
    let made = server.send("PUT /v1/stream/f", &[from], b"");
    assert_eq!((made.status, made.field("Stream-Closed")), (201, None));
    assert_eq!(server.send("POST /v1/stream/f", &[TEXT], b"+").status, 204);
    let read = get(&mut server, "f");
    assert_eq!((read.text(), read.field("Stream-Closed")), ("end+", None));
    let made = server.send("PUT /v1/stream/g", &[from, CLOSED], b"");
    assert_eq!(
        (made.status, made.field("Stream-Closed")),
        (201, Some("true"))
    );
}

/// The table of section 4.2.
#[test]
fn a_forks_lifetime_is_its_own_or_its_sources() {
    let ttl = |seconds| ("Stream-TTL", seconds);
    let until = |at| ("Stream-Expires-At", at);
    let (early, late) = ("2025-01-01T01:00:00Z", "2025-01-01T02:00:00Z");
    for (source, fork, expected) in [
        (None, None, None),
        (None, Some(ttl("5")), Some(ttl("5"))),
        (None, Some(until(late)), Some(until(late))),
        (Some(ttl("9")), None, Some(ttl("9"))),
        (Some(ttl("9")), Some(ttl("5")), Some(ttl("5"))),
        (Some(ttl("9")), Some(until(late)), Some(until(late))),
        (Some(until(early)), None, Some(until(early))),
        (Some(until(early)), Some(ttl("5")), Some(ttl("5"))),
        (Some(until(early)), Some(until(late)), Some(until(late))),
    ] {
        let mut server = Server::default();
        let source: Vec<_> = [TEXT].into_iter().chain(source).collect();
        assert_eq!(server.send("PUT /v1/stream/a", &source, b"").status, 201);
        let from = ("Stream-Forked-From", "a");
        let fork: Vec<_> = [from].into_iter().chain(fork).collect();
        for status in [201, 200] {
            assert_eq!(server.send("PUT /v1/stream/f", &fork, b"").status, status);
        }
        let head = server.send("HEAD /v1/stream/f", &[], b"");
        for field in ["Stream-TTL", "Stream-Expires-At"] {
            let expected = expected.filter(|(name, _)| *name == field);
            assert_eq!(
                head.field(field),
                expected.map(|(_, value)| value),
                "{fork:?}"
            );
        }
    }
}

#[test]
fn reading_says_how_far_it_came() {
    let mut server = with(TEXT);
    let first = server.send("POST /v1/stream/a", &[TEXT], b"one");
    let tail = server.send("POST /v1/stream/a", &[TEXT], b"two");
    for (query, body) in [
        ("", "onetwo"),
        ("?", "onetwo"),
        ("?offset=-1", "onetwo"),
        ("?%6fffset=%2d1&unknown=x", "onetwo"),
        ("?offset=0000000000000000_0000000000000000", "onetwo"),
        (&format!("?offset={}", first.token()), "two"),
        (&format!("?offset={}", tail.token()), ""),
        ("?offset=now", ""),
    ] {
        let said = get(&mut server, &format!("a{query}"));
        assert_eq!((said.status, said.text()), (200, body), "{query}");
        assert_eq!(said.token(), tail.token());
        assert_eq!(said.field("Stream-Up-To-Date"), Some("true"));
        assert_eq!(said.field("Stream-Closed"), None);
        assert_eq!(said.field("Content-Type"), Some("text/plain"));
        assert_eq!(said.field("ETag").is_none(), query == "?offset=now");
    }
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    for query in [
        "?offset=-1",
        "?offset=now",
        &format!("?offset={}", tail.token()),
    ] {
        let said = get(&mut server, &format!("a{query}"));
        assert_eq!(said.field("Stream-Closed"), Some("true"), "{query}");
        assert_eq!(said.token(), tail.token());
    }
}

#[test]
fn reads_are_refused_for_a_reason() {
    let mut server = with(TEXT);
    let beyond = "00000000000000ff_0000000000000000";
    for (query, status, code) in [
        ("offset=", 400, "bad_parameter"),
        ("offset", 400, "bad_parameter"),
        ("offset=0", 400, "bad_parameter"),
        ("offset=-2", 400, "bad_parameter"),
        ("offset=NOW", 400, "bad_parameter"),
        (
            "offset=00000000000000FF_0000000000000000",
            400,
            "bad_parameter",
        ),
        (
            "offset=0000000000000001-0000000000000000",
            400,
            "bad_parameter",
        ),
        (
            "offset=0000000000000001_0000000100000000",
            400,
            "bad_parameter",
        ),
        ("offset=..%2f", 400, "bad_parameter"),
        ("offset=%00", 400, "bad_parameter"),
        ("offset=%", 400, "bad_parameter"),
        ("offset=%ff", 400, "bad_parameter"),
        ("offset=-1&offset=-1", 400, "bad_parameter"),
        ("live=sse", 400, "bad_parameter"),
        ("live=long-poll", 400, "bad_parameter"),
        ("offset=-1&live=", 400, "bad_parameter"),
        ("offset=-1&live=SSE", 400, "bad_parameter"),
        (&format!("offset={beyond}"), 400, "beyond_tail"),
        (&format!("offset={beyond}&live=sse"), 400, "beyond_tail"),
        (
            &format!("offset={beyond}&live=long-poll"),
            400,
            "beyond_tail",
        ),
        (
            "offset=ffffffffffffffff_00000000ffffffff",
            400,
            "beyond_tail",
        ),
    ] {
        let said = get(&mut server, &format!("a?{query}"));
        assert_eq!((said.status, &*said.code()), (status, code), "{query}");
    }
    assert_eq!(get(&mut server, "b?offset=-1&live=sse").status, 404);
}

#[test]
fn who_has_it_already_is_not_sent_it_again() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"one");
    let whole = get(&mut server, "a");
    let tag = whole.field("ETag").unwrap().to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2);
    let weak = format!("W/{tag}");
    let list = format!("\"x\", W/\"y,z\",{tag} , \"w\"");
    let unquoted = tag.trim_matches('"').to_owned();
    let other = tag.replace(':', ";");
    let twice = [("If-None-Match", "\"x\""), ("if-none-match", &*tag)];
    for (headers, status) in [
        (&[("If-None-Match", &*tag)][..], 304),
        (&[("If-None-Match", &weak)], 304),
        (&[("If-None-Match", &list)], 304),
        (&[("If-None-Match", "*")], 304),
        (&twice, 304),
        (&[("If-None-Match", &unquoted)], 200),
        (&[("If-None-Match", &other)], 200),
        (&[("If-None-Match", "")], 200),
        (&[("If-None-Match", ",")], 200),
        (&[("If-Match", &tag)], 200),
    ] {
        let said = server.send("GET /v1/stream/a", headers, b"");
        assert_eq!(said.status, status, "{headers:?}");
        // What a cache would have been told of a 200 it is told of a 304.
        let told = [
            "ETag",
            "Stream-Next-Offset",
            "Stream-Up-To-Date",
            "Cache-Control",
        ];
        for field in told {
            assert_eq!(said.field(field), whole.field(field), "{field}");
        }
        assert_eq!(said.body.is_empty(), status == 304);
    }
    let if_none = [("If-None-Match", &*tag)];
    let said = server.send("GET /v1/stream/a?offset=now", &if_none, b"");
    assert_eq!(said.status, 200, "what is now has no tag");
    // Being closed is news, and so is data.
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = server.send("GET /v1/stream/a", &if_none, b"");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (200, Some("true"))
    );
    assert_ne!(said.field("ETag"), Some(&*tag));
    let closed = [("If-None-Match", said.field("ETag").unwrap())];
    let said = server.send("GET /v1/stream/a", &closed, b"");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (304, Some("true"))
    );
    // A tag is of one range of one stream.
    let mut server = with(TEXT);
    let first = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    server.send("POST /v1/stream/a", &[TEXT], b"two");
    server.send("PUT /v1/stream/f", &[("Stream-Forked-From", "a")], b"");
    let targets = ["a".to_owned(), format!("a?offset={first}"), "f".to_owned()];
    let tags = targets.map(|target| get(&mut server, &target).field("ETag").unwrap().to_owned());
    assert!(
        tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2],
        "{tags:?}"
    );
}

#[test]
fn answers_in_parts_are_the_same_as_whole_ones() {
    for content_type in [TEXT, JSON] {
        let mut settings = encke_face::Settings::default();
        settings.durable_streams.page_bytes = 1;
        let mut small = Server::new(settings);
        let mut whole = Server::default();
        for number in 0..9 {
            let body = match number {
                0 => String::new(),
                number => format!("[{number}, \"{number}\"]"),
            };
            let verb = if number == 0 { "PUT" } else { "POST" };
            for server in [&mut small, &mut whole] {
                server.send(
                    &format!("{verb} /v1/stream/a"),
                    &[content_type],
                    body.as_bytes(),
                );
            }
        }
        let fork = [
            ("Stream-Forked-From", "a"),
            ("Stream-Fork-Offset", &*format!("{:016x}_{:016x}", 4, 1)),
        ];
        for target in ["a", "a?offset=now", "f", "g"] {
            for server in [&mut small, &mut whole] {
                // Two records without data before the first that has some.
                server.send("PUT /v1/stream/b", &[content_type], b"");
                server.send("PUT /v1/stream/g", &[("Stream-Forked-From", "b")], b"");
                server.send("POST /v1/stream/g", &[content_type], b"[\"own\"]");
                server.send("PUT /v1/stream/f", &fork, b"");
                server.send("POST /v1/stream/f", &[content_type], b"[\"own\"]");
                server.send("POST /v1/stream/f", &[CLOSED], b"");
            }
            let (parts, one) = (get(&mut small, target), get(&mut whole, target));
            assert_eq!(parts.text(), one.text(), "{target}");
            assert_eq!(parts.fields, one.fields);
            assert_eq!(one.parts, 1);
            assert!(parts.parts > 2 || target.ends_with("now"), "{target}");
            if content_type == JSON {
                serde_json::from_slice::<Vec<serde_json::Value>>(&parts.body).unwrap();
            }
        }
    }
}

#[test]
fn a_long_poll_is_answered_at_once_when_there_is_something_to_say() {
    let mut server = with(TEXT);
    let tail = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let said = get(&mut server, "a?offset=-1&live=long-poll");
    assert_eq!((said.status, said.text()), (200, "one"));
    assert_eq!(said.field("Stream-Cursor"), Some(&*NOW_CURSOR.to_string()));
    assert_eq!(said.field("Stream-Up-To-Date"), Some("true"));
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = get(&mut server, "a?offset=-1&live=long-poll");
    assert_eq!(
        (said.text(), said.field("Stream-Closed")),
        ("one", Some("true"))
    );
    assert_eq!(said.field("Stream-Cursor"), None);
    let said = get(&mut server, &format!("a?offset={tail}&live=long-poll"));
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (204, Some("true"))
    );
    assert_eq!(said.field("Stream-Up-To-Date"), Some("true"));
    assert_eq!((said.token(), said.body.len()), (tail, 0));
}

#[test]
fn a_long_poll_waits_for_data_an_end_or_its_time() {
    let poll = |server: &mut Server, query: &str| match server.reply(
        &format!("GET /v1/stream/{query}"),
        &[],
        b"",
    ) {
        Reply::Polls(poll) => poll,
        _ => panic!("it does not wait"),
    };
    let mut server = with(TEXT);
    let tail = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let waiting = poll(&mut server, "a?offset=now&live=long-poll");
    assert_eq!(waiting.until_ms, NOW_MS + 20_000);
    assert_eq!(waiting.from.to_string(), tail);
    let over = said(server.faces.timed_out(waiting.then, NOW_MS + 20_000));
    assert_eq!((over.status, over.token()), (204, tail.clone()));
    assert_eq!(over.field("Stream-Up-To-Date"), Some("true"));
    assert_eq!(over.field("Stream-Closed"), None);
    assert_eq!(
        over.field("Stream-Cursor"),
        Some(&*(NOW_CURSOR + 1).to_string())
    );

    let waiting = poll(&mut server, &format!("a?offset={tail}&live=long-poll"));
    let new = server.send("POST /v1/stream/a", &[TEXT], b"two").token();
    let said_now = server.polled(waiting);
    assert_eq!((said_now.status, said_now.text()), (200, "two"));
    assert_eq!(
        (said_now.token(), said_now.field("Stream-Up-To-Date")),
        (new.clone(), Some("true"))
    );

    let waiting = poll(&mut server, &format!("a?offset={new}&live=long-poll"));
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let closed = server.polled(waiting);
    assert_eq!(
        (closed.status, closed.field("Stream-Closed")),
        (204, Some("true"))
    );
    assert_eq!(closed.field("Stream-Cursor"), None);

    let mut server = with(TEXT);
    let waiting = poll(&mut server, "a?offset=now&live=long-poll");
    server.send("DELETE /v1/stream/a", &[], b"");
    assert_eq!(said(server.faces.ended(waiting.then)).status, 404);
    let mut server = with(TEXT);
    server.send("PUT /v1/stream/f", &[("Stream-Forked-From", "a")], b"");
    let waiting = poll(&mut server, "a?offset=now&live=long-poll");
    server.send("DELETE /v1/stream/a", &[], b"");
    assert_eq!(said(server.faces.ended(waiting.then)).status, 410);
}

#[test]
fn a_long_poll_on_a_fork_waits_for_the_forks_own() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"one");
    let made = server.send("PUT /v1/stream/f", &[("Stream-Forked-From", "a")], b"");
    server.send("POST /v1/stream/a", &[TEXT], b"two");
    let said = get(&mut server, "f?offset=-1&live=long-poll");
    assert_eq!((said.text(), said.token()), ("one", made.token()));
    let line = format!("GET /v1/stream/f?offset={}&live=long-poll", made.token());
    assert!(matches!(server.reply(&line, &[], b""), Reply::Polls(_)));
}

#[test]
fn cursors_go_on_from_what_was_brought() {
    let mut server = with(TEXT);
    server.send("POST /v1/stream/a", &[TEXT], b"one");
    let mut ask = |cursor: &str| {
        let said = get(
            &mut server,
            &format!("a?offset=-1&live=long-poll&cursor={cursor}"),
        );
        said.field("Stream-Cursor").unwrap().parse::<u64>().unwrap()
    };
    for old in [
        "0",
        "5",
        "",
        "x",
        "-7",
        &(NOW_CURSOR - 1).to_string(),
        "99999999999999999999",
    ] {
        assert_eq!(ask(old), NOW_CURSOR, "{old:?}");
    }
    let mut last = NOW_CURSOR;
    for _ in 0..50 {
        let next = ask(&last.to_string());
        assert!(last < next && next <= last + 180);
        last = next;
    }
    // Two with the same cursor go on with the same one.
    assert_eq!(ask("9999999999"), ask("9999999999"));
}

#[test]
fn following_says_where_one_is_first_when_there_is_nothing_to_read() {
    let mut server = with(TEXT);
    let subscribe = |server: &mut Server, query: &str| match server.reply(
        &format!("GET /v1/stream/a?live=sse&{query}"),
        &[],
        b"",
    ) {
        Reply::Subscribed(said, subscribe) => (said, subscribe),
        _ => panic!("it does not subscribe"),
    };
    let (said, subscribed) = subscribe(&mut server, "offset=now");
    assert_eq!((said.status, said.open), (200, true));
    assert_eq!(said.field("Content-Type"), Some("text/event-stream"));
    assert_eq!(said.field("Stream-SSE-Data-Encoding"), None);
    let tail = server.send("HEAD /v1/stream/a", &[], b"").token();
    let control = format!(
        "event: control\ndata:{{\"streamNextOffset\":\"{tail}\",\"streamCursor\":\"{NOW_CURSOR}\",\
         \"upToDate\":true}}\n\n"
    );
    assert_eq!(said.text(), control);
    assert_eq!(subscribed.from.to_string(), tail);
    // Whether there is something behind the beginning, the log must say.
    let (said, subscribed) = subscribe(&mut server, "offset=-1");
    assert_eq!(said.text(), "");
    assert_eq!(server.follow(&subscribed).0, control.as_bytes());

    let new = server.send("POST /v1/stream/a", &[TEXT], b"one").token();
    let (said, subscribed) = subscribe(&mut server, "offset=-1");
    assert_eq!(said.text(), "", "the data says where it ends");
    let (sent, marks) = server.follow(&subscribed);
    let sent = String::from_utf8(sent).unwrap();
    assert!(
        sent.starts_with("event: data\ndata:one\n\nevent: control\ndata:{"),
        "{sent}"
    );
    assert_eq!(marks.last().unwrap().at.to_string(), new);

    let ahead = NOW_CURSOR + 1000;
    let (said, _) = subscribe(&mut server, &format!("offset=now&cursor={ahead}"));
    let cursor = said.text().split("streamCursor\":\"").nth(1).unwrap();
    let cursor: u64 = cursor.split('"').next().unwrap().parse().unwrap();
    assert!(cursor > ahead);

    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = get(&mut server, "a?offset=now&live=sse");
    assert!(said.open, "it is closed behind the word that the stream is");
    let control = format!(
        "event: control\ndata:{{\"streamNextOffset\":\"{new}\",\"upToDate\":true,\
         \"streamClosed\":true}}\n\n"
    );
    assert_eq!(said.text(), control);

    let mut server = with(("Content-Type", "image/png"));
    let (said, _) = subscribe(&mut server, "offset=-1");
    assert_eq!(said.field("stream-sse-data-encoding"), Some("base64"));
}

#[test]
fn head_tells_everything_but_the_data() {
    let mut server = Server::default();
    let headers = [
        ("Content-Type", "Text/X; a=b"),
        ("Stream-TTL", "60"),
        CLOSED,
    ];
    let tail = server.send("PUT /v1/stream/a", &headers, b"data").token();
    let said = server.send("HEAD /v1/stream/a?offset=nonsense", &[], b"");
    assert_eq!((said.status, said.token(), said.body.len()), (200, tail, 0));
    assert_eq!(said.field("Content-Type"), Some("Text/X; a=b"));
    assert_eq!(said.field("Stream-TTL"), Some("60"));
    assert_eq!(said.field("Stream-Closed"), Some("true"));
    assert_eq!(said.field("Cache-Control"), Some("no-store"));
    assert_eq!(said.field("Stream-Expires-At"), None);
}

#[test]
fn names_are_what_the_path_decodes_to() {
    let mut server = Server::default();
    let long = "x".repeat(1025);
    for (name, status, code) in [
        ("", 400, "bad_path"),
        ("%", 400, "bad_path"),
        ("%2", 400, "bad_path"),
        ("%zz", 400, "bad_path"),
        ("%ff", 400, "bad_path"),
        ("%00", 400, "bad_path"),
        ("a%0d%0aSet-Cookie:b", 400, "bad_path"),
        ("%c2%85", 400, "bad_path"),
        (".", 400, "bad_path"),
        ("a/../b", 400, "bad_path"),
        ("%2e%2e/b", 400, "bad_path"),
        ("..%2fb", 400, "bad_path"),
        ("a/.", 400, "bad_path"),
        (&long, 400, "bad_path"),
        ("__ds", 501, "not_implemented"),
        ("__ds/subscriptions/x", 501, "not_implemented"),
        ("%5f_ds/x", 501, "not_implemented"),
    ] {
        for line in ["PUT", "GET", "HEAD", "POST", "DELETE"] {
            let said = server.send(&format!("{line} /v1/stream/{name}"), &[TEXT], b"x");
            assert_eq!(
                (said.status, &*said.code()),
                (status, code),
                "{line} {name}"
            );
        }
    }
    let long = "x".repeat(1024);
    for (name, same) in [
        ("a/b", "a%2Fb"),
        ("ä", "%c3%a4"),
        ("a+b", "a%2bb"),
        ("%2520", "%252%30"),
        ("...", "%2e.%2e"),
        ("/", "%2f"),
        ("__dsx", "_%5fdsx"),
        ("a b?c#d", "a%20b%3fc%23d"),
        (&*long, &*long),
    ] {
        let name = name.replace('?', "%3f");
        assert_eq!(
            server
                .send(&format!("PUT /v1/stream/{name}"), &[TEXT], b"")
                .status,
            201
        );
        assert_eq!(
            server
                .send(&format!("PUT /v1/stream/{same}"), &[TEXT], b"")
                .status,
            200
        );
    }
}

#[test]
fn other_methods_are_told_which_there_are() {
    let mut server = with(TEXT);
    for method in ["PATCH", "get", "", "TRACE", "\"\\"] {
        let said = server.send(&format!("{method} /v1/stream/a"), &[], b"");
        assert_eq!(
            (said.status, said.code()),
            (405, "method_not_allowed".into())
        );
        assert_eq!(
            said.field("Allow"),
            Some("GET, HEAD, PUT, POST, DELETE, OPTIONS")
        );
    }
    let said = server.send(
        "OPTIONS /v1/stream/any/where",
        &[("Origin", "https://x")],
        b"",
    );
    assert_eq!((said.status, said.body.len()), (204, 0));
    let allowed = said.field("Access-Control-Allow-Headers").unwrap();
    for field in [
        "Content-Type",
        "Stream-Seq",
        "Producer-Id",
        "If-None-Match",
        "Stream-Closed",
    ] {
        assert!(allowed.contains(field), "{field}");
    }
    let methods = said.field("Access-Control-Allow-Methods").unwrap();
    assert!(methods.contains("PUT") && methods.contains("DELETE"));
    let exposed = said.field("Access-Control-Expose-Headers").unwrap();
    for field in [
        "Stream-Next-Offset",
        "Stream-Cursor",
        "ETag",
        "Producer-Expected-Seq",
    ] {
        assert!(exposed.contains(field), "{field}");
    }
}

#[test]
fn nothing_that_is_sent_becomes_a_field_of_its_own() {
    let mut server = Server::default();
    let evil = "x\r\nSet-Cookie: a=b";
    // The server's parser lets none of these through; this face does not rely on it. That no field
    // is made is seen where the answer is taken apart.
    let said = server.send("PUT /v1/stream/a", &[("Host", evil)], b"");
    assert_eq!(said.field("Location"), Some("http://x"));
    assert_eq!(said.field("Set-Cookie"), None);
    let said = server.send("PUT /v1/stream/b", &[("Content-Type", evil)], b"");
    assert_eq!((said.status, said.code()), (400, "bad_field".into()));
    for (name, value) in producer("0", "0") {
        let mut headers = producer("0", "0").to_vec();
        headers.retain(|(field, _)| *field != name);
        let value = format!("{value}{}", &evil[1..]);
        headers.push((name, &value));
        let said = server.send("POST /v1/stream/a", &headers, b"x");
        assert!(said.status >= 400, "{name}");
    }
    let headers = [
        ("Content-Type", "application/octet-stream"),
        ("Stream-Seq", evil),
    ];
    server.send("POST /v1/stream/a", &headers, b"x");
    let said = server.send("POST /v1/stream/a", &headers, b"x");
    assert_eq!((said.status, said.code()), (409, "stream_seq".into()));
}

#[test]
fn json_is_kept_as_it_was_written() {
    for (body, read) in [
        (r#" {"a":1} "#, r#"[{"a":1}]"#),
        ("\t[ 1 ,\r\n 2 ]\n", "[1 ,\r\n 2]"),
        ("[[1,2],[3]]", "[[1,2],[3]]"),
        ("[[[1,2]]]", "[[[1,2]]]"),
        ("[[]]", "[[]]"),
        ("[{}]", "[{}]"),
        (r#"{"a":1,"a":2}"#, r#"[{"a":1,"a":2}]"#),
        (
            "123456789012345678901234567890.10",
            "[123456789012345678901234567890.10]",
        ),
        ("[1e999, -0, -0.0e-9]", "[1e999, -0, -0.0e-9]"),
        (r#""\u0000\ud800\/""#, r#"["\u0000\ud800\/"]"#),
        (r#""ä€😀""#, r#"["ä€😀"]"#),
        (r#"["]", "[", ","]"#, r#"["]", "[", ","]"#),
        ("null", "[null]"),
        ("[true,false,null]", "[true,false,null]"),
    ] {
        let mut server = with(JSON);
        let said = server.send("POST /v1/stream/a", &[JSON], body.as_bytes());
        assert_eq!(said.status, 204, "{body}: {}", said.text());
        assert_eq!(get(&mut server, "a").text(), read);
        let mut server = Server::default();
        assert_eq!(
            server
                .send("PUT /v1/stream/a", &[JSON], body.as_bytes())
                .status,
            201
        );
        assert_eq!(get(&mut server, "a").text(), read);
    }
}

#[test]
fn what_is_no_json_is_refused() {
    let mut server = with(JSON);
    let bad: [&[u8]; 33] = [
        b" ",
        b"{",
        b"[",
        b"]",
        b"}",
        b"[1,]",
        b"[,1]",
        b"{\"a\":1,}",
        b"{a:1}",
        b"'a'",
        b"1 2",
        b"[1][2]",
        b"nul",
        b"True",
        b"NaN",
        b"Infinity",
        b"-",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"\"\n\"",
        b"\"\0\"",
        b"\0",
        b"1\0",
        b"\"\\x\"",
        b"\"\\u12\"",
        b"\"\xff\"",
        b"[\"\xc3\"]",
        b"\xef\xbb\xbf1",
        b"\x0c1",
        b"\xc2\xa01",
    ];
    for body in bad {
        let text = String::from_utf8_lossy(body);
        let said = server.send("POST /v1/stream/a", &[JSON], body);
        assert_eq!(
            (said.status, said.code()),
            (400, "bad_json".into()),
            "{text:?}"
        );
        let said = server.send("PUT /v1/stream/b", &[JSON], body);
        assert_eq!(
            (said.status, said.code()),
            (400, "bad_json".into()),
            "{text:?}"
        );
    }
    for empty in ["[]", " [ \n] "] {
        let said = server.send("POST /v1/stream/a", &[JSON], empty.as_bytes());
        assert_eq!((said.status, said.code()), (400, "empty_array".into()));
        let said = server.send("PUT /v1/stream/a", &[JSON], empty.as_bytes());
        assert_eq!(said.status, 200, "an empty stream is what it is");
    }
    assert_eq!(get(&mut server, "a").text(), "[]");
    // Depth costs no stack: neither well-formed nor not.
    let deep = "[".repeat(200_000);
    let said = server.send("POST /v1/stream/a", &[JSON], deep.as_bytes());
    assert_eq!((said.status, said.code()), (400, "bad_json".into()));
    let deep = deep + &"]".repeat(200_000);
    assert_eq!(
        server
            .send("POST /v1/stream/a", &[JSON], deep.as_bytes())
            .status,
        204
    );
    assert_eq!(get(&mut server, "a").body, deep.as_bytes());
    // For other types it is just bytes.
    let mut server = with(TEXT);
    assert_eq!(server.send("POST /v1/stream/a", &[TEXT], b"[").status, 204);
}

#[test]
fn failures_say_whether_to_come_back() {
    let mut server = with(TEXT);
    for (failure, status, again) in [
        (Failure::Overloaded, 503, true),
        (Failure::Unreadable, 500, false),
        (Failure::Stopping, 503, true),
    ] {
        let line = "GET /v1/stream/a?offset=now&live=long-poll";
        let Reply::Polls(poll) = server.reply(line, &[], b"") else {
            panic!("it does not wait")
        };
        let failed = said(server.faces.failed(poll.then, failure));
        assert_eq!(failed.status, status);
        assert_eq!(failed.field("Retry-After").is_some(), again, "{failure:?}");
        assert!(!failed.code().is_empty());
    }
}

#[test]
fn operators_have_paths_of_their_own() {
    let mut server = Server::default();
    for (line, status) in [
        ("GET /", 200),
        ("GET /healthz", 200),
        ("HEAD /readyz", 200),
        ("GET /metrics", 200),
        ("GET /v1/stream", 404),
        ("GET /v1/streams/x", 404),
        ("PUT /x", 404),
        ("POST /healthz", 405),
    ] {
        let said = server.send(line, &[], b"");
        assert_eq!(said.status, status, "{line}");
        assert_eq!(said.field("Cache-Control"), Some("no-store"), "{line}");
        assert_eq!(said.field("Allow").is_some(), status == 405);
    }
}
