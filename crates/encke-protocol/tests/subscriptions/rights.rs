//! What grants allow.

use serde_json::json;

use crate::server::Server;
use crate::{JSON, SUBSCRIPTIONS, outcome, pull, refused, send_as, webhook};

#[test]
fn each_request_needs_its_own_right_at_the_subscription() {
    let below = format!("{SUBSCRIPTIONS}/x");
    let grants: Vec<(&str, &str, &str)> = ["create", "read", "delete", "work", "append", "list"]
        .map(|action| (action, action, &*below))
        .into_iter()
        .chain([
            ("create", "read,append", "/v1/stream/a/**"),
            (
                "other",
                "create,read,delete,work",
                "/v1/stream/__ds/subscriptions/y",
            ),
            ("other", "read,append", "/v1/stream/a/**"),
            ("all", "create,read,delete,work,own", "/v1/stream/**"),
        ])
        .collect();
    for (line, content, needed) in [
        ("PUT /x", webhook("a/*"), "create"),
        ("GET /x", json!({}), "read"),
        ("HEAD /x", json!({}), "read"),
        ("POST /x/streams", json!({ "streams": ["a/b"] }), "create"),
        ("DELETE /x/streams/a/b", json!({}), "create"),
        ("POST /x/claim", json!({ "worker": "w" }), "work"),
        ("DELETE /x", json!({}), "delete"),
    ] {
        for name in [
            "create", "read", "delete", "work", "append", "list", "other", "all",
        ] {
            let mut server = Server::guarded(&grants);
            let path = line.split_once(' ').unwrap();
            let head = format!("{SUBSCRIPTIONS}{}", path.1);
            server.call_as(name);
            let by_its_head = server.head(path.0, &head, &[]);
            let said = send_as(&mut server, name, line, &content);
            let has_come = !server.subscriptions.requests.is_empty();
            assert_eq!(has_come, name == needed || name == "all", "{name}: {line}");
            assert_eq!(by_its_head.is_none(), has_come, "{name}: {line}");
            if !has_come {
                // What may not be read is as if it did not exist.
                let expected = match name {
                    "read" => refused(403, "forbidden"),
                    _ => refused(404, "SUBSCRIPTION_NOT_FOUND"),
                };
                assert_eq!(outcome(&said), expected, "{name}: {line}");
            }
        }
        let mut server = Server::guarded(&grants);
        let (method, path) = line.split_once(' ').unwrap();
        let line = format!("{method} {SUBSCRIPTIONS}{path}");
        let said = server.send(&line, &[], b"{}");
        assert_eq!(outcome(&said), refused(401, "no_credentials"), "{line}");
        assert!(server.subscriptions.requests.is_empty());
    }
}

#[test]
fn other_spellings_of_a_path_have_the_same_rights() {
    let mut server = Server::guarded(&[
        (
            "x",
            "create,read,delete,work",
            "/v1/stream/__ds/subscriptions/x",
        ),
        ("x", "read,append", "/v1/stream/a/**"),
        ("alias", "create,read", "/streams/**"),
    ]);
    for path in [
        "/v1/stream/__ds/subscriptions/y",
        "/v1/stream/__ds/subscriptions/%79",
        "/v1/stream/__ds/subscriptions/x%2f",
        "/v1/stream/__ds/subscriptions/x/../y",
        "/v1/stream/__ds/subscriptions/x%2F..%2Fy",
        "/v1/stream/__ds/subscriptions/%2578",
        "/v1/stream/__ds/subscriptions/X",
        "/streams/__ds/subscriptions/y",
        "/streams/%5f_ds%2Fsubscriptions/y",
    ] {
        for method in ["PUT", "GET", "DELETE"] {
            for caller in ["x", "alias"] {
                server.call_as(caller);
                let line = format!("{method} {path}");
                let content = webhook("a/*").to_string();
                let said = server.send(&line, &[JSON], content.as_bytes());
                assert!(matches!(said.status, 400 | 404), "{caller}: {line}");
            }
        }
    }
    // An id does not become a path below another one, nor an action of one.
    for line in ["POST /y/claim", "POST /x%2Fclaim%2Fx", "POST /x/%63laim%2F"] {
        let said = send_as(&mut server, "x", line, &json!({ "worker": "w" }));
        assert!(matches!(said.status, 400 | 404), "{line}");
    }
    assert!(server.subscriptions.requests.is_empty());
    server.call_as("x");
    let content = webhook("a/*").to_string();
    let line = "PUT /streams/__ds/subscriptions/%78";
    let said = server.send(line, &[JSON], content.as_bytes());
    assert_eq!(said.status, 201, "{}", said.text());
}

