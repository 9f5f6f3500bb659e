//! Retention: records past their age or size are removed, and a reader that misses some gets an error.

use crate::rig::{
    Connection, Encke, Incompressible, JSON, Response, data_dir, eventually, path, request,
};

const SMALL: [&str; 4] = ["--segment", "1MiB", "--body-max", "256KiB"];

fn append(encke: &Encke, number: u64, pad: usize) -> String {
    let body = format!("{{\"n\":{number},\"pad\":\"{}\"}}", "x".repeat(pad));
    let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
    assert_eq!(answer.status, 204, "{answer:?}");
    let offset = answer.field("Stream-Next-Offset");
    offset.expect("an append tells where it ended").to_owned()
}

fn numbers(encke: &Encke) -> Vec<u64> {
    let messages = encke.messages("s");
    let number = |message: &serde_json::Value| message["n"].as_u64().expect("a number");
    messages.iter().map(number).collect()
}

/// The same by one answer; nothing when the answer is cut because what follows has gone meanwhile.
fn numbers_unless_cut(encke: &Encke) -> Option<Vec<u64>> {
    let mut connection = encke.connect();
    // An answer without chunks ends with its connection.
    let get = format!("GET {}?offset=-1 HTTP/1.0\r\n\r\n", path("s"));
    connection.send(get.as_bytes());
    let answer = connection.head();
    let body = connection.rest();
    if answer.status != 200 {
        let code = serde_json::from_slice::<serde_json::Value>(&body).expect("an error is JSON");
        assert_eq!(code["error"]["code"], "no_longer_kept");
        return None;
    }
    let messages: Vec<serde_json::Value> = serde_json::from_slice(&body).ok()?;
    let number = |message: &serde_json::Value| message["n"].as_u64().expect("a number");
    Some(messages.iter().map(number).collect())
}

#[test]
fn records_past_their_age_are_removed_and_readers_get_an_error() {
    let data = data_dir();
    let flags = [
        &SMALL[..],
        &["--retention-age", "1500ms", "--tuning", "order-age=1s"],
    ]
    .concat();
    let encke = Encke::start_in(data.path(), &flags);
    encke.create("s");
    let mut offset = String::new();
    for number in 0..40 {
        let after = append(&encke, number, 100 << 10);
        if number == 0 {
            offset = after;
        }
    }
    let from = |offset: &str, live: &str| {
        let target = format!("{}?offset={offset}{live}", path("s"));
        encke.ask("GET", &target, &[], b"")
    };
    // Only time passes. (A reader at that moment may be cut off, so this checks the metric.)
    eventually("the oldest are gone", || {
        encke.metric("encke_log_kept_behind", "") >= 2.0
    });
    for live in ["", "&live=long-poll", "&live=sse"] {
        let gone = from(&offset, live);
        assert_eq!((gone.status, &*gone.error_code()), (410, "no_longer_kept"));
    }
    // One record made the stream, and 40 follow.
    eventually("all are gone", || {
        encke.metric("encke_log_kept_behind", "") >= 41.0
    });
    assert_eq!(numbers(&encke), [0_u64; 0]);
    // The stream continues, and a reader at its end misses nothing.
    let mut subscriber = encke.subscribe("s", "now");
    let tail = append(&encke, 1000, 10);
    assert_eq!(subscriber.message().expect("it was sent")["n"], 1000);
    assert_eq!(from(&tail, "").status, 200);
    drop(subscriber);
    encke.kill();
    let encke = Encke::start_in(data.path(), &flags);
    assert!(numbers(&encke).iter().all(|number| *number == 1000));
    assert!(append(&encke, 1001, 10) > tail);
}

