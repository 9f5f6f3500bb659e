//! The times of records, for subscriptions that ask for them.

use encke_clock::WallTime;
use encke_protocol::{Feed, MergedPosition, MergedRecord};
use encke_stream::{Item, MediaKind, Offset};

use super::server::NOW_MS;
use super::*;

/// A server whose streams `a` and `t` have three appends each, a second apart.
fn filled() -> Server {
    let mut server = with(&[("a", JSON), ("t", TEXT)]);
    let appends = [
        ("a", JSON, &b"1"[..]),
        ("a", JSON, b"[2,3]"),
        ("a", JSON, b"4"),
        ("t", TEXT, b"x\xe2"),
        ("t", TEXT, b"\x82\xac"),
        ("t", TEXT, b"y"),
    ];
    for (name, content_type, body) in appends {
        server.now_ms += 1_000;
        let line = format!("POST /v1/stream/{name}");
        assert_eq!(server.send(&line, &[content_type], body).status, 204);
    }
    server
}

/// The data of each message of records, and its time in seconds after the server has begun.
fn records(delivered: &[String]) -> Vec<(Value, Option<u64>)> {
    let messages = delivered.iter().map(|message| parsed(message));
    let records = messages.filter(|message| message["type"] == "records");
    let records = records.map(|message| {
        let data = message.get("data").or(message.get("text"));
        let time = message.get("timeMs").map(|time| time.as_u64().unwrap());
        let time = time.map(|time| (time - NOW_MS) / 1_000);
        (data.unwrap().clone(), time)
    });
    records.collect()
}

fn subscribed(server: &mut Server, message: &Value) -> Vec<(Value, Option<u64>)> {
    let mut channel = server.open("/v1/events", &[]);
    let said = parsed(&ask(server, &mut channel, message));
    assert_eq!(said["type"], "subscribed", "{said}");
    records(&server.deliver(&mut channel))
}

#[test]
fn each_append_is_a_message_with_its_time() {
    let mut server = filled();
    let json = [
        (json!([1]), Some(1)),
        (json!([2, 3]), Some(2)),
        (json!([4]), Some(3)),
    ];
    let text = [
        (json!("x"), Some(4)),
        (json!("€"), Some(5)),
        (json!("y"), Some(6)),
    ];
    for (name, expected) in [("a", &json), ("t", &text)] {
        let message = json!({"type": "subscribe", "stream": name, "offset": "-1", "times": true});
        assert_eq!(subscribed(&mut server, &message), expected);
        let mut channel = server.open(
            &format!("/v1/stream/{name}?offset=-1&live=websocket&times=true"),
            &[],
        );
        assert_eq!(records(&server.deliver(&mut channel)), expected);
    }
    // Others share larger messages, without times.
    for times in [json!({}), json!({"times": false})] {
        let mut message = json!({"type": "subscribe", "stream": "a", "offset": "-1"});
        let members = message.as_object_mut().unwrap();
        members.extend(times.as_object().unwrap().clone());
        let all = subscribed(&mut server, &message);
        assert!(
            all.len() < 3 && all.iter().all(|(_, time)| time.is_none()),
            "{all:?}"
        );
    }
}

#[test]
fn records_of_several_streams_have_times() {
    let mut server = filled();
    let mut record_of = |target: &str, message: Option<Value>| {
        let mut channel = server.open(target, &[]);
        if let Some(message) = message {
            ask(&mut server, &mut channel, &message);
        }
        let [subscription] = &channel.feeds.values().collect::<Vec<_>>()[..] else {
            panic!("it has one subscription");
        };
        let Feed::Merged { encoder, .. } = &subscription.feed else {
            panic!("it is for several streams");
        };
        let record = MergedRecord {
            name: "a",
            kind: MediaKind::Json,
            item: Item {
                data: b"1",
                skip: 0,
                take: 1,
                end: Offset::behind(9),
                time: WallTime::from_ms(NOW_MS),
            },
            cut: Default::default(),
            at: MergedPosition {
                after: &[9],
                ahead: &[],
                generations: &[],
                names: 0,
            },
        };
        let mut out = Vec::new();
        let encoder = server.router.encoders().merge_encoder(*encoder);
        encoder.record("a,t", &record, &mut out);
        parsed(std::str::from_utf8(&out).unwrap())["timeMs"].take()
    };
    let subscribe = |members: Value| {
        let mut message = json!({"type": "subscribe", "streams": ["a", "t"]});
        let members = members.as_object().unwrap().clone();
        message.as_object_mut().unwrap().extend(members);
        Some(message)
    };
    let events = "/v1/events";
    for (target, message, expected) in [
        (events, subscribe(json!({"times": true})), json!(NOW_MS)),
        (events, subscribe(json!({})), Value::Null),
        (
            "/v1/events?stream=a&stream=t&times=true",
            None,
            json!(NOW_MS),
        ),
        ("/v1/events?stream=a&stream=t", None, Value::Null),
    ] {
        assert_eq!(record_of(target, message), expected, "{target}");
    }
}

#[test]
fn a_wrong_value_is_refused() {
    let mut server = filled();
    let mut channel = server.open("/v1/events", &[]);
    for value in ["1", "\"true\"", "null"] {
        let message = format!(r#"{{"type":"subscribe","stream":"a","times":{value}}}"#);
        let refused = refused(&mut server, &mut channel, &message);
        assert_eq!(refused, (400, "bad_message".into()), "{value}");
    }
}
