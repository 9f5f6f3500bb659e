//! Connections of clients: how they are opened and refused, and their subscriptions.

use serde_json::{Value, json};

use super::users::sign_in;
use super::{FIRST, PING, PusherServer, event, subscribe, succeeded, target};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{JSON, path, serve};

/// Clients of the protocol do not repeat what is refused, but all of it when they come back.
#[test]
fn a_client_beyond_the_rate_of_requests_comes_back_to_subscribe() {
    let flags = "--exempt 127.0.0.1 --request-rate 1 --tuning request-burst=10";
    let flags: Vec<&str> = flags.split(' ').collect();
    let server = PusherServer::start_by("", "", |data| serve(data, &flags));
    for address in [2, 3] {
        let (mut client, socket) = server.connect_on(server.encke.connect_from(address));
        for _ in 0..60 {
            client.send(PING);
        }
        client.send(&match address {
            2 => subscribe("news", None),
            _ => sign_in(FIRST, &socket, &json!({ "id": "ann" })),
        });
        let answers = (0..60).filter_map(|_| client.message());
        let refused = answers.last().expect("each ping is answered");
        assert_eq!(refused["event"], "pusher:error", "{refused}");
        assert_eq!(client.close_code(), 4100);
    }
}

#[test]
fn an_event_reaches_all_subscribers_of_its_channel() {
    let server = PusherServer::start();
    let (mut first, one) = server.subscribed("news");
    let (mut second, other) = server.subscribed("news");
    let (mut elsewhere, _) = server.subscribed("sports");
    assert_ne!(one, other);
    let data = "{\"message\":\"hello \\u00e4\"}";
    server.triggered(&json!({ "name": "said", "channel": "news", "data": data }));
    server.triggered(&json!({ "name": "goal", "channels": ["sports"], "data": "no JSON" }));
    for client in [&mut first, &mut second] {
        assert_eq!(client.message(), Some(event("said", "news", data)));
    }
    let goal = event("goal", "sports", "no JSON");
    assert_eq!(elsewhere.message(), Some(goal), "and nothing of news");
    // Behind the end of a subscription nothing follows.
    first
        .send(&json!({ "event": "pusher:unsubscribe", "data": { "channel": "news" } }).to_string());
    assert_eq!(first.ask(&subscribe("sports", None)), succeeded("sports"));
    server.triggered(&json!({ "name": "late", "channels": ["news", "sports"], "data": "1" }));
    assert_eq!(first.message(), Some(event("late", "sports", "1")));
}

#[test]
fn the_client_that_causes_an_event_does_not_get_it() {
    let server = PusherServer::start();
    let (mut causer, socket) = server.subscribed("room");
    assert_eq!(causer.ask(&subscribe("other", None)), succeeded("other"));
    let (mut listener, _) = server.subscribed("room");
    for (number, caused) in [(1, true), (2, false), (3, true), (4, true), (5, false)] {
        let mut trigger = json!({ "name": "said", "channel": "room", "data": format!("{number}") });
        if caused {
            trigger["socket_id"] = socket.as_str().into();
        }
        server.triggered(&trigger);
        assert_eq!(
            listener.message(),
            Some(event("said", "room", &number.to_string()))
        );
        if !caused {
            let next = causer.message();
            assert_eq!(next, Some(event("said", "room", &number.to_string())));
        }
    }
    // Other channels of an event exclude the same client, and it goes on.
    server.triggered(
        &json!({ "name": "said", "channels": ["room", "other"], "data": "6", "socket_id": socket }),
    );
    server.triggered(&json!({ "name": "said", "channel": "other", "data": "7" }));
    assert_eq!(causer.message(), Some(event("said", "other", "7")));
    // A socket that is nobody's excludes nobody.
    server
        .triggered(&json!({ "name": "said", "channel": "room", "data": "8", "socket_id": "1.1" }));
    assert_eq!(causer.message(), Some(event("said", "room", "8")));
}

#[test]
fn private_channels_need_a_signature() {
    let server = PusherServer::start();
    let (mut client, socket) = server.connect();
    for channel in ["private-a", "private-encrypted-a"] {
        let refused = client.ask(&subscribe(channel, None));
        assert_eq!(
            (&refused["event"], &refused["channel"]),
            (&json!("pusher:subscription_error"), &json!(channel))
        );
        assert_eq!(
            (&refused["data"]["type"], &refused["data"]["status"]),
            (&json!("AuthError"), &json!(401))
        );
        let auth = FIRST.auth(&socket, channel);
        assert_eq!(
            client.ask(&subscribe(channel, Some(&auth))),
            succeeded(channel)
        );
        server.triggered(&json!({ "name": "e", "channel": channel, "data": "{}" }));
        assert_eq!(client.message(), Some(event("e", channel, "{}")));
    }
}

