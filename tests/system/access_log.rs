//! The access log: every request has one line with what happened, whatever the client sends and however the output fails.

use std::io::{BufRead, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{Connection, Encke, JSON, data_dir, eventually, path, request, serve};

/// A server with an access log in a file.
struct Logged {
    encke: Encke,
    file: PathBuf,
    _dir: TempDir,
}

impl Logged {
    fn start(format: &str, flags: &[&str]) -> Logged {
        let dir = data_dir();
        let file = dir.path().join("access.log");
        let setting = format!("access-log-file={}", file.display());
        let flags = [&["--access-log", format, "--tuning", &setting], flags].concat();
        Logged {
            encke: Encke::start(&flags),
            file,
            _dir: dir,
        }
    }

    /// The first entries, once this number is written; there are no more.
    fn entries(&self, count: usize) -> Vec<Value> {
        eventually("the entries are written", || {
            lines(&self.file).len() >= count
        });
        let lines = lines(&self.file);
        assert_eq!(lines.len(), count, "{lines:#?}");
        lines.iter().map(|line| entry(line)).collect()
    }
}

/// The complete lines of a file.
fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let end = text.rfind('\n').map_or(0, |end| end + 1);
    text[..end].lines().map(str::to_owned).collect()
}

/// A line as JSON, with all fields and nothing else.
fn entry(line: &str) -> Value {
    let entry: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    let fields: Vec<&str> = entry
        .as_object()
        .expect("an object")
        .keys()
        .map(|key| &**key)
        .collect();
    let expected = [
        "bytes",
        "client",
        "duration_ms",
        "end",
        "method",
        "path",
        "protocol",
        "referer",
        "request_id",
        "status",
        "time",
        "trace_id",
        "user_agent",
    ];
    assert_eq!(fields, expected, "{line}");
    assert!(
        entry["duration_ms"].is_f64() && entry["time"].is_string(),
        "{line}"
    );
    entry
}

/// Method, path, status, bytes of the body and the end.
fn facts(entry: &Value) -> (Option<&str>, Option<&str>, u64, u64, &str) {
    let text = |name: &str| entry[name].as_str();
    let number = |name: &str| entry[name].as_u64().expect("a number");
    (
        text("method"),
        text("path"),
        number("status"),
        number("bytes"),
        text("end").expect("a text"),
    )
}

