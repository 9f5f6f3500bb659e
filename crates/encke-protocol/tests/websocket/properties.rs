//! Every message can be parsed, and has what was appended.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_stream::MediaKind;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// The data that a message has, as the bytes that were appended.
fn data(kind: MediaKind, message: &Value) -> Vec<u8> {
    let got = match (
        message.get("data"),
        message.get("text"),
        message.get("base64"),
    ) {
        (Some(Value::Array(messages)), None, None) => {
            let messages = messages.iter().map(Value::to_string);
            messages
                .map(|message| message + ",")
                .collect::<String>()
                .into_bytes()
        }
        (None, Some(Value::String(text)), None) => text.clone().into_bytes(),
        (None, None, Some(Value::String(base64))) => STANDARD.decode(base64).unwrap(),
        (None, None, None) => Vec::new(),
        _ => panic!("{message}"),
    };
    let is_json = message.get("data").is_some();
    assert!(got.is_empty() || is_json == (kind == MediaKind::Json));
    got
}

fn appends(kind: MediaKind) -> BoxedStrategy<Vec<u8>> {
    match kind {
        MediaKind::Json => vec(".{0,6}|[0-9]{1,4}", 1..4)
            .prop_map(|values| json!(values).to_string().into_bytes())
            .boxed(),
        MediaKind::Text => prop_oneof![
            4 => "[a€é😀\"\\\\\r\n\u{1}]{1,6}".prop_map(String::into_bytes),
            1 => vec(any::<u8>(), 1..5),
        ]
        .boxed(),
        MediaKind::Binary => vec(any::<u8>(), 1..40).boxed(),
    }
}

fn history() -> impl Strategy<Value = (MediaKind, Vec<Vec<u8>>)> {
    let kinds = prop_oneof![
        Just(MediaKind::Json),
        Just(MediaKind::Text),
        Just(MediaKind::Binary)
    ];
    kinds.prop_flat_map(|kind| (Just(kind), vec(appends(kind), 1..8)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_appended_is_delivered_from_every_position(
        (kind, appended) in history(),
        name in "[a-z\"\\\\é]{1,5}",
        closes: bool,
    ) {
        let content_type = match kind {
            MediaKind::Json => JSON,
            MediaKind::Text => TEXT,
            MediaKind::Binary => BYTES,
        };
        let mut server = Server::default();
        let path: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        create(&mut server, &path, content_type);
        let mut channel = server.open("/v1/events", &[]);
        let mut all = Vec::new();
        for (number, body) in appended.iter().enumerate() {
            let close = closes && number + 1 == appended.len();
            let message = match kind {
                MediaKind::Json => {
                    let value: Value = serde_json::from_slice(body).unwrap();
                    for message in value.as_array().unwrap() {
                        all.extend_from_slice(format!("{message},").as_bytes());
                    }
                    json!({"type":"append","stream":name,"data":value,"close":close})
                }
                _ => {
                    all.extend_from_slice(body);
                    json!({"type":"append","stream":name,"base64":STANDARD.encode(body),"close":close})
                }
            };
            let said = parsed(&ask(&mut server, &mut channel, &message));
            prop_assert_eq!(&said["type"], "appended");
        }
        let mut starts = vec!["-1".to_owned()];
        let mut before = vec![Vec::new()];
        while let Some(start) = starts.pop() {
            let had = before.pop().unwrap();
            let mut channel = server.open("/v1/events", &[]);
            let subscribe = json!({"type":"subscribe","stream":name,"offset":start});
            let said = parsed(&ask(&mut server, &mut channel, &subscribe));
            prop_assert_eq!(&said["stream"], &name);
            let mut got = had.clone();
            let delivered = server.deliver(&mut channel);
            for (number, message) in delivered.iter().enumerate() {
                let message = parsed(message);
                prop_assert_eq!(&message["stream"], &name);
                got.extend(data(kind, &message));
                let is_last = number + 1 == delivered.len();
                prop_assert_eq!(message.get("ended").is_some() || message["type"] == "ended", is_last && closes);
                // A client that is left here goes on here.
                if start == "-1" {
                    starts.push(message["offset"].as_str().unwrap().to_owned());
                    before.push(got.clone());
                }
            }
            let is_cut = kind == MediaKind::Text && !closes;
            prop_assert!(all.starts_with(&got));
            prop_assert!(got.len() == all.len() || is_cut && all.len() - got.len() < 4);
        }
    }

    #[test]
    fn every_message_has_responses_that_are_messages(
        text in ".{0,60}",
        members in vec(("type|id|stream|streams|offset|position|data|text|token|close|producer", "[\"a-z0-9{}\\[\\]:,.-]{0,9}|\"(subscribe|append|authenticate|unsubscribe|a|a/\\*\\*)\"|[0-9]{1,3}|true"), 0..6),
    ) {
        let mut server = with(&[("a", JSON)]);
        let mut channel = server.open("/v1/events", &[]);
        let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        for message in [text, format!("{{{}}}", members.join(","))] {
            for said in server.say(&mut channel, &message) {
                let said = parsed(&said);
                prop_assert!(said["type"].is_string());
            }
        }
    }
}
