//! Requests of servers: events on many channels, and questions about channels.

use serde_json::{Value, json};

use super::members::join;
use super::{FIRST, PusherServer, event, subscribe, succeeded};
use crate::rig::{eventually, serve};

#[test]
fn one_event_goes_to_a_hundred_channels() {
    let server = PusherServer::start();
    let (mut client, _) = server.connect();
    let channels: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
    for channel in &channels {
        assert_eq!(client.ask(&subscribe(channel, None)), succeeded(channel));
    }
    server.triggered(&json!({ "name": "e", "channels": channels, "data": "1" }));
    let mut seen: Vec<String> = (0..100)
        .map(|_| {
            let message = client.message().expect("it is subscribed");
            assert_eq!(message["event"], "e");
            message["channel"].as_str().expect("a name").to_owned()
        })
        .collect();
    seen.sort_unstable();
    let mut expected = channels.clone();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    // A channel that is there twice gets it once.
    server
        .triggered(&json!({ "name": "f", "channels": ["c1", "c1"], "channel": "c1", "data": "" }));
    server.triggered(&json!({ "name": "g", "channel": "c1", "data": "" }));
    assert_eq!(client.message(), Some(event("f", "c1", "")));
    assert_eq!(client.message(), Some(event("g", "c1", "")));
}