/// The lines of several connections are in order.
const ONE_SHARD: [&str; 2] = ["--shards", "1"];

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[test]
fn every_kind_of_request_has_one_line_with_what_happened() {
    let logged = Logged::start("json", &[]);
    let encke = &logged.encke;
    let mut connection = encke.connect();
    let target = path("s");
    let read = format!("{target}?offset=-1");
    let trace = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01");

    // Each step has its line, and the lines are in order.
    let made = connection.ask("PUT", &target, &[JSON], b"");
    assert_eq!(made.status, 201);
    let fields = [
        JSON,
        "X-Request-Id: my-id",
        &trace,
        "User-Agent: a\"b",
        "Referer: http://r/",
    ];
    let appended = connection.ask("POST", &target, &fields, b"7");
    assert_eq!(appended.status, 204);
    assert_eq!(appended.field("X-Request-Id"), Some("my-id"));
    let page = connection.ask("GET", &read, &[], b"");
    assert_eq!((page.status, &page.body[..]), (200, &b"[7]"[..]));
    assert_eq!(page.field("X-Request-Id"), None);
    let head = connection.ask("HEAD", &target, &[], b"");
    assert_eq!(head.status, 200);
    let missing = connection.ask("GET", &path("none"), &[], b"");
    assert_eq!(missing.status, 404);
    // A long poll that a record of another client ends.
    let tail = page
        .field("Stream-Next-Offset")
        .expect("an offset")
        .to_owned();
    let poll = format!("{target}?offset={tail}&live=long-poll");
    connection.send(&request("GET", &poll, &[], b""));
    encke.wait_for_metric("encke_subscribers", 1.0);
    encke.connect().append("s", 8);
    let polled = connection.answer();
    assert_eq!((polled.status, &polled.body[..]), (200, &b"[8]"[..]));

    // Between them are the requests for the metrics.
    let ours = || {
        let entries = lines(&logged.file).into_iter().map(|line| entry(&line));
        let ours = entries.filter(|one| one["path"] != "/metrics");
        ours.collect::<Vec<Value>>()
    };
    eventually("all have their lines", || ours().len() >= 7);
    let ours = ours();
    let body = |bytes: &[u8]| bytes.len() as u64;
    let path = |path: &'static str| Some(path);
    let expected = [
        (Some("PUT"), path("/v1/stream/s"), 201, 0, "complete"),
        (Some("POST"), path("/v1/stream/s"), 204, 0, "complete"),
        (
            Some("GET"),
            path("/v1/stream/s?offset=-1"),
            200,
            3,
            "complete",
        ),
        (Some("HEAD"), path("/v1/stream/s"), 200, 0, "complete"),
        (
            Some("GET"),
            path("/v1/stream/none"),
            404,
            body(&missing.body),
            "complete",
        ),
        // The append ends before the poll that it answers, or after it.
        (Some("GET"), Some(&*poll), 200, 3, "complete"),
    ];
    let of_connection: Vec<_> = ours.iter().map(facts).collect();
    for one in expected {
        assert!(
            of_connection.contains(&one),
            "{one:?} in {of_connection:#?}"
        );
    }
    assert_eq!(ours.len(), expected.len() + 1, "{ours:#?}");
    let append = &ours[1];
    assert_eq!(append["request_id"], "my-id");
    assert_eq!(append["trace_id"], TRACE);
    assert_eq!(append["user_agent"], "a\"b");
    assert_eq!(append["referer"], "http://r/");
    assert_eq!(append["client"], "127.0.0.1");
    assert_eq!(append["protocol"], "HTTP/1.1");
    let read = &ours[2];
    assert_eq!(
        read["request_id"].as_str().map(str::len),
        Some(16),
        "{read}"
    );
    assert!(
        read["trace_id"].is_null() && read["user_agent"].is_null(),
        "{read}"
    );
}

