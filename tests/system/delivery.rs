//! Delivery: every subscriber gets every record once and in order, however it connects and however slowly it reads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rig::{
    Connection, Encke, JSON, SetWhenDropped, Subscriber, eventually, path, raise_descriptors,
    request,
};

/// Makes streams, many at once.
fn create_all(encke: &Encke, streams: &[String]) {
    let mut connections: Vec<Connection> = (0..16).map(|_| encke.connect()).collect();
    for (number, stream) in streams.iter().enumerate() {
        connections[number % 16].send(&request("PUT", &path(stream), &[JSON], b""));
    }
    for number in 0..streams.len() {
        assert_eq!(connections[number % 16].answer().status, 201);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_crowd_on_one_stream_and_many_on_their_own() {
    const SHARED: usize = 1_000;
    const OWN: usize = 500;
    const RECORDS: u64 = 40;
    raise_descriptors();
    let encke = Encke::start(&[]);
    encke.create("shared");
    let own: Vec<String> = (0..OWN).map(|number| format!("own/{number}")).collect();
    create_all(&encke, &own);
    // All ask before the first is answered.
    let names = std::iter::repeat_n("shared", SHARED).chain(own.iter().map(String::as_str));
    let mut subscribers: Vec<Subscriber> = names
        .map(|name| Subscriber::ask(encke.address, &path(name), "offset=-1"))
        .collect();
    subscribers.iter_mut().for_each(Subscriber::accepted);
    encke.wait_for_metric("encke_subscribers", (SHARED + OWN) as f64);
    let address = encke.address;
    let publishers: Vec<_> = [own, vec!["shared".to_owned()]]
        .into_iter()
        .map(|streams| {
            std::thread::spawn(move || {
                let mut connection = Connection::open(address);
                for number in 0..RECORDS {
                    // All of a round are sent before the first answer is looked at.
                    for stream in &streams {
                        let body = number.to_string();
                        connection.send(&request("POST", &path(stream), &[JSON], body.as_bytes()));
                    }
                    for _ in &streams {
                        assert_eq!(connection.answer().status, 204);
                    }
                }
            })
        })
        .collect();
    let expected: Vec<u64> = (0..RECORDS).collect();
    std::thread::scope(|scope| {
        for part in subscribers.chunks_mut((SHARED + OWN).div_ceil(4)) {
            let expected = &expected;
            scope.spawn(move || {
                for subscriber in part {
                    assert_eq!(&subscriber.numbers(RECORDS as usize), expected);
                }
            });
        }
    });
    for publisher in publishers {
        publisher.join().expect("every append was acknowledged");
    }
    let deliveries = encke.metric("encke_deliveries_total", "");
    assert_eq!(deliveries, (SHARED + OWN) as f64 * RECORDS as f64);
    // Nothing comes twice: after the last record comes the end.
    let closed = encke.ask("POST", &path("shared"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204);
    for subscriber in &mut subscribers[..SHARED] {
        assert_eq!(subscriber.rest(), [0_u64; 0]);
        assert!(subscriber.closed);
    }
    encke.wait_for_metric("encke_subscribers", OWN as f64);
}

#[test]
fn a_client_that_stops_reading_gets_everything_and_delays_no_other() {
    const RECORDS: u64 = 1_000;
    let encke = Encke::start(&["--ring", "1MiB", "--tuning", "admission=512KiB"]);
    encke.create("large");
    encke.create("small");
    let mut stalled = encke.subscribe("large", "-1");
    let mut reader = encke.subscribe("large", "-1");
    let mut other = encke.subscribe("small", "-1");
    let over = AtomicBool::new(false);
    let delivered = AtomicU64::new(0);
    let pad = "x".repeat(20 << 10);
    std::thread::scope(|scope| {
        let large = scope.spawn(|| {
            let mut connection = encke.connect();
            for number in 0..RECORDS {
                let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
                let answer = connection.ask("POST", &path("large"), &[JSON], body.as_bytes());
                assert_eq!(answer.status, 204, "{answer:?}");
            }
        });
        scope.spawn(|| {
            let mut connection = encke.connect();
            for number in 0.. {
                connection.append("small", number);
                assert_eq!(other.numbers(1), [number]);
                delivered.store(number + 1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let _over = SetWhenDropped(&over);
        let in_order = |subscriber: &mut Subscriber| {
            for number in 0..RECORDS {
                let message = subscriber.message().expect("the connection holds");
                assert_eq!(message["n"], number);
                assert_eq!(message["pad"].as_str().map(str::len), Some(pad.len()));
            }
        };
        in_order(&mut reader);
        large.join().expect("every append was acknowledged");
        eventually("the stalled client's socket is full", || {
            encke.metric("encke_blocked_total", "") >= 1.0
        });
        // While it is, records of another stream come and go.
        let from = delivered.load(Ordering::Relaxed);
        eventually("others are served", || {
            delivered.load(Ordering::Relaxed) > from + 20
        });
        let before = encke.metric("encke_catch_ups_total", "");
        in_order(&mut stalled);
        // The ring holds a twentieth of it: most came from the log.
        let pieces = encke.metric("encke_catch_ups_total", "") - before;
        assert!(pieces >= 20.0, "{pieces} pieces");
    });
    // And then it is live again.
    let mut connection = encke.connect();
    connection.append("large", 7);
    assert_eq!(stalled.message(), Some(7.into()));
    assert_eq!(reader.message(), Some(7.into()));
}

#[test]
fn a_client_that_never_reads_again_is_closed_and_may_come_back() {
    const RECORDS: u64 = 600;
    let encke = Encke::start(&["--tuning", "stall-timeout=5s"]);
    encke.create("s");
    let mut stalled = encke.subscribe("s", "-1");
    stalled.may_be_cut = true;
    let mut reader = encke.subscribe("s", "-1");
    let mut connection = encke.connect();
    let pad = "x".repeat(20 << 10);
    for number in 0..RECORDS {
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
        assert_eq!(reader.message().expect("it is live")["n"], number);
    }
    eventually("it is closed", || {
        encke.metric("encke_connections_closed_total", "\"stalled\"") >= 1.0
    });
    let mut next = 0;
    while let Some(message) = stalled.message() {
        assert_eq!(message["n"], next);
        next += 1;
    }
    assert!(next < RECORDS, "the kernel does not swallow so much");
    // From the last offset that it got there is no gap.
    let mut back = encke.subscribe("s", &stalled.next_offset);
    let first = back.message().expect("it is there")["n"].as_u64();
    let first = first.expect("a number");
    assert!(first <= next && first > 0, "{first} follows {next}");
    for number in first + 1..RECORDS {
        assert_eq!(back.message().expect("it is there")["n"], number);
    }
}

#[test]
fn quiet_subscribers_hear_a_heartbeat_and_have_nothing_to_say() {
    let encke = Encke::start(&["--tuning", "heartbeat=1s"]);
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "-1");
    subscriber.catch_up();
    // What a subscriber says is thrown away…
    subscriber
        .connection()
        .send(&request("GET", "/healthz", &[], b""));
    let mut quiet = encke.subscribe("s", "-1");
    quiet.catch_up();
    let quiet = quiet.connection();
    while !quiet.input().ends_with(b":\n\n") {
        assert!(quiet.fill());
    }
    encke.connect().append("s", 1);
    assert_eq!(subscriber.numbers(1), [1]);
    // …and one that goes on and on is not listened to for ever.
    let much = [b'x'; 1 << 20];
    eventually("it is closed", || {
        subscriber.connection().send_anyway(&much);
        encke.metric("encke_connections_closed_total", "\"talkative\"") >= 1.0
    });
}

#[test]
fn long_polls_wake() {
    // No poll ends by itself before all of them wait.
    let encke = Encke::start(&["--tuning", "poll-wait=10m"]);
    encke.create("s");
    let mut publisher = encke.connect();
    let mut pollers: Vec<Connection> = (0..60).map(|_| encke.connect()).collect();
    let mut offset = publisher.append("s", 0);
    let poll = |offset: &str| {
        let target = format!("{}?offset={offset}&live=long-poll", path("s"));
        request("GET", &target, &[], b"")
    };
    for number in 1..10 {
        for poller in &mut pollers {
            poller.send(&poll(&offset));
        }
        encke.wait_for_metric("encke_subscribers", 60.0);
        offset = publisher.append("s", number);
        for poller in &mut pollers {
            let answer = poller.answer();
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.body, format!("[{number}]").as_bytes());
            assert_eq!(answer.field("Stream-Next-Offset"), Some(&*offset));
            assert!(answer.field("Stream-Cursor").is_some());
        }
    }
    // What is there already is not waited for.
    let first = &mut pollers[0];
    first.send(&poll("-1"));
    assert_eq!(first.answer().body, b"[0,1,2,3,4,5,6,7,8,9]");
    // The end of the stream wakes too: half of them by a close with data, half by a deletion.
    encke.create("deleted");
    for (number, poller) in pollers.iter_mut().enumerate() {
        if number % 2 == 0 {
            poller.send(&poll(&offset));
        } else {
            let target = format!("{}?offset=now&live=long-poll", path("deleted"));
            poller.send(&request("GET", &target, &[], b""));
        }
    }
    encke.wait_for_metric("encke_subscribers", 60.0);
    publisher.ask("POST", &path("s"), &["Stream-Closed: true"], b"");
    publisher.ask("DELETE", &path("deleted"), &[], b"");
    for (number, poller) in pollers.iter_mut().enumerate() {
        let answer = poller.answer();
        if number % 2 == 0 {
            assert_eq!(answer.status, 204, "{answer:?}");
            assert_eq!(answer.field("Stream-Closed"), Some("true"));
        } else {
            assert_eq!(answer.status, 404, "{answer:?}");
        }
    }
    encke.wait_for_metric("encke_subscribers", 0.0);
}

#[test]
fn a_long_poll_ends_when_nothing_comes() {
    let encke = Encke::start(&["--tuning", "poll-wait=1s"]);
    encke.create("s");
    let mut connection = encke.connect();
    let offset = connection.append("s", 0);
    let target = format!("{}?offset=now&live=long-poll", path("s"));
    let begin = Instant::now();
    let answer = connection.ask("GET", &target, &[], b"");
    assert!(begin.elapsed() >= Duration::from_millis(900));
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(answer.field("Stream-Next-Offset"), Some(&*offset));
    assert_eq!(answer.field("Stream-Up-To-Date"), Some("true"));
}

#[test]
fn subscribers_get_the_end_of_a_stream() {
    let encke = Encke::start(&[]);
    let mut connection = encke.connect();
    for stream in ["closed", "closed-with-data", "deleted"] {
        encke.create(stream);
        connection.append(stream, 1);
    }
    let mut subscribers: Vec<(&str, Subscriber)> = ["closed", "closed-with-data", "deleted"]
        .into_iter()
        .flat_map(|stream| ["-1", "now"].map(|offset| (stream, encke.subscribe(stream, offset))))
        .collect();
    for (stream, number) in [("closed", 2), ("closed-with-data", 2), ("deleted", 2)] {
        connection.append(stream, number);
    }
    let close = ["Stream-Closed: true", JSON];
    let answer = connection.ask("POST", &path("closed"), &close[..1], b"");
    assert_eq!(answer.field("Stream-Closed"), Some("true"));
    let answer = connection.ask("POST", &path("closed-with-data"), &close, b"3");
    assert_eq!(answer.field("Stream-Closed"), Some("true"));
    assert_eq!(
        connection.ask("DELETE", &path("deleted"), &[], b"").status,
        204
    );
    // A new stream of that name is none of the old one's subscribers' business.
    encke.create("deleted");
    connection.append("deleted", 99);
    for (number, (stream, subscriber)) in subscribers.iter_mut().enumerate() {
        let mut expected = vec![1, 2];
        if *stream == "closed-with-data" {
            expected.push(3);
        }
        assert_eq!(
            subscriber.rest(),
            expected[number % 2..],
            "{stream} {number}"
        );
        assert_eq!(subscriber.closed, *stream != "deleted", "{stream}");
    }
    // A later subscriber gets all records and the end at once.
    for (stream, last) in [("closed", 2), ("closed-with-data", 3)] {
        let mut late = encke.subscribe(stream, "-1");
        assert_eq!(late.rest(), (1..=last).collect::<Vec<_>>());
        assert!(late.closed);
        let mut later = encke.subscribe(stream, &late.next_offset);
        assert_eq!(later.rest(), [0_u64; 0]);
        assert!(later.closed);
        let refused = connection.ask("POST", &path(stream), &[JSON], b"4");
        assert_eq!(refused.status, 409);
        assert_eq!(refused.field("Stream-Closed"), Some("true"));
    }
    connection.ask("DELETE", &path("deleted"), &[], b"");
    assert_eq!(
        connection.ask("GET", &path("deleted"), &[], b"").status,
        404
    );
    encke.wait_for_metric("encke_subscribers", 0.0);
}

#[test]
fn hang_ups_are_noticed_at_once() {
    const CLIENTS: usize = 50;
    // Nothing but the hang-up itself makes the server look at a connection.
    let encke = Encke::start(&["--tuning", "heartbeat=1h", "--tuning", "poll-wait=1h"]);
    encke.create("s");
    let long_poll = format!("{}?offset=now&live=long-poll", path("s"));
    type HangUp = fn(Connection) -> Option<Connection>;
    let ways: [(&str, HangUp); 3] = [
        ("close", |connection| {
            drop(connection);
            None
        }),
        ("half-close", |connection| {
            connection.half_close();
            Some(connection)
        }),
        ("reset", |connection| {
            connection.reset();
            None
        }),
    ];
    for (way, hang_up) in ways {
        let mut clients: Vec<Connection> = (0..CLIENTS / 2)
            .map(|_| encke.subscribe("s", "now").into_connection())
            .collect();
        for _ in 0..CLIENTS / 2 {
            let mut poller = encke.connect();
            poller.send(&request("GET", &long_poll, &[], b""));
            clients.push(poller);
        }
        encke.wait_for_metric("encke_subscribers", CLIENTS as f64);
        let hangups = encke.metric("encke_hangups_total", "");
        let kept: Vec<_> = clients.into_iter().filter_map(hang_up).collect();
        eventually(&format!("each {way} is noticed"), || {
            encke.metric("encke_subscribers", "") == 0.0
        });
        // Those that only closed their side see that the server closes the other.
        for mut half in kept {
            while half.fill() {}
        }
        // Each asking of ours is a connection and a hang-up too.
        assert!(encke.metric("encke_hangups_total", "") >= hangups + CLIENTS as f64);
    }
    // A client that hangs up in the middle leaves nothing behind.
    eventually("all connections are gone", || {
        encke.metric("encke_connections", "") <= 1.0
    });
}

#[test]
fn cursors_are_never_those_that_were_brought() {
    let encke = Encke::start(&["--tuning", "poll-wait=100ms"]);
    encke.create("s");
    let mut plain = encke.subscribe("s", "-1");
    plain.catch_up();
    let now = plain.cursor.expect("a live stream has a cursor");
    let mut connection = encke.connect();
    // The present one, one of the future, one that is no number, one beyond all numbers.
    let brought = [
        now.to_string(),
        (now + 5_000).to_string(),
        "x".into(),
        "9".repeat(30),
    ];
    let mut subscribers: Vec<Subscriber> = brought
        .iter()
        .map(|brought| {
            let query = format!("offset=-1&cursor={brought}");
            let mut subscriber = Subscriber::ask(encke.address, &path("s"), &query);
            subscriber.accepted();
            subscriber.catch_up();
            subscriber
        })
        .collect();
    for number in 0..20 {
        connection.append("s", number);
        // All are at the same place, and each has a cursor of its own.
        assert_eq!(plain.numbers(1), [number]);
        assert!((now..=now + 1).contains(&plain.cursor.expect("a cursor")));
        for (subscriber, brought) in subscribers.iter_mut().zip(&brought) {
            assert_eq!(subscriber.numbers(1), [number]);
            subscriber.catch_up();
            let floor = brought.parse::<u64>().unwrap_or(0);
            let cursor = subscriber.cursor.expect("a cursor");
            assert!(cursor > floor, "{cursor} answers {brought}");
        }
        plain.catch_up();
    }
    for brought in [now, now + 5_000] {
        for offset in ["-1", "now"] {
            let target = format!(
                "{}?offset={offset}&live=long-poll&cursor={brought}",
                path("s")
            );
            let answer = connection.ask("GET", &target, &[], b"");
            let cursor = answer.field("Stream-Cursor").expect("a cursor");
            let cursor: u64 = cursor.parse().expect("a number");
            // An interval may have passed since.
            assert!(cursor > brought, "{cursor} answers {brought}");
        }
    }
}

#[test]
fn forks_are_followed_live() {
    let encke = Encke::start(&[]);
    encke.create("source");
    let mut connection = encke.connect();
    let places: Vec<String> = (0..10)
        .map(|number| connection.append("source", number))
        .collect();
    let mut fork = |name: &str, source: &str, at: Option<&str>| {
        let from = format!("Stream-Forked-From: {source}");
        let at = at.map(|at| format!("Stream-Fork-Offset: {at}"));
        let fields: Vec<&str> = std::iter::once(&*from).chain(at.as_deref()).collect();
        let answer = connection.ask("PUT", &path(name), &fields, b"");
        assert_eq!(answer.status, 201, "{answer:?}");
    };
    fork("middle", "source", Some(&places[4]));
    fork("tail", "source", None);
    let mut subscribers: Vec<(&str, Subscriber)> = ["source", "middle", "tail"]
        .into_iter()
        .map(|name| (name, encke.subscribe(name, "-1")))
        .collect();
    // Each goes its own way from there on, all at once.
    let own = |name: &str| match name {
        "source" => 100,
        "middle" => 200,
        _ => 300,
    };
    std::thread::scope(|scope| {
        for name in ["source", "middle", "tail"] {
            let encke = &encke;
            scope.spawn(move || {
                let mut connection = encke.connect();
                for number in own(name)..own(name) + 50 {
                    connection.append(name, number);
                }
            });
        }
    });
    let expected = |name: &str| -> Vec<u64> {
        let shared = if name == "middle" { 5 } else { 10 };
        (0..shared).chain(own(name)..own(name) + 50).collect()
    };
    for (name, subscriber) in &mut subscribers {
        let expected = expected(name);
        assert_eq!(subscriber.numbers(expected.len()), expected, "{name}");
        assert_eq!(encke.numbers(name), expected, "{name}");
    }
    // A fork of a fork, from within what both inherited.
    let mut fork = |name: &str, source: &str, at: &str| {
        let from = format!("Stream-Forked-From: {source}");
        let at = format!("Stream-Fork-Offset: {at}");
        let answer = connection.ask("PUT", &path(name), &[&from, &at], b"");
        assert_eq!(answer.status, 201, "{answer:?}");
    };
    fork("deep", "middle", &places[2]);
    let mut deep = encke.subscribe("deep", &places[0]);
    // The source goes; what it shared stays.
    assert_eq!(
        connection.ask("DELETE", &path("source"), &[], b"").status,
        204
    );
    connection.append("deep", 400);
    connection.append("middle", 250);
    assert_eq!(deep.numbers(3), [1, 2, 400]);
    assert_eq!(subscribers[1].1.numbers(1), [250]);
    let (_, source) = &mut subscribers[0];
    assert_eq!(source.rest(), [0_u64; 0]);
    assert!(!source.closed);
    assert_eq!(connection.ask("GET", &path("source"), &[], b"").status, 410);
    assert_eq!(encke.numbers("deep"), [0, 1, 2, 400]);
}

#[test]
fn a_crowd_that_arrives_one_by_one() {
    const CLIENTS: usize = 2_000;
    raise_descriptors();
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("s");
    // Among them are clients that are silent for now, and clients that leave at once.
    let mut silent = Vec::new();
    let mut subscribers = Vec::new();
    for number in 0..CLIENTS {
        subscribers.push(Subscriber::ask(encke.address, &path("s"), "offset=-1"));
        match number % 100 {
            0 => silent.push(encke.connect()),
            50 => drop(encke.connect()),
            51 => encke.connect().reset(),
            // Sent and closed before it is accepted: the answer comes all the same.
            52 => {
                let mut hasty = encke.connect();
                hasty.send(&request("GET", "/healthz", &[], b""));
                hasty.half_close();
                assert_eq!(hasty.answer().status, 200);
                hasty.expect_end();
            }
            _ => {}
        }
    }
    subscribers.iter_mut().for_each(Subscriber::accepted);
    let gathered = encke.metric("encke_accepts_gathered_total", "");
    assert!(gathered > 0.0, "no connection was accepted in a batch");
    encke.wait_for_metric("encke_connections", (CLIENTS + silent.len()) as f64 + 1.0);
    // Afterwards a single client is served as usual, and so are the clients that were silent.
    encke.connect().append("s", 7);
    for one in &mut silent {
        assert_eq!(one.ask("GET", "/healthz", &[], b"").status, 200);
    }
    for subscriber in &mut subscribers {
        assert_eq!(subscriber.numbers(1), [7]);
    }
}

/// A client that keeps its connections, as `fetch` does, uses one again as soon as its response is complete.
#[test]
fn behind_the_end_of_a_stream_the_connection_serves_the_next_request() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let mut socket = TcpStream::connect(encke.address).expect("it listens");
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("it is a TCP socket");
    for turn in 0..3 {
        let name = format!("s{turn}");
        encke.create(&name);
        let follow = format!(
            "GET {}?offset=-1&live=sse HTTP/1.1\r\nHost: encke\r\n\r\n",
            path(&name)
        );
        socket.write_all(follow.as_bytes()).expect("it is open");
        read_until(&mut socket, b"upToDate\":true}\n\n\r\n");
        let closed = encke.ask("POST", &path(&name), &["Stream-Closed: true"], b"");
        assert_eq!(closed.status, 204);
        read_until(&mut socket, b"\r\n0\r\n\r\n");
        // The same connection goes on at once.
        let read = format!("GET {} HTTP/1.1\r\nHost: encke\r\n\r\n", path("s"));
        socket.write_all(read.as_bytes()).expect("it is open");
        let response = read_until(&mut socket, b"\r\n\r\n[]");
        assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
}

/// What arrives up to those bytes.
fn read_until(socket: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    while !received.ends_with(end) {
        let mut byte = [0];
        let count = socket.read(&mut byte).expect("it arrives in time");
        let text = String::from_utf8_lossy(&received);
        assert_eq!(count, 1, "the server hung up behind {text}");
        received.push(byte[0]);
    }
    received
}