#[test]
fn a_batch_has_events_of_their_own() {
    let server = PusherServer::start();
    let (mut client, socket) = server.connect();
    for channel in ["a", "b"] {
        assert_eq!(client.ask(&subscribe(channel, None)), succeeded(channel));
    }
    let body = json!({ "batch": [
        { "name": "one", "channel": "a", "data": "1" },
        { "name": "two", "channel": "a", "data": "2", "socket_id": socket },
        { "name": "three", "channel": "a", "data": "3", "info": "subscription_count" },
    ] });
    let answer = server.ask("POST", "/apps/1/batch_events", "", &body.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    let told: Value = serde_json::from_slice(&answer.body).expect("it is JSON");
    assert_eq!(
        told,
        json!({ "batch": [{}, {}, { "subscription_count": 1 }] })
    );
    assert_eq!(client.message(), Some(event("one", "a", "1")));
    assert_eq!(
        client.message(),
        Some(event("three", "a", "3")),
        "two is its own"
    );
}

#[test]
fn the_events_of_several_logs_are_all_there() {
    let server = PusherServer::start_by("", "", |data| serve(data, &["--logs", "4"]));
    let encke = &server.encke;
    let channels: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    let body = json!({ "name": "e", "channels": channels, "data": "1" }).to_string();
    for _ in 0..2 {
        let target = FIRST.signed("POST", "/apps/1/events", "", &body, super::now_s());
        let answer = encke.ask("POST", &target, &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for channel in channels {
        let stored = encke.messages(&format!("app/1/{channel}"));
        assert_eq!(stored, vec![json!({ "event": "e", "data": "1" }); 2]);
    }
}

#[test]
fn counts_follow_subscriptions() {
    let server = PusherServer::start();
    let (first, _) = server.subscribed("news-a");
    let (mut second, _) = server.subscribed("news-a");
    assert_eq!(second.ask(&subscribe("sports", None)), succeeded("sports"));
    let list = || server.told("/apps/1/channels", "info=subscription_count");
    let all = json!({ "channels": {
        "news-a": { "subscription_count": 2 }, "sports": { "subscription_count": 1 },
    } });
    assert_eq!(list(), all);
    let news = server.told("/apps/1/channels", "filter_by_prefix=news-");
    assert_eq!(news, json!({ "channels": { "news-a": {} } }));
    let one = server.told("/apps/1/channels/news-a", "info=subscription_count");
    assert_eq!(one, json!({ "occupied": true, "subscription_count": 2 }));
    assert_eq!(
        server.told("/apps/1/channels/none", ""),
        json!({ "occupied": false })
    );
    let answer = server.trigger(
        &json!({ "name": "e", "channels": ["news-a", "none"], "data": "", "info": "subscription_count" }),
    );
    let told: Value = serde_json::from_slice(&answer.body).expect("it is JSON");
    let counts = json!({ "channels": {
        "news-a": { "subscription_count": 2 }, "none": { "subscription_count": 0 },
    } });
    assert_eq!(told, counts);
    // By a message, and by the end of the connection.
    drop(first);
    second.send("{\"event\":\"pusher:unsubscribe\",\"data\":{\"channel\":\"sports\"}}");
    eventually("what has ended does not count", || {
        list() == json!({ "channels": { "news-a": { "subscription_count": 1 } } })
    });
    drop(second);
    eventually("nothing is left", || list() == json!({ "channels": {} }));
}

#[test]
fn a_trigger_gives_user_counts_of_presence_channels_only() {
    let server = PusherServer::start();
    let (_ann, _) = join(&server, "presence-room", "ann");
    let answer = server.trigger(
        &json!({ "name": "e", "channels": ["presence-room", "news"], "data": "", "info": "user_count" }),
    );
    let told: Value = serde_json::from_slice(&answer.body).expect("it is JSON");
    let counts = json!({ "channels": { "presence-room": { "user_count": 1 }, "news": {} } });
    assert_eq!(told, counts);
    let body = json!({ "batch": [
        { "name": "e", "channel": "news", "data": "", "info": "user_count,subscription_count" },
        { "name": "e", "channel": "presence-room", "data": "", "info": "user_count" },
    ] });
    let answer = server.ask("POST", "/apps/1/batch_events", "", &body.to_string());
    let told: Value = serde_json::from_slice(&answer.body).expect("it is JSON");
    let counts = json!({ "batch": [{ "subscription_count": 0 }, { "user_count": 1 }] });
    assert_eq!(told, counts);
}

#[test]
fn what_is_no_event_is_refused() {
    let server = PusherServer::start_with("event-bytes-max = 20", "");
    let many: Vec<String> = (0..101).map(|number| format!("c{number}")).collect();
    let batch = vec![json!({ "name": "e", "channel": "c", "data": "" }); 11];
    for (path, body, status, code, word) in [
        ("events", json!("{"), 400, "bad_json", ""),
        (
            "events",
            json!({ "name": "e", "channel": "c" }),
            400,
            "bad_json",
            "data",
        ),
        (
            "events",
            json!({ "name": "e", "channel": "c", "data": {} }),
            400,
            "bad_json",
            "string",
        ),
        (
            "events",
            json!({ "name": "e", "data": "" }),
            400,
            "bad_request",
            "1 to 100 channels",
        ),
        (
            "events",
            json!({ "name": "e", "data": "", "channels": many }),
            400,
            "bad_request",
            "1 to 100",
        ),
        (
            "events",
            json!({ "name": "", "data": "", "channel": "c" }),
            400,
            "bad_request",
            "1 to 200",
        ),
        (
            "events",
            json!({ "name": "n".repeat(201), "data": "", "channel": "c" }),
            400,
            "bad_request",
            "1 to 200",
        ),
        (
            "events",
            json!({ "name": "e", "data": "", "channel": "a/b" }),
            400,
            "bad_request",
            "1 to 164",
        ),
        (
            "events",
            json!({ "name": "e", "data": "", "channel": "c", "socket_id": "1:2" }),
            400,
            "bad_request",
            "digits.digits",
        ),
        (
            "events",
            json!({ "name": "e", "data": "", "channel": "c", "info": "x" }),
            400,
            "bad_request",
            "info is",
        ),
        (
            "events",
            json!({ "name": "e", "data": "", "channels": ["private-encrypted-a", "b"] }),
            400,
            "bad_request",
            "encrypted",
        ),
        (
            "events",
            json!({ "name": "e", "data": "x".repeat(21), "channel": "c" }),
            413,
            "too_large",
            "at most 20",
        ),
        (
            "batch_events",
            json!({ "batch": batch }),
            400,
            "bad_request",
            "1 to 10",
        ),
        (
            "batch_events",
            json!({ "batch": [] }),
            400,
            "bad_request",
            "1 to 10",
        ),
        (
            "batch_events",
            json!({ "batch": [{ "name": "e", "data": "" }] }),
            400,
            "bad_json",
            "channel",
        ),
    ] {
        let answer = server.ask("POST", &format!("/apps/1/{path}"), "", &body.to_string());
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(
            (answer.status, &*answer.error_code()),
            (status, code),
            "{body}: {text}"
        );
        assert!(text.contains(word), "{body}: {text}");
    }
    let largest = json!({ "name": "e", "data": "x".repeat(20), "channel": "c" });
    server.triggered(&largest);
    for (method, path, query, status) in [
        ("GET", "/apps/1/channels/private-a/users", "", 400),
        ("GET", "/apps/1/channels/presence-a/users", "", 200),
        ("GET", "/apps/1/channels/a%20b", "", 400),
        ("GET", "/apps/1/channels/a", "info=cache", 400),
        ("GET", "/apps/1/channels/a", "info=user_count", 400),
        ("GET", "/apps/1/channels", "info=user_count", 400),
        ("GET", "/apps/1/nothing", "", 404),
        ("GET", "/apps/1/events", "", 405),
        ("POST", "/apps/1/channels", "", 405),
        ("GET", "/apps/4/channels", "", 404),
    ] {
        let answer = server.ask(method, path, query, "");
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
}
