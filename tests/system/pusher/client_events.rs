//! Events that clients send to each other.

use serde_json::{Value, json};

use super::{FIRST, PING, PusherServer, event, subscribe, succeeded};
use crate::rig::websocket::WebSocketClient;

/// A client that is subscribed to that private channel.
fn member(server: &PusherServer, channel: &str) -> WebSocketClient {
    let (mut client, socket) = server.connect();
    let auth = FIRST.auth(&socket, channel);
    let answer = client.ask(&subscribe(channel, Some(&auth)));
    assert_eq!(answer, succeeded(channel));
    client
}

fn client_event(name: &str, channel: &str, data: &Value) -> String {
    json!({ "event": name, "channel": channel, "data": data }).to_string()
}

#[test]
fn the_others_get_what_a_client_sends_and_nothing_is_stored() {
    let server = PusherServer::start_with("client-events = true\nevent-bytes-max = 100", "");
    let mut sender = member(&server, "private-a");
    let mut other = member(&server, "private-a");
    server.caught_up("private-a", &mut [&mut sender, &mut other]);
    let mut elsewhere = member(&server, "private-b");
    let longest = "\"".repeat(100);
    for (data, shown) in [
        (json!({ "typing": true }), "{\"typing\":true}"),
        (json!("a text"), "a text"),
        (json!(7), "7"),
        // A text counts as it is sent on, without quotes and escapes.
        (json!(&*longest), &*longest),
    ] {
        sender.send(&client_event("client-typing", "private-a", &data));
        let got = other.message();
        assert_eq!(got, Some(event("client-typing", "private-a", shown)));
    }
    // The sender gets neither its own events nor a confirmation.
    server.triggered(&json!({ "name": "e", "channels": ["private-a", "private-b"], "data": "1" }));
    for (client, channel) in [
        (&mut sender, "private-a"),
        (&mut other, "private-a"),
        (&mut elsewhere, "private-b"),
    ] {
        assert_eq!(client.message(), Some(event("e", channel, "1")));
    }
    let stored = [("latest", ""), ("e", "1")];
    let stored = stored.map(|(event, data)| json!({ "event": event, "data": data }));
    assert_eq!(server.encke.messages("app/1/private-a"), stored);
    for (text, word) in [
        (
            client_event("client-x", "private-b", &json!(1)),
            "is subscribed to",
        ),
        (
            client_event("client-x", "private-encrypted-a", &json!(1)),
            "private and presence",
        ),
        (
            client_event("client-x", "a", &json!(1)),
            "private and presence",
        ),
        (
            client_event("client-x", "private-a", &json!("x".repeat(101))),
            "101 bytes, at most 100",
        ),
        (
            client_event("client-x", "private-a", &json!({ "x": "y".repeat(93) })),
            "101 bytes, at most 100",
        ),
        ("{\"event\":\"client-x\"}".to_owned(), "1 to 164"),
    ] {
        let answer = sender.ask(&text);
        assert_eq!(answer["event"], "pusher:error", "{text}: {answer}");
        assert_eq!(answer["data"]["code"], 4301, "{text}: {answer}");
        let why = answer["data"]["message"].as_str().expect("it says why");
        assert!(why.contains(word), "{text}: {why}");
    }
}

#[test]
fn a_client_sends_so_many_events_a_second() {
    let keys = "client-events = true\nclient-events-per-second = 5";
    let server = PusherServer::start_with(keys, "");
    let mut sender = member(&server, "private-a");
    let mut other = member(&server, "private-a");
    server.caught_up("private-a", &mut [&mut sender, &mut other]);
    // The seconds of the server may change once on the way.
    for number in 0..11 {
        sender.send(&client_event("client-x", "private-a", &json!(number)));
    }
    // Events are refused in the order in which they arrive, so the pong follows all refusals.
    let mut refused = 0;
    let mut answer = sender.ask(PING);
    while answer["event"] != "pusher:pong" {
        assert_eq!(answer["event"], "pusher:error", "{answer}");
        assert_eq!(answer["data"]["code"], 4301, "{answer}");
        refused += 1;
        answer = sender.message().expect("the answer to the ping");
    }
    assert!((1..=6).contains(&refused), "{refused} events are refused");
    // A refusal may arrive before the events that were sent before the refused one.
    for _ in refused..11 {
        let sent = other.message().expect("an event that was not refused");
        assert_eq!(sent["event"], "client-x", "{sent}");
    }
    server.triggered(&json!({ "name": "last", "channel": "private-a", "data": "" }));
    let last = other.message().expect("the event of the trigger");
    assert_eq!(last["event"], "last", "{last}");
}

#[test]
fn an_app_without_them_refuses_them() {
    let server = PusherServer::start();
    let mut sender = member(&server, "private-a");
    let answer = sender.ask(&client_event("client-x", "private-a", &json!(1)));
    assert_eq!(answer["data"]["code"], 4301, "{answer}");
    let why = answer["data"]["message"].to_string();
    assert!(why.contains("client-events"), "{why}");
}
