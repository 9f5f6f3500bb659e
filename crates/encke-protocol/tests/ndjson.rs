//! Lines of JSON: each line is an object, and together they have what was appended, from every position on.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_clock::WallTime;
use encke_protocol::{
    AheadStream, CutCharacter, Farewell, Feed, MergedPosition, MergedRecord, StreamEnd,
    StreamGeneration, Subscription, Variant,
};
use encke_stream::{Item, MediaKind, Offset};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use server::{NOW_CURSOR, NOW_MS, Reply, Said, Server};

const LINES: (&str, &str) = ("Accept", "application/x-ndjson");
const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const BYTES: (&str, &str) = ("Content-Type", "application/octet-stream");
const CLOSED: (&str, &str) = ("Stream-Closed", "true");

/// A server with the stream `a`.
fn with(content_type: (&str, &str)) -> Server {
    let mut server = Server::default();
    let made = server.send("PUT /v1/stream/a", &[content_type], b"");
    assert_eq!(made.status, 201);
    server
}

fn append(server: &mut Server, content_type: (&str, &str), body: &[u8]) -> Said {
    let said = server.send("POST /v1/stream/a", &[content_type], body);
    assert_eq!(said.status, 204, "{}", String::from_utf8_lossy(&said.body));
    said
}

/// Follows the stream in lines from an offset on: the head of the response, and the subscription if it is none that ends at once.
fn follow(server: &mut Server, offset: &str) -> (Said, Option<Subscription>) {
    let line = format!("GET /v1/stream/a?offset={offset}&live=true");
    match server.reply(&line, &[LINES], b"") {
        Reply::Subscribed(said, subscription) => (said, Some(subscription)),
        Reply::Said(said) => (said, None),
        _ => panic!("it does not subscribe"),
    }
}

/// All bytes that a client gets up to the tail.
fn followed(server: &mut Server, offset: &str) -> String {
    let (said, subscription) = follow(server, offset);
    assert_eq!(said.status, 200);
    let bytes = subscription.map(|subscription| server.follow(&subscription).0);
    let all = [said.body, bytes.unwrap_or_default()].concat();
    String::from_utf8(all).unwrap()
}

/// The lines of a text, each parsed.
fn parsed(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let lines = text.split_terminator('\n');
    let lines = lines.map(|line| serde_json::from_str(line).expect(line));
    let lines: Vec<Value> = lines.collect();
    assert!(lines.iter().all(Value::is_object));
    lines
}

/// The bytes of a line's data, and the offset behind them. `None`: it is a line without data.
fn data(line: &Value) -> Option<(Vec<u8>, String)> {
    let bytes = match (line.get("data"), line.get("base64")) {
        (Some(Value::String(text)), None) => text.clone().into_bytes(),
        (None, Some(Value::String(base64))) => STANDARD.decode(base64).unwrap(),
        (None, None) => {
            assert!(line.get("control").is_some(), "{line}");
            return None;
        }
        _ => panic!("{line}"),
    };
    assert_eq!(line.as_object().unwrap().len(), 2, "{line}");
    Some((bytes, line["offset"].as_str().unwrap().to_owned()))
}

#[test]
fn a_stream_of_json_has_a_line_for_each_message() {
    let mut server = with(JSON);
    append(&mut server, JSON, b"{\"a\":\r\n 1}");
    let second = append(&mut server, JSON, b"[\"x\\ny\", [2,\n3], null]").token();
    let (said, _) = follow(&mut server, "-1");
    assert_eq!(said.field("Content-Type"), Some("application/x-ndjson"));
    assert_eq!(said.field("Vary"), Some("Accept"));
    assert_eq!(said.field("Cache-Control"), Some("no-cache"));
    let text = followed(&mut server, "-1");
    let first = parsed(&text)[0]["offset"].as_str().unwrap().to_owned();
    let inside = |units: u32| {
        let at: Offset = first.parse().unwrap();
        Offset { units, ..at }
    };
    let expected = format!(
        "{{\"offset\":\"{first}\",\"data\":{{\"a\":   1}}}}\n\
         {{\"offset\":\"{}\",\"data\":\"x\\ny\"}}\n\
         {{\"offset\":\"{}\",\"data\":[2, 3]}}\n\
         {{\"offset\":\"{second}\",\"data\":null}}\n\
         {{\"control\":{{\"streamNextOffset\":\"{second}\",\"streamCursor\":\"{NOW_CURSOR}\",\"upToDate\":true}}}}\n",
        inside(1),
        inside(2),
    );
    assert_eq!(text, expected);
    // A client that was cut off inside a record gets the rest of it.
    let rest = followed(&mut server, &inside(1).to_string());
    assert_eq!(
        rest,
        expected.split_inclusive('\n').skip(2).collect::<String>()
    );
}