#[test]
fn a_cache_channel_begins_with_its_last_event() {
    let server = PusherServer::start();
    let (mut early, _) = server.connect();
    let miss = json!({ "event": "pusher:cache_miss", "channel": "cache-price" });
    assert_eq!(
        early.ask(&subscribe("cache-price", None)),
        succeeded("cache-price")
    );
    assert_eq!(early.message(), Some(miss));
    for price in ["1", "2"] {
        server.triggered(&json!({ "name": "price", "channel": "cache-price", "data": price }));
        assert_eq!(early.message(), Some(event("price", "cache-price", price)));
    }
    let (mut late, _) = server.connect();
    assert_eq!(
        late.ask(&subscribe("cache-price", None)),
        succeeded("cache-price")
    );
    assert_eq!(late.message(), Some(event("price", "cache-price", "2")));
    server.triggered(&json!({ "name": "price", "channel": "cache-price", "data": "3" }));
    assert_eq!(late.message(), Some(event("price", "cache-price", "3")));
    let told = server.told("/apps/1/channels/cache-price", "info=cache");
    assert_eq!(told, json!({ "occupied": true, "cache": { "data": "3" } }));
    let told = server.told("/apps/1/channels/cache-none", "info=cache");
    assert_eq!(told, json!({ "occupied": false, "cache": null }));
}

#[test]
fn a_connection_that_is_refused_is_told_by_the_close_code() {
    let server = PusherServer::start_with(
        "connections-max = 1\norigins = ['https://app.example']",
        "[[pusher.apps]]\nid = '3'\nkey = 'off'\nsecret = '0123456789abcdef'\nenabled = false\n",
    );
    let refused = |target: &str, fields: &[&str]| {
        let mut client = WebSocketClient::open(server.encke.address, target, fields);
        let message = client.message().expect("it is told why");
        assert_eq!(message["event"], "pusher:error", "{message}");
        let code = client.close_code();
        assert_eq!(message["data"]["code"], code);
        code
    };
    for (target, code) in [
        ("/app/unknown?protocol=7", 4001),
        ("/app/off?protocol=7", 4003),
        ("/app/first-key/more?protocol=7", 4005),
        ("/app/first-key?protocol=seven", 4006),
        ("/app/first-key?protocol=", 4006),
        ("/app/first-key?protocol=4", 4007),
        ("/app/first-key?protocol=8", 4007),
        ("/app/first-key", 4008),
    ] {
        assert_eq!(refused(target, &[]), code, "{target}");
    }
    let origin = "Origin: https://evil.example";
    assert_eq!(refused(&target(FIRST), &[origin]), 4009);
    // What is refused takes no place.
    let (client, _) = server.connect_with(&["Origin: https://app.example"]);
    assert_eq!(refused(&target(FIRST), &[]), 4004);
    let closed = |reason: &str| {
        let label = format!("reason=\"pusher_{reason}\"");
        server
            .encke
            .metric("encke_connections_closed_total", &label)
    };
    // A client reads the close code before its connection is gone.
    crate::rig::eventually("all are counted", || {
        closed("connections_max") == 1.0 && closed("version") == 5.0
    });
    drop(client);
    crate::rig::eventually("the place is free again", || {
        let mut client = WebSocketClient::open(server.encke.address, &target(FIRST), &[]);
        let message = client.message().expect("it is told something");
        message["event"] == "pusher:connection_established"
    });
    let answer = server.encke.ask("GET", "/app/first-key", &[], b"");
    assert_eq!(
        (answer.status, &*answer.error_code()),
        (400, "websocket_needed")
    );
}

#[test]
fn a_message_that_means_nothing_closes_nothing() {
    let server = PusherServer::start_with("channels-per-connection-max = 2", "");
    let (mut client, _) = server.connect();
    let long = "x".repeat(165);
    for (text, kind, word) in [
        ("no JSON", "pusher:error", "no JSON object"),
        ("[]", "pusher:error", "no JSON object"),
        (
            "{\"event\":\"unknown\"}",
            "pusher:error",
            "knows no such event",
        ),
        (
            "{\"event\":\"pusher:subscribe\",\"data\":{}}",
            "pusher:error",
            "a channel",
        ),
        (
            "{\"event\":\"pusher:other\",\"data\":{}}",
            "pusher:error",
            "not enabled",
        ),
        (
            "{\"event\":\"client-typing\",\"channel\":\"private-a\",\"data\":{}}",
            "pusher:error",
            "client events are not enabled for this app",
        ),
        (
            &subscribe("presence-a", Some("x")),
            "pusher:subscription_error",
            "signature",
        ),
        (
            &subscribe("a b", None),
            "pusher:subscription_error",
            "1 to 164",
        ),
        (
            &subscribe("..", None),
            "pusher:subscription_error",
            "1 to 164",
        ),
        (
            &subscribe(&long, None),
            "pusher:subscription_error",
            "1 to 164",
        ),
    ] {
        let answer = client.ask(text);
        assert_eq!(answer["event"], kind, "{text}: {answer}");
        assert!(
            answer["data"].to_string().contains(word),
            "{text}: {answer}"
        );
    }
    let pong = json!({ "event": "pusher:pong", "data": "{}" });
    assert_eq!(client.ask(PING), pong);
    client.send("{\"event\":\"pusher:pong\",\"data\":{}}");
    for channel in ["a", "b"] {
        assert_eq!(client.ask(&subscribe(channel, None)), succeeded(channel));
    }
    let again = client.ask(&subscribe("a", None));
    assert_eq!(again["event"], "pusher:error", "{again}");
    let further = client.ask(&subscribe("c", None));
    assert_eq!(further["data"]["type"], "LimitReached", "{further}");
    // One that has ended makes room.
    client.send("{\"event\":\"pusher:unsubscribe\",\"data\":{\"channel\":\"b\"}}");
    client.send("{\"event\":\"pusher:unsubscribe\",\"data\":{\"channel\":\"never\"}}");
    assert_eq!(client.ask(&subscribe("c", None)), succeeded("c"));
}

