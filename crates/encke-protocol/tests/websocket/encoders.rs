//! The messages of subscriptions in exact bytes.

use encke_clock::WallTime;
use encke_protocol::{
    Farewell, Feed, MergeEncoder, MergedPosition, MergedRecord, StreamEnd, Variant,
};
use encke_stream::{Item, MediaKind, Offset};

use super::server::NOW_MS;
use super::*;

#[test]
fn encoders_write_whole_messages() {
    let mut server = with(&[("a", JSON)]);
    let mut channel = server.open("/v1/events", &[]);
    for stream in ["a", "a/**"] {
        ask(
            &mut server,
            &mut channel,
            &json!({"type":"subscribe","stream":stream}),
        );
    }
    let Feed::Single { encoder, .. } = &channel.feeds[&1].feed else {
        panic!("it is for one stream");
    };
    let encoder = server.router.encoders().encoder(*encoder);
    assert!(encoder.names_streams());
    assert_eq!(encoder.heartbeat(), b"");
    let variant = Variant {
        name: "a\"b",
        kind: MediaKind::Json,
        option: 0,
    };
    let mut out = Vec::new();
    let at = Offset::behind(5);
    let farewell = |at, resumable| Farewell {
        why: "it is too slow",
        at,
        resumable,
        retry_ms: None,
    };
    encoder.farewell(
        variant,
        &farewell(Some(at), true),
        WallTime::from_ms(NOW_MS),
        &mut out,
    );
    out.push(b'\n');
    encoder.farewell(
        variant,
        &farewell(None, false),
        WallTime::from_ms(NOW_MS),
        &mut out,
    );
    out.push(b'\n');
    encoder.deleted(variant, &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        format!(
            "{{\"type\":\"disconnected\",\"stream\":\"a\\\"b\",\"reason\":\"it is too slow\",\"offset\":\"{at}\",\"resumable\":true}}\n\
             {{\"type\":\"disconnected\",\"stream\":\"a\\\"b\",\"reason\":\"it is too slow\",\"resumable\":false}}\n\
             {{\"type\":\"ended\",\"stream\":\"a\\\"b\",\"reason\":\"deleted\"}}"
        )
    );
    let encoder = merge_encoder(&server, &channel);
    let position = MergedPosition {
        after: &[5],
        ahead: &[],
        generations: &[],
        names: 0,
    };
    let record = |kind, data| MergedRecord {
        name: "a/b",
        kind,
        item: Item {
            data,
            skip: 0,
            take: data.len() as u32,
            end: at,
            time: WallTime::from_ms(NOW_MS),
        },
        cut: Default::default(),
        at: position,
    };
    let mut messages = Vec::new();
    let mut write = |write: &dyn Fn(&dyn MergeEncoder, &mut Vec<u8>)| {
        let mut out = Vec::new();
        write(encoder, &mut out);
        messages.push(String::from_utf8(out).unwrap());
    };
    write(&|encoder, out| {
        let json = MergedRecord {
            item: Item {
                take: 2,
                ..record(MediaKind::Json, b"1,{}").item
            },
            ..record(MediaKind::Json, b"1,{}")
        };
        encoder.record("a/**", &json, out);
    });
    write(&|encoder, out| encoder.record("a/**", &record(MediaKind::Text, b"x"), out));
    write(&|encoder, out| encoder.record("a/**", &record(MediaKind::Binary, b"\0"), out));
    write(&|encoder, out| encoder.ended("a/**", "a/b", StreamEnd::Deleted, Some(position), out));
    write(&|encoder, out| encoder.ended("a,b", "a", StreamEnd::Closed(None), None, out));
    write(&|encoder, out| encoder.gap("a/**", "a/b", position, out));
    write(&|encoder, out| encoder.position("a/**", position, out));
    write(&|encoder, out| encoder.farewell("a/**", &TOO_SLOW, out));
    let head = |message_type| {
        format!(
            r#"{{"type":"{message_type}","subscription":"a/**","position":"0000000000000005;=00000000""#
        )
    };
    let records = format!(r#"{},"stream":"a/b","offset":"{at}""#, head("records"));
    assert_eq!(
        messages,
        [
            format!(r#"{records},"data":[1,{{}}]}}"#),
            format!(r#"{records},"text":"x"}}"#),
            format!(r#"{records},"base64":"AA=="}}"#),
            format!(r#"{},"stream":"a/b","reason":"deleted"}}"#, head("ended")),
            r#"{"type":"ended","subscription":"a,b","stream":"a","reason":"closed"}"#.to_owned(),
            format!(r#"{},"stream":"a/b","reason":"no_longer_kept"}}"#, head("gap")),
            format!("{}}}", head("position")),
            r#"{"type":"disconnected","subscription":"a/**","reason":"it is too slow","resumable":true}"#.to_owned(),
        ]
    );
    assert_eq!(
        String::from_utf8(channel.channel.farewell("the token has expired")).unwrap(),
        r#"{"type":"error","status":401,"code":"credentials_ended","message":"the token has expired"}"#
    );
    let busy = encke_protocol::problem::failed(encke_protocol::Failure::Overloaded);
    let busy = channel
        .channel
        .refuse(r#"{"type":"append","id":9,"stream":"a","data":1}"#, busy);
    assert_eq!(
        String::from_utf8(busy.body.as_ref().to_vec()).unwrap(),
        r#"{"type":"error","id":9,"stream":"a","status":503,"code":"overloaded","message":"too many requests wait; try again","retryAfter":1}"#
    );
}

fn merge_encoder<'s>(server: &'s Server, channel: &TestChannel) -> &'s dyn MergeEncoder {
    let encoder = channel.feeds.values().find_map(|one| match &one.feed {
        Feed::Merged { encoder, .. } => Some(*encoder),
        _ => None,
    });
    server.router.encoders().merge_encoder(encoder.unwrap())
}

/// The last words to a subscriber that may continue.
const TOO_SLOW: Farewell = Farewell {
    why: "it is too slow",
    at: None,
    resumable: true,
    retry_ms: None,
};