#[test]
fn text_comes_as_it_was_appended_and_other_bytes_in_base64() {
    let mut server = with(TEXT);
    append(&mut server, TEXT, b"one\r\ntwo");
    append(&mut server, TEXT, b"\xe2\x82");
    append(&mut server, TEXT, b"\xac!");
    append(&mut server, TEXT, b"\xff\x00");
    let closed = server.send("POST /v1/stream/a", &[TEXT, CLOSED], b"\xe2");
    assert_eq!(closed.status, 204);
    let text = followed(&mut server, "-1");
    let lines = parsed(&text);
    let shown: Vec<_> = lines
        .iter()
        .map(|line| match line.get("data").or(line.get("base64")) {
            Some(data) => data.as_str().unwrap(),
            None => "control",
        })
        .collect();
    assert_eq!(
        shown,
        ["one\r\ntwo", "\u{20ac}!", "/wA=", "4g==", "control"]
    );
    let end = closed.token();
    let control = format!(
        "{{\"control\":{{\"streamNextOffset\":\"{end}\",\"upToDate\":true,\"streamClosed\":true}}}}\n"
    );
    assert!(text.ends_with(&control), "{text}");
    // A client that has everything learns that, and so does one that resumes behind it.
    assert_eq!(followed(&mut server, &end), control);
    let id = ("Last-Event-ID", &*end);
    let again = server.send("GET /v1/stream/a?offset=-1&live=true", &[LINES, id], b"");
    assert_eq!((again.status, again.text()), (200, &*control));
}

#[test]
fn a_cut_character_is_withheld_and_the_position_is_before_it() {
    let mut server = with(TEXT);
    let begin = append(&mut server, TEXT, b"ab\xf0\x9f").next();
    let text = followed(&mut server, "-1");
    let at = Offset {
        sequence: begin.sequence - 1,
        units: 2,
    };
    // The position is stated again, because the server of the test asks for what follows it.
    let lines: String = text.split_inclusive('\n').take(2).collect();
    assert_eq!(
        lines,
        format!(
            "{{\"offset\":\"{at}\",\"data\":\"ab\"}}\n\
             {{\"control\":{{\"streamNextOffset\":\"{at}\",\"streamCursor\":\"{NOW_CURSOR}\",\"upToDate\":true}}}}\n"
        )
    );
    append(&mut server, TEXT, b"\x98\x80");
    let rest = followed(&mut server, &at.to_string());
    assert!(rest.contains("\"data\":\"\u{1f600}\"}"), "{rest}");
}

#[test]
fn the_form_is_the_one_that_accept_names() {
    let mut server = with(BYTES);
    append(&mut server, BYTES, b"x");
    for (query, accept, media) in [
        (
            "live=true",
            Some("application/x-ndjson"),
            "application/x-ndjson",
        ),
        ("live=true", Some("text/event-stream"), "text/event-stream"),
        ("live=true", None, "text/event-stream"),
        (
            "live=sse",
            Some("application/x-ndjson"),
            "text/event-stream",
        ),
    ] {
        let line = format!("GET /v1/stream/a?offset=-1&{query}");
        let fields: Vec<_> = accept
            .map(|accept| ("Accept", accept))
            .into_iter()
            .collect();
        let Reply::Subscribed(said, _) = server.reply(&line, &fields, b"") else {
            panic!("{query} {accept:?}");
        };
        assert_eq!(
            said.field("Content-Type"),
            Some(media),
            "{query} {accept:?}"
        );
        let encoding = (media == "text/event-stream").then_some("base64");
        assert_eq!(said.field("Stream-SSE-Data-Encoding"), encoding);
    }
    // Without `live` it is a read as ever.
    let said = server.send("GET /v1/stream/a?offset=-1", &[LINES], b"");
    assert_eq!(said.field("Content-Type"), Some("application/octet-stream"));
    assert!(
        server
            .router
            .opens_events("/v1/stream/a", Some("live=true"))
    );
    for query in ["live=true", "offset=-1&live=ndjson"] {
        let said = server.send(&format!("GET /v1/stream/a?{query}"), &[LINES], b"");
        assert_eq!((said.status, said.code()), (400, "bad_parameter".into()));
    }
}

