//! Subscriptions from their creation to their deletion, by every route.

use encke_subscriptions::SubscriptionRequest;
use serde_json::{Value, json};

use crate::server::Server;
use crate::{JSON, PULL, WEBHOOK, append, body, outcome, refused, send, with_token};

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
        viewer: encke_stream::Viewer::All,
        id: "s".into(),
        stream: "manual%2Fa".into(),
    };
    assert_eq!(*server.asked(), unlink);
}
