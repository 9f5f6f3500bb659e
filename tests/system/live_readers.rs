//! A stream with a sliding lifetime lives as long as it is read live, and one lifetime longer.

use std::time::Duration;

use crate::fleet;
use crate::rig::{Brokers, Connection, Encke, JSON, data_dir, eventually, path, request};

/// The streams that are read live, each with the request that reads it.
const READS: [(&str, &str); 5] = [
    ("events", "/v1/stream/events?offset=-1&live=sse"),
    ("poll", "/v1/stream/poll?offset=now&live=long-poll"),
    ("one", "/v1/events?stream=one"),
    ("another", "/v1/events?stream=one&stream=another"),
    ("of/a/pattern", "/v1/events?stream=of/**"),
];

/// Polls wait for longer than the test takes.
const LONG_POLLS: [&str; 2] = ["--tuning", "poll-wait=300s"];

/// Creates a stream, unless it is there. True if it was.
fn create(encke: &Encke, stream: &str, lifetime: Duration) -> bool {
    let lifetime = format!("Stream-TTL: {}", lifetime.as_secs());
    let answer = encke.ask("PUT", &path(stream), &[JSON, &lifetime], b"");
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    answer.status == 200
}

fn exists(encke: &Encke, stream: &str) -> bool {
    encke.ask("HEAD", &path(stream), &[], b"").status == 200
}

/// Reads a stream live. On a busy machine it may have ended before that.
fn read(encke: &Encke, stream: &str, target: &str, lifetime: Duration) -> Connection {
    loop {
        create(encke, stream, lifetime);
        let mut connection = encke.connect();
        connection.send(&request("GET", target, &[], b""));
        if target.ends_with("long-poll") {
            encke.wait_for_metric("encke_subscribers", 2.0);
        } else if connection.head().status != 200 {
            continue;
        }
        // The reader keeps it from here on.
        if create(encke, stream, lifetime) {
            return connection;
        }
    }
}

/// A stream without readers has come and gone.
fn one_has_ended(encke: &Encke, lifetime: Duration) {
    create(encke, "alone", lifetime);
    eventually("the stream without readers has ended", || {
        !exists(encke, "alone")
    });
}

/// Streams are read live at `reading`; they are there at both servers, until the readers leave.
fn live_as_long_as_they_are_read(reading: &Encke, other: &Encke, lifetime: Duration) {
    let mut readers: Vec<Connection> = READS
        .iter()
        .map(|(stream, target)| read(reading, stream, target, lifetime))
        .collect();
    for _ in 0..2 {
        one_has_ended(other, lifetime);
        for (stream, _) in READS {
            assert!(exists(other, stream) && exists(reading, stream), "{stream}");
        }
    }
    // The poll is answered by what comes, and has kept the stream until then.
    let answer = other.ask("POST", &path("poll"), &[JSON], b"1");
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(readers[1].answer().body, b"[1]");
    drop(readers);
    for (stream, _) in READS {
        eventually("a stream ends when it has no readers any more", || {
            !exists(other, stream) && !exists(reading, stream)
        });
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_stream_lives_as_long_as_it_is_read_live() {
    for flags in [&[][..], &["--ack", "accepted"], &["--logs", "3"]] {
        let encke = Encke::start(&[&LONG_POLLS, flags].concat());
        live_as_long_as_they_are_read(&encke, &encke, Duration::from_secs(3));
    }
}

#[test]
fn unused_streams_that_are_read_live_leave_memory_and_live_on() {
    let flags = ["--tuning", "streams-idle=1s"];
    let encke = Encke::start(&[LONG_POLLS, flags].concat());
    live_as_long_as_they_are_read(&encke, &encke, Duration::from_secs(3));
}

#[test]
#[ignore = "long: make test-all"]
fn a_stream_of_a_fleet_lives_as_long_as_it_is_read_live_at_one_node() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir()];
    let [reading, other] =
        [0, 1].map(|at| fleet::node(&brokers, ["a", "b"][at], dirs[at].path(), &LONG_POLLS));
    live_as_long_as_they_are_read(&reading, &other, Duration::from_secs(8));
}
