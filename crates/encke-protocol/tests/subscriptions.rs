//! Subscriptions over HTTP: every route, what requests become, and every refusal.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use encke_jobs::JobError;
use encke_protocol::DispatchResponse;
use encke_stream::{Refusal, Viewer};
use encke_subscriptions::{
    ReportKind, StreamAck, SubscriptionConfig, SubscriptionError, SubscriptionKind,
    SubscriptionLimits, SubscriptionRequest, SubscriptionResponse, WakeReport,
};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use server::{Said, Server, TestSubscriptions};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const HOST: (&str, &str) = ("Host", "push.example:8080");
const ROOT: &str = "/v1/stream/__ds";
const WEBHOOK: &str = r#"{"type":"webhook","pattern":"events/*","webhook":{"url":"https://hooks.example/a"},"lease_ttl_ms":1000,"description":"d"}"#;
const PULL: &str = r#"{"type":"pull-wake","pattern":"events/*","wake_stream":"wake"}"#;

fn body(said: &Said) -> Value {
    serde_json::from_slice(&said.body).unwrap_or_else(|_| panic!("{:?}", said.text()))
}

/// A request for what is below the reserved segment.
fn send(server: &mut Server, line: &str, content: &str) -> Said {
    let (method, path) = line.split_once(' ').unwrap();
    let line = format!("{method} {ROOT}{path}");
    server.send(&line, &[HOST], content.as_bytes())
}

