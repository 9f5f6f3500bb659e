//! Subscriptions of several streams that begin with the last messages of each.

use serde_json::{Value, json};

use crate::multi_stream::MultiStream;
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Connection, Encke, JSON, data_dir, path, request};

const STREAMS: [&str; 3] = ["a", "b", "c"];
const LINES: &str = "Accept: application/x-ndjson";

/// Appends a number to each stream.
fn append(encke: &Encke, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        for stream in STREAMS {
            let body = format!("[{number}]");
            let said = encke.ask("POST", &path(stream), &[JSON], body.as_bytes());
            assert_eq!(said.status, 204, "{said:?}");
        }
    }
}

/// The numbers of each stream that a client gets up to `last`.
fn numbers_until(last: u64, mut next: impl FnMut() -> Value) -> [Vec<u64>; 3] {
    let mut numbers: [Vec<u64>; 3] = Default::default();
    while numbers.iter().any(|got| got.last() != Some(&last)) {
        let record = next();
        let Some(messages) = record.get("messages").or(record.get("data")) else {
            continue;
        };
        let place = STREAMS.iter().position(|name| record["stream"] == *name);
        let messages = messages.as_array().expect("the stream has JSON").iter();
        let messages = messages.map(|number| number.as_u64().expect("a number"));
        numbers[place.expect("it is named")].extend(messages);
    }
    numbers
}

fn lines(encke: &Encke, query: &str) -> impl FnMut() -> Value {
    let mut connection: Connection = encke.connect();
    let target = format!("/v1/events?{query}");
    connection.send(&request("GET", &target, &[LINES], b""));
    assert_eq!(connection.head().status, 200);
    move || connection.json_line()
}

fn events(encke: &Encke, query: &str, id: Option<&str>) -> MultiStream {
    MultiStream::open(encke, query, id)
}

#[test]
fn each_stream_begins_with_its_last_messages_and_what_follows() {
    let dir = data_dir();
    // What is not among the recent records is read from files.
    let flags = ["--ring", "64KiB", "--logs", "2"];
    let encke = Encke::start_in(dir.path(), &flags);
    STREAMS.iter().for_each(|stream| encke.create(stream));
    append(&encke, 1..=20);
    encke.kill();
    let encke = Encke::start_in(dir.path(), &flags);
    append(&encke, 21..=25);
    let query = "stream=a&stream=b&stream=c&last=10";
    let mut by_lines = lines(&encke, query);
    let mut by_events = events(&encke, query, None);
    let mut channel = WebSocketClient::open(encke.address, "/v1/events", &[]);
    let subscribe = json!({"type": "subscribe", "id": 1, "streams": STREAMS, "last": 10});
    let subscribed = channel.ask(&subscribe.to_string());
    assert_eq!(
        (&subscribed["type"], &subscribed["id"]),
        (&json!("subscribed"), &json!(1)),
        "{subscribed}"
    );
    let target = format!("/v1/events?{query}");
    let mut by_url = WebSocketClient::open(encke.address, &target, &[]);
    append(&encke, 26..=27);
    let expected: Vec<u64> = (16..=27).collect();
    let expected = [expected.clone(), expected.clone(), expected];
    assert_eq!(numbers_until(27, &mut by_lines), expected);
    let mut event = || by_events.event().expect("the response goes on").data;
    assert_eq!(numbers_until(27, &mut event), expected);
    let mut message = || channel.message().expect("the channel is open");
    assert_eq!(numbers_until(27, &mut message), expected);
    let mut message = || by_url.message().expect("the channel is open");
    assert_eq!(numbers_until(27, &mut message), expected);
    // A client that was cut off goes on, and a new one begins anew.
    let id = by_events.id.clone();
    drop(by_events);
    append(&encke, 28..=30);
    let mut again = events(&encke, query, Some(&id));
    let rest = [28, 29, 30];
    let mut event = || again.event().expect("the response goes on").data;
    assert_eq!(
        numbers_until(30, &mut event),
        [rest, rest, rest].map(Vec::from)
    );
    let query = "stream=a@now&stream=b&stream=c&last=1";
    let mut mixed = events(&encke, query, None);
    append(&encke, 31..=31);
    let mut event = || mixed.event().expect("the response goes on").data;
    assert_eq!(
        numbers_until(31, &mut event),
        [vec![31], vec![30, 31], vec![30, 31]]
    );
}
