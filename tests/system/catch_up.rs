//! Catch-up: one response with everything up to the tail, of any length, a bounded part at a time.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::rig::{
    Connection, Encke, JSON, SetWhenDropped, data_dir, eventually, newest_segment, path, request,
};

/// Small parts and next to nothing at hand, so that every answer is read from files, in many parts.
const PARTS: [&str; 4] = ["--tuning", "page=64KiB", "--ring", "64KiB"];

/// Fills a stream with numbered messages of 10 KB.
fn fill(encke: &Encke, stream: &str, count: u64) {
    encke.create(stream);
    let mut connection = encke.connect();
    let pad = "x".repeat(10 << 10);
    for number in 0..count {
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        connection.send(&request("POST", &path(stream), &[JSON], body.as_bytes()));
        if number % 8 == 7 || number == count - 1 {
            for _ in 0..=number % 8 {
                assert_eq!(connection.answer().status, 204);
            }
        }
    }
}

/// Fills a stream with short numbered messages. Returns the offset behind each.
fn fill_short(encke: &Encke, stream: &str, count: u64) -> Vec<String> {
    encke.create(stream);
    let mut connection = encke.connect();
    let bodies = (0..count).map(|number| format!("{{\"n\":{number}}}"));
    let appended = bodies.map(|body| {
        let answer = connection.ask("POST", &path(stream), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
        answer
            .field("Stream-Next-Offset")
            .expect("an offset")
            .to_owned()
    });
    appended.collect()
}

fn numbers(body: &[u8]) -> Vec<u64> {
    let messages: Vec<serde_json::Value> = serde_json::from_slice(body).expect("JSON");
    messages
        .iter()
        .map(|message| message["n"].as_u64().expect("a message of ours"))
        .collect()
}

#[test]
fn a_long_answer_is_one_answer() {
    const COUNT: u64 = 400;
    let encke = Encke::start(&PARTS);
    fill(&encke, "s", COUNT);
    let get = request("GET", "/v1/stream/s?offset=-1", &[], b"");
    let mut connection = encke.connect();
    // What was sent ahead is answered behind it, in order.
    let health = request("GET", "/healthz", &[], b"");
    connection.send(&[&get[..], &health, &get, &health].concat());
    for _ in 0..2 {
        let answer = connection.answer();
        assert_eq!(answer.field("Stream-Up-To-Date"), Some("true"));
        assert_eq!(answer.field("Transfer-Encoding"), Some("chunked"));
        assert_eq!(numbers(&answer.body), (0..COUNT).collect::<Vec<_>>());
        assert_eq!(connection.answer().body, b"ok\n");
    }
    assert!(encke.metric("encke_catch_ups_total", "") > 2.0 * 50.0);
    // With `Connection: close`, and with the client's side closed.
    let last = connection.ask("GET", "/v1/stream/s", &["Connection: close"], b"");
    assert!(!last.closes(), "a cut would look like an end");
    assert_eq!(numbers(&last.body).len(), COUNT as usize);
    connection.expect_end();
    let mut connection = encke.connect();
    connection.send(&[&get[..], &get].concat());
    connection.half_close();
    for _ in 0..2 {
        assert_eq!(numbers(&connection.answer().body).len(), COUNT as usize);
    }
    connection.expect_end();
    // HTTP/1.0 has no chunks: the end of the connection is the end of the answer.
    let mut connection = encke.connect();
    connection.send(b"GET /v1/stream/s HTTP/1.0\r\n\r\n");
    let answer = connection.answer();
    assert_eq!(answer.field("Transfer-Encoding"), None);
    assert!(answer.closes());
    assert_eq!(numbers(&answer.body), (0..COUNT).collect::<Vec<_>>());
}

#[test]
fn what_was_read_twice_is_read_from_memory_until_it_is_removed() {
    const COUNT: u64 = 1000;
    let encke = Encke::start(&["--tuning", "page=8KiB", "--ring", "64KiB"]);
    let offsets = fill_short(&encke, "s", COUNT);
    let read = |offset: &str| encke.ask("GET", &format!("/v1/stream/s?offset={offset}"), &[], b"");
    let from_memory = || encke.metric("encke_kept_run_reads_total", "");
    for times in 1..=4 {
        let before = from_memory();
        assert_eq!(numbers(&read("-1").body), (0..COUNT).collect::<Vec<_>>());
        assert_eq!(from_memory() > before, times > 2, "read {times}");
    }
    assert!(encke.metric("encke_kept_run_bytes", "") > 0.0);
    // From a position inside of a run.
    let before = from_memory();
    let rest = read(&offsets[99]);
    assert_eq!(numbers(&rest.body), (100..COUNT).collect::<Vec<_>>());
    assert!(from_memory() > before);
    let truncate = format!("Encke-Truncate: {}", offsets[499]);
    assert_eq!(encke.ask("POST", &path("s"), &[&truncate], b"").status, 204);
    for _ in 0..3 {
        assert_eq!(numbers(&read("-1").body), (500..COUNT).collect::<Vec<_>>());
        assert_eq!(read(&offsets[99]).status, 410);
    }
    assert_eq!(encke.ask("DELETE", &path("s"), &[], b"").status, 204);
    assert_eq!(read("-1").status, 404);
}

#[test]
fn readers_that_catch_up_go_on_where_the_answer_ended() {
    let encke = Encke::start(&PARTS);
    fill(&encke, "s", 100);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = encke.connect();
            for number in 100.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let body = format!("{{\"n\":{number}}}");
                let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
                assert_eq!(answer.status, 204);
            }
        });
        let _over = SetWhenDropped(&over);
        let begin = Instant::now();
        let mut rounds = 0;
        while begin.elapsed() < Duration::from_secs(1) || rounds < 5 {
            rounds += 1;
            let mut connection = encke.connect();
            let all = connection.ask("GET", "/v1/stream/s", &[], b"");
            let mut seen = numbers(&all.body);
            let mut next = all.field("Stream-Next-Offset").expect("a place").to_owned();
            for _ in 0..3 {
                let target = format!("/v1/stream/s?offset={next}");
                let more = connection.ask("GET", &target, &[], b"");
                seen.extend(numbers(&more.body));
                more.field("Stream-Next-Offset")
                    .expect("a place")
                    .clone_into(&mut next);
            }
            let target = format!("/v1/stream/s?offset={next}&live=long-poll");
            let polled = connection.ask("GET", &target, &[], b"");
            seen.extend(numbers(&polled.body));
            assert_eq!(seen, (0..seen.len() as u64).collect::<Vec<_>>());
            assert!(seen.len() > 100);
        }
    });
}