fn with_token(server: &mut Server, line: &str, token: &str, content: &Value) -> Said {
    let (method, path) = line.split_once(' ').unwrap();
    let line = format!("{method} {ROOT}{path}");
    let bearer = format!("Bearer {token}");
    let fields = [HOST, ("Authorization", &*bearer)];
    server.send(&line, &fields, content.to_string().as_bytes())
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

fn append(server: &mut Server, stream: &str) -> Said {
    let line = format!("PUT /v1/stream/{stream}");
    server.send(&line, &[JSON], b"[1]");
    let line = format!("POST /v1/stream/{stream}");
    server.send(&line, &[JSON], b"[2]")
}

#[test]
fn a_webhook_is_created_described_and_deleted() {
    let mut server = Server::default();
    let keys = send(&mut server, "GET /jwks.json", "");
    assert_eq!(body(&keys), json!({ "keys": [] }));
    assert_eq!(keys.field("Cache-Control"), Some("no-store"));
    let created = send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(created.field("Content-Type"), Some("application/json"));
    assert_eq!(created.field("Cache-Control"), Some("no-store"));
    let location = "http://push.example:8080/v1/stream/__ds/subscriptions/s";
    assert_eq!(created.field("Location"), Some(location));
    let shown = body(&created);
    let kid = shown["webhook"]["signing"]["kid"].as_str().unwrap();
    assert!(kid.starts_with("ds_"), "{kid}");
    let expected = json!({
        "id": "s",
        "subscription_id": "s",
        "type": "webhook",
        "pattern": "events/*",
        "streams": [],
        "webhook": {
            "url": "https://hooks.example/a",
            "signing": {
                "alg": "ed25519",
                "kid": kid,
                "jwks_url": "http://push.example:8080/v1/stream/__ds/jwks.json",
            },
        },
        "lease_ttl_ms": 1000,
        "created_at": "2025-01-01T00:00:00Z",
        "status": "active",
        "description": "d",
    });
    assert_eq!(shown, expected);
    // The same, in another form.
    let same = WEBHOOK.replace("events/*", "/events/*/");
    let again = send(&mut server, "PUT /subscriptions/s", &same);
    assert_eq!((again.status, body(&again)), (200, shown.clone()));
    assert_eq!(again.field("Location"), None);
    for method in ["GET", "HEAD"] {
        let got = send(&mut server, &format!("{method} /subscriptions/s"), "");
        assert_eq!((got.status, body(&got)), (200, shown.clone()));
    }
    let keys = send(&mut server, "GET /jwks.json", "");
    assert_eq!(keys.status, 200);
    assert_eq!(keys.field("Content-Type"), Some("application/jwk-set+json"));
    assert_eq!(keys.field("Cache-Control"), Some("public, max-age=300"));
    let key = &body(&keys)["keys"][0];
    assert_eq!((&key["kid"], &key["alg"]), (&json!(kid), &json!("EdDSA")));
    let deleted = send(&mut server, "DELETE /subscriptions/s", "");
    assert_eq!((deleted.status, deleted.text()), (204, ""));
    let again = send(&mut server, "DELETE /subscriptions/s", "");
    assert_eq!(again.status, 204);
    let gone = send(&mut server, "GET /subscriptions/s", "");
    assert_eq!(outcome(&gone), refused(404, "SUBSCRIPTION_NOT_FOUND"));
}

#[test]
fn the_receiver_of_a_webhook_reports_by_the_token_of_its_call() {
    let mut server = Server::default();
    send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    append(&mut server, "events/a");
    server.run_subscriptions();
    let call = server.subscriptions.calls.pop().unwrap();
    let url = "http://push.example:8080/v1/stream/__ds/subscriptions/s/callback";
    assert_eq!(&*call.notice.callback_url, url);
    let tail = call.notice.links[0].tail.to_string();
    let done = json!({
        "wake_id": call.notice.wake_id,
        "generation": call.notice.generation,
        "acks": [{ "stream": "events/a", "offset": tail }],
        "done": true,
    });
    let token = &call.notice.callback_token;
    let line = "POST /subscriptions/s/callback";
    let said = with_token(&mut server, line, token, &done);
    assert_eq!(said.status, 200, "{}", said.text());
    assert_eq!(body(&said), json!({ "ok": true, "next_wake": false }));
    let again = with_token(&mut server, line, token, &done);
    assert_eq!(outcome(&again), refused(409, "FENCED"));
    let shown = body(&send(&mut server, "GET /subscriptions/s", ""));
    let link = json!({ "path": "events/a", "link_type": "glob", "acked_offset": tail });
    assert_eq!(shown["streams"], json!([link]));
    for (line, code) in [
        ("POST /subscriptions/s/ack", "INVALID_REQUEST"),
        ("POST /subscriptions/s/release", "INVALID_REQUEST"),
    ] {
        let said = with_token(&mut server, line, token, &done);
        assert_eq!(outcome(&said), refused(400, code));
    }
}

#[test]
fn workers_claim_acknowledge_and_release() {
    let mut server = Server::default();
    server.send("PUT /v1/stream/wake", &[JSON], b"[]");
    let created = send(&mut server, "PUT /subscriptions/p", PULL);
    assert_eq!(created.status, 201, "{}", created.text());
    let shown = body(&created);
    assert_eq!(shown["type"], "pull-wake");
    assert_eq!(shown["wake_stream"], "wake");
    assert_eq!(shown["lease_ttl_ms"], 30_000);
    for absent in ["webhook", "description"] {
        assert_eq!(shown.get(absent), None, "{absent}");
    }
    let claim = "POST /subscriptions/p/claim";
    let early = send(&mut server, claim, r#"{"worker":"w1"}"#);
    assert_eq!(outcome(&early), refused(409, "NO_PENDING_WORK"));
    append(&mut server, "events/a");
    let claimed = send(&mut server, claim, r#"{"worker":"w1"}"#);
    assert_eq!(claimed.status, 200, "{}", claimed.text());
    let wake = body(&claimed);
    let members: Vec<&String> = wake.as_object().unwrap().keys().collect();
    let expected = ["generation", "lease_ttl_ms", "streams", "token", "wake_id"];
    assert_eq!(members, expected);
    let link = &wake["streams"][0];
    assert_eq!(link["path"], "events/a");
    assert_eq!(link["link_type"], "glob");
    assert_eq!(link["acked_offset"], "-1");
    assert_eq!(link["has_pending"], true);
    let second = send(&mut server, claim, r#"{"worker":"w2"}"#);
    assert_eq!(outcome(&second), refused(409, "ALREADY_CLAIMED"));
    let problem = body(&second);
    assert_eq!(
        second.field("Content-Type"),
        Some("application/problem+json")
    );
    assert_eq!(problem["error"]["current_holder"], "w1");
    assert_eq!(problem["error"]["generation"], wake["generation"]);
    assert!(problem["error"]["message"].is_string() && problem["detail"].is_string());
    let token = wake["token"].as_str().unwrap();
    let report = |acks: Value, done: bool| {
        json!({
            "wake_id": wake["wake_id"], "generation": wake["generation"], "acks": acks, "done": done,
        })
    };
    let ack = "POST /subscriptions/p/ack";
    for acks in [
        json!([{ "stream": "events/none", "offset": link["tail_offset"] }]),
        json!([{ "stream": "events/a", "offset": "-1" }]),
        json!([{ "stream": "events/a", "offset": "x" }]),
    ] {
        let said = with_token(&mut server, ack, token, &report(acks, true));
        assert_eq!(outcome(&said), refused(409, "INVALID_OFFSET"));
    }
    let tail = json!([{ "path": "events/a", "offset": link["tail_offset"] }]);
    let alive = with_token(&mut server, ack, token, &report(tail.clone(), false));
    assert_eq!(body(&alive), json!({ "ok": true, "next_wake": false }));
    append(&mut server, "events/b");
    let done = with_token(&mut server, ack, token, &report(tail, true));
    assert_eq!(body(&done), json!({ "ok": true, "next_wake": true }));
    let claimed = send(&mut server, claim, r#"{"worker":"w2"}"#);
    let wake = body(&claimed);
    let token = wake["token"].as_str().unwrap();
    let release = json!({ "wake_id": wake["wake_id"], "generation": wake["generation"] });
    let line = "POST /subscriptions/p/release";
    let released = with_token(&mut server, line, token, &release);
    assert_eq!((released.status, released.text()), (204, ""));
    let again = with_token(&mut server, line, token, &release);
    assert_eq!(outcome(&again), refused(409, "FENCED"));
    let event = server.send("GET /v1/stream/wake?offset=-1", &[], b"");
    let events = body(&event);
    assert_eq!(events[0]["subscription_id"], "p", "{events}");
}

#[test]
fn streams_are_followed_by_name_until_they_are_not() {
    let mut server = Server::default();
    let config =
        r#"{"type":"webhook","streams":["manual/a"],"webhook":{"url":"https://h.example/"}}"#;
    assert_eq!(
        send(&mut server, "PUT /subscriptions/s", config).status,
        201
    );
    let links = "/subscriptions/s/streams";
    let added = send(
        &mut server,
        &format!("POST {links}"),
        r#"{"streams":["/manual/b/","manual/ü"]}"#,
    );
    assert_eq!((added.status, added.text()), (204, ""));
    let none = send(&mut server, &format!("POST {links}"), r#"{"streams":[]}"#);
    assert_eq!(none.status, 204);
    for name in ["manual%2Fb", "manual/%c3%bc", "manual/never"] {
        let said = send(&mut server, &format!("DELETE {links}/{name}"), "");
        assert_eq!(said.status, 204, "{name}");
    }
    let shown = body(&send(&mut server, "GET /subscriptions/s", ""));
    let link = json!({ "path": "manual/a", "link_type": "explicit", "acked_offset": "-1" });
    assert_eq!(shown["streams"], json!([link]));
    // The name is decoded once.
    send(&mut server, &format!("DELETE {links}/manual%252Fa"), "");
    let unlink = SubscriptionRequest::Unlink {
        id: "s".into(),
        stream: "manual%2Fa".into(),
    };
    assert_eq!(*server.asked(), unlink);
}

#[test]
fn a_body_becomes_a_request() {
    let mut server = Server::default();
    let config = r#"{"type":"pull-wake","pattern":"","streams":["/b/","a","b"],"wake_stream":"/w/","webhook":{"url":"x"},
        "lease_ttl_ms":600000,"description":null,"other":[1]}"#;
    send(&mut server, "PUT /subscriptions/%C3%A4%20b", config);
    let create = SubscriptionRequest::Create {
        id: "ä b".into(),
        config: SubscriptionConfig {
            kind: SubscriptionKind::PullWake,
            pattern: None,
            streams: vec!["a".into(), "b".into()],
            wake_stream: Some("w".into()),
            lease_ms: 600_000,
            description: None,
            viewer: Viewer::All,
        },
        root: "http://push.example:8080/v1/stream".into(),
    };
    assert_eq!(*server.asked(), create);
    let report = json!({
        "wake_id": "w_1", "generation": 7, "done": true, "more": 1,
        "acks": [{ "stream": "a", "path": "b", "offset": "-1" }, { "path": "c", "offset": "9" }],
    });
    for (action, kind) in [
        ("callback", ReportKind::Callback),
        ("ack", ReportKind::Ack),
        ("release", ReportKind::Release),
    ] {
        let line = format!("POST /subscriptions/x/{action}");
        with_token(&mut server, &line, "tok", &report);
        let ack = |stream: &str, offset: &str| StreamAck {
            stream: stream.into(),
            offset: offset.into(),
        };
        let is_release = kind == ReportKind::Release;
        let expected = WakeReport {
            id: "x".into(),
            kind,
            token: "tok".into(),
            wake_id: Some("w_1".into()),
            generation: Some(7),
            acks: match is_release {
                true => Vec::new(),
                false => vec![ack("a", "-1"), ack("c", "9")],
            },
            done: !is_release,
        };
        assert_eq!(*server.asked(), SubscriptionRequest::Report(expected));
        // A report on no wake.
        for content in [
            json!({}),
            json!({ "wake_id": null, "generation": null, "done": null, "acks": null }),
        ] {
            with_token(&mut server, &line, "tok", &content);
            let SubscriptionRequest::Report(report) = server.asked() else {
                panic!("a report");
            };
            assert_eq!((&report.wake_id, report.generation), (&None, None));
            assert!(!report.done && report.acks.is_empty());
        }
    }
}

#[test]
fn the_root_is_the_one_that_the_client_has_used() {
    let mut server = Server::default();
    for (path, root) in [
        ("/v1/stream/__ds/subscriptions/a", "/v1/stream"),
        ("/streams/__ds/subscriptions/b", "/streams"),
        ("/%73treams/%5f_ds/subscriptions/c", "/streams"),
        ("/v1%2fstream%2F__ds%2Fsubscriptions%2Fd", "/v1/stream"),
    ] {
        let said = server.send(&format!("PUT {path}"), &[HOST], WEBHOOK.as_bytes());
        assert_eq!(said.status, 201, "{path}: {}", said.text());
        let root = format!("http://push.example:8080{root}");
        let SubscriptionRequest::Create { root: asked, .. } = server.asked() else {
            panic!("a creation");
        };
        assert_eq!(**asked, *root);
        let jwks = format!("{root}/__ds/jwks.json");
        assert_eq!(body(&said)["webhook"]["signing"]["jwks_url"], jwks);
        let id = path.rsplit(['/', 'F']).next().unwrap();
        let location = format!("{root}/__ds/subscriptions/{id}");
        assert_eq!(said.field("Location"), Some(&*location));
    }
    server.caller.tls = true;
    let said = send(&mut server, "PUT /subscriptions/a%20%3F", PULL);
    let location = "https://push.example:8080/v1/stream/__ds/subscriptions/a%20%3F";
    assert_eq!(said.field("Location"), Some(location));
    let long = "x".repeat(600);
    let line = format!("PUT {ROOT}/subscriptions/l");
    let said = server.send(&line, &[("Host", &long)], PULL.as_bytes());
    assert_eq!(outcome(&said), refused(400, "INVALID_REQUEST"));
}

#[test]
fn bodies_that_are_wrong_are_refused_by_the_member() {
    let mut server = Server::default();
    let long = "x".repeat(1_025);
    let put = "PUT /subscriptions/s";
    let links = "POST /subscriptions/s/streams";
    let claim = "POST /subscriptions/s/claim";
    let ack = "POST /subscriptions/s/ack";
    let with =
        |more: &str| format!(r#"{{"type":"pull-wake","pattern":"a/*","wake_stream":"w",{more}}}"#);
    let cases = [
        (put, "".to_owned(), "type"),
        (put, "{".to_owned(), "the body is wrong"),
        (put, "null".to_owned(), "invalid type: null, expected an object"),
        (put, "[]".to_owned(), "invalid type: sequence, expected an object"),
        (put, "\u{feff}{}".to_owned(), "the body is wrong"),
        (put, r#"{"type":"webhooks"}"#.to_owned(), "type is"),
        (put, r#"{"type":1}"#.to_owned(), "type: invalid type: integer `1`"),
        (put, r#"{"type":"webhook","pattern":"a"}"#.to_owned(), "webhook.url"),
        (put, r#"{"type":"webhook","pattern":"a","webhook":"https://a.example"}"#.to_owned(), "webhook: invalid type: string"),
        (put, r#"{"type":"webhook","pattern":"a","webhook":{"url":[]}}"#.to_owned(), "webhook: url: invalid type: sequence"),
        (put, r#"{"type":"pull-wake","pattern":"a"}"#.to_owned(), "wake_stream"),
        (put, r#"{"type":"pull-wake","wake_stream":"w"}"#.to_owned(), "pattern"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","streams":[]}"#.to_owned(), "pattern"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","pattern":7}"#.to_owned(), "pattern: invalid type: integer `7`"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","pattern":"a//b"}"#.to_owned(), "empty segment"),
        (put, format!(r#"{{"type":"pull-wake","wake_stream":"w","pattern":"{long}"}}"#), "1025 bytes"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","pattern":"__ds/*"}"#.to_owned(), "__ds"),
        (put, with(r#""streams":"a""#), "streams: invalid type: string"),
        (put, with(r#""streams":[1]"#), "streams: invalid type: integer `1`"),
        (put, with(r#""streams":[""]"#), "not the name"),
        (put, with(r#""streams":["a/../b"]"#), "not the name"),
        (put, with(r#""streams":["__ds/x"]"#), "not the name"),
        (put, with(r#""streams":["\u0001jobs"]"#), "not the name"),
        (put, with(&format!(r#""streams":["{long}"]"#)), "not the name"),
        (put, with(r#""streams":["w"]"#), "cannot follow"),
        (put, r#"{"type":"webhook","pattern":"a","wake_stream":"__ds/x","webhook":{"url":"https://a.example"}}"#.to_owned(), "not the name"),
        (put, with(r#""lease_ttl_ms":999"#), "lease_ttl_ms is 999"),
        (put, with(r#""lease_ttl_ms":600001"#), "lease_ttl_ms is 600001"),
        (put, with(r#""lease_ttl_ms":null"#), "lease_ttl_ms: invalid type: null"),
        (put, with(r#""lease_ttl_ms":"2000""#), "lease_ttl_ms: invalid type: string"),
        (put, with(r#""lease_ttl_ms":2000.5"#), "lease_ttl_ms: invalid type: floating point `2000.5`"),
        (put, with(r#""lease_ttl_ms":-1"#), "lease_ttl_ms: invalid value: integer `-1`"),
        (put, with(r#""description":{}"#), "description: invalid type: map"),
        (put, with(&format!(r#""description":"{long}""#)), "description has 1025"),
        (links, "{}".to_owned(), "streams"),
        (links, r#"{"streams":null}"#.to_owned(), "streams"),
        (links, r#"{"streams":{"a":1}}"#.to_owned(), "streams: invalid type: map"),
        (links, r#"{"streams":["a",""]}"#.to_owned(), "not the name"),
        (links, r#"{"streams":["__ds"]}"#.to_owned(), "not the name"),
        (claim, "".to_owned(), "worker"),
        (claim, r#"{"worker":""}"#.to_owned(), "worker"),
        (claim, r#"{"worker":1}"#.to_owned(), "worker: invalid type: integer `1`"),
        (claim, format!(r#"{{"worker":"{long}"}}"#), "worker"),
        (ack, "x".to_owned(), "the body is wrong"),
        (ack, r#"{"wake_id":1}"#.to_owned(), "wake_id: invalid type: integer `1`"),
        (ack, r#"{"generation":"1"}"#.to_owned(), "generation: invalid type: string"),
        (ack, r#"{"generation":1.5}"#.to_owned(), "generation: invalid type: floating point `1.5`"),
        (ack, r#"{"acks":{}}"#.to_owned(), "acks: invalid type: map"),
        (ack, r#"{"acks":["a"]}"#.to_owned(), "acks: invalid type: string"),
        (ack, r#"{"acks":[{"stream":"a"}]}"#.to_owned(), "offset"),
        (ack, r#"{"acks":[{"stream":"a","offset":1}]}"#.to_owned(), "acks: offset: invalid type: integer `1`"),
        (ack, r#"{"done":"true"}"#.to_owned(), "done: invalid type: string"),
    ];
    for (line, content, why) in cases {
        let (method, path) = line.split_once(' ').unwrap();
        let fields = [HOST, ("Authorization", "bearer t")];
        let line = format!("{method} {ROOT}{path}");
        let said = server.send(&line, &fields, content.as_bytes());
        let shown = &content[..content.len().min(200)];
        assert_eq!(
            outcome(&said),
            refused(400, "INVALID_REQUEST"),
            "{line} {shown}"
        );
        let message = body(&said)["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(why), "{shown}: {message}");
        assert!(message.len() < 500, "{message}");
    }
    // Nothing has come through, or it was refused there.
    let said = send(&mut server, "GET /subscriptions/s", "");
    assert_eq!(outcome(&said), refused(404, "SUBSCRIPTION_NOT_FOUND"));
}

#[test]
fn paths_are_one_thing_and_have_their_methods() {
    let mut server = Server::default();
    send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    for (path, methods) in [
        ("/jwks.json", "GET, HEAD"),
        ("/subscriptions/s", "GET, HEAD, PUT, DELETE"),
        ("/subscriptions/s/streams", "POST"),
        ("/subscriptions/s/streams/a", "DELETE"),
        ("/subscriptions/s/claim", "POST"),
        ("/subscriptions/s/ack", "POST"),
        ("/subscriptions/s/release", "POST"),
        ("/subscriptions/s/callback", "POST"),
    ] {
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "claim"] {
            let is_allowed = methods.split(", ").any(|one| one == method);
            let said = send(&mut server, &format!("{method} {path}"), "");
            let full = format!("{ROOT}{path}");
            let by_its_head = server.head(method, &full, &[]);
            if is_allowed {
                assert_ne!(said.status, 405, "{method} {path}");
                continue;
            }
            assert_eq!(outcome(&said), refused(405, "method_not_allowed"));
            assert_eq!(said.field("Allow"), Some(methods), "{method} {path}");
            assert_eq!(by_its_head.map(|said| said.status), Some(405));
        }
        let preflight = send(&mut server, &format!("OPTIONS {path}"), "");
        assert_eq!(preflight.status, 204);
        let allowed = preflight.field("Access-Control-Allow-Methods").unwrap();
        assert!(allowed.contains("DELETE"), "{allowed}");
    }
    for path in [
        "",
        "/x",
        "/subscriptions",
        "/subscriptions/s/x",
        "/subscriptions/a%2Fb",
        "/subscriptions/s/claim/x",
        "/jwks.json/x",
        "/JWKS.json",
        "/callback/s",
    ] {
        for method in ["GET", "PUT", "POST", "DELETE"] {
            let said = send(&mut server, &format!("{method} {path}"), WEBHOOK);
            assert_eq!(
                outcome(&said),
                refused(404, "SUBSCRIPTION_NOT_FOUND"),
                "{path}"
            );
            let head = server.head(method, &format!("{ROOT}{path}"), &[]);
            assert_eq!(head.map(|said| said.status), Some(404), "{method} {path}");
        }
    }
    for path in [
        "/",
        "/subscriptions/",
        "/subscriptions//claim",
        "/subscriptions/s/",
        "/subscriptions/%zz",
        "/subscriptions/..",
        "/subscriptions/%2e%2e/x",
        "/subscriptions/a%00",
        "/subscriptions/s/streams/",
        "/subscriptions/s/streams/a/../b",
        "/subscriptions/s/streams/%2e",
        "/subscriptions/s%2F",
    ] {
        for method in ["GET", "PUT", "POST", "DELETE"] {
            let said = send(&mut server, &format!("{method} {path}"), WEBHOOK);
            assert_eq!(outcome(&said), refused(400, "bad_path"), "{path}");
        }
    }
    let long = "x".repeat(257);
    for line in ["GET /subscriptions/", "PUT /subscriptions/"] {
        let said = send(&mut server, &format!("{line}{long}"), WEBHOOK);
        assert_eq!(outcome(&said), refused(400, "INVALID_REQUEST"));
    }
    // Encodings of one id are one id, and it is decoded once.
    send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    for (same, status) in [("%73", 200), ("%2573", 201)] {
        let said = send(&mut server, &format!("PUT /subscriptions/{same}"), WEBHOOK);
        assert_eq!(said.status, status, "{same}");
    }
    assert_eq!(
        body(&send(&mut server, "GET /subscriptions/%2573", ""))["id"],
        "%73"
    );
}

#[test]
fn no_stream_is_below_the_reserved_segment() {
    let mut server = Server::default();
    send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    server.send("PUT /v1/stream/a", &[JSON], b"[1]");
    for name in ["__ds", "__ds/x", "%5f%5fds", "__d%73%2Fx"] {
        for root in ["/v1/stream", "/streams"] {
            for method in ["PUT", "POST", "GET", "HEAD", "DELETE"] {
                let said = server.send(&format!("{method} {root}/{name}"), &[JSON], b"[1]");
                assert_eq!(
                    outcome(&said),
                    refused(404, "SUBSCRIPTION_NOT_FOUND"),
                    "{name}"
                );
            }
        }
    }
    let reserved = refused(400, "reserved_name");
    for target in [
        "stream=__ds",
        "stream=__ds/x",
        "stream=%5f_ds/x",
        "stream=__ds/**",
        "stream=a&stream=__ds",
    ] {
        let said = server.send(&format!("GET /v1/events?{target}"), &[], b"");
        assert_eq!(outcome(&said), reserved, "{target}");
    }
    for source in ["/v1/stream/__ds/x", "__ds", "/streams/__ds/x"] {
        let fields = [JSON, ("Stream-Forked-From", source)];
        let said = server.send("PUT /v1/stream/fork", &fields, b"");
        assert_eq!(outcome(&said), reserved, "{source}");
    }
    // Only the first segment is reserved.
    for name in ["a/__ds", "__dsx", "pool/__ds"] {
        let line = format!("PUT /v1/stream/{name}");
        assert_eq!(server.send(&line, &[JSON], b"[1]").status, 201, "{name}");
    }
}

#[test]
fn refusals_have_the_codes_of_the_protocol() {
    let mut server = Server::default();
    let url = "https://10.0.0.1/".parse::<String>().unwrap();
    let config = WEBHOOK.replace("https://hooks.example/a", &url);
    let said = send(&mut server, "PUT /subscriptions/u", &config);
    assert_eq!(outcome(&said), refused(400, "WEBHOOK_URL_REJECTED"));
    send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    let other = WEBHOOK.replace("1000", "2000");
    let said = send(&mut server, "PUT /subscriptions/s", &other);
    assert_eq!(outcome(&said), refused(409, "SUBSCRIPTION_ALREADY_EXISTS"));
    let missing = refused(404, "SUBSCRIPTION_NOT_FOUND");
    for (line, content) in [
        ("GET /subscriptions/n", ""),
        ("POST /subscriptions/n/streams", r#"{"streams":["a"]}"#),
        ("DELETE /subscriptions/n/streams/a", ""),
        ("POST /subscriptions/n/claim", r#"{"worker":"w"}"#),
    ] {
        assert_eq!(
            outcome(&send(&mut server, line, content)),
            missing,
            "{line}"
        );
    }
    let said = send(
        &mut server,
        "POST /subscriptions/s/claim",
        r#"{"worker":"w"}"#,
    );
    assert_eq!(outcome(&said), refused(400, "INVALID_REQUEST"));
    for (why, status, code) in [
        (SubscriptionError::NoWebhooks, 400, "INVALID_REQUEST"),
        (SubscriptionError::RetentionIsSet, 403, "retention_is_set"),
        (
            SubscriptionError::TooManySubscriptions(1),
            507,
            "too_many_subscriptions",
        ),
        (SubscriptionError::TooManyLinks(1), 507, "too_many_links"),
        (
            SubscriptionError::TooManyLinksInAll(1),
            507,
            "too_many_links",
        ),
        (SubscriptionError::LookUp("disk".into()), 500, "unreadable"),
        (SubscriptionError::Overloaded, 503, "overloaded"),
        (SubscriptionError::Stopping, 503, "stopping"),
        (SubscriptionError::Log(Refusal::NoSpace), 507, "disk_full"),
        (
            SubscriptionError::Log(Refusal::NotDispatcher),
            503,
            "dispatcher_moved",
        ),
    ] {
        let response = SubscriptionResponse::Refused(why);
        let response = DispatchResponse::Subscription(Box::new(response));
        check_instead(&mut server, response, (status, code));
    }
    for (why, status, code) in [
        (JobError::Stopping, 503, "stopping"),
        (JobError::NoDispatcher, 503, "no_dispatcher"),
        (JobError::Overloaded, 503, "overloaded"),
        (JobError::CallerEnded, 401, "expired"),
    ] {
        check_instead(&mut server, DispatchResponse::Refused(why), (status, code));
    }
    check_instead(&mut server, DispatchResponse::Stopping, (503, "stopping"));
    check_instead(&mut server, DispatchResponse::Removed, (500, "internal"));
}

/// The response to a request to which the dispatcher responds with this.
fn check_instead(server: &mut Server, response: DispatchResponse, (status, code): (u16, &str)) {
    server.subscriptions.instead = Some(response);
    let said = send(server, "GET /subscriptions/s", "");
    assert_eq!(outcome(&said), refused(status, code));
    let again = (status == 503).then_some("1");
    assert_eq!(said.field("Retry-After"), again, "{code}");
    assert_eq!(
        said.field("WWW-Authenticate").is_some(),
        status == 401,
        "{code}"
    );
}

#[test]
fn webhooks_that_are_off_are_refused() {
    let mut server = Server::default();
    server.subscriptions = TestSubscriptions::new(SubscriptionLimits {
        deliveries_max: 0,
        ..SubscriptionLimits::default()
    });
    let said = send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    assert_eq!(outcome(&said), refused(400, "INVALID_REQUEST"));
    let said = send(&mut server, "PUT /subscriptions/s", PULL);
    assert_eq!(said.status, 201);
}

#[test]
fn a_report_without_a_token_is_refused_before_its_body() {
    let mut server = Server::default();
    send(&mut server, "PUT /subscriptions/s", PULL);
    let long = format!("Bearer {}", "x".repeat(1_025));
    let many = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")];
    for action in ["callback", "ack", "release"] {
        let line = format!("POST {ROOT}/subscriptions/s/{action}");
        for fields in [
            &[][..],
            &[("Authorization", "Bearer")],
            &[("Authorization", "Bearer ")],
            &[("Authorization", "Basic YTpi")],
            &[("Authorization", "Bearertoken")],
            &[("Authorization", &*long)],
            &many,
        ] {
            let said = server.send(&line, fields, b"{");
            assert_eq!(outcome(&said), refused(401, "TOKEN_INVALID"), "{fields:?}");
            let path = line.strip_prefix("POST ").unwrap();
            let head = server.head("POST", path, fields);
            assert_eq!(head.map(|said| said.status), Some(401), "{fields:?}");
            let challenge = said.field("WWW-Authenticate").unwrap();
            assert!(challenge.starts_with("Bearer"), "{challenge}");
        }
        for scheme in ["Bearer x", "bearer x", "BEARER  x "] {
            let said = server.send(&line, &[("Authorization", scheme)], b"{}");
            assert_eq!(outcome(&said), refused(401, "TOKEN_INVALID"));
            let message = body(&said)["error"]["message"].to_string();
            assert!(message.contains("not one of this"), "{message}");
        }
    }
}

/// A value that a member may have, and often the wrong one.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => select(vec![
            json!("webhook"), json!("pull-wake"), json!("a/*"), json!("**"), json!("w"), json!(["a", "/b/"]),
            json!({ "url": "https://h.example/" }), json!({ "url": "https://10.0.0.1" }), json!(1_000), json!(true),
            json!([{ "stream": "a", "offset": "-1" }]), json!([{ "path": "a" }]),
        ]),
        1 => select(vec![json!(null), json!([]), json!({}), json!(-1), json!(""), json!([[1]])]),
        1 => "\\PC{0,12}".prop_map(Value::from),
    ]
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let names = select(vec![
        "type",
        "pattern",
        "streams",
        "webhook",
        "wake_stream",
        "lease_ttl_ms",
        "description",
        "worker",
        "wake_id",
        "generation",
        "acks",
        "done",
        "other",
    ]);
    let members = proptest::collection::btree_map(names, value(), 0..6);
    prop_oneof![
        6 => members.prop_map(|members| json!(members).to_string().into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
        1 => value().prop_map(|value| value.to_string().into_bytes()),
    ]
}

proptest! {
    /// Nothing that a client sends is an internal error, and every refusal is a problem with a code.
    #[test]
    fn no_request_breaks_the_server(
        requests in proptest::collection::vec((
            select(vec!["GET", "HEAD", "PUT", "POST", "DELETE"]),
            prop_oneof![
                select(vec![
                    "/subscriptions/s", "/subscriptions/s/claim", "/subscriptions/s/ack", "/subscriptions/s/callback",
                    "/subscriptions/s/release", "/subscriptions/s/streams", "/subscriptions/s/streams/a", "/jwks.json",
                ]).prop_map(str::to_owned),
                "/[a-z/%0-9.]{0,12}",
                "/subscriptions/\\PC{0,12}",
            ],
            content(),
        ), 1..12),
    ) {
        let mut server = Server::default();
        for (method, path, content) in requests {
            let fields: [(&str, &[u8]); 2] = [("Host", b"h"), ("Authorization", b"Bearer t")];
            let path = format!("{ROOT}{path}");
            let server::Reply::Said(said) = server.request(method, &path, None, &fields, &content) else {
                panic!("{method} {path} has no response");
            };
            prop_assert!(said.status < 500 || said.status == 507, "{method} {path}: {said:?}");
            if said.status >= 400 {
                prop_assert_eq!(said.field("Content-Type"), Some("application/problem+json"));
                prop_assert!(!said.code().is_empty());
            }
        }
    }
}

#[test]
fn what_a_body_has_besides_is_not_looked_at() {
    let mut server = Server::default();
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let content = format!(
        r#"{{"other":{deep},"type":"pull-wake","pattern":"a","wake_stream":"w","type":"pull-wake"}}"#
    );
    let said = send(&mut server, "PUT /subscriptions/s", &content);
    assert!(matches!(said.status, 201 | 400), "{}", said.status);
}
