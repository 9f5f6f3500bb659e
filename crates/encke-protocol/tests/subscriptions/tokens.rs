//! Signed URLs, tokens of wakes, and what needs no credentials.

use encke_access::{Access, CanonicalPath, Operation, UrlToSign, api_key};
use encke_protocol::ProtocolSettings;
use serde_json::json;

use crate::server::{NOW_MS, Server};
use crate::{JSON, PULL, ROOT, SUBSCRIPTIONS, body, outcome, pull, refused, send};

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
fn a_signed_url_is_good_for_no_request() {
    let (mut server, access) = signing();
    let key = bearer(&api_key([7; 32]).0);
    let config = pull("a/*", &[], "wake").to_string();
    let line = format!("PUT {SUBSCRIPTIONS}/x");
    let fields = [("Authorization", &*key)];
    assert_eq!(server.send(&line, &fields, config.as_bytes()).status, 201);
    let count = server.subscriptions.requests.len();
    for (line, content) in [
        (format!("PUT {SUBSCRIPTIONS}/x"), &*config),
        (format!("PUT {SUBSCRIPTIONS}/y"), &*config),
        (
            format!("POST {SUBSCRIPTIONS}/x/streams"),
            r#"{"streams":["a"]}"#,
        ),
        (format!("POST {SUBSCRIPTIONS}/x/callback"), "{}"),
        (format!("POST {SUBSCRIPTIONS}/x/ack"), "{}"),
        (format!("POST {SUBSCRIPTIONS}/x/release"), "{}"),
        (format!("GET {SUBSCRIPTIONS}/x"), ""),
        (format!("POST {SUBSCRIPTIONS}/x/claim"), r#"{"worker":"w"}"#),
        (format!("DELETE {SUBSCRIPTIONS}/x/streams/a"), ""),
        (format!("DELETE {SUBSCRIPTIONS}/x"), ""),
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
}

#[test]
fn a_report_is_refused_by_its_length_before_its_body() {
    let (mut server, _) = signing();
    let count = server.subscriptions.requests.len();
    for action in ["callback", "ack", "release"] {
        let line = format!("POST {SUBSCRIPTIONS}/x/{action}");
        let token = ("Authorization", "Bearer t");
        let said = server.send(&line, &[token], b"");
        assert_eq!(outcome(&said), refused(411, "length_required"), "{action}");
        let long = ("Content-Length", "1048577");
        let said = server.send(&line, &[token, long], b"{}");
        assert_eq!(outcome(&said), refused(413, "body_too_large"), "{action}");
    }
    assert_eq!(server.subscriptions.requests.len(), count);
}

#[test]
fn a_long_report_has_a_token_of_this_server() {
    let mut server = Server::default();
    let path = format!("{ROOT}/subscriptions/s/ack");
    let status = |server: &Server, token: &str, bytes: &str| {
        let bearer = bearer(token);
        let fields = [("Authorization", &*bearer), ("Content-Length", bytes)];
        let refused = server.head("POST", &path, &fields);
        refused.map_or(200, |said| said.status)
    };
    // Before the first subscription no token can be checked.
    assert_eq!(status(&server, "t", "65536"), 200);
    assert_eq!(status(&server, "t", "65537"), 413);
    server.send("PUT /v1/stream/wake", &[JSON], b"[]");
    send(&mut server, "PUT /subscriptions/s", PULL);
    server.send("PUT /v1/stream/events/a", &[JSON], b"[1]");
    let claimed = send(
        &mut server,
        "POST /subscriptions/s/claim",
        r#"{"worker":"w"}"#,
    );
    let token = body(&claimed)["token"].as_str().unwrap().to_owned();
    let mut forged = token.clone().into_bytes();
    forged[30] ^= 1;
    let forged = String::from_utf8(forged).unwrap();
    for bytes in ["1", "65536", "1048576"] {
        assert_eq!(status(&server, &token, bytes), 200);
        assert_eq!(status(&server, &forged, bytes), 401);
        assert_eq!(status(&server, "t", bytes), 401);
    }
    assert_eq!(status(&server, &token, "1048577"), 413);
}

#[test]
fn the_token_of_a_wake_is_good_for_its_reports_only() {
    let (mut server, _) = signing();
    let key = bearer(&api_key([7; 32]).0);
    let fields = [JSON, ("Authorization", &*key)];
    server.send("PUT /v1/stream/wake", &fields, b"[]");
    for id in ["x", "y"] {
        let config = pull("a/*", &[], "wake").to_string();
        let line = format!("PUT {SUBSCRIPTIONS}/{id}");
        assert_eq!(server.send(&line, &fields, config.as_bytes()).status, 201);
    }
    server.send("PUT /v1/stream/a/b", &fields, b"[1]");
    let claim = |server: &mut Server, id: &str| {
        let line = format!("POST {SUBSCRIPTIONS}/{id}/claim");
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
        let line = format!("POST {SUBSCRIPTIONS}/x/{action}");
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
        format!("GET {SUBSCRIPTIONS}/x"),
        format!("PUT {SUBSCRIPTIONS}/x"),
        format!("DELETE {SUBSCRIPTIONS}/x"),
        format!("POST {SUBSCRIPTIONS}/x/claim"),
        format!("POST {SUBSCRIPTIONS}/x/streams"),
        format!("DELETE {SUBSCRIPTIONS}/x/streams/a"),
        format!("GET {SUBSCRIPTIONS}/x/ack"),
        format!("PUT {SUBSCRIPTIONS}/x/ack"),
        format!("POST {SUBSCRIPTIONS}/x/ack/y"),
        format!("POST {SUBSCRIPTIONS}/x/streams/ack"),
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
        format!("{SUBSCRIPTIONS}/x/ack"),
        "/streams/__ds/subscriptions/%78%2Fack".to_owned(),
    ] {
        let fields = [JSON, ("Authorization", &*token)];
        let said = server.send(&format!("POST {path}"), &fields, content.as_bytes());
        assert_eq!(said.status, 200, "{path}: {}", said.text());
    }
    // It is the token that counts, and not the caller beside it.
    let fields = [JSON, ("Authorization", &*token)];
    let line = format!("POST {SUBSCRIPTIONS}/x/release");
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