#[test]
fn a_client_that_answers_no_ping_comes_back_at_once() {
    let server = PusherServer::start_with("", "[tuning]\nheartbeat = '5s'\n");
    let (mut silent, _) = server.subscribed("news");
    silent.answers_pings = false;
    assert_eq!(silent.close_code(), 4201);
}

#[test]
fn a_client_that_reads_too_slowly_is_closed_and_delays_no_other() {
    let keys = "event-bytes-max = 100000";
    let further = "[tuning]\nlag-max = '512KiB'\nstall-timeout = '2s'\n";
    let server = PusherServer::start_with(keys, further);
    let (_slow, _) = server.subscribed("news");
    let (mut reader, _) = server.subscribed("news");
    let data = "x".repeat(90_000);
    let is_closed = || {
        let closed = |reason: &str| {
            server
                .encke
                .metric("encke_connections_closed_total", reason)
        };
        closed("\"lag_max\"") + closed("\"stalled\"") > 0.0
    };
    crate::rig::eventually("the slow client is closed", || {
        server.triggered(&json!({ "name": "e", "channel": "news", "data": data }));
        assert_eq!(reader.message(), Some(event("e", "news", &data)));
        is_closed()
    });
}

#[test]
fn other_protocols_read_and_write_channels() {
    let server = PusherServer::start_with("retention = 'records=10'", "");
    let (mut client, socket) = server.subscribed("news");
    server.triggered(
        &json!({ "name": "a", "channel": "news", "data": "{\"x\":1}", "socket_id": socket }),
    );
    let stored = [json!({ "event": "a", "data": "{\"x\":1}", "socket_id": socket })];
    assert_eq!(server.encke.messages("app/1/news"), stored);
    let body = json!([{ "event": "b", "data": { "y": 2 } }, "no event", { "event": "c" }]);
    let stream = path("app/1/news");
    let appended = server
        .encke
        .ask("POST", &stream, &[JSON], body.to_string().as_bytes());
    assert_eq!(appended.status, 204);
    assert_eq!(client.message(), Some(event("b", "news", "{\"y\":2}")));
    let without_data = json!({ "event": "c", "channel": "news" });
    assert_eq!(client.message(), Some(without_data));
    let head = server.encke.ask("HEAD", &stream, &[], b"");
    assert_eq!(head.field("Content-Type"), Some("application/json"));
    assert_eq!(head.field("Encke-Retention"), Some("records=10"));
}

#[test]
fn a_channel_whose_stream_ends_has_its_clients_come_back() {
    let server = PusherServer::start();
    server.triggered(&json!({ "name": "a", "channel": "news", "data": "" }));
    let (mut client, _) = server.subscribed("news");
    let deleted = server.encke.ask("DELETE", &path("app/1/news"), &[], b"");
    assert_eq!(deleted.status, 204);
    assert_eq!(client.close_code(), 4200);
    // A stream of another type is no channel, and one that is closed gets no events.
    let made = server.encke.ask(
        "PUT",
        &path("app/1/text"),
        &["Content-Type: text/plain"],
        b"x",
    );
    assert_eq!(made.status, 201);
    let fields = [JSON, "Stream-Closed: true"];
    let made = server.encke.ask("PUT", &path("app/1/closed"), &fields, b"");
    assert_eq!(made.status, 201);
    let (mut client, _) = server.connect();
    for channel in ["text", "closed"] {
        let refused: Value = client.ask(&subscribe(channel, None));
        assert_eq!(refused["data"]["status"], 409, "{refused}");
        let answer =
            server.trigger(&json!({ "name": "a", "channels": ["news", channel], "data": "" }));
        assert_eq!(answer.status, 409, "{answer:?}");
    }
}