#[test]
#[ignore = "long: make test-all"]
fn slow_readers_disturb_no_other_client() {
    const COUNT: u64 = 1_500;
    let flags = ["--tuning", "stall-timeout=10s"];
    let encke = Encke::start(&[&PARTS[..], &flags].concat());
    fill(&encke, "s", COUNT);
    let get = request("GET", "/v1/stream/s?offset=-1", &[], b"");
    let stalled: Vec<Connection> = (0..20)
        .map(|_| {
            let mut connection = encke.connect();
            connection.send(&get);
            connection
        })
        .collect();
    let mut slow = encke.connect();
    slow.send(&get);
    // Slowly, for as long as it takes until those that take nothing are given up, but never standing still for so long.
    // Meanwhile others are answered.
    eventually("those that took nothing are closed", || {
        assert!(slow.fill());
        std::thread::sleep(Duration::from_millis(100));
        encke.metric("encke_connections_closed_total", "\"stalled\"") >= 20.0
    });
    assert_eq!(numbers(&slow.answer().body), (0..COUNT).collect::<Vec<_>>());
    for mut connection in stalled {
        // What the kernels had taken is there, and no end that could be mistaken for the answer's.
        while connection.fill() {}
        assert!(!connection.input().ends_with(b"\r\n0\r\n\r\n"));
    }
    eventually("all connections are gone", || {
        encke.metric("encke_connections", "") <= 2.0
    });
}

