//! Clients that send or read too slowly: each is closed at its limit, with the reason where the protocol allows it; no client takes
//! a part for the whole; and the memory for all of them is bounded.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use crate::positions::Positions;
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Bystanders, Connection, Encke, JSON, Subscriber, eventually, path, request};

/// Records that are large enough to fill a socket soon.
fn publish(encke: &Encke, stream: &str, numbers: std::ops::Range<u64>) {
    let mut connection = encke.connect();
    let pad = "x".repeat(20 << 10);
    for number in numbers {
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        let answer = connection.ask("POST", &path(stream), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
}

/// Reads on to the end: the numbers from `next` on, one after the other; the first that is missing.
fn in_order(subscriber: &mut Subscriber, mut next: u64) -> u64 {
    while let Some(message) = subscriber.message() {
        assert_eq!(message["n"], next);
        next += 1;
    }
    next
}

fn closed(encke: &Encke, reason: &str) -> f64 {
    encke.metric(
        "encke_connections_closed_total",
        &format!("reason=\"{reason}\""),
    )
}

/// Waits until the server has decided to close that many subscribers for this reason. They have not read it yet.
fn wait_for_dismissals(encke: &Encke, reason: &str, count: usize) {
    let reason = format!("reason=\"{reason}\"");
    eventually("subscribers are dismissed", || {
        let log = encke.log();
        let lines = log.lines();
        let dismissals =
            lines.filter(|line| line.contains("closing a subscriber before the end of its stream"));
        dismissals.filter(|line| line.contains(&reason)).count() == count
    });
}

/// A dismissed subscriber gets every record up to an offset and the reason, and can continue from that offset.
fn assert_dismissed(encke: &Encke, subscriber: &mut Subscriber, why: &str, records: u64) {
    let next = in_order(subscriber, 0);
    assert!(next < records, "the kernel does not swallow so much");
    assert!(
        subscriber.comment.contains(why) && subscriber.comment.contains(&subscriber.next_offset),
        "{:?}, expected to name {}",
        subscriber.comment,
        subscriber.next_offset
    );
    assert!(!subscriber.up_to_date && !subscriber.closed);
    let said = Positions::of(&format!(": {}", subscriber.comment));
    let target = format!("{}?offset=-1&live=sse", path("s"));
    said.follow(encke.address, &target, &[]);
    let mut back = encke.subscribe("s", &subscriber.next_offset);
    for number in next..records {
        assert_eq!(back.message().expect("it is there")["n"], number);
    }
}

#[test]
fn a_subscriber_that_falls_too_many_bytes_behind() {
    const RECORDS: u64 = 200;
    let encke = Encke::start(&[
        "--tuning",
        "lag-max=1MiB",
        "--ring",
        "1MiB",
        "--log",
        "debug",
    ]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let mut reader = encke.subscribe("s", "-1");
    let mut slow = encke.subscribe_narrow("s");
    let mut gone = encke.subscribe_narrow("s");
    // A subscriber that keeps up is not affected.
    for begin in (0..RECORDS).step_by(10) {
        publish(&encke, "s", begin..begin + 10);
        for number in begin..begin + 10 {
            assert_eq!(reader.message().expect("it is live")["n"], number);
        }
    }
    wait_for_dismissals(&encke, "lag_max", 2);
    assert_dismissed(&encke, &mut slow, "too far behind", RECORDS);
    eventually("it is counted", || closed(&encke, "lag_max") == 1.0);
    assert!(gone.message().is_some(), "the other has not read it yet");
    drop(gone);
    eventually("no client is behind", || {
        encke.metric("encke_clients_behind", "") == 0.0
    });
    bystanders.were_not_disturbed();
}

#[test]
#[ignore = "long: make test-all"]
fn a_subscriber_that_is_behind_for_too_long() {
    const RECORDS: u64 = 100;
    let encke = Encke::start(&[
        "--tuning",
        "lag-age-max=12s",
        "--tuning",
        "stall-timeout=15s",
        "--log",
        "debug",
    ]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let mut slow = encke.subscribe_narrow("s");
    let mut never = encke.subscribe_narrow("s");
    never.may_be_cut = true;
    // This one is behind, too, but is abreast again before its time is up.
    let mut pausing = encke.subscribe_narrow("s");
    publish(&encke, "s", 0..RECORDS);
    for number in 0..RECORDS {
        assert_eq!(pausing.message().expect("it is in time")["n"], number);
    }
    wait_for_dismissals(&encke, "lag_age_max", 2);
    assert_dismissed(&encke, &mut slow, "for too long", RECORDS);
    // A client that does not read the reason either is cut after another stall timeout, and counted for the first reason.
    eventually("both are counted", || closed(&encke, "lag_age_max") == 2.0);
    assert!(in_order(&mut never, 0) < RECORDS);
    publish(&encke, "s", RECORDS..RECORDS + 1);
    assert_eq!(pausing.message().expect("it is there")["n"], RECORDS);
    assert_eq!(encke.metric("encke_clients_behind", ""), 0.0);
    bystanders.were_not_disturbed();
}

#[test]
fn a_subscriber_of_several_streams_that_falls_behind() {
    const RECORDS: u64 = 100;
    for (limit, reason, why) in [
        ("lag-max=512KiB", "lag_max", "too far behind"),
        ("lag-age-max=5s", "lag_age_max", "for too long"),
    ] {
        let encke = Encke::start(&["--tuning", limit, "--log", "debug"]);
        encke.create("s");
        encke.create("t");
        let target = "/v1/events?stream=s@-1&stream=t@-1";
        let ask = |mut connection: Connection, id: &str| {
            let field = format!("Last-Event-ID: {id}");
            let fields = if id.is_empty() {
                &[][..]
            } else {
                &[&*field][..]
            };
            connection.send(&request("GET", target, fields, b""));
            assert_eq!(connection.head().status, 200);
            connection
        };
        let numbers = |text: &str| -> Vec<u64> {
            let records = text.split("{\"n\":").skip(1);
            records
                .map(|rest| rest.split(',').next().unwrap().parse().expect("a number"))
                .collect()
        };
        let mut slow = ask(Connection::open_narrow(encke.address), "");
        for number in 0..RECORDS {
            let stream = if number % 2 == 0 { "s" } else { "t" };
            publish(&encke, stream, number..number + 1);
        }
        wait_for_dismissals(&encke, reason, 1);
        let text = String::from_utf8(slow.rest()).expect("events are text");
        let last = text.trim_end().rsplit("\n\n").next().expect("a last event");
        assert!(
            last.starts_with(": closed by the server") && last.contains(why),
            "{last:?}"
        );
        let had = numbers(&text);
        assert_eq!(had, (0..had.len() as u64).collect::<Vec<_>>());
        assert!(!had.is_empty() && had.len() < RECORDS as usize);
        let id = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("id:"))
            .expect("events have ids");
        let mut back = ask(encke.connect(), id.trim());
        let mut rest = String::new();
        while numbers(&rest).last() != Some(&(RECORDS - 1)) {
            assert!(back.fill(), "it goes on");
            rest.push_str(&String::from_utf8(std::mem::take(back.input())).expect("text"));
        }
        assert_eq!(
            numbers(&rest),
            (had.len() as u64..RECORDS).collect::<Vec<_>>()
        );
        drop(back);
        eventually("no client is behind", || {
            encke.metric("encke_clients_behind", "") == 0.0
        });
    }
}

/// Reads until the connection ends; whether that was a reset.
fn ends_by_reset(connection: &mut Connection) -> bool {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match connection.socket.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
            Err(error) => panic!("neither data nor an end: {error}"),
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_long_answer_that_is_cut_is_not_taken_for_the_whole() {
    for (flags, reason) in [
        (["--tuning", "stall-timeout=3s"], "stalled"),
        (["--tuning", "lag-age-max=3s"], "lag_age_max"),
    ] {
        let encke = Encke::start(&flags);
        encke.create("s");
        publish(&encke, "s", 0..200);
        let bystanders = Bystanders::of(&encke);
        // In HTTP/1.0 only the connection's end marks the end of the body.
        for version in ["1.0", "1.1"] {
            let before = closed(&encke, reason);
            let mut client = Connection::open_narrow(encke.address);
            let target = format!("{}?offset=-1", path("s"));
            client.send(format!("GET {target} HTTP/{version}\r\nHost: x\r\n\r\n").as_bytes());
            assert_eq!(client.head().status, 200);
            eventually("it is closed", || closed(&encke, reason) > before);
            assert!(ends_by_reset(&mut client), "{version}, {reason}");
        }
        // And what is whole ends as it should.
        let mut client = encke.connect();
        let target = format!("{}?offset=-1", path("s"));
        client.send(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes());
        let whole: Vec<serde_json::Value> =
            serde_json::from_slice(&client.answer().body).expect("JSON");
        assert_eq!(whole.len(), 200);
        bystanders.were_not_disturbed();
    }
}

#[test]
fn a_stop_that_cuts_an_answer_cuts_it_visibly() {
    let encke = Encke::start(&[]);
    encke.create("s");
    publish(&encke, "s", 0..200);
    let mut client = Connection::open_narrow(encke.address);
    client.send(format!("GET {}?offset=-1 HTTP/1.0\r\n\r\n", path("s")).as_bytes());
    assert_eq!(client.head().status, 200);
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(ends_by_reset(&mut client));
}

#[test]
fn requests_on_their_way_hold_no_more_than_they_may() {
    const BOUND: f64 = 1024.0 * 1024.0;
    let encke = Encke::start(&["--buffers-max", "1MiB", "--body-max", "100KiB"]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: 100000\r\n\r\n",
        path("s")
    );
    let part = [head.as_bytes(), &vec![b' '; 60_000]].concat();
    let mut holders: Vec<Connection> = (0..40).map(|_| encke.connect()).collect();
    for holder in &mut holders {
        holder.send(&part);
    }
    eventually("requests are refused", || {
        encke.refused("buffers_max") >= 20
    });
    let held = encke.metric("encke_buffered_bytes", "");
    assert!(held > BOUND / 4.0 && held < BOUND, "{held} bytes are held");
    // Requests that come whole need no room that lasts.
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    // One of those that hold the most makes room for the next.
    let mut next = encke.connect();
    let fields = format!("Host: x\r\n{JSON}\r\nContent-Length: 40000");
    next.send(format!("POST {} HTTP/1.1\r\n{fields}\r\n\r\n", path("s")).as_bytes());
    next.send(&[b' '; 20_000]);
    next.send(&[vec![b' '; 19_999], b"1".to_vec()].concat());
    assert_eq!(next.answer().status, 204);
    let mut refused = 0;
    for holder in &mut holders {
        holder.send_anyway(&[vec![b' '; 39_999], b"1".to_vec()].concat());
        let answer = holder.answer();
        if answer.status != 204 {
            assert_eq!((answer.status, &*answer.error_code()), (503, "buffers_max"));
            assert!(answer.field("Retry-After").is_some() && answer.closes());
            refused += 1;
        }
    }
    assert!(refused >= 20, "{refused}");
    drop(holders);
    eventually("all is given back", || {
        encke.metric("encke_buffered_bytes", "") == 0.0
    });
    let mut whole = encke.connect();
    whole.send(&part);
    whole.send(&[vec![b' '; 39_999], b"1".to_vec()].concat());
    assert_eq!(whole.answer().status, 204);
    bystanders.were_not_disturbed();
}

#[test]
fn answers_that_wait_hold_no_more_than_they_may() {
    const BOUND: f64 = 1024.0 * 1024.0;
    let encke = Encke::start(&["--buffers-max", "1MiB"]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    // Of each a part of a piece of 64 KiB waits: there is no room for all.
    let mut stalled: Vec<Subscriber> = (0..40).map(|_| encke.subscribe_narrow("s")).collect();
    let body = format!("\"{}\"", "x".repeat(270 << 10));
    let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
    assert_eq!(answer.status, 204);
    eventually("some are cut", || closed(&encke, "buffers_max") >= 1.0);
    let held = encke.metric("encke_buffered_bytes", "");
    assert!(held < BOUND * 1.5, "{held} bytes are held");
    let (mut whole, mut cut) = (0, 0);
    for subscriber in &mut stalled {
        subscriber.may_be_cut = true;
        match subscriber.message() {
            Some(message) => {
                assert_eq!(message.as_str().map(str::len), Some(270 << 10));
                whole += 1;
            }
            None => cut += 1,
        }
    }
    assert!(whole >= 2 && cut >= 1, "{whole} whole, {cut} cut");
    assert_eq!(closed(&encke, "buffers_max"), f64::from(cut));
    eventually("all is given back", || {
        encke.metric("encke_buffered_bytes", "") == 0.0
    });
    bystanders.were_not_disturbed();
}

#[test]
fn the_kernel_buffers_a_bound_for_a_client_that_does_not_read() {
    const CLIENTS: usize = 4;
    const EVENT: usize = 200 << 10;
    // The rest of this piece of 64 KiB is held, and nothing of the later ones.
    for (unsent, pieces, at_least, at_most) in [
        ("unsent-max=16KiB", 1, 16 << 10, 48 << 10),
        ("unsent-max=96KiB", 2, 96 << 10, 128 << 10),
    ] {
        let encke = Encke::start(&["--tuning", unsent]);
        encke.create("s");
        let bystanders = Bystanders::of(&encke);
        let mut stalled: Vec<Subscriber> =
            (0..CLIENTS).map(|_| encke.subscribe_narrow("s")).collect();
        let body = format!("\"{}\"", "x".repeat(EVENT));
        let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
        eventually("all of them are behind", || {
            encke.metric("encke_clients_behind", "") == CLIENTS as f64
        });
        let held = encke.metric("encke_buffered_bytes", "") as usize / CLIENTS;
        let taken = (pieces * (64_usize << 10)).saturating_sub(held);
        assert!(
            (at_least..at_most).contains(&taken),
            "{taken} bytes were taken of each event, with {unsent}"
        );
        for subscriber in &mut stalled {
            let message = subscriber.message().expect("it is whole");
            assert_eq!(message.as_str().map(str::len), Some(EVENT));
        }
        bystanders.were_not_disturbed();
    }
}

#[test]
fn a_body_that_drips() {
    let encke = Encke::start(&[
        "--tuning",
        "body-timeout=4s",
        "--tuning",
        "request-timeout=30s",
    ]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let mut client = encke.connect();
    let begin = Instant::now();
    client.send(
        format!(
            "POST {} HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: 1000\r\n\r\n",
            path("s")
        )
        .as_bytes(),
    );
    // A byte now and then, so that only the limit on the whole body can end it.
    eventually("the server has answered", || {
        std::thread::sleep(Duration::from_millis(50));
        client.has_input() || !client.send_anyway(b" ")
    });
    let answer = client.answer();
    assert_eq!(answer.status, 408, "{answer:?}");
    assert_eq!(answer.error_code(), "body_timeout");
    assert!(begin.elapsed() >= Duration::from_millis(3_900));
    assert_eq!(encke.refused("body_timeout"), 1);
    bystanders.were_not_disturbed();
}

#[test]
fn requests_of_one_connection() {
    let encke = Encke::start(&["--tuning", "requests-per-connection=3"]);
    let mut client = encke.connect();
    let ask = request("GET", "/healthz", &[], b"");
    client.send(&ask.repeat(5));
    for number in 1..=3 {
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.closes(), number == 3, "{answer:?}");
    }
    client.expect_end();
    assert!(closed(&encke, "requests_per_connection") >= 1.0);
}

/// A channel goes on without the subscription that is too far behind.
#[test]
fn a_subscription_of_a_channel_that_falls_behind() {
    const RECORDS: u64 = 100;
    for (limit, reason, why) in [
        ("lag-max=512KiB", "lag_max", "too far behind"),
        ("lag-age-max=5s", "lag_age_max", "for too long"),
    ] {
        let encke = Encke::start(&["--tuning", limit, "--log", "debug"]);
        encke.create("s");
        encke.create("quiet");
        let connection = Connection::open_narrow(encke.address);
        let (response, mut slow) =
            WebSocketClient::try_open_on(connection, "/v1/events", &["X-None: 1"]);
        assert_eq!(response.status, 101);
        for stream in ["s", "quiet"] {
            let subscribe = format!(r#"{{"type":"subscribe","stream":"{stream}"}}"#);
            assert_eq!(slow.ask(&subscribe)["type"], "subscribed");
        }
        publish(&encke, "s", 0..RECORDS);
        wait_for_dismissals(&encke, reason, 1);
        let mut next = 0;
        let last = loop {
            let message = slow.message().expect("the channel is open");
            if message["type"] != "records" {
                break message;
            }
            for record in message["data"].as_array().expect("JSON") {
                assert_eq!(record["n"], next);
                next += 1;
            }
        };
        assert_eq!(
            (&last["type"], &last["stream"], &last["resumable"]),
            (&"disconnected".into(), &"s".into(), &true.into()),
            "{last}"
        );
        assert!(last["reason"].as_str().expect("it says why").contains(why));
        assert!(next > 0 && next < RECORDS);
        // The other one goes on, and this one from where it was.
        encke.ask("POST", &path("quiet"), &[JSON], b"1");
        assert_eq!(slow.message().expect("it goes on")["stream"], "quiet");
        let again =
            serde_json::json!({"type": "subscribe", "stream": "s", "offset": last["offset"]});
        assert_eq!(slow.ask(&again.to_string())["type"], "subscribed");
        assert_eq!(slow.message().expect("the next")["data"][0]["n"], next);
    }
}