#[test]
fn an_event_stream_has_one_line_when_it_ends() {
    let logged = Logged::start("json", &[]);
    let encke = &logged.encke;
    encke.create("s");
    encke.create("t");
    let target = format!("{}?offset=-1&live=sse", path("s"));
    let mut reader = encke.connect();
    reader.send(&request("GET", &target, &["X-Request-Id: sub"], b""));
    // Raw bytes, so that the frames of chunks count.
    let mut received = read_until(&mut reader, b"upToDate");
    encke.connect().append("s", 1);
    received.extend(read_until(&mut reader, b"upToDate"));
    let entries = logged.entries(3);
    let is_get = |one: &Value| one["method"] == "GET";
    assert!(!entries.iter().any(is_get), "no line before its end");
    reader.socket.shutdown(Shutdown::Both).expect("it is open");
    let entries = logged.entries(4);
    let head = received
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head")
        + 4;
    let bytes = (received.len() - head) as u64;
    assert_eq!(
        facts(&entries[3]),
        (Some("GET"), Some(&*target), 200, bytes, "hang_up")
    );
    assert_eq!(entries[3]["request_id"], "sub");
    assert!(String::from_utf8_lossy(&received[..head]).contains("\r\nX-Request-Id: sub\r\n"));

    // One whose stream is closed ends as such.
    let mut subscriber = encke.subscribe("t", "-1");
    let closed = encke.ask("POST", &path("t"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204);
    assert_eq!(subscriber.rest(), [0_u64; 0]);
    let entries = logged.entries(6);
    let ended = entries[4..]
        .iter()
        .find(|one| one["method"] == "GET")
        .expect("its line");
    assert_eq!(ended["end"], "ended", "{ended}");

    // One that the server ends as it stops.
    let _last = encke.subscribe("s", "-1");
    assert_eq!(logged.encke.terminate().code, Some(0));
    let lines = lines(&logged.file);
    assert_eq!(lines.len(), 7, "{lines:#?}");
    assert_eq!(entry(&lines[6])["end"], "stopping");
}

fn read_until(connection: &mut Connection, what: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(what) {
        connection.socket.read_exact(&mut byte).expect("more comes");
        all.push(byte[0]);
    }
    // The rest of the chunk.
    while !all.ends_with(b"\n\n\r\n") {
        connection.socket.read_exact(&mut byte).expect("more comes");
        all.push(byte[0]);
    }
    all
}

#[test]
fn requests_that_are_refused_or_given_up_have_their_line() {
    let small = ["--body-max", "1KiB", "--pool-job-max", "1KiB"];
    let logged = Logged::start("json", &[&ONE_SHARD[..], &small].concat());
    let encke = &logged.encke;
    encke.create("s");
    let refused = |bytes: &[u8], status: u16| {
        let mut connection = encke.connect();
        connection.send(bytes);
        let answer = connection.answer();
        assert_eq!(answer.status, status, "{answer:?}");
        answer.body.len() as u64
    };
    let host = "Host: x\r\n";
    let bodies = [
        refused(b"\x16\x03\x01 what\r\n\r\n", 400),
        refused(
            format!("GET /a HTTP/1.1\r\n{host}{host}\r\n").as_bytes(),
            400,
        ),
        refused(format!("GET /a HTTP/2.0\r\n{host}\r\n").as_bytes(), 505),
        refused(
            &request(
                "POST",
                "/b",
                &["Content-Length: 9999", "X-Request-Id: big"],
                b"",
            ),
            413,
        ),
        refused(
            &request("POST", "/c", &["Transfer-Encoding: chunked\r\n\r\nzz"], b""),
            400,
        ),
    ];
    let entries = logged.entries(6);
    let expected = [
        (None, None, 400, bodies[0], "complete"),
        (Some("GET"), Some("/a"), 400, bodies[1], "complete"),
        (Some("GET"), Some("/a"), 505, bodies[2], "complete"),
        (Some("POST"), Some("/b"), 413, bodies[3], "complete"),
        (Some("POST"), Some("/c"), 400, bodies[4], "complete"),
    ];
    for (entry, expected) in entries[1..].iter().zip(expected) {
        assert_eq!(facts(entry), expected);
    }
    assert!(entries[1]["protocol"].is_null());
    assert_eq!(entries[4]["request_id"], "big");
    // A client that hangs up before its response.
    let mut connection = encke.connect();
    let target = format!("{}?offset=now&live=long-poll", path("s"));
    connection.send(&request("GET", &target, &[], b""));
    encke.wait_for_metric("encke_subscribers", 1.0);
    connection
        .socket
        .shutdown(Shutdown::Both)
        .expect("it is open");
    eventually("the line is written", || {
        lines(&logged.file)
            .iter()
            .any(|line| line.contains("long-poll"))
    });
    let lines = lines(&logged.file);
    let line = lines
        .iter()
        .find(|line| line.contains("long-poll"))
        .expect("it is there");
    assert_eq!(
        facts(&entry(line)),
        (Some("GET"), Some(&*target), 499, 0, "hang_up")
    );
    // A connection without a request has none.
    let before = lines.len();
    drop(encke.connect());
    encke.ask("GET", "/healthz", &[], b"");
    let entries = logged.entries(before + 1);
    assert_eq!(entries[before]["path"], "/healthz");
}

#[test]
fn pipelined_requests_have_a_line_each_in_order() {
    let logged = Logged::start("json", &[]);
    let mut connection = logged.encke.connect();
    let target = path("s");
    let mut all = request("PUT", &target, &[JSON], b"");
    for number in 0..20 {
        let id = format!("X-Request-Id: id-{number}");
        all.extend(request(
            "POST",
            &target,
            &[JSON, &id],
            number.to_string().as_bytes(),
        ));
        all.extend(request("GET", &format!("{target}?offset=-1"), &[], b""));
    }
    connection.send(&all);
    let answers: Vec<_> = (0..41).map(|_| connection.answer()).collect();
    let entries = logged.entries(41);
    for (answer, entry) in answers.iter().zip(&entries) {
        assert_eq!(u64::from(answer.status), entry["status"]);
        assert_eq!(entry["bytes"], answer.body.len());
        match entry["method"].as_str() {
            Some("POST") => assert_eq!(answer.field("X-Request-Id"), entry["request_id"].as_str()),
            _ => assert_eq!(answer.field("X-Request-Id"), None),
        }
    }
    let mut ids: Vec<&str> = entries
        .iter()
        .filter_map(|one| one["request_id"].as_str())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 41, "ids differ");
}

