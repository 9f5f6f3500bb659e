//! Clients that come back and want what they have missed.

use serde_json::{Value, json};

use super::{PusherServer, event, inner, succeeded};
use crate::rig::websocket::WebSocketClient;

/// The message that subscribes a client which has got to a position.
fn subscribe_after(channel: &str, after: &str) -> String {
    let data = json!({ "channel": channel, "encke_after": after });
    json!({ "event": "pusher:subscribe", "data": data }).to_string()
}

/// A client that is subscribed from a position on; where it begins, and whether something is lost to it.
fn resumed(server: &PusherServer, after: &str) -> (WebSocketClient, String, bool) {
    let (mut client, _) = server.connect();
    assert_eq!(
        client.ask(&subscribe_after("news", after)),
        succeeded("news")
    );
    let position = client.message().expect("it follows");
    assert_eq!(
        (&position["event"], &position["channel"]),
        (&"pusher_internal:encke_position".into(), &"news".into())
    );
    let position = inner(&position);
    let offset = position["offset"].as_str().expect("an offset").to_owned();
    (
        client,
        offset,
        position["gap"].as_bool().expect("it is said"),
    )
}

/// The data of a client's next event, and the offset behind it.
fn next(client: &mut WebSocketClient) -> (String, String) {
    let mut message = client.message().expect("an event comes");
    let offset = message.as_object_mut().expect("an object").remove("offset");
    let data = message["data"].as_str().expect("a text").to_owned();
    assert_eq!(message, event("e", "news", &data));
    let offset = offset.expect("it has an offset");
    (data, offset.as_str().expect("a text").to_owned())
}

fn trigger(server: &PusherServer, numbers: std::ops::Range<u32>) {
    for number in numbers {
        server.triggered(&json!({ "name": "e", "channel": "news", "data": number.to_string() }));
    }
}

#[test]
fn who_comes_back_gets_what_it_has_missed_and_others_notice_nothing() {
    let server = PusherServer::start_with("rewind = true", "");
    let (mut plain, _) = server.subscribed("news");
    let (mut client, mut offset, has_gap) = resumed(&server, "now");
    assert!(!has_gap);
    trigger(&server, 0..2);
    for number in ["0", "1"] {
        let data;
        (data, offset) = next(&mut client);
        assert_eq!(data, number);
        assert_eq!(plain.message(), Some(event("e", "news", number)));
    }
    drop(client);
    trigger(&server, 2..300);
    let server = server.killed();
    let (mut client, begin, has_gap) = resumed(&server, &offset);
    assert_eq!((begin, has_gap), (offset, false));
    trigger(&server, 300..302);
    for number in 2..302 {
        assert_eq!(next(&mut client).0, number.to_string());
    }
    // From the beginning, and from every offset between.
    let (mut all, ..) = resumed(&server, "-1");
    let mut offsets = Vec::new();
    for number in 0..302 {
        let (data, offset) = next(&mut all);
        assert_eq!(data, number.to_string());
        offsets.push(offset);
    }
    for number in [0, 150, 300] {
        let (mut rest, ..) = resumed(&server, &offsets[number]);
        assert_eq!(next(&mut rest).0, (number + 1).to_string());
    }
}

#[test]
fn what_is_lost_is_said() {
    let server = PusherServer::start_with("retention = 'records=5'", "");
    let (mut client, offset, _) = resumed(&server, "now");
    trigger(&server, 0..1);
    let (_, first) = next(&mut client);
    drop(client);
    trigger(&server, 1..40);
    for after in [&offset, &first] {
        let (mut client, _, has_gap) = resumed(&server, after);
        assert!(has_gap);
        let (data, _) = next(&mut client);
        assert!(
            (1..=35).contains(&data.parse::<u32>().expect("a number")),
            "{data}"
        );
    }
    // Another stream has the name now.
    let deleted = server
        .encke
        .ask("DELETE", &crate::rig::path("app/1/news"), &[], b"");
    assert_eq!(deleted.status, 204);
    trigger(&server, 77..78);
    let (mut client, _, has_gap) = resumed(&server, &first);
    assert!(has_gap);
    assert_eq!(next(&mut client).0, "77");
    let (mut client, _) = server.connect();
    let (bare, _) = first.split_once('.').expect("it is signed");
    for (after, expected) in [
        ("yesterday", "encke_after: an offset is a value that"),
        // The past of a channel is not for whoever may subscribe to it now.
        ("-1", "encke_after: it is neither"),
        (bare, "encke_after: it is neither"),
    ] {
        let refused: Value = client.ask(&subscribe_after("news", after));
        assert_eq!(refused["data"]["status"], 400, "{refused}");
        let why = refused["data"]["error"].as_str().expect("a reason");
        assert!(why.starts_with(expected), "{after}: {why}");
    }
    // Somewhere that the server does not know, such as before the secret of the app was changed.
    let (mut client, _, has_gap) = resumed(&server, &format!("{first}0"));
    assert!(has_gap);
    trigger(&server, 78..79);
    assert_eq!(next(&mut client).0, "78");
    let (mut client, _) = server.connect();
    let of_other = subscribe_after("other", &first);
    assert_eq!(client.ask(&of_other), succeeded("other"));
    let position = inner(&client.message().expect("it follows"));
    assert_eq!(position["gap"], true, "{position}");
}

#[test]
fn who_comes_back_to_a_channel_that_was_deleted_is_told_once() {
    let server = PusherServer::start();
    trigger(&server, 0..1);
    let (client, offset, _) = resumed(&server, "now");
    drop(client);
    let path = crate::rig::path("app/1/news");
    assert_eq!(server.encke.ask("DELETE", &path, &[], b"").status, 204);
    let (client, offset, has_gap) = resumed(&server, &offset);
    assert!(has_gap);
    drop(client);
    let (_, _, has_gap) = resumed(&server, &offset);
    assert!(!has_gap);
}
