//! The times of records, for clients that ask for them (`times=true`). An extension of the protocol.

use encke_clock::WallTime;
use encke_protocol::{CutCharacter, Feed, MergedPosition, MergedRecord};
use encke_stream::{Item, MediaKind, Offset};
use serde_json::Value;

use crate::server::{NOW_MS, Reply, Server};
use crate::{CLOSED, JSON, TEXT, get, with};

const LINES: (&str, &str) = ("Accept", "application/x-ndjson");

/// Appends to the stream `a`, a second after the append before.
fn append(server: &mut Server, fields: &[(&str, &str)], body: &[u8]) {
    server.now_ms += 1_000;
    let said = server.send("POST /v1/stream/a", fields, body);
    assert_eq!(said.status, 204, "{}", said.text());
}

/// What a client gets from an offset on: the data of each line, and its time in seconds after the server has begun.
fn timed(server: &mut Server, offset: &str) -> Vec<(String, u64)> {
    let target = format!("GET /v1/stream/a?offset={offset}&live=true&times=true");
    let Reply::Subscribed(_, subscription) = server.reply(&target, &[LINES], b"") else {
        panic!("it does not subscribe");
    };
    // Whoever reads, and whenever, gets the time of the append.
    server.now_ms += 60_000;
    let (bytes, _) = server.follow(&subscription);
    let lines = std::str::from_utf8(&bytes).unwrap().lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let data = lines.filter(|line| match line.get("control") {
        Some(_) => {
            assert_eq!(line.get("timeMs"), None, "{line}");
            false
        }
        None => true,
    });
    data.map(|line| {
        let data = line.get("data").or(line.get("base64")).unwrap();
        let time = line["timeMs"].as_u64().expect("a whole number");
        (data.to_string(), (time - NOW_MS) / 1_000)
    })
    .collect()
}

fn expected(lines: &[(&str, u64)]) -> Vec<(String, u64)> {
    let lines = lines.iter();
    lines
        .map(|(data, time)| ((*data).to_owned(), *time))
        .collect()
}

#[test]
fn each_line_has_the_time_of_its_append() {
    let mut server = with(JSON);
    append(&mut server, &[JSON], b"1");
    append(&mut server, &[JSON], b"[2,3]");
    append(&mut server, &[JSON], b"4");
    let all = expected(&[("1", 1), ("2", 2), ("3", 2), ("4", 3)]);
    assert_eq!(timed(&mut server, "-1"), all);
    // A fork has the times of its source.
    let fork = [JSON, ("Stream-Forked-From", "a")];
    assert_eq!(server.send("PUT /v1/stream/f", &fork, b"").status, 201);
    let target = "GET /v1/stream/f?offset=-1&live=true&times=true";
    let Reply::Subscribed(_, subscription) = server.reply(target, &[LINES], b"") else {
        panic!("it does not subscribe");
    };
    let (bytes, _) = server.follow(&subscription);
    let text = String::from_utf8(bytes).unwrap();
    let time = format!("\"timeMs\":{},\"data\":4}}", NOW_MS + 3_000);
    assert!(text.contains(&time), "{text}");
}

#[test]
fn text_that_two_appends_cut_has_the_time_of_the_append_that_ends_it() {
    let mut server = with(TEXT);
    append(&mut server, &[TEXT], b"a\xe2");
    append(&mut server, &[TEXT], b"\x82");
    append(&mut server, &[TEXT], b"\xac");
    append(&mut server, &[TEXT], b"\xff");
    append(&mut server, &[TEXT], b"b\xe2");
    append(&mut server, &[TEXT], b"\x82");
    append(&mut server, &[CLOSED], b"");
    let all = expected(&[
        ("\"a\"", 1),
        ("\"€\"", 3),
        ("\"/w==\"", 4),
        ("\"b\"", 5),
        ("\"4oI=\"", 6),
    ]);
    assert_eq!(timed(&mut server, "-1"), all);
}

#[test]
fn bytes_have_times_too() {
    let bytes = ("Content-Type", "application/octet-stream");
    let mut server = with(bytes);
    append(&mut server, &[bytes], b"\0");
    append(&mut server, &[bytes], b"\x01");
    let all = expected(&[("\"AA==\"", 1), ("\"AQ==\"", 2)]);
    assert_eq!(timed(&mut server, "-1"), all);
}

#[test]
fn forms_of_the_protocol_have_no_times() {
    let mut server = with(JSON);
    append(&mut server, &[JSON], b"1");
    let why = "Accept: application/x-ndjson";
    for (query, fields, why) in [
        ("times=true", &[][..], why),
        ("times=true", &[LINES], why),
        ("offset=-1&times=true&live=true", &[], why),
        ("offset=-1&times=true&live=sse", &[LINES], why),
        ("offset=-1&times=true&live=long-poll", &[LINES], why),
        ("times=1", &[], "times is true or false"),
        ("tmes=true", &[], "did you mean \\\"times\\\"?"),
    ] {
        let said = server.send(&format!("GET /v1/stream/a?{query}"), fields, b"");
        assert_eq!(
            (said.status, &*said.code()),
            (400, "bad_parameter"),
            "{query}"
        );
        assert!(said.text().contains(why), "{query}: {}", said.text());
    }
    assert_eq!(get(&mut server, "a?times=false").text(), "[1]");
    let said = server.send("GET /v1/events?stream=a&times=yes", &[], b"");
    assert_eq!((said.status, &*said.code()), (400, "bad_parameter"));
}

/// What a subscriber of `/v1/events` gets for a record of that time.
fn merged(query: &str, fields: &[(&str, &str)]) -> String {
    let mut server = with(TEXT);
    let target = format!("GET /v1/events?{query}");
    let Reply::SubscribedAll(_, subscription) = server.reply(&target, fields, b"") else {
        panic!("it does not subscribe");
    };
    let Feed::Merged { encoder, .. } = subscription.feed else {
        panic!("it is for several streams");
    };
    let record = MergedRecord {
        name: "a",
        kind: MediaKind::Text,
        item: Item {
            data: b"x",
            skip: 0,
            take: 1,
            end: Offset::behind(9),
            time: WallTime::from_ms(NOW_MS + 7),
        },
        cut: [CutCharacter::default(); 2],
        at: MergedPosition {
            after: &[9],
            ahead: &[],
            generations: &[],
            names: 0,
        },
    };
    let mut out = Vec::new();
    let encoder = server.router.encoders().merge_encoder(encoder);
    encoder.record("", &record, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn records_of_several_streams_have_times() {
    let end = Offset::behind(9);
    let id = "0000000000000009;=00000000";
    let time = NOW_MS + 7;
    let timed =
        format!("\"stream\":\"a\",\"nextOffset\":\"{end}\",\"timeMs\":{time},\"text\":\"x\"}}");
    let plain = format!("\"stream\":\"a\",\"nextOffset\":\"{end}\",\"text\":\"x\"}}");
    for (query, members) in [
        ("stream=a&times=true", &timed),
        ("stream=a&times=false", &plain),
        ("stream=a", &plain),
        ("stream=**&times=true", &timed),
    ] {
        assert_eq!(
            merged(query, &[]),
            format!("id:{id}\ndata:{{{members}\n\n"),
            "{query}"
        );
        assert_eq!(
            merged(query, &[LINES]),
            format!("{{\"id\":\"{id}\",{members}\n"),
            "{query}"
        );
    }
}
