//! Ephemeral messages on channels.

use encke_protocol::Feed;
use encke_stream::Data;

use super::*;

#[test]
fn a_message_is_answered_without_a_position() {
    let mut server = with(&[("a", JSON), ("t", TEXT)]);
    let mut channel = server.open("/v1/events", &[]);
    let mut sent = |message: Value| ask(&mut server, &mut channel, &message);
    assert_eq!(
        sent(json!({"type":"ephemeral","id":3,"stream":"a","data":{"typing":true}})),
        r#"{"type":"sent","id":3,"stream":"a"}"#
    );
    assert_eq!(
        sent(json!({"type":"ephemeral","stream":"t","text":"x","echo":false})),
        r#"{"type":"sent","stream":"t"}"#
    );
    assert_eq!(
        sent(json!({"type":"ephemeral","stream":"t","base64":"eQ=="})),
        r#"{"type":"sent","stream":"t"}"#
    );
    let data: Vec<&[u8]> = server
        .broadcasts
        .iter()
        .map(|one| &*one.data.bytes)
        .collect();
    assert_eq!(data, [&b"{\"typing\":true}"[..], b"x", b"y"]);
}

#[test]
fn a_message_that_cannot_be_sent_is_refused() {
    let mut server = with(&[("a", JSON)]);
    let mut channel = server.open("/v1/events", &[]);
    let large = "x".repeat(16 << 10);
    for (message, status, code) in [
        (json!({"stream":"none","data":1}), 404, "not_found"),
        (json!({"stream":"a"}), 400, "empty_body"),
        (json!({"stream":"a","text":"x"}), 400, "bad_json"),
        (
            json!({"stream":"a","data":1,"text":"x"}),
            400,
            "bad_message",
        ),
        (json!({"stream":"a","data":large}), 413, "too_large"),
        (
            json!({"stream":"a","data":1,"contentType":"text/plain"}),
            409,
            "type_differs",
        ),
        (
            json!({"stream":"a","data":1,"ack":"synced"}),
            400,
            "bad_message",
        ),
        (
            json!({"stream":"a","data":1,"close":true}),
            400,
            "bad_message",
        ),
        (
            json!({"stream":"a","data":1,"echo":"no"}),
            400,
            "bad_message",
        ),
        (json!({"data":1}), 400, "bad_message"),
    ] {
        let mut message = message;
        message["type"] = "ephemeral".into();
        let got = refused(&mut server, &mut channel, &message.to_string());
        assert_eq!(got, (status, code.to_owned()), "{message}");
    }
    assert!(server.broadcasts.is_empty());
}

#[test]
fn subscribers_get_messages_by_their_type() {
    let mut server = with(&[("a", JSON)]);
    let mut channel = server.open("/v1/events", &[]);
    for stream in ["a", "a/**"] {
        ask(
            &mut server,
            &mut channel,
            &json!({"type":"subscribe","stream":stream}),
        );
    }
    ask(
        &mut server,
        &mut channel,
        &json!({"type":"ephemeral","stream":"a","data":[1,2]}),
    );
    let message = &server.broadcasts[0];
    assert_eq!(
        message.data,
        Data {
            bytes: b"1,2".to_vec(),
            units: 2
        }
    );
    let Feed::Single { encoder, .. } = &channel.feeds[&1].feed else {
        panic!("it is for one stream");
    };
    let mut out = Vec::new();
    let encoder = server.router.encoders().encoder(*encoder);
    assert!(encoder.has_ephemeral());
    encoder.ephemeral(message, &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"type\":\"ephemeral\",\"stream\":\"a\",\"data\":[1,2]}"
    );
    let Feed::Merged { encoder, .. } = &channel.feeds[&2].feed else {
        panic!("it is for a pattern");
    };
    let mut out = Vec::new();
    let encoder = server.router.encoders().merge_encoder(*encoder);
    encoder.ephemeral("a/**", message, &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"type\":\"ephemeral\",\"subscription\":\"a/**\",\"stream\":\"a\",\"data\":[1,2]}"
    );
}
