//! Streams of JSON messages (section 9.1).

use crate::server::Server;
use crate::{JSON, TEXT, get, with};

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
    // Depth costs no stack, and clients get no message that common parsers refuse.
    let deep = "[".repeat(200_000);
    let whole = deep.clone() + &"]".repeat(200_000);
    for deep in [deep, whole] {
        let said = server.send("POST /v1/stream/a", &[JSON], deep.as_bytes());
        assert_eq!((said.status, said.code()), (400, "bad_json".into()));
    }
    let deep = "[".repeat(128) + &"]".repeat(128);
    let said = server.send("POST /v1/stream/a", &[JSON], deep.as_bytes());
    assert_eq!(said.status, 204);
    assert_eq!(get(&mut server, "a").body, deep.as_bytes());
    // For other types it is just bytes.
    let mut server = with(TEXT);
    assert_eq!(server.send("POST /v1/stream/a", &[TEXT], b"[").status, 204);
}