#[test]
fn a_client_that_disconnects_in_the_middle() {
    let encke = Encke::start(&PARTS);
    fill(&encke, "s", 600);
    let get = request("GET", "/v1/stream/s?offset=-1", &[], b"");
    for round in 0..30 {
        let mut connection = encke.connect();
        connection.send(&get);
        if round % 3 > 0 {
            assert!(connection.fill());
        }
        if round % 2 == 0 {
            connection.reset();
        }
    }
    eventually("all connections are gone", || {
        encke.metric("encke_connections", "") <= 1.0
    });
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
}

#[test]
fn what_is_damaged_meanwhile_is_not_given_out() {
    const COUNT: u64 = 200;
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &PARTS);
    fill(&encke, "s", COUNT);
    // The disk changes under the server's feet.
    let segment = newest_segment(data.path());
    let bytes = std::fs::read(&segment).expect("it can be read");
    let needle = format!("{{\"n\":{},", COUNT / 2);
    let at = bytes
        .windows(needle.len())
        .position(|window| window == needle.as_bytes())
        .expect("the record is in the segment");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&segment)
        .expect("it is there");
    file.write_all_at(&[bytes[at + 20] ^ 1], at as u64 + 20)
        .expect("it can be written");
    // A response that has begun is cut off, so that no client takes it for the whole.
    let mut connection = encke.connect();
    connection.send(&request("GET", "/v1/stream/s?offset=-1", &[], b""));
    let head = connection.head();
    assert_eq!(head.status, 200);
    while connection.fill() {}
    let got = connection.input();
    assert!(!got.ends_with(b"0\r\n\r\n"));
    let got = String::from_utf8_lossy(got);
    assert!(got.contains(&format!("{{\"n\":{},", COUNT / 4)));
    assert!(!got.contains(&needle));
    // So does a subscriber's.
    let mut subscriber = encke.subscribe("s", "-1");
    let mut seen = 0;
    while let Some(message) = subscriber.message() {
        assert_eq!(message["n"], seen);
        seen += 1;
    }
    assert!((COUNT / 4..=COUNT / 2).contains(&seen), "{seen}");
    assert!(!subscriber.closed);
    assert!(encke.metric("encke_connections_closed_total", "\"unreadable\"") >= 2.0);
    // The rest of the stream, and the rest of the server, go on.
    let offset = encke.ask("HEAD", "/v1/stream/s", &[], b"");
    let offset = offset
        .field("Stream-Next-Offset")
        .expect("a place")
        .to_owned();
    let mut live = encke.subscribe("s", &offset);
    let answer = encke.ask("POST", &path("s"), &[JSON], b"{\"n\":7}");
    assert_eq!(answer.status, 204);
    assert_eq!(live.message().expect("it is live")["n"], 7);
    encke.wait_for_log("damaged");
}

#[test]
fn a_large_record_that_is_damaged_behind_a_read_is_not_given_out_again() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    for name in ["kernel", "parts"] {
        let text = "Content-Type: text/plain";
        let body = name.repeat(200_000);
        let made = encke.ask("PUT", &path(name), &[text], body.as_bytes());
        assert_eq!(made.status, 201, "{made:?}");
    }
    // Plain responses are sent by the kernel, compressed ones from memory.
    let read = |name: &str, fields: &[&str]| {
        let mut connection = encke.connect();
        let target = format!("/v1/stream/{name}?offset=-1");
        connection.send(&request("GET", &target, fields, b""));
        let status = connection.head().status;
        while connection.fill() {}
        status
    };
    let ways: [(&str, &[&str]); 2] = [
        ("kernel", &["Connection: close"]),
        ("parts", &["Connection: close", "Accept-Encoding: gzip"]),
    ];
    for (name, fields) in ways {
        assert_eq!(read(name, fields), 200);
    }
    let segment = newest_segment(data.path());
    let bytes = std::fs::read(&segment).expect("it can be read");
    let file = std::fs::OpenOptions::new().write(true).open(&segment);
    let file = file.expect("it is there");
    for (name, fields) in ways {
        let needle = name.repeat(10);
        let at = bytes
            .windows(needle.len())
            .position(|window| window == needle.as_bytes());
        let at = at.expect("the record is in the segment") as u64;
        file.write_all_at(b"X", at + 20).expect("it can be written");
        assert_eq!(read(name, fields), 500, "{name}");
    }
}

