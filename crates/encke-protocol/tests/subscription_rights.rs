//! Who may do what with subscriptions: by grants, by signed URLs, by the tokens of wakes, and as far as owners of streams say.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use encke_access::{Access, CanonicalPath, Operation, UrlToSign, api_key};
use encke_protocol::ProtocolSettings;
use encke_stream::Viewer;
use encke_subscriptions::SubscriptionRequest;
use serde_json::{Value, json};
use server::{NOW_MS, Reply, Said, Server};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const ROOT: &str = "/v1/stream/__ds/subscriptions";
const SETTINGS: &[u8] = br#"{"type":"claim"}"#;

fn body(said: &Said) -> Value {
    serde_json::from_slice(&said.body).unwrap_or_else(|_| panic!("{:?}", said.text()))
}

fn outcome(said: &Said) -> (u16, String) {
    match said.status {
        400.. => (said.status, said.code()),
        status => (status, String::new()),
    }
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

/// A request for what is below the subscriptions.
fn send(server: &mut Server, name: &str, line: &str, content: &Value) -> Said {
    server.call_as(name);
    let (method, path) = line.split_once(' ').unwrap();
    let line = format!("{method} {ROOT}{path}");
    server.send(&line, &[JSON], content.to_string().as_bytes())
}

fn pull(pattern: &str, streams: &[&str], wake_stream: &str) -> Value {
    json!({
        "type": "pull-wake", "pattern": pattern, "streams": streams, "wake_stream": wake_stream,
    })
}

fn webhook(pattern: &str) -> Value {
    json!({ "type": "webhook", "pattern": pattern, "webhook": { "url": "https://h.example/" } })
}

#[test]
fn each_request_needs_its_own_right_at_the_subscription() {
    let below = format!("{ROOT}/x");
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
            let head = format!("{ROOT}{}", path.1);
            server.call_as(name);
            let by_its_head = server.head(path.0, &head, &[]);
            let said = send(&mut server, name, line, &content);
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
        let line = format!("{method} {ROOT}{path}");
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
        let said = send(&mut server, "x", line, &json!({ "worker": "w" }));
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
        let said = send(&mut server, name, "PUT /s", &config);
        let has_come = !server.subscriptions.requests.is_empty();
        assert_eq!(has_come, may, "{name}: {config}: {}", said.text());
        if !may {
            assert_eq!(said.status, 403, "{name}: {config}");
            assert!(["forbidden", "pool_stream"].contains(&&*said.code()));
        }
        send(&mut server, name, "DELETE /s", &json!({}));
    }
    // A webhook may name a wake stream, which means nothing and is refused all the same.
    let mut config = webhook("a/*");
    config["wake_stream"] = "b".into();
    assert_eq!(send(&mut server, "a", "PUT /s", &config).status, 403);
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
        let said = send(&mut server, name, "POST /s/streams", &content);
        let has_come = !server.subscriptions.requests.is_empty();
        assert_eq!(has_come, may, "{name}: {streams}: {}", said.text());
        assert_eq!(said.status == 403, !may, "{name}: {streams}");
    }
}

/// Certificates of this name.
fn owner(name: &str) -> Option<Box<str>> {
    Some(format!("Certificate\0{name}\0").into())
}

