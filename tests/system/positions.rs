//! The positions that subscribers get: each is accepted by the server that gave it, by its successor and by other nodes, however the
//! subscription ended.

use std::net::SocketAddr;

use crate::fleet::node;
use crate::rig::{Brokers, Connection, Encke, JSON, data_dir, eventually, path, request};

const TEXT: &str = "Content-Type: text/plain";

/// All positions that a subscriber got.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// The ids of events.
    ids: Vec<String>,
    /// Offsets in events and in the reason for the end.
    offsets: Vec<String>,
}

impl Positions {
    /// Those in a stream of events.
    pub(crate) fn of(events: &str) -> Positions {
        let mut positions = Positions::default();
        for line in events.lines() {
            if let Some(id) = line.strip_prefix("id:") {
                positions.ids.push(id.trim().to_owned());
            }
            if let Some((_, offset)) = line.split_once("continue at offset ") {
                positions.offsets.push(offset.trim().to_owned());
            }
            let data = line.strip_prefix("data:").unwrap_or_default();
            let Ok(serde_json::Value::Object(data)) = serde_json::from_str(data) else {
                continue;
            };
            let named = ["streamNextOffset", "nextOffset"].into_iter();
            let named = named.filter_map(|key| Some(data.get(key)?.as_str()?.to_owned()));
            positions.offsets.extend(named);
        }
        positions
    }

    /// Asks for what follows each of them. `target` is that of the subscription.
    pub(crate) fn follow(&self, address: SocketAddr, target: &str, fields: &[&str]) {
        assert!(!self.ids.is_empty() || !self.offsets.is_empty(), "{target}");
        let accepted = |target: &str, field: Option<&str>| {
            let fields: Vec<&str> = fields.iter().copied().chain(field).collect();
            let mut connection = Connection::open(address);
            connection.send(&request("GET", target, &fields, b""));
            let status = connection.head().status;
            // 204: nothing can follow.
            assert!(
                matches!(status, 200 | 204),
                "{status} for {target} {field:?}: {self:?}"
            );
        };
        for id in &self.ids {
            accepted(target, Some(&format!("Last-Event-ID: {id}")));
            accepted(&format!("{target}&lastEventId={id}"), None);
        }
        let Some((stream, _)) = target.split_once('?') else {
            return;
        };
        if stream.starts_with("/v1/stream/") {
            let ids = self.ids.iter();
            let offsets = ids.map(|id| id.strip_suffix(";end").unwrap_or(id));
            for offset in offsets.chain(self.offsets.iter().map(|offset| &**offset)) {
                accepted(&format!("{stream}?offset={offset}"), None);
                accepted(&format!("{stream}?offset={offset}&live=sse"), None);
            }
        }
    }
}

/// Subscriptions of all forms, of a stream of JSON and of one of text that ends inside a character.
const TARGETS: [&str; 7] = [
    "/v1/stream/a?offset=-1&live=sse",
    "/v1/stream/a?offset=now&live=sse",
    "/v1/stream/t?offset=-1&live=sse",
    "/v1/stream/t?offset=now&live=sse",
    "/v1/events?stream=a&stream=t",
    "/v1/events?stream=a@-1&stream=t@-1",
    "/v1/events?stream=**@-1",
];

/// Begins them, with more in the log than what they get.
fn begin(encke: &Encke) -> Vec<(&'static str, Connection)> {
    encke.create("a");
    encke.create("b");
    let put = encke.ask("PUT", &path("t"), &[TEXT], b"");
    assert_eq!(put.status, 201, "{put:?}");
    append(encke, "a", JSON, b"[1,2,3]");
    append(encke, "t", TEXT, b"caf\xc3");
    let subscribers = TARGETS.map(|target| {
        let mut subscriber = encke.connect();
        subscriber.send(&request("GET", target, &[], b""));
        assert_eq!(subscriber.head().status, 200, "{target}");
        (target, subscriber)
    });
    for _ in 0..5 {
        append(encke, "b", JSON, b"[0]");
    }
    append(encke, "a", JSON, b"[4]");
    append(encke, "t", TEXT, b"\xa9 cr\xc3");
    append(encke, "b", JSON, b"[0]");
    subscribers.into()
}