#[test]
fn records_past_the_size_go_oldest_first() {
    let flags = [
        &SMALL[..],
        &["--retention-size", "2MiB", "--order-size", "1MiB"],
    ]
    .concat();
    let encke = Encke::start(&flags);
    encke.create("s");
    let mut incompressible = Incompressible::default();
    let count = 120;
    for number in 0..count {
        let pad = incompressible.text(128 << 10);
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    eventually("what is too much is gone", || {
        encke.metric("encke_log_segments_waiting", "") == 0.0
            && encke.metric("encke_log_history_bytes", "") < f64::from(3 << 20)
            && encke.metric("encke_log_segment_bytes", "") < f64::from(6 << 20)
            && encke.metric("encke_log_kept_behind", "") > 60.0
    });
    // More records may be removed at any time, so a reader may be cut off; but what is left is always the newest part.
    let mut left = Vec::new();
    eventually("what is left can be read", || {
        left = numbers_unless_cut(&encke).unwrap_or_default();
        !left.is_empty()
    });
    let last = count - left.len() as u64..count;
    assert!(left.len() > 10 && left.iter().copied().eq(last), "{left:?}");
}

fn truncate(encke: &Encke, stream: &str, before: &str) -> Response {
    let field = format!("Encke-Truncate: {before}");
    encke.ask("POST", &path(stream), &[&field], b"")
}

/// Streams with limits of their own, one that keeps all, and one that is truncated: over a kill -9, and beside streams
/// that leave memory.
#[test]
fn streams_keep_what_they_are_to_keep_over_a_kill() {
    let data = data_dir();
    let flags = [
        "--tuning",
        "streams-idle=100ms",
        "--tuning",
        "streams-hot-max=1",
    ];
    let mut encke = Encke::start_in(data.path(), &flags);
    for (stream, retention) in [
        ("records", "records=8"),
        ("bytes", "bytes=400"),
        ("age", "age=3"),
        ("all", "none"),
    ] {
        let field = format!("Encke-Retention: {retention}");
        let answer = encke.ask("PUT", &path(stream), &[JSON, &field], b"");
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    encke.create("s");
    let mut after = Vec::new();
    for number in 0..60 {
        after.push(append(&encke, number, 10));
        for stream in ["records", "bytes", "age", "all"] {
            // 20 bytes each.
            let body = format!("{{\"n\":{number:>4},\"p\":\"xxxx\"}}");
            let answer = encke.ask("POST", &path(stream), &[JSON], body.as_bytes());
            assert_eq!(answer.status, 204, "{answer:?}");
        }
    }
    let gone = truncate(&encke, "s", &after[39]);
    assert_eq!(
        (gone.status, gone.field("Encke-Floor")),
        (204, Some(&*after[39]))
    );
    let left = |encke: &Encke, stream: &str| encke.messages(stream).len();
    for round in 0..2 {
        assert_eq!(
            numbers(&encke),
            (40..60).collect::<Vec<_>>(),
            "round {round}"
        );
        assert_eq!((left(&encke, "records"), left(&encke, "all")), (8, 60));
        assert!(
            (20..=23).contains(&left(&encke, "bytes")),
            "{}",
            left(&encke, "bytes")
        );
        let below = encke.ask(
            "GET",
            &format!("{}?offset={}", path("s"), after[38]),
            &[],
            b"",
        );
        assert_eq!(
            (below.status, &*below.error_code()),
            (410, "no_longer_kept")
        );
        eventually("the old go by themselves", || left(&encke, "age") == 0);
        encke.kill();
        encke = Encke::start_in(data.path(), &flags);
    }
    let retention = encke.ask("HEAD", &path("bytes"), &[], b"");
    assert_eq!(retention.field("Encke-Retention"), Some("bytes=400"));
}

/// A subscriber that is behind when the floor passes it is closed with the reason, and gets 410 when it reconnects; one that reads
/// along gets everything.
#[test]
fn subscribers_that_a_floor_passes_get_an_error() {
    let encke = Encke::start(&["--ring", "1MiB"]);
    encke.create("s");
    let mut reader = encke.subscribe("s", "-1");
    let narrow = |target: &str| {
        let mut connection = Connection::open_narrow(encke.address);
        connection.send(&request("GET", target, &[], b""));
        assert_eq!(connection.head().status, 200);
        connection
    };
    let mut slow = encke.subscribe_narrow("s");
    let mut several = narrow("/v1/events?stream=s@-1");
    let mut tail = String::new();
    for number in 0..200 {
        tail = append(&encke, number, 20 << 10);
        assert_eq!(reader.message().expect("it reads along")["n"], number);
    }
    eventually("two are behind", || {
        encke.metric("encke_clients_behind", "") == 2.0
    });
    assert_eq!(truncate(&encke, "s", "now").status, 204);
    let mut next = 0;
    while let Some(message) = slow.message() {
        assert_eq!(message["n"], next);
        next += 1;
    }
    assert!(next < 200, "the kernel does not swallow so much");
    assert!(slow.comment.contains("no longer kept"), "{}", slow.comment);
    assert!(!slow.up_to_date && !slow.closed);
    let target = format!("{}?offset={}&live=sse", path("s"), slow.next_offset);
    let again = encke.ask("GET", &target, &[], b"");
    assert_eq!(
        (again.status, &*again.error_code()),
        (410, "no_longer_kept")
    );
    let rest = String::from_utf8(several.rest()).expect("events are text");
    assert!(
        rest.contains("what follows is no longer kept; reconnect without an id"),
        "{:?}",
        &rest[rest.len() - 200..]
    );
    assert!(
        !rest.contains("\\\"n\\\":199"),
        "it was not read to the end"
    );
    eventually("they are counted", || {
        encke.metric(
            "encke_connections_closed_total",
            "reason=\"no_longer_kept\"",
        ) == 2.0
    });
    // A subscriber that had everything continues.
    let then = append(&encke, 200, 10);
    assert!(then > tail);
    assert_eq!(reader.message().expect("it reads along")["n"], 200);
    assert_eq!(numbers(&encke), [200]);
}

/// Subscribers that keep up get every record, even of a stream that keeps its last record only.
#[test]
fn a_live_reader_gets_records_that_are_removed_right_behind_it() {
    let encke = Encke::start(&[]);
    let field = "Encke-Retention: records=1";
    assert_eq!(
        encke.ask("PUT", &path("s"), &[JSON, field], b"").status,
        201
    );
    let mut readers: Vec<_> = (0..3).map(|_| encke.subscribe("s", "-1")).collect();
    let mut connection = encke.connect();
    for number in 0..200 {
        connection.append("s", number);
    }
    for reader in &mut readers {
        for number in 0..200 {
            let message = reader.message().expect("it is sent");
            assert_eq!(message.as_u64().or(message["n"].as_u64()), Some(number));
        }
    }
    assert_eq!(encke.messages("s").len(), 1);
}
