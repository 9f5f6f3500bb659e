//! Attacks on the signatures of apps. docs/security.md names these tests.

use std::io::Read;

use serde_json::{Value, json};

use super::members::join;
use super::users::sign_in;
use super::{AppAccess, FIRST, PusherServer, SECOND, now_s, subscribe, succeeded, target};
use crate::access::{API_KEY, Guarded, bearer};
use crate::rig::http2::{END_HEADERS, Frame, Http2Client};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{JSON, Response, serve};

/// Asserts that a client is refused a channel with what it claims to be authorised by.
fn is_refused(client: &mut WebSocketClient, channel: &str, auth: &str) {
    let answer = client.ask(&subscribe(channel, Some(auth)));
    assert_eq!(
        answer["event"], "pusher:subscription_error",
        "{auth}: {answer}"
    );
    assert_eq!(answer["data"]["status"], 401, "{auth}: {answer}");
}

fn trigger(server: &PusherServer, target: &str, body: &str) -> Response {
    server.encke.ask("POST", target, &[], body.as_bytes())
}

/// Asserts that a request is refused for its signature, and that nothing of it is stored.
fn is_unauthorised(server: &PusherServer, target: &str, body: &str) {
    let answer = trigger(server, target, body);
    assert_eq!(
        (answer.status, &*answer.error_code()),
        (401, "bad_signature"),
        "{target}"
    );
    for app in ["1", "2"] {
        let stream = crate::rig::path(&format!("app/{app}/private-a"));
        assert_eq!(
            server.encke.ask("GET", &stream, &[], b"").status,
            404,
            "{target}"
        );
    }
}

const EVENTS: &str = "/apps/1/events";

fn body() -> String {
    json!({ "name": "e", "channel": "private-a", "data": "1" }).to_string()
}

#[test]
fn a_subscription_is_authorised_for_its_socket_and_channel_only() {
    let server = PusherServer::start();
    let (mut client, socket) = server.connect();
    let (_other, other_socket) = server.connect();
    let channel = "private-a";
    let wrong_secret = AppAccess {
        secret: "another secret",
        ..FIRST
    };
    let right = FIRST.auth(&socket, channel);
    for auth in [
        // Another socket, another channel, and another app.
        FIRST.auth(&other_socket, channel),
        FIRST.auth(&socket, "private-b"),
        FIRST.auth(&socket, "private-"),
        SECOND.auth(&socket, channel),
        right.replace(FIRST.key, SECOND.key),
        // Another secret, and another text of the same characters.
        wrong_secret.auth(&socket, channel),
        format!(
            "{}:{}",
            FIRST.key,
            FIRST.sign(&format!("{socket}::user::{channel}"))
        ),
        format!(
            "{}:{}",
            FIRST.key,
            FIRST.sign(&format!("{socket}{channel}"))
        ),
        // No signature.
        FIRST.key.to_owned(),
        format!("{}:", FIRST.key),
        format!("{right}00"),
        right[..right.len() - 1].to_owned(),
    ] {
        is_refused(&mut client, channel, &auth);
    }
    // Data that was signed for a member is no part of another subscription.
    let data = "{\"user_id\":1}";
    let signed = FIRST.sign(&format!("{socket}:{channel}:{data}"));
    is_refused(&mut client, channel, &format!("{}:{signed}", FIRST.key));
    let message = json!({ "event": "pusher:subscribe", "data": {
        "channel": channel, "auth": right, "channel_data": data,
    } });
    assert_eq!(client.ask(&message.to_string())["data"]["status"], 401);
    assert_eq!(
        client.ask(&subscribe(channel, Some(&right))),
        succeeded(channel)
    );
}

#[test]
fn a_request_with_another_key_or_secret_changes_nothing() {
    let server = PusherServer::start();
    let body = body();
    let wrong_key = AppAccess {
        key: SECOND.key,
        ..FIRST
    };
    let wrong_secret = AppAccess {
        secret: SECOND.secret,
        ..FIRST
    };
    for app in [wrong_key, wrong_secret, SECOND] {
        is_unauthorised(
            &server,
            &app.signed("POST", EVENTS, "", &body, now_s()),
            &body,
        );
    }
    // One that was signed for the other app.
    let target = FIRST.signed("POST", "/apps/2/events", "", &body, now_s());
    is_unauthorised(&server, &target, &body);
    let signed = FIRST.signed("POST", EVENTS, "", &body, now_s());
    is_unauthorised(&server, &signed.replace("/apps/1/", "/apps/2/"), &body);
}