fn append(encke: &Encke, stream: &str, content_type: &str, body: &[u8]) {
    let answer = encke.ask("POST", &path(stream), &[content_type], body);
    assert_eq!(answer.status, 204, "{answer:?}");
}

/// What each of them got up to its end.
fn ended(subscribers: Vec<(&'static str, Connection)>) -> Vec<(&'static str, Positions)> {
    let rest = |(target, mut subscriber): (_, Connection)| {
        let events = String::from_utf8_lossy(&subscriber.rest()).into_owned();
        (target, Positions::of(&events))
    };
    subscribers.into_iter().map(rest).collect()
}

/// Waits until each has what was appended last, as far as it can be sent.
fn until_all_have_the_last(subscribers: &mut [(&'static str, Connection)]) {
    for (target, subscriber) in subscribers {
        let (json, text) = match *target {
            target if target.starts_with("/v1/stream/a") => (true, false),
            target if target.starts_with("/v1/stream/t") => (false, true),
            _ => (true, true),
        };
        loop {
            let has = String::from_utf8_lossy(subscriber.input()).into_owned();
            // Whoever begins inside a character, or names a pattern, gets the record as it is.
            let has_text = has.contains(" cr") || has.contains("qSBjc");
            let has_json = has.contains("[4]") || has.contains("\n4");
            if (has_json || !json) && (has_text || !text) {
                break;
            }
            assert!(subscriber.fill(), "{target} has ended: {has}");
        }
    }
}

#[test]
fn after_a_stop_they_are_accepted_by_the_next_start() {
    let data = data_dir();
    for flags in [&[][..], &["--shards", "1"]] {
        let dir = data.path().join(flags.len().to_string());
        let encke = Encke::start_in(&dir, flags);
        let mut subscribers = begin(&encke);
        until_all_have_the_last(&mut subscribers);
        assert_eq!(encke.terminate().code, Some(0));
        let encke = Encke::start_in(&dir, flags);
        for (target, positions) in ended(subscribers) {
            positions.follow(encke.address, target, &[]);
        }
    }
}

#[test]
fn after_the_end_of_the_streams_they_are_accepted() {
    let encke = Encke::start(&["--shards", "1"]);
    let mut subscribers = begin(&encke);
    until_all_have_the_last(&mut subscribers);
    for (stream, content_type) in [("a", JSON), ("t", TEXT)] {
        let closed = encke.ask(
            "POST",
            &path(stream),
            &[content_type, "Stream-Closed: true"],
            b"",
        );
        assert_eq!(closed.status, 204, "{closed:?}");
    }
    // A pattern does not end.
    subscribers.retain(|(target, _)| !target.contains('*'));
    for (target, positions) in ended(subscribers) {
        positions.follow(encke.address, target, &[]);
    }
}

#[test]
fn after_a_cut_they_are_accepted() {
    // Nothing is sent behind the last event: the connection is cut in the middle of the response.
    let encke = Encke::start(&["--shards", "1"]);
    let mut subscribers = begin(&encke);
    until_all_have_the_last(&mut subscribers);
    for (target, mut subscriber) in subscribers {
        let events = String::from_utf8_lossy(subscriber.input()).into_owned();
        drop(subscriber);
        Positions::of(&events).follow(encke.address, target, &[]);
    }
}

#[test]
fn after_a_node_has_left_its_fleet_they_are_accepted_by_all_nodes() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let flags = ["--fleet-retry", "3s", "--fleet-silence-max", "5s"];
    let a = node(&brokers, "a", dirs[0].path(), &flags);
    let b = node(&brokers, "b", dirs[1].path(), &flags);
    let mut subscribers = begin(&a);
    until_all_have_the_last(&mut subscribers);
    brokers.freeze(0);
    let positions = ended(subscribers);
    brokers.thaw(0);
    for node in [&a, &b] {
        eventually("the node is ready", || {
            node.ask("GET", "/readyz", &[], b"").status == 200
        });
        for (target, positions) in &positions {
            positions.follow(node.address, target, &[]);
        }
    }
}
