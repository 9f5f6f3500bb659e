//! What subscriptions show of streams that belong to others.

use encke_stream::Viewer;
use encke_subscriptions::SubscriptionRequest;
use serde_json::json;

use crate::server::{Said, Server};
use crate::{JSON, body, outcome, pull, refused, send_as};

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
        ("part", "own", "/v1/stream/__ds/**"),
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
        let said = send_as(&mut server, name, "PUT /x", &config);
        if said.status == 403 {
            assert_eq!(config["pattern"], "**/a");
            continue;
        }
        let SubscriptionRequest::Create { config: asked, .. } = server.asked() else {
            panic!("a creation");
        };
        assert_eq!(asked.viewer, viewer, "{name}: {config}");
        assert_eq!(said.status, 201);
        send_as(&mut server, "backend", "DELETE /x", &json!({}));
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
        let said = send_as(&mut server, name, &line, &pull("a/*", &["a/s"], "wake"));
        assert_eq!(said.status, 201);
        // A name that the client has given is shown as it is, with nothing of the stream.
        let got = send_as(&mut server, name, &format!("GET /of-{name}"), &json!({}));
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
        ("part", "ann", true),
        ("ann", "part", false),
        ("ann", "backend", false),
        ("part", "backend", true),
        ("backend", "ann", true),
        ("backend", "part", true),
    ] {
        for method in ["GET", "HEAD"] {
            let line = format!("{method} /of-{of}");
            let said = send_as(&mut server, reader, &line, &json!({}));
            let missing = format!("{method} /of-nobody");
            let missing = send_as(&mut server, reader, &missing, &json!({}));
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
    // Nobody changes what is not shown, and it looks as if it were not there.
    for (method, of, config, status) in [
        ("POST", "ann/streams", json!({ "streams": ["b"] }), 404),
        ("DELETE", "ann/streams/a/s", json!({}), 404),
        ("DELETE", "ann", json!({}), 204),
        ("POST", "backend/streams", json!({ "streams": ["b"] }), 404),
        ("DELETE", "backend", json!({}), 204),
    ] {
        let said = send_as(&mut server, "bob", &format!("{method} /of-{of}"), &config);
        assert_eq!(said.status, status, "{method} {of}");
    }
    // Who may use the streams of all links no stream where that does not hold.
    let more = json!({ "streams": ["b"] });
    let said = send_as(&mut server, "part", "POST /of-backend/streams", &more);
    assert_eq!(said.status, 404);
    for of in ["ann", "backend"] {
        let got = send_as(&mut server, of, &format!("GET /of-{of}"), &json!({}));
        assert_eq!(paths(&got), ["a/open", "a/s"]);
    }
    // Nobody confirms the subscription of somebody else.
    let again = send_as(
        &mut server,
        "bob",
        "PUT /of-ann",
        &pull("a/*", &["a/s"], "wake"),
    );
    assert_eq!(outcome(&again), refused(409, "SUBSCRIPTION_ALREADY_EXISTS"));
}

#[test]
fn a_subscription_is_shown_to_those_who_may_use_those_of_all_there() {
    let all = "read,append,create,delete,work";
    let mut server = Server::guarded(&[
        ("backend", all, "/v1/stream/**"),
        ("backend", "own", "/v1/stream/**"),
        ("part", all, "/v1/stream/**"),
        ("part", "own", "/v1/stream/a/**"),
        ("operator", "read", "/v1/stream/__ds/**"),
        ("operator", "own", "/v1/stream/__ds/**"),
        ("worker", "work", "/v1/stream/__ds/subscriptions/**"),
    ]);
    let config = json!({
        "type": "webhook", "streams": ["a/s"], "webhook": { "url": "https://h.example/?secret=1" },
    });
    let said = send_as(&mut server, "backend", "PUT /s", &config);
    assert_eq!(said.status, 201);
    for name in ["backend", "operator"] {
        let got = send_as(&mut server, name, "GET /s", &json!({}));
        assert_eq!(
            (got.status, &body(&got)["id"]),
            (200, &json!("s")),
            "{name}"
        );
    }
    for name in ["part", "worker"] {
        let got = send_as(&mut server, name, "GET /s", &json!({}));
        assert_eq!(
            outcome(&got),
            refused(404, "SUBSCRIPTION_NOT_FOUND"),
            "{name}"
        );
    }
    // One of its own, with all that it has the right to: not that to the subscriptions of all.
    let same = send_as(&mut server, "part", "PUT /s", &config);
    assert_eq!(outcome(&same), refused(409, "SUBSCRIPTION_ALREADY_EXISTS"));
    let own = send_as(&mut server, "part", "PUT /t", &config);
    assert_eq!(own.status, 201);
    let SubscriptionRequest::Create { config: asked, .. } = server.asked() else {
        panic!("a creation");
    };
    assert_eq!(asked.viewer, Viewer::Of(owner("part")));
}