#[test]
fn a_long_response_that_a_slow_client_reads_counts_all_of_its_bytes() {
    let logged = Logged::start("json", &ONE_SHARD);
    let encke = &logged.encke;
    let made = encke.ask(
        "PUT",
        &path("s"),
        &["Content-Type: application/octet-stream"],
        b"",
    );
    assert_eq!(made.status, 201);
    let block = vec![b'x'; 1 << 20];
    for _ in 0..8 {
        let fields = ["Content-Type: application/octet-stream"];
        assert_eq!(encke.ask("POST", &path("s"), &fields, &block).status, 204);
    }
    let mut slow = Connection::open_narrow(encke.address);
    slow.send(&request(
        "GET",
        &format!("{}?offset=-1", path("s")),
        &[],
        b"",
    ));
    let answer = slow.answer();
    assert_eq!(answer.body.len(), 8 << 20);
    let entries = logged.entries(10);
    // With the frames of the chunks, of which there are few.
    let bytes = entries[9]["bytes"].as_u64().expect("a number");
    assert!((8 << 20..(8 << 20) + 4096).contains(&bytes), "{bytes}");
    assert_eq!(entries[9]["end"], "complete");
}

#[test]
fn no_client_forges_a_line() {
    let logged = Logged::start("json", &ONE_SHARD);
    let encke = &logged.encke;
    let evil = [
        "X-Request-Id: a b",
        "X-Request-Id: \u{2028}{\"time\":1}",
        "X-Request-Id: a\u{1b}[31m",
        "X-Request-Id: a\tb",
        &format!("X-Request-Id: {}", "x".repeat(129)),
        "X-Request-Id: a\r\nX-Request-Id: b",
        "traceparent: 00-0-0-0",
    ];
    for field in evil {
        let answer = encke.ask("GET", "/healthz", &[field], b"");
        // Controls are no part of a field: such a request is refused by the parser.
        assert!([200, 400].contains(&answer.status), "{answer:?}");
        assert_eq!(answer.field("X-Request-Id"), None, "{field:?}");
    }
    let long = format!("/{}\"{}", "\\".repeat(10), "y".repeat(5000));
    let agent = "User-Agent: \"}\u{85}\u{9b}31m{\"time\":1} \\";
    encke.ask("GET", &long, &[agent, "Referer: \" \\\" x"], b"");
    let entries = logged.entries(evil.len() + 1);
    for entry in &entries {
        let id = entry["request_id"].as_str().expect("an id");
        assert!(
            id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{entry}"
        );
        assert!(entry["trace_id"].is_null());
    }
    let last = &entries[evil.len()];
    let shown = last["path"].as_str().expect("a path");
    assert_eq!(shown, format!("{}...", &long[..2045]));
    assert_eq!(last["user_agent"], "\"}\u{85}\u{9b}31m{\"time\":1} \\");
    assert_eq!(last["referer"], "\" \\\" x");
    let text = std::fs::read(&logged.file).expect("it is there");
    assert!(
        text.iter()
            .all(|byte| *byte == b'\n' || (b' '..=b'~').contains(byte))
    );
}