#[test]
fn heartbeats_and_farewells_are_lines() {
    let mut server = with(TEXT);
    let (_, subscription) = follow(&mut server, "now");
    let Feed::Single { encoder, .. } = subscription.unwrap().feed else {
        panic!("it is for one stream");
    };
    let encoder = server.router.encoders().encoder(encoder);
    assert_eq!(encoder.heartbeat(), b"{\"heartbeat\":true}\n");
    let variant = Variant {
        name: "",
        kind: MediaKind::Text,
        option: 0,
    };
    let farewell = |at, resumable| {
        let farewell = Farewell {
            why: "it is too slow",
            at,
            resumable,
            retry_ms: None,
        };
        let mut out = Vec::new();
        encoder.farewell(variant, &farewell, WallTime::from_ms(NOW_MS), &mut out);
        String::from_utf8(out).unwrap()
    };
    let at = Offset::behind(7);
    assert_eq!(
        farewell(Some(at), true),
        format!(
            "{{\"disconnect\":{{\"why\":\"it is too slow\",\"resumable\":true}}}}\n\
             {{\"control\":{{\"streamNextOffset\":\"{at}\",\"streamCursor\":\"{NOW_CURSOR}\"}}}}\n"
        )
    );
    assert_eq!(
        farewell(None, false),
        "{\"disconnect\":{\"why\":\"it is too slow\",\"resumable\":false}}\n"
    );
}