#[test]
fn the_streams_that_a_subscription_follows_must_be_readable() {
    let create = "/v1/stream/__ds/subscriptions/**";
    let mut server = Server::guarded(&[
        ("a", "create", create),
        ("a", "read", "/v1/stream/a/**"),
        ("a", "append", "/v1/stream/wake"),
        ("one", "create", create),
        ("one", "read", "/v1/stream/a/b"),
        ("one", "append", "/v1/stream/wake"),
        ("level", "create", create),
        ("level", "read", "/v1/stream/a/*"),
        ("streams", "create,read,append", "/v1/stream/**"),
        ("pools", "create,read,append", "/v1/stream/**"),
        ("pools", "read", "/v1/pool/**"),
        ("pool", "create,read,append", "/v1/stream/**"),
        ("pool", "read,append", "/v1/pool/p"),
        ("appender", "create,append", "/v1/stream/**"),
    ]);
    for (name, config, may) in [
        ("a", pull("a/*", &[], "wake"), true),
        ("a", pull("a/**", &[], "wake"), true),
        ("a", pull("/a/**/c/", &["/a/x/"], "wake"), true),
        ("a", pull("a", &[], "wake"), true),
        ("a", pull("*", &[], "wake"), false),
        ("a", pull("**", &[], "wake"), false),
        ("a", pull("*/b", &[], "wake"), false),
        ("a", pull("**/a/b", &[], "wake"), false),
        ("a", pull("b/*", &[], "wake"), false),
        ("a", pull("ab/*", &[], "wake"), false),
        ("a", pull("%2A/b", &[], "wake"), false),
        ("a", pull("a/*", &["b"], "wake"), false),
        ("a", pull("", &["a/b", "ab"], "wake"), false),
        ("a", pull("", &["a%2Fb"], "wake"), false),
        ("a", pull("a/*", &[], "wake2"), false),
        ("a", pull("a/*", &[], "a/wake"), false),
        ("one", pull("a/b", &[], "wake"), true),
        ("one", pull("", &["a/b"], "wake"), true),
        ("one", pull("a/*", &[], "wake"), false),
        ("one", pull("a/b/**", &[], "wake"), false),
        // One grant must cover all that begins with the folder.
        ("level", webhook("a/*"), false),
        ("level", webhook("a/b"), true),
        ("appender", pull("a/*", &[], "wake"), false),
        ("streams", pull("a/**", &[], "wake"), true),
        ("streams", webhook("**"), false),
        ("streams", webhook("*/p/results"), false),
        ("streams", webhook("pool/p/*"), false),
        ("streams", webhook("pool/*/results"), false),
        ("streams", webhook("pool/p/results"), false),
        ("streams", webhook("pool/p/results/**"), false),
        ("streams", pull("", &["pool/p/dead"], "wake"), false),
        ("streams", webhook("pool/p/notes"), true),
        ("pools", webhook("**"), true),
        ("pools", webhook("pool/*/results"), true),
        ("pool", webhook("pool/p/*"), true),
        ("pool", webhook("pool/p/results"), true),
        ("pool", webhook("pool/q/*"), false),
        ("pool", webhook("pool/*/results"), false),
        // Only the server writes to the streams of pools, whoever may append.
        ("pools", pull("a/*", &[], "pool/p/events"), false),
        ("pool", pull("a/*", &[], "pool/p/results"), false),
        ("pool", pull("a/*", &[], "pool/p/notes"), true),
    ] {
        server.subscriptions.requests.clear();
        let said = send_as(&mut server, name, "PUT /s", &config);
        let has_come = !server.subscriptions.requests.is_empty();
        assert_eq!(has_come, may, "{name}: {config}: {}", said.text());
        if !may {
            assert_eq!(said.status, 403, "{name}: {config}");
            assert!(["forbidden", "pool_stream"].contains(&&*said.code()));
        }
        send_as(&mut server, name, "DELETE /s", &json!({}));
    }
    // A webhook may name a wake stream, which means nothing and is refused all the same.
    let mut config = webhook("a/*");
    config["wake_stream"] = "b".into();
    assert_eq!(send_as(&mut server, "a", "PUT /s", &config).status, 403);
    for (name, streams, may) in [
        ("a", json!(["a/b", "/a/c/"]), true),
        ("a", json!(["a/b", "b"]), false),
        ("a", json!(["wake"]), false),
        ("a", json!([]), true),
        ("streams", json!(["pool/p/results"]), false),
        ("pool", json!(["pool/p/results"]), true),
        ("pool", json!(["pool/q/results"]), false),
    ] {
        server.subscriptions.requests.clear();
        let content = json!({ "streams": streams });
        let said = send_as(&mut server, name, "POST /s/streams", &content);
        let has_come = !server.subscriptions.requests.is_empty();
        assert_eq!(has_come, may, "{name}: {streams}: {}", said.text());
        assert_eq!(said.status == 403, !may, "{name}: {streams}");
    }
}

#[test]
fn pages_of_other_sites_change_nothing() {
    let mut server = Server::guarded(&[("x", "create,read,work,delete", "/v1/stream/**")]);
    server.call_as("x");
    for (line, content) in [
        (format!("PUT {SUBSCRIPTIONS}/x"), webhook("a/*")),
        (
            format!("POST {SUBSCRIPTIONS}/x/claim"),
            json!({ "worker": "w" }),
        ),
        (format!("POST {SUBSCRIPTIONS}/x/ack"), json!({})),
        (
            format!("POST {SUBSCRIPTIONS}/x/streams"),
            json!({ "streams": [] }),
        ),
    ] {
        let fields = [
            ("Sec-Fetch-Site", "cross-site"),
            ("Origin", "https://evil.example"),
            ("Authorization", "Bearer t"),
        ];
        let fields = match line.ends_with("/ack") {
            true => &fields[..],
            false => &fields[..2],
        };
        let said = server.send(&line, fields, content.to_string().as_bytes());
        assert_eq!(outcome(&said), refused(403, "origin"), "{line}");
    }
    assert!(server.subscriptions.requests.is_empty());
    // A webhook is called for nobody but those who are granted the subscription.
    let said = send_as(&mut server, "x", "PUT /x", &webhook("a/*"));
    assert_eq!(said.status, 201);
}