#[test]
fn combined_lines_are_those_of_other_servers() {
    let logged = Logged::start("combined", &ONE_SHARD);
    let fields = ["Referer: http://r/\"", "User-Agent: curl/8.5.0"];
    let answer = logged.encke.ask("GET", "/healthz?a=b", &fields, b"");
    assert_eq!(answer.status, 200);
    let mut connection = logged.encke.connect();
    connection.send(b"\"\r\n\r\n");
    assert_eq!(connection.answer().status, 400);
    eventually("both lines are written", || lines(&logged.file).len() == 2);
    let lines = lines(&logged.file);
    let (client, rest) = lines[0].split_once(" - - [").expect("the form");
    let (time, rest) = rest.split_once("] ").expect("a time");
    assert_eq!(client, "127.0.0.1");
    assert!(time.ends_with(" +0000") && time.len() == 26, "{time}");
    assert_eq!(
        rest,
        "\"GET /healthz?a=b HTTP/1.1\" 200 3 \"http://r/\\x22\" \"curl/8.5.0\""
    );
    assert!(lines[1].contains("] \"-\" 400 "), "{}", lines[1]);
}

#[test]
fn the_client_is_the_one_that_trusted_proxies_name() {
    let trust = ["--trust", "127.0.0.9"];
    let logged = Logged::start("json", &[&ONE_SHARD[..], &trust].concat());
    let field = "X-Forwarded-For: 2001:db8::7";
    for client in [9, 1] {
        let answer = logged
            .encke
            .connect_from(client)
            .ask("GET", "/healthz", &[field], b"");
        assert_eq!(answer.status, 200);
    }
    let mut proxy = logged.encke.connect_from(9);
    assert_eq!(
        proxy
            .ask("GET", "/healthz", &["X-Forwarded-For: 192.0.2.7"], b"")
            .status,
        200
    );
    assert_eq!(proxy.ask("GET", "/healthz", &[], b"").status, 200);
    let clients: Vec<Value> = logged
        .entries(4)
        .iter()
        .map(|one| one["client"].clone())
        .collect();
    assert_eq!(
        clients,
        ["2001:db8::7", "127.0.0.1", "192.0.2.7", "127.0.0.9"]
    );

    let logged = Logged::start("json", &["--trust", "127.0.0.9", "--proxy-protocol"]);
    let mut proxied = logged.encke.connect_from(9);
    proxied.send(b"PROXY TCP6 2001:db8::8 ::1 1 2\r\n");
    for _ in 0..2 {
        assert_eq!(proxied.ask("GET", "/healthz", &[], b"").status, 200);
    }
    let entries = logged.entries(2);
    assert!(
        entries.iter().all(|one| one["client"] == "2001:db8::8"),
        "{entries:#?}"
    );
}

#[test]
fn a_full_queue_drops_and_counts() {
    // Standard output is not read, so the pipe is full after some lines, and then the queue.
    let mut encke = Encke::start(&["--access-log", "json", "--tuning", "access-log-queue=4KiB"]);
    let mut connection = encke.connect();
    let target = format!("/{}", "x".repeat(2000));
    eventually("the pipe and the queue are full", || {
        for _ in 0..10 {
            assert_eq!(connection.ask("GET", &target, &[], b"").status, 404);
        }
        encke.metric("encke_access_log_dropped_total", "queue_full") > 0.0
            && encke.metric("encke_mailbox_depth", "access-log") > 0.0
    });
    // The server serves.
    encke.create("s");
    connection.append("s", 1);
    assert_eq!(encke.numbers("s"), [1]);
    // When the output is read again, entries that were not dropped come out, whole.
    let stdout = encke.take_stdout();
    let reader = std::thread::spawn(move || {
        let lines = stdout.lines().map(|line| line.expect("text"));
        lines.inspect(|line| drop(entry(line))).count()
    });
    // The queue is empty again, so later requests are logged.
    eventually("the queue has room", || {
        encke.metric("encke_mailbox_bytes", "access-log") < 1.0
    });
    let dropped = encke.metric("encke_access_log_dropped_total", "");
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    eventually("the queue has room", || {
        encke.metric("encke_mailbox_bytes", "access-log") < 1.0
    });
    assert_eq!(encke.metric("encke_access_log_dropped_total", ""), dropped);
    assert_eq!(encke.terminate().code, Some(0));
    assert!(reader.join().expect("every line is an entry") > 10);
}

