//! Many reads on one connection of HTTP/2, whose windows are smaller than what is to be sent: each comes to its end, and others are
//! served meanwhile.

use crate::rig::http2::*;
use crate::rig::{Encke, JSON, eventually, path};

/// Takes data until each of these streams has at least so many bytes, and gives the windows back in steps, as clients do: an update for
/// each of many small frames would be a flood.
fn take_all(client: &mut Http2Client, streams: usize, bytes: usize) {
    const STEP: usize = 8 << 10;
    let mut got = vec![0; streams];
    // Of the connection, and of each stream.
    let mut owed = vec![0; 1 + streams];
    while got.iter().any(|got| *got < bytes) {
        let frame = client.next().expect("the connection goes on");
        assert!(
            frame.kind != RST_STREAM && frame.kind != GOAWAY,
            "{frame:?}"
        );
        if frame.kind != DATA || frame.payload.is_empty() {
            continue;
        }
        let number = frame.stream as usize / 2;
        got[number] += frame.payload.len();
        for (owing, stream) in [(0, 0), (1 + number, frame.stream)] {
            owed[owing] += frame.payload.len();
            if owed[owing] >= STEP {
                let count = std::mem::take(&mut owed[owing]) as u32;
                client.send(&Frame::number(WINDOW_UPDATE, stream, count));
            }
        }
    }
}

#[test]
fn many_long_responses_on_one_connection() {
    const RECORD_BYTES: usize = 100_000;
    let encke = Encke::start(&["--shards", "1", "--ring", "64KiB"]);
    encke.create("s");
    let record = format!("\"{}\"", "x".repeat(RECORD_BYTES));
    for _ in 0..3 {
        let appended = encke.ask("POST", &path("s"), &[JSON], record.as_bytes());
        assert_eq!(appended.status, 204);
    }
    for count in [3, 5, 12, 100] {
        for target in ["offset=-1", "offset=-1&live=sse"] {
            let mut client = Http2Client::open(encke.address, &[]);
            for number in 0..count {
                let target = format!("{}?{target}", path("s"));
                client.send(&Frame::get(2 * number + 1, &target));
            }
            take_all(&mut client, count as usize, 3 * RECORD_BYTES);
            assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
        }
    }
}

#[test]
fn many_short_catch_ups_on_one_connection() {
    const STREAMS: u32 = 100;
    let encke = Encke::start(&["--shards", "1", "--ring", "64KiB"]);
    for number in 0..STREAMS {
        let name = format!("s{number}");
        encke.create(&name);
        let appended = encke.ask("POST", &path(&name), &[JSON], b"[\"one\"]");
        assert_eq!(appended.status, 204);
    }
    let mut client = Http2Client::open(encke.address, &[]);
    for number in 0..STREAMS {
        let target = format!("{}?offset=-1&live=sse", path(&format!("s{number}")));
        client.send(&Frame::get(2 * number + 1, &target));
    }
    take_all(&mut client, STREAMS as usize, "data:".len());
    // The shard is not busy with them.
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
}

#[test]
fn a_long_poll_gets_a_record_that_is_not_in_the_ring() {
    let encke = Encke::start(&["--shards", "1", "--ring", "64KiB"]);
    encke.create("s");
    let mut client = Http2Client::open(encke.address, &[]);
    client.send(&Frame::get(
        1,
        &format!("{}?offset=now&live=long-poll", path("s")),
    ));
    eventually("it waits", || {
        encke.metric("encke_http2_streams", "") == 1.0
    });
    // As many bytes as the windows take at once.
    let record = format!("\"{}\"", "x".repeat(65_000));
    for _ in 0..2 {
        let appended = encke.ask("POST", &path("s"), &[JSON], record.as_bytes());
        assert_eq!(appended.status, 204);
    }
    let head = client.until(HEADERS);
    assert_eq!(head.stream, 1, "{head:?}");
    assert!(!client.until(DATA).payload.is_empty());
}

#[test]
fn what_is_received_and_not_complete_is_counted() {
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("s");
    let held = || encke.metric("encke_buffered_bytes", "");
    let long = "x".repeat(100);
    let mut fields = Frame::fields("POST", "/v1/stream/s");
    fields.push(("content-type", "application/json"));
    fields.extend((0..50).map(|_| ("x-long", &*long)));
    let mut waiting = Http2Client::open(encke.address, &[]);
    for number in 0..50 {
        waiting.send(&Frame::headers(END_HEADERS, 2 * number + 1, &fields));
    }
    eventually("the heads of requests that wait for bodies", || {
        held() > 50.0 * 5_000.0
    });
    drop(waiting);
    eventually("nothing is left of them", || held() == 0.0);
    let mut unended = Http2Client::open(encke.address, &[]);
    unended.send(&Frame::headers(0, 1, &fields));
    eventually("a header block that does not end", || held() > 5_000.0);
    drop(unended);
    eventually("nothing is left of it", || held() == 0.0);
}
