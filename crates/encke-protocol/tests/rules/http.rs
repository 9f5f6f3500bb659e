//! Names, methods, fields: what is between the protocol and HTTP (sections 3, 6 and 12).

use crate::server::Server;
use crate::{TEXT, producer, with};

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
        ("/", 400, "bad_path"),
        ("%2f", 400, "bad_path"),
        ("a/", 400, "bad_path"),
        ("a//b", 400, "bad_path"),
        ("a%2f/b", 400, "bad_path"),
        (&long, 400, "bad_path"),
        ("__ds", 404, "SUBSCRIPTION_NOT_FOUND"),
        ("__ds/x", 404, "SUBSCRIPTION_NOT_FOUND"),
        ("%5f_ds/x", 404, "SUBSCRIPTION_NOT_FOUND"),
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
fn other_methods_get_the_allowed_ones() {
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
    let allowed = said
        .field("Access-Control-Allow-Headers")
        .unwrap()
        .to_owned();
    for field in [
        "Content-Type",
        "Stream-Seq",
        "Producer-Id",
        "If-None-Match",
        "Stream-Closed",
    ] {
        assert!(allowed.contains(field), "{field}");
    }
    // What clients and tracing libraries add, and nothing that a proxy would say of a client.
    let requested = "cache-control,pragma, Baggage,sentry-trace,x-datadog-trace-id,stream-seq,\
                     x-forwarded-for,Forwarded,X_Forwarded_For,X-Real-IP,encke-ackk,*,a b,bad\u{e9}";
    let further = [
        ("Access-Control-Request-Headers", requested),
        ("Origin", "https://x"),
    ];
    let said = server.send("OPTIONS /v1/stream/any/where", &further, b"");
    let with_them = said.field("Access-Control-Allow-Headers").unwrap();
    assert_eq!(
        with_them.strip_prefix(&allowed),
        Some(", cache-control, pragma, Baggage, sentry-trace, x-datadog-trace-id")
    );
    let many: Vec<String> = (0..200).map(|number| format!("x-{number}")).collect();
    let many = many.join(",");
    let said = server.send(
        "OPTIONS /",
        &[("Access-Control-Request-Headers", &many)],
        b"",
    );
    let with_them = said.field("Access-Control-Allow-Headers").unwrap();
    assert!(with_them.ends_with(", x-99"), "{with_them}");
    let methods = said.field("Access-Control-Allow-Methods").unwrap();
    assert!(methods.contains("PATCH"), "{methods}");
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
    // The server's parser lets none of these through; the protocol does not rely on it. That no field
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
fn operators_have_paths_of_their_own() {
    let mut server = Server::default();
    for (line, status) in [
        ("GET /", 200),
        ("GET /healthz", 200),
        ("HEAD /readyz", 200),
        ("GET /metrics", 200),
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

#[test]
fn a_body_that_is_not_the_content_itself_is_stored_nowhere() {
    let mut server = with(TEXT);
    let made = server.send("PUT /v1/pool/p", &[], br#"{"type":"claim"}"#);
    assert_eq!(made.status, 201);
    let tail = server.send("HEAD /v1/stream/a", &[], b"").next();
    let lines = [
        "POST /v1/stream/a",
        "PUT /v1/stream/b",
        "PUT /v1/stream/a",
        "PUT /v1/pool/q",
        "POST /v1/pool/p",
        "POST /v1/pool/p/job/1/ack?attempt=1",
        "POST /v1/pool/p/job/1/refuse?attempt=1",
        "POST /v1/admin/revoke",
    ];
    for (field, status, code) in [
        (("Content-Encoding", "gzip"), 415, "content_coding"),
        (("content-encoding", "BR"), 415, "content_coding"),
        (
            ("Content-Encoding", "identity, zstd"),
            415,
            "content_coding",
        ),
        (("Content-Encoding", "aws-chunked"), 415, "content_coding"),
        (("Content-Range", "bytes 0-1/2"), 400, "content_range"),
    ] {
        for line in lines {
            let said = server.send(line, &[TEXT, field], b"\x1f\x8b");
            assert_eq!(
                (said.status, &*said.code()),
                (status, code),
                "{line} {field:?}"
            );
            let acceptable = (status == 415).then_some("identity");
            assert_eq!(
                said.field("Accept-Encoding"),
                acceptable,
                "{line} {field:?}"
            );
            // The same before the body has come.
            let (method, path) = line.split_once(' ').unwrap();
            let path = path.split('?').next().unwrap();
            let refused = server.head(method, path, &[TEXT, field]);
            assert_eq!(
                refused.map(|refused| refused.status),
                Some(status),
                "{line}"
            );
        }
        // Without a body there is nothing that could be in a coding.
        assert_eq!(server.send("HEAD /v1/stream/a", &[field], b"").next(), tail);
        assert_eq!(server.send("GET /v1/stream/b", &[field], b"").status, 404);
    }
    for field in [("Content-Encoding", "identity"), ("Content-Encoding", "")] {
        assert!(
            server
                .head("POST", "/v1/stream/a", &[TEXT, field])
                .is_none()
        );
        let said = server.send("POST /v1/stream/a", &[TEXT, field], b"x");
        assert_eq!(said.status, 204, "{field:?}");
    }
    let read = server.send("GET /v1/stream/a", &[], b"");
    assert_eq!(read.text(), "xx");
}

#[test]
fn in_a_fleet_only_what_would_be_answered_waits_for_the_order() {
    let mut server = Server::new(encke_protocol::ProtocolSettings {
        in_fleet: true,
        ..Default::default()
    });
    let mut waits = |line: &str, headers: &[(&str, &str)], body: &[u8]| {
        let before = server.waited;
        let said = server.send(line, headers, body);
        (said.status, server.waited - before)
    };
    // A change is decided in the order.
    assert_eq!(waits("PUT /v1/stream/a", &[TEXT], b""), (201, 0));
    assert_eq!(waits("POST /v1/stream/a", &[TEXT], b"x"), (204, 0));
    let source = ("Stream-Forked-From", "/v1/stream/a");
    assert_eq!(waits("PUT /v1/stream/b", &[TEXT, source], b""), (201, 1));
    // This node may not have what others have acknowledged.
    assert_eq!(waits("GET /v1/stream/a", &[], b""), (200, 1));
    assert_eq!(waits("HEAD /v1/stream/a", &[], b""), (200, 1));
    assert_eq!(waits("POST /v1/stream/none", &[TEXT], b"x"), (404, 1));
    assert_eq!(waits("GET /v1/stream/none", &[], b""), (404, 1));
    let both = "HEAD /v1/events?stream=a&stream=b";
    assert_eq!(waits(both, &[], b""), (200, 1));
    // What is wrong is wrong at every node.
    assert_eq!(waits("GET /v1/stream/a/../b", &[], b""), (400, 0));
    assert_eq!(waits("PATCH /v1/stream/a", &[], b""), (405, 0));
    assert_eq!(waits("POST /v1/events?stream=a", &[], b""), (405, 0));
    assert_eq!(
        waits("GET /v1/events?stream=a&stream=.", &[], b""),
        (400, 0)
    );
    assert_eq!(waits("GET /v1/events", &[], b""), (400, 0));
    server.caller.operator = true;
    assert_eq!(server.send("GET /v1/events?stream=a", &[], b"").status, 404);
    assert_eq!(server.waited, 6, "as before");
    assert_eq!(server.send("GET /v1/stream/a", &[], b"").status, 200);
    assert_eq!(server.waited, 7, "operators read what any client reads");
}
