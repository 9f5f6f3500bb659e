//! What paths are, in every spelling, and that no stream is among them.

use encke_subscriptions::SubscriptionRequest;

use crate::server::{Reply, Server};
use crate::{HOST, JSON, PULL, ROOT, SUBSCRIPTIONS, WEBHOOK, body, outcome, refused, send};

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
fn a_request_by_websocket_is_none() {
    let mut server = Server::default();
    for path in ["x", "x/ack"] {
        let Reply::Said(said) = server.upgrade(&format!("{SUBSCRIPTIONS}/{path}"), &[]) else {
            panic!("{path} opens a channel");
        };
        assert_eq!(outcome(&said), refused(400, "no_websocket"), "{path}");
    }
}

#[test]
fn the_name_of_the_pool_is_not_that_of_a_subscription() {
    let mut server = Server::default();
    let said = server.send("PUT /v1/pool/__ds", &[], br#"{"type":"claim"}"#);
    assert_eq!(said.status, 201);
    let said = server.send("GET /v1/stream/pool/__ds/results", &[], b"");
    assert_eq!(said.status, 200);
}
