//! The fields of an entry: what a client sends forges none, and the client is the one that trusted proxies name.

use std::io::{Read, Write};

use serde_json::Value;

use super::{Logged, ONE_SHARD, lines};
use crate::rig::{Encke, JSON, Response, data_dir, eventually, path, request, serve};

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
fn an_id_is_returned_without_an_access_log_and_nothing_else_is_added() {
    let mut encke = Encke::start(&[]);
    encke.create("s");
    let with = encke.ask("HEAD", &path("s"), &["X-Request-Id: a"], b"");
    let without = encke.ask("HEAD", &path("s"), &[], b"");
    let others = |answer: &Response| {
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