#[test]
fn a_stop_writes_what_was_accepted() {
    const REQUESTS: usize = 5000;
    let mut encke = Encke::start(&["--access-log", "json"]);
    let stdout = encke.take_stdout();
    let mut connection = encke.connect();
    let one = request("GET", "/healthz", &[], b"");
    connection.send(&one.repeat(REQUESTS));
    for _ in 0..REQUESTS {
        assert_eq!(connection.answer().status, 200);
    }
    // Read only now: much still waits in the queue.
    encke.signal(Signal::TERM);
    let lines = stdout.lines().map(|line| line.expect("text"));
    let paths: Vec<Value> = lines.map(|line| entry(&line)["path"].clone()).collect();
    assert_eq!(paths, vec![Value::from("/healthz"); REQUESTS]);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn an_output_that_blocks_or_fails_does_not_stop_the_server() {
    // A pipe that is full when the server stops, a pipe without a reader, and a full disk.
    let serves = |encke: &Encke, stream: &str| {
        encke.create(stream);
        encke.connect().append(stream, 1);
        assert_eq!(encke.numbers(stream), [1]);
    };
    let full_pipe = Encke::start(&["--access-log", "json"]);
    let target = format!("/{}", "x".repeat(2000));
    let mut connection = full_pipe.connect();
    for _ in 0..200 {
        assert_eq!(connection.ask("GET", &target, &[], b"").status, 404);
    }
    serves(&full_pipe, "s");
    let stopped = full_pipe.terminate();
    assert_eq!(stopped.code, Some(0));
    assert!(
        stopped.log.contains("the access log's output is blocked"),
        "{}",
        stopped.log
    );

    let mut no_reader = Encke::start(&["--access-log", "json"]);
    drop(no_reader.take_stdout());
    serves(&no_reader, "s");
    eventually("the lines are counted", || {
        no_reader.metric("encke_access_log_dropped_total", "unwritable") >= 3.0
    });
    let stopped = no_reader.terminate();
    assert_eq!(stopped.code, Some(0));
    assert_eq!(
        stopped
            .log
            .matches("the access log can't be written")
            .count(),
        1
    );

    let full = [
        "--access-log",
        "combined",
        "--tuning",
        "access-log-file=/dev/full",
    ];
    let full_disk = Encke::start(&full);
    serves(&full_disk, "s");
    eventually("the lines are counted", || {
        full_disk.metric("encke_access_log_dropped_total", "unwritable") >= 3.0
    });
    assert_eq!(full_disk.metric("encke_access_log_lines_total", ""), 0.0);
    assert_eq!(full_disk.terminate().code, Some(0));
}

#[test]
fn a_hang_up_opens_the_file_again() {
    let logged = Logged::start("json", &[]);
    assert_eq!(logged.encke.ask("GET", "/healthz", &[], b"").status, 200);
    logged.entries(1);
    let rotated = logged.file.with_extension("1");
    std::fs::rename(&logged.file, &rotated).expect("it is ours");
    logged.encke.signal(Signal::HUP);
    eventually("a new file has lines", || {
        assert_eq!(logged.encke.ask("GET", "/readyz", &[], b"").status, 200);
        !lines(&logged.file).is_empty()
    });
    let old = lines(&rotated);
    assert_eq!(entry(&old[0])["path"], "/healthz");
    assert!(
        old[1..]
            .iter()
            .chain(&lines(&logged.file))
            .all(|line| entry(line)["path"] == "/readyz")
    );
    let nowhere = [
        "--access-log",
        "json",
        "--tuning",
        "access-log-file=/nowhere/log",
    ];
    let ended = Encke::try_start_by(&mut serve(data_dir().path(), &nowhere));
    let ended = ended.err().expect("it does not start");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("/nowhere/log"), "{ended:?}");
}