/// Sizes of records below and above what is sent from files, the largest a multiple of all pages.
const SIZES: [usize; 9] = [
    10,
    70_000,
    65_000,
    100,
    1 << 20,
    5_300_000,
    70_000,
    3,
    1_500_000,
];

/// The data of a record of a stream of this type: bytes that differ from record to record.
fn large_record(number: usize, json: bool) -> Vec<u8> {
    let letters = (0..SIZES[number]).map(|at| b'a' + ((at * 7 + at / 1_000 + number) % 26) as u8);
    match json {
        true => {
            let text: String = letters.map(char::from).collect();
            format!("[\"{text}\",{number}]").into_bytes()
        }
        false => letters.collect(),
    }
}

#[test]
fn records_of_all_sizes_are_read_whole_and_from_every_position() {
    every_read_of_all_sizes(&[], |_| {});
}

/// Segments of which all but the last are in history soon.
const SMALL_SEGMENTS: [&str; 4] = ["--segment", "12MiB", "--body-max", "5500kB"];

#[test]
fn old_records_of_all_sizes_are_read_from_segments_that_are_kept() {
    let small_parts = ["--tuning", "page=40KiB", "--ring", "64KiB"];
    every_read_of_all_sizes(&[SMALL_SEGMENTS, small_parts].concat(), |encke| {
        make_old(encke, false);
    });
}

#[test]
fn old_records_of_all_sizes_are_read_from_history() {
    let small_parts = ["--tuning", "page=40KiB", "--order-size", "1MiB"];
    every_read_of_all_sizes(&[SMALL_SEGMENTS, small_parts].concat(), |encke| {
        make_old(encke, true);
    });
}

/// Appends to another stream until what was appended before is in history, and its segments are removed if the order is small.
fn make_old(encke: &Encke, removed: bool) {
    let mut connection = encke.connect();
    connection.ask("PUT", &path("other"), &[JSON], b"");
    for _ in 0..20 {
        let body = format!("[\"{}\"]", "x".repeat(1_800_000));
        let appended = connection.ask("POST", &path("other"), &[JSON], body.as_bytes());
        assert_eq!(appended.status, 204);
    }
    eventually("segments are in history", || {
        encke.metric("encke_log_segments_waiting", "") == 0.0
    });
    if removed {
        eventually("old segments are removed", || {
            // The current one, and the next one.
            encke.metric("encke_log_segment_bytes", "") <= f64::from(25 << 20)
        });
    }
}

