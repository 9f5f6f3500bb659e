//! Server-sent events, encoded and parsed: an independent parser, written after the HTML standard (section 9.2), finds exactly what
//! was stored.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_clock::WallTime;
use encke_protocol::{EncodedRun, Encoder, Feed, Mark, Router, Run, Variant};
use encke_stream::{Item, MediaKind, Offset};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use server::{Reply, Server};

/// An event as an EventSource dispatches it: its type, its data, and the last id.
type Event = (String, String, String);

/// What of a stream of events is whole, and what is left in the parser behind it.
fn parse(bytes: &[u8]) -> (Vec<Event>, bool) {
    let text = std::str::from_utf8(bytes).expect("event streams are UTF-8");
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut events = Vec::new();
    let (mut name, mut data) = (String::new(), String::new());
    let mut id = String::new();
    let mut rest = text;
    // A line ends with CRLF, LF or CR; what does not end is no line.
    while let Some(at) = rest.find(['\r', '\n']) {
        let line = &rest[..at];
        rest = match rest[at..].strip_prefix("\r\n") {
            Some(rest) => rest,
            None => &rest[at + 1..],
        };
        if line.is_empty() {
            if !data.is_empty() {
                data.pop();
                events.push((
                    std::mem::take(&mut name),
                    std::mem::take(&mut data),
                    id.clone(),
                ));
            }
            name.clear();
            data.clear();
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => {}
            "event" => value.clone_into(&mut name),
            "id" => value.clone_into(&mut id),
            "data" => {
                data.push_str(value);
                data.push('\n');
            }
            other => panic!("a field {other:?} that nobody wrote"),
        }
    }
    let whole = rest.is_empty() && name.is_empty() && data.is_empty();
    (events, whole)
}

/// Text as it comes out of an event: all line ends are one.
fn normal(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Any server's protocols; encoders have no state.
static ROUTER: LazyLock<Router> = LazyLock::new(|| Server::default().router);

/// The encoder of live reads.
fn encoder() -> &'static dyn Encoder {
    static ENCODER: LazyLock<&dyn Encoder> = LazyLock::new(|| {
        let mut server = Server::default();
        server.send("PUT /v1/stream/a", &[], b"");
        let reply = server.reply("GET /v1/stream/a?offset=-1&live=sse", &[], b"");
        let Reply::Subscribed(_, subscription) = reply else {
            panic!("it does not subscribe");
        };
        let Feed::Single { encoder, .. } = subscription.feed else {
            panic!("it is for one stream");
        };
        ROUTER.encoders().encoder(encoder)
    });
    *ENCODER
}

/// A record: its data, and which units of it the reader is to have.
#[derive(Clone, Debug)]
struct Stored {
    data: Vec<u8>,
    skip: u32,
    take: u32,
}

/// Records as items, one behind the other.
fn items(records: &[Stored]) -> Vec<Item<'_>> {
    let last = records.len();
    (1_u64..)
        .zip(records)
        .map(|(number, record)| Item {
            data: &record.data,
            skip: record.skip,
            take: record.take,
            // Only a fork's beginning cuts a record, and so only the last one of a run.
            end: match number as usize == last && record.take < units(&record.data) {
                true => Offset {
                    sequence: 10 * number - 1,
                    units: record.take,
                },
                false => Offset::behind(10 * number),
            },
            time: WallTime::from_ms(NOW_MS + number),
        })
        .collect()
}

/// JSON messages hold no commas here, and other data none.
fn units(data: &[u8]) -> u32 {
    match data.first() {
        Some(b'"') => data.split(|byte| *byte == b',').count() as u32,
        _ => data.len() as u32,
    }
}

/// How an encoding ends.
#[derive(Clone, Copy, Debug)]
struct End {
    at_tail: bool,
    closed: bool,
}

fn end() -> impl Strategy<Value = End> {
    any::<(bool, bool)>().prop_map(|(at_tail, closed)| End { at_tail, closed })
}

const NOW_MS: u64 = 1_735_689_600_000;