#[test]
fn a_subscription_sees_what_its_creator_sees() {
    let all = "read,append,create,delete,work";
    let mut server = Server::guarded(&[
        ("ann", all, "/v1/stream/**"),
        ("bob", all, "/v1/stream/**"),
        ("backend", all, "/v1/stream/**"),
        ("backend", "own", "/v1/stream/**"),
        ("part", all, "/v1/stream/**"),
        ("part", "own", "/v1/stream/a/**"),
        ("part", "own", "/v1/stream/wake"),
    ]);
    let own = [JSON, ("Encke-Owner", "self")];
    server.call_as("ann");
    server.send("PUT /v1/stream/a/s", &own, b"[1]");
    server.send("PUT /v1/stream/a/open", &[JSON], b"[1]");
    for (name, config, viewer) in [
        ("ann", pull("a/*", &[], "wake"), Viewer::Of(owner("ann"))),
        ("bob", pull("a/*", &[], "wake"), Viewer::Of(owner("bob"))),
        ("backend", pull("a/*", &["b"], "wake"), Viewer::All),
        ("part", pull("a/**", &["a/b/c"], "wake"), Viewer::All),
        ("part", pull("**/a", &[], "wake"), Viewer::Of(owner("part"))),
        (
            "part",
            pull("a/*", &["b"], "wake"),
            Viewer::Of(owner("part")),
        ),
        // It would write to the stream of somebody else.
        ("part", pull("a/*", &[], "w"), Viewer::Of(owner("part"))),
    ] {
        // The pools have streams too.
        let said = send(&mut server, name, "PUT /x", &config);
        if said.status == 403 {
            assert_eq!(config["pattern"], "**/a");
            continue;
        }
        let SubscriptionRequest::Create { config: asked, .. } = server.asked() else {
            panic!("a creation");
        };
        assert_eq!(asked.viewer, viewer, "{name}: {config}");
        assert_eq!(said.status, 201);
        send(&mut server, "backend", "DELETE /x", &json!({}));
    }
    let paths = |said: &Said| -> Vec<String> {
        let shown = body(said);
        let links = shown["streams"].as_array().unwrap().iter();
        links
            .map(|link| link["path"].as_str().unwrap().to_owned())
            .collect()
    };
    for (name, seen) in [
        ("ann", &["a/open", "a/s"][..]),
        ("bob", &["a/open"]),
        ("part", &["a/open", "a/s"]),
        ("backend", &["a/open", "a/s"]),
    ] {
        let line = format!("PUT /of-{name}");
        let said = send(&mut server, name, &line, &pull("a/*", &["a/s"], "wake"));
        assert_eq!(said.status, 201);
        // A name that the client has given is shown as it is, with nothing of the stream.
        let got = send(&mut server, name, &format!("GET /of-{name}"), &json!({}));
        let mut shown = paths(&got);
        if name == "bob" {
            let links = body(&got)["streams"].clone();
            let hidden = links.as_array().unwrap().iter();
            let mut hidden = hidden.filter(|link| link["path"] == "a/s");
            assert_eq!(hidden.next().unwrap()["acked_offset"], "-1");
            shown.retain(|path| path != "a/s");
        }
        assert_eq!(shown, seen, "{name}");
    }
    // What it shows is shown to those only who see as much.
    for (reader, of, may) in [
        ("bob", "ann", false),
        ("ann", "bob", false),
        ("part", "ann", false),
        ("ann", "part", false),
        ("ann", "backend", false),
        ("part", "backend", true),
        ("backend", "ann", true),
        ("backend", "part", true),
    ] {
        for method in ["GET", "HEAD"] {
            let line = format!("{method} /of-{of}");
            let said = send(&mut server, reader, &line, &json!({}));
            let missing = format!("{method} /of-nobody");
            let missing = send(&mut server, reader, &missing, &json!({}));
            assert_eq!(missing.status, 404);
            match may {
                true => assert_eq!(said.status, 200, "{reader}: {line}"),
                false => assert_eq!(
                    (said.status, said.body),
                    (404, missing.body),
                    "{reader}: {line}"
                ),
            }
        }
    }
    // Nobody confirms the subscription of somebody else.
    let again = send(
        &mut server,
        "bob",
        "PUT /of-ann",
        &pull("a/*", &["a/s"], "wake"),
    );
    assert_eq!(outcome(&again), refused(409, "SUBSCRIPTION_ALREADY_EXISTS"));
}

