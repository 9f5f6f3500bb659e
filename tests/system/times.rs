//! The times of records: a reader that asks for them gets the same ones live, from files and after a restart, in every form.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::multi_stream::MultiStream;
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Encke, JSON, data_dir, eventually, path, request};

const TEXT: &str = "Content-Type: text/plain";
const LINES: &str = "Accept: application/x-ndjson";
const STREAMS: [&str; 2] = ["j", "t"];

/// Records of each stream: enough that most of them are in history, and not among the recent ones.
const RECORDS: usize = 30;
const SMALL: [&str; 6] = [
    "--segment",
    "1MiB",
    "--body-max",
    "256KiB",
    "--ring",
    "64KiB",
];

/// The time of each record, by its stream and its number.
pub(crate) type Times = BTreeMap<(String, usize), u64>;

/// A client that follows streams, and gets the times of their records.
pub(crate) enum Reader {
    Lines(Connection),
    Events(MultiStream),
    Messages(WebSocketClient),
}

impl Reader {
    fn lines(encke: &Encke, target: &str) -> Reader {
        let mut connection = encke.connect();
        connection.send(&request("GET", target, &[LINES], b""));
        let head = connection.head();
        assert_eq!(head.status, 200, "{target}: {head:?}");
        Reader::Lines(connection)
    }

    fn messages(encke: &Encke, subscriptions: &[Value]) -> Reader {
        let mut client = WebSocketClient::open(encke.address, "/v1/events", &[]);
        for subscription in subscriptions {
            client.send(&subscription.to_string());
        }
        Reader::Messages(client)
    }

    /// Readers of all records of both streams, in every form that has times.
    pub(crate) fn all(encke: &Encke) -> Vec<(&'static str, Vec<Reader>)> {
        let one = |stream: &str| {
            let target = format!("{}?offset=-1&live=true&times=true", path(stream));
            Reader::lines(encke, &target)
        };
        let several = "stream=j@-1&stream=t@-1&times=true";
        let pattern = "stream=**@-1&times=true";
        let subscribe = |stream: &str| json!({"type": "subscribe", "stream": stream, "offset": "-1", "times": true});
        let merged =
            json!({"type": "subscribe", "streams": STREAMS, "offset": "-1", "times": true});
        vec![
            ("lines", STREAMS.map(one).into()),
            (
                "lines of several",
                vec![Reader::lines(encke, &format!("/v1/events?{several}"))],
            ),
            (
                "events of several",
                vec![Reader::Events(MultiStream::open(encke, several, None))],
            ),
            (
                "events of a pattern",
                vec![Reader::Events(MultiStream::open(encke, pattern, None))],
            ),
            (
                "messages",
                vec![Reader::messages(encke, &STREAMS.map(subscribe))],
            ),
            (
                "messages of several",
                vec![Reader::messages(encke, &[merged])],
            ),
            (
                "messages of a pattern",
                vec![Reader::messages(encke, &[subscribe("**")])],
            ),
        ]
    }

    fn next(&mut self) -> Value {
        match self {
            Reader::Lines(connection) => connection.json_line(),
            Reader::Events(several) => several.event().expect("the response goes on").data,
            Reader::Messages(client) => client.message().expect("the channel is open"),
        }
    }

    /// The times of so many records. Lines of one stream do not name it.
    fn times(&mut self, count: usize, name: &str) -> Times {
        let mut times = Times::new();
        while times.len() < count {
            let record = self.next();
            let Some(number) = number(&record) else {
                continue;
            };
            let stream = record.get("stream").and_then(Value::as_str).unwrap_or(name);
            let time = record["timeMs"].as_u64().expect("it has a time");
            times.insert((stream.to_owned(), number), time);
        }
        times
    }
}

/// The number of a record. `None`: it is none.
fn number(record: &Value) -> Option<usize> {
    let mut forms = ["data", "messages", "text"].into_iter();
    let data = forms.find_map(|form| record.get(form))?;
    let text = data.get(0).unwrap_or(data).as_str()?;
    let (number, _) = text.trim_start_matches('"').split_once(' ')?;
    Some(number.parse().expect("it begins with a number"))
}