/// Encodes the records, takes the events apart, and returns for each pair of events the data that
/// it tells and the records that belong to it.
fn there_and_back<'a>(
    kind: MediaKind,
    items: &'a [Item<'a>],
    end: End,
    before: &[u8],
) -> Vec<(String, &'a [Item<'a>])> {
    let run = Run {
        items,
        at_tail: end.at_tail,
        closed: end.closed,
        ..Run::position(items.last().map_or(Offset::behind(7), |item| item.end))
    };
    let mut out = EncodedRun {
        bytes: before.to_vec(),
        ..EncodedRun::default()
    };
    let variant = Variant {
        name: "",
        kind,
        option: 0,
    };
    encoder().encode(variant, &run, WallTime::from_ms(NOW_MS), &mut out);
    let bytes = &out.bytes[before.len()..];
    let marks: Vec<Mark> = out
        .marks
        .into_iter()
        .map(|mark| Mark {
            end: mark.end - before.len(),
            ..mark
        })
        .collect();
    assert_eq!(marks.last().map_or(0, |mark| mark.end), bytes.len());
    let (events, whole) = parse(bytes);
    assert!(whole);

    // A subscriber that is left at a mark has whole events, as many as there are marks.
    let per_mark = if items.is_empty() { 1 } else { 2 };
    for (count, mark) in (1..).zip(&marks) {
        let (told, whole) = parse(&bytes[..mark.end]);
        assert!(whole, "a mark in the middle of an event");
        assert_eq!(told, events[..per_mark * count]);
    }

    let mut told = Vec::new();
    let mut rest = items;
    for (mark, events) in marks.iter().zip(events.chunks(per_mark)) {
        let (name, control, _) = events.last().unwrap();
        assert_eq!(name, "control");
        let control: serde_json::Value = serde_json::from_str(control).unwrap();
        assert_eq!(control["streamNextOffset"], mark.at.to_string());
        let last = mark.end == bytes.len();
        for (name, _, id) in events {
            // The end has an id of its own, so that a client that lacks this event only gets it.
            let of_end = name == "control" && last && end.closed;
            let expected = format!("{}{}", mark.at, if of_end { ";end" } else { "" });
            assert_eq!(*id, expected, "an EventSource resumes behind it");
        }
        let (closed, at_tail) = (last && end.closed, last && (end.at_tail || end.closed));
        assert_eq!(control.get("streamClosed").is_some(), closed);
        assert_eq!(control.get("upToDate").is_some(), at_tail);
        assert_eq!(control.get("streamCursor").is_some(), !closed);
        assert_eq!(last, mark.at == run.end);
        if per_mark == 2 {
            assert_eq!(events[0].0, "data");
            let count = rest.iter().take_while(|item| item.end <= mark.at).count();
            assert!(count > 0, "an event without records");
            let (these, later) = rest.split_at(count);
            rest = later;
            told.push((events[0].1.clone(), these));
        }
    }
    assert!(rest.is_empty(), "records in no event");
    told
}

/// The bytes of an item that are the reader's.
fn own<'a>(item: &Item<'a>) -> &'a [u8] {
    &item.data[item.skip as usize..item.take as usize]
}

/// Text that is hard on event streams.
fn hard_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-z: ]{0,9}",
        3 => prop_oneof![Just("\r"), Just("\n"), Just("\r\n"), Just("\n\r")].prop_map(String::from),
        2 => prop_oneof![
            Just("data: x"), Just("event: control\n"), Just("\n\n"), Just("id: 1\n"), Just(" "),
            Just(":"), Just("\u{feff}"), Just("\0"), Just("\u{2028}"), Just("\u{85}"),
        ].prop_map(String::from),
        2 => "\\PC{0,9}",
        1 => (5000..9000_usize).prop_map(|bytes| "x".repeat(bytes)),
    ];
    vec(piece, 1..12).prop_map(|pieces| pieces.concat())
}

/// Cuts the first and the last record, as a reader does who comes from inside one, and as a fork's
/// beginning does; at least one unit of each stays.
fn cut(records: &mut [Stored], first: Index, last: Index, may_cut: impl Fn(&[u8], usize) -> bool) {
    if let Some(record) = records.last_mut() {
        let take = 1 + last.index(record.take as usize);
        if may_cut(&record.data, take) {
            record.take = take as u32;
        }
    }
    if let Some(record) = records.first_mut() {
        let skip = first.index(record.take as usize);
        if may_cut(&record.data, skip) {
            record.skip = skip as u32;
        }
    }
}

fn whole(data: Vec<u8>) -> Stored {
    let take = units(&data);
    Stored {
        data,
        skip: 0,
        take,
    }
}