/// A server whose API key `all` may do everything, and a key that signs URLs for everything.
fn signing() -> (Server, Access) {
    let config = || {
        let (_, sha256) = api_key([7; 32]);
        let all = Operation::ALL.map(Operation::name);
        let grants = json!([{ "actions": all, "paths": ["/**"] }]);
        let config = json!({
            "api-keys": [{ "name": "all", "sha256": sha256, "grants": grants }],
            "signing-keys": [
                { "kid": "u", "secret": "a secret of at least thirty-two bytes" },
            ],
        });
        let config = serde_json::from_value(config).unwrap();
        Access::from_config(&config, &|_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
    };
    (Server::controlled(config()), config())
}

fn signed(access: &Access, line: &str) -> String {
    let (method, target) = line.split_once(' ').unwrap();
    let path = CanonicalPath::parse(target).unwrap();
    let url = UrlToSign {
        method,
        target,
        path: &ProtocolSettings::default().resolve(path).unwrap(),
        fields: &[],
        stream: None,
        expires_s: NOW_MS / 1_000 + 60,
    };
    format!("{method} {}", access.sign_url("u", &url).unwrap())
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn a_signed_url_is_refused_where_the_body_names_streams() {
    let (mut server, access) = signing();
    let key = bearer(&api_key([7; 32]).0);
    let config = pull("a/*", &[], "wake").to_string();
    let line = format!("PUT {ROOT}/x");
    let fields = [("Authorization", &*key)];
    assert_eq!(server.send(&line, &fields, config.as_bytes()).status, 201);
    let count = server.subscriptions.requests.len();
    for (line, content) in [
        (format!("PUT {ROOT}/x"), &*config),
        (format!("PUT {ROOT}/y"), &*config),
        (format!("POST {ROOT}/x/streams"), r#"{"streams":["a"]}"#),
        (format!("POST {ROOT}/x/callback"), "{}"),
        (format!("POST {ROOT}/x/ack"), "{}"),
        (format!("POST {ROOT}/x/release"), "{}"),
    ] {
        let url = signed(&access, &line);
        let said = server.send(&url, &[JSON], content.as_bytes());
        assert_eq!(outcome(&said), refused(403, "signed_url"), "{line}");
        // Nor with the token of a wake.
        let said = server.send(&url, &[("Authorization", "Bearer t")], content.as_bytes());
        assert!(
            matches!(said.status, 400 | 401 | 403),
            "{line}: {}",
            said.status
        );
    }
    assert_eq!(server.subscriptions.requests.len(), count);
    // It is good for what the URL says alone.
    for line in [
        format!("GET {ROOT}/x"),
        format!("POST {ROOT}/x/claim"),
        format!("DELETE {ROOT}/x/streams/a"),
        format!("DELETE {ROOT}/x"),
    ] {
        let url = signed(&access, &line);
        let other = url.replacen("/x", "/y", 1);
        let said = server.send(&other, &[], br#"{"worker":"w"}"#);
        assert_eq!(said.status, 401, "{line}");
        let before = server.subscriptions.requests.len();
        let said = server.send(&url, &[], br#"{"worker":"w"}"#);
        assert_eq!(server.subscriptions.requests.len(), before + 1, "{line}");
        assert!(!matches!(said.status, 401 | 403), "{line}: {}", said.status);
    }
}

#[test]
fn the_token_of_a_wake_is_good_for_its_reports_only() {
    let (mut server, _) = signing();
    let key = bearer(&api_key([7; 32]).0);
    let fields = [JSON, ("Authorization", &*key)];
    server.send("PUT /v1/stream/wake", &fields, b"[]");
    for id in ["x", "y"] {
        let config = pull("a/*", &[], "wake").to_string();
        let line = format!("PUT {ROOT}/{id}");
        assert_eq!(server.send(&line, &fields, config.as_bytes()).status, 201);
    }
    server.send("PUT /v1/stream/a/b", &fields, b"[1]");
    let claim = |server: &mut Server, id: &str| {
        let line = format!("POST {ROOT}/{id}/claim");
        let claimed = server.send(&line, &fields, br#"{"worker":"w"}"#);
        assert_eq!(claimed.status, 200, "{}", claimed.text());
        body(&claimed)
    };
    let (wake, other) = (claim(&mut server, "x"), claim(&mut server, "y"));
    let content = json!({ "wake_id": wake["wake_id"], "generation": wake["generation"] });
    let content = content.to_string();
    let token = bearer(wake["token"].as_str().unwrap());
    let invalid = refused(401, "TOKEN_INVALID");
    // The credentials of the access control are none here, whosever they are.
    for action in ["callback", "ack", "release"] {
        let line = format!("POST {ROOT}/x/{action}");
        for wrong in [
            key.clone(),
            bearer("eyJhbGciOiJIUzI1NiJ9.e30.c2ln"),
            bearer("x"),
            bearer(other["token"].as_str().unwrap()),
        ] {
            let fields = [JSON, ("Authorization", &*wrong)];
            let said = server.send(&line, &fields, content.as_bytes());
            assert_eq!(outcome(&said), invalid, "{action}");
        }
        let said = server.send(&line, &[JSON], content.as_bytes());
        assert_eq!(outcome(&said), invalid, "{action}");
        // Both at a time is neither.
        let both = [("Authorization", &*token), ("Authorization", &*key)];
        let said = server.send(&line, &both, content.as_bytes());
        assert_eq!(outcome(&said), invalid, "{action}");
    }
    // It opens nothing else.
    for line in [
        format!("GET {ROOT}/x"),
        format!("PUT {ROOT}/x"),
        format!("DELETE {ROOT}/x"),
        format!("POST {ROOT}/x/claim"),
        format!("POST {ROOT}/x/streams"),
        format!("DELETE {ROOT}/x/streams/a"),
        format!("GET {ROOT}/x/ack"),
        format!("PUT {ROOT}/x/ack"),
        format!("POST {ROOT}/x/ack/y"),
        format!("POST {ROOT}/x/streams/ack"),
        "GET /v1/stream/a/b".to_owned(),
        "POST /v1/stream/a/b".to_owned(),
        "GET /v1/stream".to_owned(),
        "POST /v1/stream/x/ack".to_owned(),
    ] {
        let fields = [JSON, ("Authorization", &*token)];
        let before = server.subscriptions.requests.len();
        let said = server.send(&line, &fields, content.as_bytes());
        assert_eq!(said.status, 401, "{line}");
        assert_ne!(said.code(), "TOKEN_INVALID", "{line}");
        assert_eq!(server.subscriptions.requests.len(), before, "{line}");
    }
    for path in [
        format!("{ROOT}/x/ack"),
        "/streams/__ds/subscriptions/%78%2Fack".to_owned(),
    ] {
        let fields = [JSON, ("Authorization", &*token)];
        let said = server.send(&format!("POST {path}"), &fields, content.as_bytes());
        assert_eq!(said.status, 200, "{path}: {}", said.text());
    }
    // It is the token that counts, and not the caller beside it.
    let fields = [JSON, ("Authorization", &*token)];
    let line = format!("POST {ROOT}/x/release");
    assert_eq!(server.send(&line, &fields, content.as_bytes()).status, 204);
}

#[test]
fn the_keys_are_public() {
    let (mut server, _) = signing();
    for path in ["/v1/stream/__ds/jwks.json", "/streams/__ds/jwks.json"] {
        for method in ["GET", "HEAD"] {
            let said = server.send(&format!("{method} {path}"), &[], b"");
            assert_eq!(said.status, 200, "{path}");
        }
        let said = server.send(&format!("PUT {path}"), &[], b"");
        assert_eq!(outcome(&said), refused(405, "method_not_allowed"));
    }
    for path in [
        "/v1/stream/__ds",
        "/v1/stream/__ds/x",
        "/v1/stream/__ds/jwks.json/x",
        "/v1/stream/__ds/subscriptions",
    ] {
        let said = server.send(&format!("GET {path}"), &[], b"");
        assert_eq!(said.status, 401, "{path}");
    }
}

#[test]
fn pages_of_other_sites_change_nothing() {
    let mut server = Server::guarded(&[("x", "create,read,work,delete", "/v1/stream/**")]);
    server.call_as("x");
    for (line, content) in [
        (format!("PUT {ROOT}/x"), webhook("a/*")),
        (format!("POST {ROOT}/x/claim"), json!({ "worker": "w" })),
        (format!("POST {ROOT}/x/ack"), json!({})),
        (format!("POST {ROOT}/x/streams"), json!({ "streams": [] })),
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
    let said = send(&mut server, "x", "PUT /x", &webhook("a/*"));
    assert_eq!(said.status, 201);
}

#[test]
fn a_request_by_websocket_is_none() {
    let mut server = Server::default();
    for path in ["x", "x/ack"] {
        let Reply::Said(said) = server.upgrade(&format!("{ROOT}/{path}"), &[]) else {
            panic!("{path} opens a channel");
        };
        assert_eq!(outcome(&said), refused(400, "no_websocket"), "{path}");
    }
}

#[test]
fn the_name_of_the_pool_is_not_that_of_a_subscription() {
    let mut server = Server::default();
    let said = server.send("PUT /v1/pool/__ds", &[], SETTINGS);
    assert_eq!(said.status, 201);
    let said = server.send("GET /v1/stream/pool/__ds/results", &[], b"");
    assert_eq!(said.status, 200);
}
