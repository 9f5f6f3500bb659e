//! Forks (section 4.2).

use crate::server::Server;
use crate::{CLOSED, JSON, TEXT, get, with};

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
fn a_fork_begins_at_its_offset() {
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
        (&[("Stream-Forked-From", "")], 400, "bad_field"),
        // A stream of the server itself.
        (
            &[("Stream-Forked-From", "/v1/stream/%01pools")],
            400,
            "bad_field",
        ),
        (
            &[("Stream-Forked-From", "/v1/stream/../pools")],
            400,
            "bad_field",
        ),
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
fn an_offset_of_an_earlier_fork_of_the_name_is_refused() {
    let (mut server, tokens) = forkable(TEXT);
    let fork = |server: &mut Server, at: &str| {
        let fields = [
            ("Stream-Forked-From", "/v1/stream/dir/source"),
            ("Stream-Fork-Offset", at),
        ];
        let made = server.send("PUT /v1/stream/fork", &fields, b"");
        assert_eq!(made.status, 201);
        made.token()
    };
    fork(&mut server, &tokens[1]);
    let old = server.send("POST /v1/stream/fork", &[TEXT], b"old").token();
    server.send("DELETE /v1/stream/fork", &[], b"");
    let begin = fork(&mut server, &tokens[1]);
    for appended in [false, true] {
        let expected = match appended {
            true => {
                server.send("POST /v1/stream/fork", &[TEXT], b"new");
                "new"
            }
            false => "",
        };
        for live in ["", "&live=sse", "&live=long-poll"] {
            let said = get(&mut server, &format!("fork?offset={old}{live}"));
            let expected = match appended {
                true => (410, "before_start"),
                // It has no records of its own yet, and ends where it leaves its source.
                false => (400, "beyond_tail"),
            };
            assert_eq!((said.status, &*said.code()), expected, "{live}");
        }
        assert_eq!(
            get(&mut server, &format!("fork?offset={begin}")).text(),
            expected
        );
        let inherited = get(&mut server, &format!("fork?offset={}", tokens[0]));
        assert_eq!(inherited.text(), format!("cde{expected}"));
    }
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