/// Fewer cases than usual, unless somebody asks for a number.
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(100),
    }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn text_comes_back_but_for_its_kinds_of_line_ends(
        texts in vec(hard_text().prop_filter("data", |text| !text.is_empty()), 0..6),
        (first, last) in any::<(Index, Index)>(),
        end in end(),
    ) {
        let texts = texts.into_iter().filter(|text| !text.starts_with('"'));
        let mut records: Vec<_> = texts.map(|text| whole(text.into_bytes())).collect();
        // Between two characters; a fork inside one has no text to tell.
        cut(&mut records, first, last, |data, at| std::str::from_utf8(&data[..at]).is_ok());
        let items = items(&records);
        for (data, items) in there_and_back(MediaKind::Text, &items, end, b"") {
            let stored: Vec<u8> = items.iter().flat_map(|item| own(item).to_vec()).collect();
            prop_assert_eq!(data, normal(std::str::from_utf8(&stored).unwrap()));
        }
    }

    #[test]
    fn bytes_come_back(
        bytes in vec(vec(any::<u8>(), 1..40), 0..6),
        long in 0..40_000_usize,
        (first, last) in any::<(Index, Index)>(),
        end in end(),
        before in vec(any::<u8>(), 0..9),
    ) {
        let bytes = bytes.into_iter().chain((long > 0).then(|| vec![b'x'; long]));
        let bytes = bytes.filter(|bytes| bytes[0] != b'"');
        let mut records: Vec<_> = bytes.map(whole).collect();
        cut(&mut records, first, last, |_, _| true);
        let items = items(&records);
        for (data, items) in there_and_back(MediaKind::Binary, &items, end, &before) {
            let stored: Vec<u8> = items.iter().flat_map(|item| own(item).to_vec()).collect();
            let data: String = data.split(['\r', '\n']).collect();
            prop_assert_eq!(STANDARD.decode(data).unwrap(), stored);
        }
    }

    #[test]
    fn messages_come_back(
        counts in vec(1..6_usize, 0..6),
        space in prop_oneof![Just(""), Just(" "), Just("\n"), Just("\r\n\t"), Just("\r")],
        bulk in prop_oneof![Just(1_usize), Just(9000)],
        (first, last) in any::<(Index, Index)>(),
        end in end(),
    ) {
        let mut made = 0;
        let mut message = || {
            made += 1;
            format!("\"{made}{}\"{space}", "x".repeat(bulk))
        };
        let mut records: Vec<_> = counts
            .iter()
            .map(|count| {
                let messages: Vec<_> = (0..*count).map(|_| message()).collect();
                whole(messages.join(",").into_bytes())
            })
            .collect();
        cut(&mut records, first, last, |_, _| true);
        let items = items(&records);
        for (data, items) in there_and_back(MediaKind::Json, &items, end, b"") {
            let told: Vec<String> = serde_json::from_str(&data).unwrap();
            let stored = items.iter().flat_map(|item| {
                let all = [b"[", item.data, b"]"].concat();
                let all: Vec<String> = serde_json::from_slice(&all).unwrap();
                all[item.skip as usize..item.take as usize].to_vec()
            });
            prop_assert_eq!(told, stored.collect::<Vec<_>>());
        }
    }
}

#[test]
fn small_records_share_an_event_and_large_ones_do_not() {
    let small: Vec<_> = (0..100).map(|_| whole(vec![b'x'; 100])).collect();
    let end = End {
        at_tail: true,
        closed: false,
    };
    assert_eq!(
        there_and_back(MediaKind::Text, &items(&small), end, b"").len(),
        1
    );
    let large: Vec<_> = (0..5).map(|_| whole(vec![b'x'; 20_000])).collect();
    assert_eq!(
        there_and_back(MediaKind::Text, &items(&large), end, b"").len(),
        5
    );
}

#[test]
fn up_to_date_is_sent_only_at_the_tail() {
    for (at_tail, closed, events) in [
        (false, false, 0),
        (true, false, 1),
        (false, true, 1),
        (true, true, 1),
    ] {
        let run = Run {
            at_tail,
            closed,
            ..Run::position(Offset::behind(3))
        };
        for kind in [MediaKind::Text, MediaKind::Json, MediaKind::Binary] {
            let mut out = EncodedRun::default();
            let variant = Variant {
                name: "",
                kind,
                option: 0,
            };
            encoder().encode(variant, &run, WallTime::from_ms(NOW_MS), &mut out);
            let (told, whole) = parse(&out.bytes);
            assert!(whole);
            assert_eq!((told.len(), out.marks.len()), (events, events));
        }
    }
}

#[test]
fn a_heartbeat_is_no_event_wherever_it_comes() {
    let beat = encoder().heartbeat();
    assert_eq!(parse(beat), (Vec::new(), true));
    let event: &[u8] = b"event: data\ndata:x\n\n";
    let (events, whole) = parse(&[beat, event, beat, event].concat());
    assert_eq!((events.len(), whole), (2, true));
}

/// The parser itself, on the examples of the standard.
#[test]
fn the_parser_reads_what_the_standard_says() {
    let event = |data: &str| (String::new(), data.to_owned(), String::new());
    let (events, whole) = parse(b"data: YHOO\ndata: +2\ndata: 10\n\n");
    assert_eq!((events, whole), (vec![event("YHOO\n+2\n10")], true));
    let (events, _) =
        parse(b": test stream\n\ndata: first event\n\ndata:second event\n\ndata:  third event");
    assert_eq!(events, [event("first event"), event("second event")]);
    let (events, _) = parse(b"data\n\ndata\ndata\n\ndata:");
    assert_eq!(events, [event(""), event("\n")]);
    let (events, _) = parse(b"data:test\r\rdata: test\r\n\r\n");
    assert_eq!(events, [event("test"), event("test")]);
}
