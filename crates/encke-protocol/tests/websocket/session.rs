//! What messages lead to.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_protocol::{Feed, FeedEnd, ProtocolSettings};
use encke_stream::Offset;
use serde_json::{Value, json};

use super::*;

#[test]
fn a_session_in_exact_bytes() {
    let mut server = with(&[("chat/1", JSON)]);
    let begin = tail(&server, "chat/1");
    let mut channel = server.open("/v1/events", &[PROTOCOL]);
    assert!(channel.first.is_empty());
    let say = |server: &mut Server, channel: &mut TestChannel, text: &str| {
        let said = server.say(channel, text);
        said.join("\n")
    };
    let subscribe = r#"{"type":"subscribe","id":1,"stream":"chat/1","offset":"-1"}"#;
    let start = Offset::START;
    assert_eq!(
        say(&mut server, &mut channel, subscribe),
        format!(r#"{{"type":"subscribed","id":1,"stream":"chat/1","offset":"{start}"}}"#)
    );
    assert_eq!(
        server.deliver(&mut channel),
        [format!(
            r#"{{"type":"position","stream":"chat/1","offset":"{begin}","upToDate":true}}"#
        )]
    );
    let append = r#"{"type":"append","id":2,"stream":"chat/1","data":{"a": [1]}}"#;
    let appended = say(&mut server, &mut channel, append);
    let one = tail(&server, "chat/1");
    assert_eq!(
        appended,
        format!(r#"{{"type":"appended","id":2,"stream":"chat/1","offset":"{one}"}}"#)
    );
    let append = r#"{"type":"append","stream":"chat/1","data":[2,"x"],"producer":{"id":"w","epoch":1,"seq":0},"ack":"written"}"#;
    for duplicate in ["", r#","duplicate":true"#] {
        let appended = say(&mut server, &mut channel, append);
        let two = tail(&server, "chat/1");
        assert_eq!(
            appended,
            format!(
                r#"{{"type":"appended","stream":"chat/1","offset":"{two}","epoch":1,"seq":0{duplicate}}}"#
            )
        );
    }
    let two = tail(&server, "chat/1");
    assert_eq!(
        server.deliver(&mut channel),
        [
            format!(
                r#"{{"type":"records","stream":"chat/1","offset":"{one}","data":[{{"a": [1]}}]}}"#
            ),
            format!(
                r#"{{"type":"records","stream":"chat/1","offset":"{two}","data":[2,"x"],"upToDate":true}}"#
            ),
        ]
    );
    let again = r#"{"type":"subscribe","id":3,"stream":"chat/1"}"#;
    assert_eq!(
        say(&mut server, &mut channel, again),
        r#"{"type":"error","id":3,"stream":"chat/1","status":409,"code":"already_subscribed","message":"the channel subscribes to \"chat/1\" already; unsubscribe first"}"#
    );
    let unsubscribe = r#"{"type":"unsubscribe","id":4,"stream":"chat/1"}"#;
    assert_eq!(
        say(&mut server, &mut channel, unsubscribe),
        r#"{"type":"unsubscribed","id":4,"stream":"chat/1"}"#
    );
    assert!(channel.feeds.is_empty());
    let close = r#"{"type":"append","id":5,"stream":"chat/1","data":3,"close":true}"#;
    let closed = say(&mut server, &mut channel, close);
    let three = tail(&server, "chat/1");
    assert_eq!(
        closed,
        format!(
            r#"{{"type":"appended","id":5,"stream":"chat/1","offset":"{three}","closed":true}}"#
        )
    );
    let rest = format!(r#"{{"type":"subscribe","stream":"chat/1","offset":"{two}"}}"#);
    assert_eq!(
        say(&mut server, &mut channel, &rest),
        format!(r#"{{"type":"subscribed","stream":"chat/1","offset":"{two}"}}"#)
    );
    assert_eq!(
        server.deliver(&mut channel),
        [format!(
            r#"{{"type":"records","stream":"chat/1","offset":"{three}","data":[3],"upToDate":true,"ended":"closed"}}"#
        )]
    );
    // The subscription is over, and may begin again.
    let now = r#"{"type":"subscribe","stream":"chat/1"}"#;
    assert_eq!(
        say(&mut server, &mut channel, now),
        format!(
            r#"{{"type":"subscribed","stream":"chat/1","offset":"{three}","upToDate":true,"ended":[{{"stream":"chat/1","reason":"closed"}}]}}"#
        )
    );
    assert!(channel.feeds.is_empty());
    let append = r#"{"type":"append","id":6,"stream":"chat/1","data":4}"#;
    assert_eq!(
        say(&mut server, &mut channel, append),
        format!(
            r#"{{"type":"error","id":6,"stream":"chat/1","status":409,"code":"closed","message":"the stream is closed and takes no more records","offset":"{three}"}}"#
        )
    );
}

#[test]
fn a_url_names_the_first_subscription() {
    let mut server = with(&[("a", JSON), ("b/c", TEXT)]);
    let channel = server.open("/v1/stream/a?offset=now&live=websocket", &[]);
    let at = tail(&server, "a");
    let expected =
        format!(r#"{{"type":"subscribed","stream":"a","offset":"{at}","upToDate":true}}"#);
    assert_eq!(channel.first, [expected]);
    assert_eq!(channel.feeds.len(), 1);
    // An error belongs to the subscription.
    let mut channel = server.open("/v1/stream/none?offset=now&live=websocket", &[]);
    let error = parsed(&channel.first[0]);
    assert_eq!(
        (&error["stream"], &error["status"]),
        (&json!("none"), &json!(404))
    );
    let said = ask(
        &mut server,
        &mut channel,
        &json!({"type":"append","stream":"a","data":1}),
    );
    assert_eq!(parsed(&said)["type"], "appended");
    // A position to go on from is newer than the URL.
    let later = tail(&server, "a");
    let target = format!("/v1/stream/a?offset=-1&live=websocket&lastEventId={later}");
    let channel = server.open(&target, &[]);
    assert_eq!(parsed(&channel.first[0])["offset"], later);
    let channel = server.open("/v1/events?stream=a@-1&stream=b/**", &[]);
    let first = parsed(&channel.first[0]);
    assert_eq!(
        (&first["type"], &first["subscription"]),
        (&json!("subscribed"), &json!("a,b/**"))
    );
    let position = first["position"].as_str().unwrap().to_owned();
    let Feed::Merged { sources, label, .. } = &channel.feeds[&1].feed else {
        panic!("it is for several streams");
    };
    assert_eq!((sources.len(), &**label), (2, "a,b/**"));
    // The same position, by the URL and by a message.
    let target = format!("/v1/events?stream=a@-1&stream=b/**&after={position}");
    let mut channel = server.open(&target, &[]);
    assert_eq!(parsed(&channel.first[0])["position"], position);
    let unsubscribe = json!({"type":"unsubscribe","streams":["a","b/**"]});
    let said = ask(&mut server, &mut channel, &unsubscribe);
    assert_eq!(said, r#"{"type":"unsubscribed","subscription":"a,b/**"}"#);
    let subscribe = json!({"type":"subscribe","streams":["a","b/**"],"position":position});
    let said = ask(&mut server, &mut channel, &subscribe);
    assert_eq!(parsed(&said)["position"], position);
}

#[test]
fn messages_of_other_types_have_their_data_as_it_is() {
    let mut server = with(&[("t", TEXT), ("b", BYTES)]);
    let mut channel = server.open("/v1/events", &[]);
    for stream in ["t", "b"] {
        ask(
            &mut server,
            &mut channel,
            &json!({"type":"subscribe","stream":stream}),
        );
    }
    for message in [
        json!({"type":"append","stream":"t","text":"é\n"}),
        json!({"type":"append","stream":"t","base64":STANDARD.encode(b"\xff\xe2\x82")}),
        json!({"type":"append","stream":"b","base64":"AP8=","contentType":"Application/Octet-Stream; x=y"}),
        json!({"type":"append","stream":"b","text":"a"}),
    ] {
        let said = ask(&mut server, &mut channel, &message);
        assert_eq!(parsed(&said)["type"], "appended", "{said}");
    }
    let delivered = server.deliver(&mut channel);
    let shown: Vec<_> = delivered.iter().map(|message| parsed(message)).collect();
    let data = |message: &Value| {
        let member = |name: &str| {
            message
                .get(name)
                .map(|value| (name.to_owned(), value.clone()))
        };
        member("text").or(member("base64"))
    };
    let data: Vec<_> = shown.iter().filter_map(data).collect();
    assert_eq!(
        data,
        [
            ("text".to_owned(), json!("é\n")),
            ("base64".to_owned(), json!("/w==")),
            ("base64".to_owned(), json!("AP9h")),
        ]
    );
    // A character that is cut waits for its rest, and the position is before it.
    let said = ask(
        &mut server,
        &mut channel,
        &json!({"type":"append","stream":"t","base64":"rA=="}),
    );
    assert_eq!(parsed(&said)["type"], "appended");
    let delivered = server.deliver(&mut channel);
    assert_eq!(parsed(&delivered[0])["text"], "€");
    assert_eq!(parsed(&delivered[0])["offset"], tail(&server, "t"));
}

#[test]
fn streams_that_have_ended_are_named_when_a_client_resumes() {
    let mut server = with(&[("a", JSON), ("b", JSON)]);
    let mut channel = server.open("/v1/events?stream=a&stream=b", &[]);
    let position = parsed(&channel.first[0])["position"]
        .as_str()
        .unwrap()
        .to_owned();
    channel.feeds.clear();
    channel.channel.ended(1, FeedEnd::Told);
    server.send("DELETE /v1/stream/a", &[], b"");
    let resume = json!({"type":"subscribe","streams":["a","b"],"position":position});
    let said = ask(&mut server, &mut channel, &resume);
    assert_eq!(
        parsed(&said)["ended"],
        json!([{"stream":"a","reason":"deleted"}])
    );
    assert_eq!(channel.feeds.len(), 1);
    ask(
        &mut server,
        &mut channel,
        &json!({"type":"unsubscribe","streams":["a","b"]}),
    );
    server.send("DELETE /v1/stream/b", &[], b"");
    let said = ask(&mut server, &mut channel, &resume);
    assert_eq!(parsed(&said)["ended"].as_array().unwrap().len(), 2);
    assert!(channel.feeds.is_empty());
}

#[test]
fn subscriptions_have_a_bound() {
    let mut server = with(&[]);
    let mut channel = server.open("/v1/events", &[]);
    for number in 0..64 {
        create(&mut server, &format!("s{number}"), JSON);
        let stream = format!("s{number}");
        let said = ask(
            &mut server,
            &mut channel,
            &json!({"type":"subscribe","stream":stream}),
        );
        assert_eq!(parsed(&said)["type"], "subscribed");
    }
    create(&mut server, "one", JSON);
    for message in [
        r#"{"type":"subscribe","stream":"one"}"#,
        r#"{"type":"subscribe","stream":"one/**"}"#,
    ] {
        let got = refused(&mut server, &mut channel, message);
        assert_eq!(got, (400, "too_many_streams".to_owned()));
    }
    ask(
        &mut server,
        &mut channel,
        &json!({"type":"unsubscribe","stream":"s7"}),
    );
    let said = ask(
        &mut server,
        &mut channel,
        &json!({"type":"subscribe","stream":"one"}),
    );
    assert_eq!(parsed(&said)["type"], "subscribed");
    // Keys are those of feeds that last.
    assert_eq!(channel.feeds.len(), 64);
}

#[test]
fn a_node_of_a_fleet_waits_for_the_order() {
    let settings = ProtocolSettings {
        in_fleet: true,
        ..ProtocolSettings::default()
    };
    let mut server = Server::new(settings);
    create(&mut server, "a", JSON);
    let mut channel = server.open("/v1/events", &[]);
    for (message, waits) in [
        (json!({"type":"subscribe","stream":"a"}), 1),
        (json!({"type":"subscribe","stream":"a/**"}), 1),
        (json!({"type":"append","stream":"a","data":1}), 0),
        (
            json!({"type":"append","stream":"a","text":"1","contentType":"text/plain"}),
            1,
        ),
        (json!({"type":"append","stream":"none","data":1}), 1),
    ] {
        server.waited = 0;
        ask(&mut server, &mut channel, &message);
        assert_eq!(server.waited, waits, "{message}");
    }
}