/// Some JSON, as text with white space.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,9}|[\r\n\t\"\\\\]{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\n]{0,3}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Follows from the beginning and from behind each line: what is before and behind together is the same. Returns the data.
fn from_everywhere(server: &mut Server, closes: bool) -> Vec<u8> {
    let lines = parsed(&followed(server, "-1"));
    let all: Vec<_> = lines.iter().filter_map(data).collect();
    let bytes: Vec<u8> = all.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
    let mut had = 0;
    let mut before = Offset::START;
    for (data_before, offset) in &all {
        had += data_before.len();
        let at: Offset = offset.parse().unwrap();
        assert!(at > before, "positions go up");
        before = at;
        let rest = parsed(&followed(server, offset));
        let rest: Vec<u8> = rest
            .iter()
            .filter_map(data)
            .flat_map(|(bytes, _)| bytes)
            .collect();
        assert_eq!(rest, bytes[had..], "from {offset} on");
    }
    let last = &lines.last().unwrap()["control"];
    assert_eq!(last["upToDate"], true);
    assert_eq!(last.get("streamClosed").is_some(), closes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("PROPTEST_CASES").is_some() { 256 } else { 40 }))]
    #[test]
    fn text_and_bytes_come_back(
        records in vec(prop_oneof![
            vec(any::<u8>(), 1..9),
            // Characters that are cut anywhere.
            vec(prop_oneof![Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f), Just(0x98), Just(0x80), Just(b'\n')], 1..4),
            "\\PC{1,9}".prop_map(String::into_bytes),
        ], 1..8),
        kind in prop_oneof![Just(TEXT), Just(BYTES)],
        closes in any::<bool>(),
    ) {
        let mut server = with(kind);
        for record in &records {
            append(&mut server, kind, record);
        }
        if closes {
            server.send("POST /v1/stream/a", &[CLOSED], b"");
        }
        let told = from_everywhere(&mut server, closes);
        let appended = records.concat();
        match closes || kind == BYTES {
            true => prop_assert_eq!(told, appended),
            // The beginning of a character is withheld.
            false => {
                let cut = CutCharacter::at_end_of(&appended);
                prop_assert_eq!([&told[..], cut.as_bytes()].concat(), appended);
            }
        }
    }

    #[test]
    fn messages_come_back(records in vec(vec(json(), 1..4), 1..6)) {
        let mut server = with(JSON);
        for messages in &records {
            let body = serde_json::to_string_pretty(messages).unwrap();
            append(&mut server, JSON, body.as_bytes());
        }
        let expected: Vec<Value> = records.concat();
        let lines = parsed(&followed(&mut server, "-1"));
        let (control, messages) = lines.split_last().unwrap();
        prop_assert!(control.get("control").is_some());
        let told: Vec<&Value> = messages.iter().map(|line| &line["data"]).collect();
        prop_assert_eq!(&told, &expected.iter().collect::<Vec<_>>());
        for (number, line) in (1..).zip(messages) {
            let rest = parsed(&followed(&mut server, line["offset"].as_str().unwrap()));
            let rest: Vec<&Value> = rest.iter().filter_map(|line| line.get("data")).collect();
            prop_assert_eq!(&rest, &told[number..].to_vec());
        }
    }

    #[test]
    fn lines_of_several_streams_are_json(
        name in "\\PC{1,9}",
        bytes in vec(any::<u8>(), 0..30),
        before in prop_oneof![Just(&b""[..]), Just(&b"\xe2\x82"[..])],
        is_text in any::<bool>(),
    ) {
        let kind = if is_text { MediaKind::Text } else { MediaKind::Binary };
        let item = Item { data: &bytes, skip: 0, take: bytes.len() as u32, end: Offset::behind(9), time: WallTime::default() };
        let cut = match is_text {
            true => [CutCharacter::at_end_of(before), CutCharacter::at_end_of(&bytes)],
            false => [CutCharacter::default(); 2],
        };
        let record = MergedRecord { name: &name, kind, item, cut, at: position() };
        let line = &parsed(&merged(|encoder, out| encoder.record("", &record, out)))[0];
        prop_assert_eq!(&line["stream"], &Value::from(&*name));
        let told = match line.get("text") {
            Some(text) => text.as_str().unwrap().as_bytes().to_vec(),
            None => STANDARD.decode(line["base64"].as_str().unwrap()).unwrap(),
        };
        let [before, behind] = cut.each_ref().map(CutCharacter::as_bytes);
        prop_assert_eq!([&told, behind].concat(), [before, &bytes].concat());
        let lines = merged(|encoder, out| {
            encoder.gap("", &name, position(), out);
            encoder.ended("", &name, StreamEnd::Deleted, Some(position()), out);
            encoder.farewell("", &TOO_SLOW, out);
        });
        prop_assert_eq!(parsed(&lines).len(), 3);
    }
}

const AHEAD: AheadStream = AheadStream {
    log: 0,
    at: Offset {
        sequence: 0x1f,
        units: 0,
    },
    place: 1,
};

const GENERATION: StreamGeneration = StreamGeneration {
    log: 0,
    born: 7,
    places: 3,
};

fn position() -> MergedPosition<'static> {
    MergedPosition {
        after: &[0x10],
        ahead: &[AHEAD],
        generations: &[GENERATION],
        names: 0,
    }
}

const ID: &str = "0000000000000010;000000000000001f_0000000000000000:2;~7:3;=00000000";

