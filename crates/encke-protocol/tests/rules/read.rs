//! Catch-up reads and metadata (sections 5.5, 5.6, 8 and 10).

use crate::server::Server;
use crate::{CLOSED, JSON, TEXT, get, with};

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
fn a_client_that_has_the_data_already_does_not_get_it_again() {
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
            "Vary",
            "Stream-Next-Offset",
            "Stream-Up-To-Date",
            "Cache-Control",
        ];
        for field in told {
            assert_eq!(said.field(field), whole.field(field), "{field}");
        }
        // The tag has the form in which the client has it.
        let said_tag = said.field("ETag").unwrap();
        assert_eq!(said_tag.strip_prefix("W/").unwrap_or(said_tag), tag);
        if headers[0].1 == weak {
            assert_eq!(said_tag, weak);
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
        let mut settings = encke_protocol::ProtocolSettings::default();
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
fn each_part_of_a_long_answer_is_twice_as_large_as_the_one_before() {
    for (first, page, parts) in [(1, 16, 7), (4, 4, 16), (64, 16, 4), (1, 1 << 20, 6)] {
        let mut settings = encke_protocol::ProtocolSettings::default();
        settings.durable_streams.first_page_bytes = first << 10;
        settings.durable_streams.page_bytes = page << 10;
        let mut server = Server::new(settings);
        server.send("PUT /v1/stream/a", &[TEXT], b"");
        for _ in 0..61 {
            server.send("POST /v1/stream/a", &[TEXT], &[b'x'; 1 << 10]);
        }
        let said = get(&mut server, "a");
        assert_eq!(said.body.len(), 61 << 10);
        assert_eq!(said.parts, parts, "{first} KiB first, then up to {page}");
    }
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