#[test]
fn the_debug_log_shows_requests_and_not_the_storage_engine() {
    let data = data_dir();
    let mut debugging = serve(
        data.path(),
        &["--log", "debug", "--log-format", "json", "--shards", "1"],
    );
    let encke = Encke::start_by(&mut debugging);
    encke.create("s");
    let fields = [JSON, "X-Request-Id: my-id"];
    let appended = encke.ask("POST", &path("s"), &fields, b"1");
    assert_eq!(appended.field("X-Request-Id"), Some("my-id"));
    let mut connection = encke.connect();
    connection.send(b"\x1b[31m\r\n\r\n");
    assert_eq!(connection.answer().status, 400);
    let log = encke.terminate().log;
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let requests: Vec<&Value> = lines
        .iter()
        .filter(|line| line["fields"]["message"] == "request")
        .map(|line| &line["fields"])
        .collect();
    assert_eq!(requests.len(), 3, "{log}");
    let append = requests[1];
    assert_eq!(append["method"], "POST");
    assert_eq!(append["path"], "/v1/stream/s");
    assert_eq!(append["status"], 204);
    assert_eq!(append["request_id"], "my-id");
    assert!(append["duration_ms"].is_f64(), "{append}");
    assert_eq!(requests[2]["status"], 400);
    let of_engine = |line: &&Value| {
        let target = line["target"].as_str().unwrap_or_default();
        target.starts_with("fjall") || target.starts_with("lsm_tree")
    };
    assert_eq!(lines.iter().find(of_engine), None);
    // It is there for those who name it.
    let named = serve(data.path(), &["--log", "debug,lsm_tree=debug,fjall=debug"]);
    let encke = Encke::start_by(&mut { named });
    let log = encke.terminate().log;
    assert!(
        log.contains("lsm_tree::") || log.contains("fjall::"),
        "{log}"
    );
}

#[test]
fn an_id_is_returned_without_an_access_log_and_nothing_else_is_added() {
    let mut encke = Encke::start(&[]);
    encke.create("s");
    let with = encke.ask("HEAD", &path("s"), &["X-Request-Id: a"], b"");
    let without = encke.ask("HEAD", &path("s"), &[], b"");
    let others = |answer: &crate::rig::Response| {
        let fields = answer.fields.iter();
        let fields = fields.filter(|(name, _)| name != "X-Request-Id" && name != "Date");
        fields.cloned().collect::<Vec<_>>()
    };
    assert_eq!(with.field("X-Request-Id"), Some("a"));
    assert_eq!(without.field("X-Request-Id"), None);
    assert_eq!(others(&with), others(&without));
    // A body that comes later, and a response that waits for the disk.
    let mut connection = encke.connect();
    let post = request("POST", &path("s"), &[JSON, "X-Request-Id: later"], b"12");
    let (first, second) = post.split_at(post.len() - 1);
    connection.socket.write_all(first).expect("it reads");
    connection.socket.write_all(second).expect("it reads");
    assert_eq!(connection.answer().field("X-Request-Id"), Some("later"));
    assert_eq!(
        connection
            .ask("GET", "/healthz", &[], b"")
            .field("X-Request-Id"),
        None
    );
    let mut stdout = encke.take_stdout();
    assert_eq!(encke.terminate().code, Some(0));
    let mut text = String::new();
    stdout.read_to_string(&mut text).expect("text");
    assert!(
        text.contains("Try it") && !text.contains("\"method\""),
        "{text}"
    );
}