/// Reads a stream of records of all sizes from everywhere. What `between` does comes behind the appends.
fn every_read_of_all_sizes(settings: &[&str], between: impl Fn(&Encke)) {
    let encke = Encke::start(settings);
    for (name, json) in [("json", true), ("bytes", false)] {
        // Its header is longer than what is read of a large record at first.
        let metadata = format!("Encke-Metadata: {{\"of\":\"{}\"}}", "x".repeat(2_000));
        let content_type = match json {
            true => JSON,
            false => "Content-Type: application/octet-stream",
        };
        let mut connection = encke.connect();
        let path = path(name);
        let made = connection.ask("PUT", &path, &[content_type], b"");
        assert_eq!(made.status, 201);
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut positions = vec!["-1".to_owned()];
        for number in 0..SIZES.len() {
            let body = large_record(number, json);
            // A post of an array has its messages.
            let data = if json {
                &body[1..body.len() - 1]
            } else {
                &body[..]
            };
            parts.push(data.to_vec());
            let fields = [content_type, &metadata];
            let answer = connection.ask("POST", &path, &fields[..1 + number % 2], &body);
            assert_eq!(answer.status, 204);
            positions.push(
                answer
                    .field("Stream-Next-Offset")
                    .expect("a place")
                    .to_owned(),
            );
        }
        between(&encke);
        let body_from = |parts: &[Vec<u8>]| match json {
            true => [b"[", &parts.join(&b',')[..], b"]"].concat(),
            false => parts.concat(),
        };
        for (number, position) in positions.iter().enumerate() {
            let expected = body_from(&parts[number..]);
            let target = format!("{path}?offset={position}");
            let read = connection.ask("GET", &target, &[], b"");
            assert!(read.body == expected, "{name} from {position}");
        }
        // Inside of records: of bytes anywhere, of JSON at a message.
        for number in 1..SIZES.len() {
            let (before, _) = positions[number].split_once('_').expect("an offset");
            let insides = match json {
                true => vec![(1, number.to_string().into_bytes())],
                false => [1, SIZES[number] / 2, SIZES[number] - 1]
                    .map(|units| (units, parts[number][units..].to_vec()))
                    .to_vec(),
            };
            for (units, rest) in insides {
                let expected = body_from(&[&[rest][..], &parts[number + 1..]].concat());
                let target = format!("{path}?offset={before}_{units:016x}");
                let read = connection.ask("GET", &target, &[], b"");
                assert!(read.body == expected, "{target}");
            }
        }
        // A request behind it is answered behind it, and HTTP/1.0 has no chunks.
        let get = request("GET", &path, &[], b"");
        let health = request("GET", "/healthz", &[], b"");
        connection.send(&[&get[..], &health, &get, &health].concat());
        for _ in 0..2 {
            assert!(connection.answer().body == body_from(&parts), "{name}");
            assert_eq!(connection.answer().body, b"ok\n");
        }
        let mut connection = encke.connect();
        connection.send(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        assert!(connection.answer().body == body_from(&parts), "{name}");
    }
}

#[test]
fn a_response_goes_on_when_its_segments_are_removed_meanwhile() {
    let small_order = [
        "--order-size",
        "1MiB",
        "--ring",
        "64KiB",
        "--tuning",
        "page=40KiB",
    ];
    let encke = Encke::start(&[&SMALL_SEGMENTS[..], &small_order].concat());
    let mut connection = encke.connect();
    let content_type = "Content-Type: application/octet-stream";
    assert_eq!(
        connection
            .ask("PUT", &path("s"), &[content_type], b"")
            .status,
        201
    );
    let mut expected = Vec::new();
    // Around the size from which a record is read in parts.
    for bytes in [
        200_000, 65_480, 65_492, 65_500, 65_535, 65_536, 300_000, 1_000_000, 65_510, 500_000,
    ] {
        let body: Vec<u8> = (0..bytes)
            .map(|at| (at / 251 + at * 7 + bytes) as u8)
            .collect();
        let appended = connection.ask("POST", &path("s"), &[content_type], &body);
        assert_eq!(appended.status, 204);
        expected.extend(body);
    }
    // Each of these stands still in another place of its response.
    let mut readers: Vec<Connection> = (0..24)
        .map(|_| Connection::open_narrow(encke.address))
        .collect();
    for (number, reader) in readers.iter_mut().enumerate() {
        reader.send(&request("GET", &path("s"), &[], b""));
        while reader.input().len() < number * 100_000 {
            assert!(reader.fill());
        }
    }
    make_old(&encke, true);
    for reader in &mut readers {
        assert!(reader.answer().body == expected);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn many_readers_of_large_records_cost_little_memory() {
    const READERS: usize = 32;
    let encke = Encke::start(&[]);
    let mut connection = encke.connect();
    let octets = "Content-Type: application/octet-stream";
    connection.ask("PUT", &path("s"), &[octets], b"");
    let record = vec![b'x'; 15 << 20];
    for _ in 0..3 {
        let answer = connection.ask("POST", &path("s"), &[octets], &record);
        assert_eq!(answer.status, 204);
    }
    let before = encke.metric("encke_buffered_bytes", "");
    let get = request("GET", &path("s"), &[], b"");
    let stalled: Vec<Connection> = (0..READERS)
        .map(|_| {
            let mut connection = encke.connect();
            connection.send(&get);
            connection
        })
        .collect();
    eventually("all of them have begun", || {
        encke.metric("encke_catch_ups_total", "") >= READERS as f64
    });
    // What they have not taken is in the file: not even a page for each.
    let held = encke.metric("encke_buffered_bytes", "") - before;
    assert!(held < (READERS * (128 << 10)) as f64, "{held} bytes");
    for mut connection in stalled {
        assert_eq!(connection.answer().body.len(), 3 * record.len());
    }
}