#[test]
fn a_request_is_refused_outside_of_its_ten_minutes() {
    let server = PusherServer::start();
    let body = body();
    for time_s in [now_s() - 700, now_s() + 700, 0] {
        is_unauthorised(
            &server,
            &FIRST.signed("POST", EVENTS, "", &body, time_s),
            &body,
        );
    }
    let answer = trigger(
        &server,
        &FIRST.signed("POST", EVENTS, "", &body, now_s() - 500),
        &body,
    );
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn a_request_is_authorised_for_its_body_method_and_path_only() {
    let server = PusherServer::start();
    let (body, time_s) = (body(), now_s());
    let signed = FIRST.signed("POST", EVENTS, "", &body, time_s);
    is_unauthorised(&server, &signed, &body.replace("\"1\"", "\"2\""));
    is_unauthorised(&server, &signed, "");
    // Without a digest a body is not signed.
    let unsigned = FIRST.signed("POST", EVENTS, "", "", time_s);
    is_unauthorised(&server, &unsigned, &body);
    let swapped = format!("body_md5={:x}", md5::compute("{}"));
    let digest = format!("body_md5={:x}", md5::compute(&body));
    is_unauthorised(&server, &signed.replace(&digest, &swapped), "{}");
    is_unauthorised(
        &server,
        &FIRST.signed("GET", EVENTS, "", &body, time_s),
        &body,
    );
    let batch = signed.replace("/events", "/batch_events");
    is_unauthorised(&server, &batch, &body);
}

#[test]
fn the_order_of_parameters_means_nothing_and_each_is_there_once() {
    let server = PusherServer::start();
    let body = body();
    let signed = FIRST.signed("POST", EVENTS, "", &body, now_s());
    for further in [
        "auth_key=second-key",
        "body_md5=0",
        "AUTH_TIMESTAMP=0",
        "auth_signature=",
    ] {
        for target in [
            format!("{signed}&{further}"),
            signed.replace('?', &format!("?{further}&")),
        ] {
            let answer = trigger(&server, &target, &body);
            assert_eq!(
                (answer.status, &*answer.error_code()),
                (400, "bad_query"),
                "{target}"
            );
        }
    }
    is_unauthorised(&server, &format!("{signed}&info=x"), &body);
    for missing in [
        "auth_key",
        "auth_timestamp",
        "auth_version",
        "auth_signature",
    ] {
        is_unauthorised(&server, &signed.replace(missing, "other"), &body);
    }
    let (path, query) = signed.split_once('?').expect("it has a query");
    let mut parameters: Vec<&str> = query.split('&').collect();
    parameters.reverse();
    let answer = trigger(&server, &format!("{path}?{}", parameters.join("&")), &body);
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn apps_are_apart_and_access_control_guards_their_streams() {
    let server = PusherServer::start_by("", "[access]\n", |data| {
        serve(data, &["--admin-listen", "127.0.0.1:0"])
    });
    let encke = &server.encke;
    let open = |app| {
        let mut client = WebSocketClient::open(encke.address, &super::target(app), &[]);
        client.message().expect("it is open");
        assert_eq!(client.ask(&subscribe("news", None)), succeeded("news"));
        client
    };
    let (mut first, mut second) = (open(FIRST), open(SECOND));
    for (app, data) in [(FIRST, "1"), (SECOND, "2")] {
        let body = json!({ "name": "e", "channel": "news", "data": data }).to_string();
        let path = format!("/apps/{}/events", app.id);
        let target = app.signed("POST", &path, "", &body, now_s());
        let answer = encke.ask("POST", &target, &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let event: Value = first.message().expect("it is subscribed");
    assert_eq!(event["data"], "1");
    assert_eq!(second.message().expect("it is subscribed")["data"], "2");
    // The credentials of an app are none for its streams.
    let stream = crate::rig::path("app/1/news");
    assert_eq!(encke.ask("GET", &stream, &[], b"").status, 401);
    let signed = FIRST.signed("GET", &stream, "", "", now_s());
    assert_eq!(encke.ask("GET", &signed, &[], b"").status, 401);
}

#[test]
fn strangers_create_no_streams_and_take_no_place_of_servers() {
    let server = PusherServer::start_with("channels-max = 2", "");
    let streams = server.encke.metric("encke_streams", "");
    let (mut stranger, _) = server.connect();
    for channel in ["a", "b"] {
        assert_eq!(stranger.ask(&subscribe(channel, None)), succeeded(channel));
    }
    let answer = stranger.ask(&subscribe("c", None));
    assert_eq!(answer["event"], "pusher:subscription_error", "{answer}");
    assert_eq!(answer["data"]["status"], 429, "{answer}");
    let why = answer["data"]["error"].as_str().expect("a reason");
    assert!(
        why.contains("2 channels") && why.contains("channels-max"),
        "{why}"
    );
    assert_eq!(server.encke.metric("encke_streams", ""), streams);
    assert_eq!(server.encke.metric("encke_awaited_names", ""), 2.0);
    // Whom a server has signed has places of its own, and the server has all of its streams.
    let (mut client, socket) = server.connect();
    for channel in ["private-a", "private-b"] {
        let auth = FIRST.auth(&socket, channel);
        let answer = client.ask(&subscribe(channel, Some(&auth)));
        assert_eq!(answer, succeeded(channel));
    }
    let answer = client.ask(&sign_in(FIRST, &socket, &json!({ "id": "ann" })));
    assert_eq!(answer["event"], "pusher:signin_success", "{answer}");
    server.triggered(&json!({ "name": "e", "channel": "a", "data": "1" }));
    assert_eq!(stranger.message().expect("it comes")["data"], "1");
    let refused = server.trigger(&json!({ "name": "e", "channel": "d", "data": "1" }));
    assert_eq!(
        (refused.status, &*refused.error_code()),
        (429, "channels_max")
    );
    // A channel stops waiting with its first event, or when its last subscriber leaves.
    assert_eq!(stranger.ask(&subscribe("c", None)), succeeded("c"));
    drop((stranger, client));
    server.encke.wait_for_metric("encke_awaited_names", 0.0);
}

#[test]
fn a_body_is_received_behind_a_signature_only() {
    let server = PusherServer::start();
    let body = body();
    let signed = FIRST.signed("POST", EVENTS, "", &body, now_s());
    let forged = FIRST.signed("POST", EVENTS, "", &body, now_s() - 700);
    let other = SECOND.signed("POST", EVENTS, "", &body, now_s());
    let unsigned = FIRST.signed("POST", EVENTS, "", "", now_s());
    let head = |target: &str, fields: &str, bytes: usize| {
        let host = "Host: x\r\nContent-Type: application/json\r\n";
        format!("POST {target} HTTP/1.1\r\n{host}{fields}Content-Length: {bytes}\r\n\r\n")
    };
    for (target, status) in [
        ("/apps/anything/events", 404),
        ("/apps/1/nothing", 404),
        (EVENTS, 401),
        (&*forged, 401),
        (&other, 401),
        (&unsigned, 401),
        (&target(FIRST), 405),
    ] {
        for expects in ["", "Expect: 100-continue\r\n"] {
            let mut client = server.encke.connect();
            client.send(head(target, expects, 10_000_000).as_bytes());
            // No `100 Continue` comes first, and the body is not waited for.
            let answer = client.answer();
            assert_eq!(answer.status, status, "{target}: {answer:?}");
            assert!(answer.closes(), "{target}");
        }
        // Longer values than the raw frames of this rig take are those of signatures.
        if target.len() < 120 {
            let mut client = Http2Client::open(server.encke.address, &[]);
            let mut fields = Frame::fields("POST", target);
            fields.push(("expect", "100-continue"));
            client.send(&Frame::headers(END_HEADERS, 1, &fields));
            let code = client.error_code(1);
            assert!(
                ["not_found", "bad_signature", "method_not_allowed"].contains(&&*code),
                "{target}: {code}"
            );
        }
    }
    let mut client = server.encke.connect();
    client.send(head(&signed, "Expect: 100-continue\r\n", body.len()).as_bytes());
    let mut invited = [0; 25];
    let read = client.socket.read_exact(&mut invited);
    read.expect("an invitation");
    assert_eq!(&invited, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(body.as_bytes());
    assert_eq!(client.answer().status, 200);
}

#[test]
fn a_stream_with_an_owner_is_no_channel() {
    let guarded = Guarded::start_with(&format!(
        "[[pusher.apps]]\nid = '1'\nkey = '{}'\nsecret = '{}'\n",
        FIRST.key, FIRST.secret
    ));
    let path = crate::rig::path("app/1/cache-a");
    let key = bearer(API_KEY);
    let fields = [JSON, "Encke-Owner: self", &*key];
    let created = guarded.encke.ask("PUT", &path, &fields, b"");
    assert_eq!(created.status, 201, "{created:?}");
    let event = json!({ "event": "e", "data": "hidden" }).to_string();
    let appended = guarded
        .encke
        .ask("POST", &path, &[JSON, &key], event.as_bytes());
    assert_eq!(appended.status, 204, "{appended:?}");
    let mut client = WebSocketClient::open(guarded.encke.address, &target(FIRST), &[]);
    client.message().expect("it is established");
    let answer = client.ask(&subscribe("cache-a", None));
    assert_eq!(answer["event"], "pusher:subscription_error", "{answer}");
    assert_eq!(answer["data"]["status"], 404, "{answer}");
}

#[test]
fn subscribers_by_other_protocols_are_no_members_of_channels() {
    let server = PusherServer::start_with("", "[[presence.streams]]\nnames = '**'\n");
    let (_ann, ids) = join(&server, "presence-room", "ann");
    assert_eq!(ids, ["ann"]);
    let mut forger = server.encke.connect();
    let target = "/v1/stream/app/1/presence-room?offset=-1&live=sse&member=eve&member-data=1";
    forger.send(&crate::rig::request("GET", target, &[], b""));
    forger.head();
    let (_bob, ids) = join(&server, "presence-room", "bob");
    assert_eq!(ids, ["ann", "bob"]);
    let info = "info=subscription_count,user_count";
    let told = server.told("/apps/1/channels/presence-room", info);
    let expected = json!({ "occupied": true, "subscription_count": 2, "user_count": 2 });
    assert_eq!(told, expected);
}