/// What readers get of so many records of each stream; all of them the same.
pub(crate) fn read(readers: Vec<(&'static str, Vec<Reader>)>, count: usize) -> Times {
    let mut first: Option<Times> = None;
    for (what, mut readers) in readers {
        let times: Times = match &mut readers[..] {
            [both] => both.times(2 * count, ""),
            each => {
                let each = each.iter_mut().zip(STREAMS);
                each.flat_map(|(reader, name)| reader.times(count, name))
                    .collect()
            }
        };
        assert_eq!(times.len(), 2 * count, "{what}");
        match &first {
            None => first = Some(times),
            Some(first) => assert_eq!(times, *first, "{what}"),
        }
    }
    first.expect("there is a reader")
}

pub(crate) fn create(encke: &Encke) {
    for (stream, content_type) in STREAMS.into_iter().zip([JSON, TEXT]) {
        let made = encke.ask("PUT", &path(stream), &[content_type], b"");
        assert_eq!(made.status, 201, "{made:?}");
    }
}

pub(crate) fn append(encke: &Encke, numbers: std::ops::Range<usize>, bytes: usize) {
    let pad = "x".repeat(bytes);
    for number in numbers {
        for (stream, content_type) in STREAMS.into_iter().zip([JSON, TEXT]) {
            let body = format!("\"{number} {pad}\"");
            let said = encke.ask("POST", &path(stream), &[content_type], body.as_bytes());
            assert_eq!(said.status, 204, "{said:?}");
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("it is before the end of time")
}

#[test]
fn a_record_has_the_same_time_for_every_reader() {
    let dir = data_dir();
    let encke = Encke::start_in(dir.path(), &SMALL);
    create(&encke);
    let live = Reader::all(&encke);
    let begun = now_ms();
    append(&encke, 0..RECORDS, 50 << 10);
    let ended = now_ms();
    let times = read(live, RECORDS);
    assert!(
        times.values().all(|time| (begun..=ended).contains(time)),
        "{begun} {ended} {times:?}"
    );
    eventually("sealed segments are in history", || {
        encke.metric("encke_log_segments_waiting", "") == 0.0
    });
    assert_eq!(read(Reader::all(&encke), RECORDS), times);
    encke.kill();
    let encke = Encke::start_in(dir.path(), &SMALL);
    assert_eq!(read(Reader::all(&encke), RECORDS), times);
    // Old records, and new ones of the process, for one reader.
    append(&encke, RECORDS..RECORDS + 2, 1);
    let more = read(Reader::all(&encke), RECORDS + 2);
    assert!(times.iter().all(|record| more.contains_key(record.0)));
}

#[test]
fn the_levels_of_durability_and_several_logs_change_no_time() {
    for flags in [
        &["--ack", "accepted"][..],
        &["--ack", "written"],
        &["--logs", "2"],
    ] {
        let dir = data_dir();
        let encke = Encke::start_in(dir.path(), flags);
        create(&encke);
        let live = Reader::all(&encke);
        append(&encke, 0..5, 1);
        let times = read(live, 5);
        assert_eq!(read(Reader::all(&encke), 5), times, "{flags:?}");
        assert_eq!(encke.terminate().code, Some(0));
        let encke = Encke::start_in(dir.path(), flags);
        assert_eq!(read(Reader::all(&encke), 5), times, "{flags:?}");
    }
}

/// The text or the bytes of each record of the stream `c`, with its time.
fn pieces(reader: &mut Reader, count: usize) -> Vec<(String, u64)> {
    let mut pieces = Vec::new();
    while pieces.len() < count {
        let record = reader.next();
        let mut forms = ["data", "text", "base64"].into_iter();
        if let Some(data) = forms.find_map(|form| record.get(form)) {
            let time = record["timeMs"].as_u64().expect("it has a time");
            pieces.push((data.as_str().expect("a string").to_owned(), time));
        }
    }
    pieces
}

#[test]
fn a_character_that_appends_cut_has_one_time() {
    let encke = Encke::start(&["--ring", "64KiB"]);
    encke.ask("PUT", &path("c"), &[TEXT], b"");
    let readers = || {
        let one = format!("{}?offset=-1&live=true&times=true", path("c"));
        let message = json!({"type": "subscribe", "stream": "c", "offset": "-1", "times": true});
        [
            Reader::lines(&encke, &one),
            Reader::lines(&encke, "/v1/events?stream=c@-1&times=true"),
            Reader::messages(&encke, &[message]),
        ]
    };
    let mut live = readers();
    for body in [&b"a\xe2"[..], b"\x82", b"\xac", b"b\xe2", b"\x82"] {
        let said = encke.ask("POST", &path("c"), &[TEXT], body);
        assert_eq!(said.status, 204, "{said:?}");
    }
    let before: Vec<_> = live.iter_mut().map(|reader| pieces(reader, 3)).collect();
    let closed = encke.ask("POST", &path("c"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204, "{closed:?}");
    let behind = live.iter_mut().map(|reader| pieces(reader, 1));
    let all = before.into_iter().zip(behind);
    let all: Vec<_> = all.map(|(before, last)| [before, last].concat()).collect();
    let expected = ["a", "\u{20ac}", "b", "4oI="];
    for got in &all {
        assert_eq!(*got, all[0]);
        let data = got.iter().map(|(data, _)| &**data);
        assert!(data.eq(expected), "{got:?}");
    }
    for mut reader in readers() {
        assert_eq!(pieces(&mut reader, 4), all[0]);
    }
}