/// What the encoder of several streams writes.
fn merged(write: impl FnOnce(&dyn encke_protocol::MergeEncoder, &mut Vec<u8>)) -> String {
    let mut server = with(TEXT);
    let Reply::SubscribedAll(_, subscription) =
        server.reply("GET /v1/events?stream=a", &[LINES], b"")
    else {
        panic!("it does not subscribe");
    };
    let Feed::Merged { encoder, .. } = subscription.feed else {
        panic!("it is for several streams");
    };
    let mut out = Vec::new();
    write(server.router.encoders().merge_encoder(encoder), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_of_several_streams_have_the_position() {
    let end = Offset::behind(9);
    let item = |data| Item {
        data,
        skip: 0,
        take: 2,
        end,
        time: WallTime::from_ms(NOW_MS),
    };
    let record = |kind, data| {
        let record = MergedRecord {
            name: "a",
            kind,
            item: item(data),
            cut: [CutCharacter::default(); 2],
            at: position(),
        };
        merged(|encoder, out| encoder.record("", &record, out))
    };
    let head = format!("{{\"id\":\"{ID}\",\"stream\":\"a\",\"nextOffset\":\"{end}\",");
    assert_eq!(
        record(MediaKind::Json, b"[\n1],2"),
        format!("{head}\"messages\":[[ 1],2]}}\n")
    );
    assert_eq!(
        record(MediaKind::Text, b"\n\""),
        format!("{head}\"text\":\"\\n\\\"\"}}\n")
    );
    assert_eq!(
        record(MediaKind::Binary, b"ab"),
        format!("{head}\"base64\":\"YWI=\"}}\n")
    );
    let others = merged(|encoder, out| {
        encoder.ended("", "a", StreamEnd::Closed(None), None, out);
        encoder.ended("", "a", StreamEnd::Deleted, Some(position()), out);
        encoder.gap("", "a", position(), out);
        encoder.position("", position(), out);
        encoder.farewell("", &TOO_SLOW, out);
        out.extend_from_slice(encoder.heartbeat());
    });
    assert_eq!(
        others,
        format!(
            "{{\"end\":{{\"stream\":\"a\",\"why\":\"closed\"}}}}\n\
             {{\"id\":\"{ID}\",\"end\":{{\"stream\":\"a\",\"why\":\"deleted\"}}}}\n\
             {{\"id\":\"{ID}\",\"gap\":{{\"stream\":\"a\",\"why\":\"no_longer_kept\"}}}}\n\
             {{\"id\":\"{ID}\"}}\n\
             {{\"disconnect\":{{\"why\":\"it is too slow\",\"resumable\":true}}}}\n\
             {{\"heartbeat\":true}}\n"
        )
    );
}

#[test]
fn several_streams_are_opened_and_resumed_in_lines() {
    let mut server = with(TEXT);
    append(&mut server, TEXT, b"x");
    let open = |server: &mut Server, query: &str, fields: &[(&str, &str)]| {
        let line = format!("GET /v1/events?{query}");
        match server.reply(&line, fields, b"") {
            Reply::SubscribedAll(said, _) | Reply::Said(said) => said,
            _ => panic!("{query}"),
        }
    };
    let said = open(&mut server, "stream=a@-1&stream=b/*", &[LINES]);
    assert_eq!(said.field("Content-Type"), Some("application/x-ndjson"));
    assert_eq!(said.field("Vary"), Some("Accept"));
    let lines = parsed(said.text());
    assert_eq!(lines.len(), 2);
    assert_eq!(
        lines[1]["warning"],
        "b/* stands for b/**, and will mean one segment in the next version"
    );
    let id = lines[0]["id"].as_str().unwrap();
    // The same id in every form.
    let events = open(&mut server, "stream=a@-1&stream=b/**", &[]);
    assert_eq!(events.field("Content-Type"), Some("text/event-stream"));
    assert!(events.text().starts_with(&format!("id:{id}\n\n")));
    for (query, fields) in [
        (format!("stream=a&stream=b/**&after={id}"), vec![LINES]),
        (
            "stream=a&stream=b/**".to_owned(),
            vec![LINES, ("Last-Event-ID", id)],
        ),
    ] {
        let said = open(&mut server, &query, &fields);
        assert_eq!(parsed(said.text()), lines[..1]);
    }
    server.send("POST /v1/stream/a", &[CLOSED], b"");
    let said = open(&mut server, "stream=a", &[LINES]);
    let lines = parsed(said.text());
    assert!(!said.open);
    assert_eq!(
        lines[1]["end"],
        serde_json::json!({"stream": "a", "why": "closed"})
    );
}

/// The last words to a subscriber that may continue.
const TOO_SLOW: Farewell = Farewell {
    why: "it is too slow",
    at: None,
    resumable: true,
    retry_ms: None,
};
