//! Upgrades in place: what is connected stays connected, and gets every record once and in order, whatever becomes of the successor.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rig::http2::{GOAWAY, Http2Client};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{
    Authority, Connection, Encke, Ended, Fault, JSON, TlsClient, command, data_dir, eventually,
    path, request, serve, strace_works, wait_for_sync, without_settings,
};

/// Asks the server of a data directory to upgrade.
pub(crate) fn upgrade(data: &Path, flags: &[&str]) -> Ended {
    Ended::of(command(&["upgrade", "--json"]).arg(data).args(flags))
}

pub(crate) fn upgraded(data: &Path) -> Value {
    let ended = upgrade(data, &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("a report")
}

pub(crate) fn append(encke: &Encke, stream: &str, number: u64) {
    let body = number.to_string();
    let appended = encke.ask("POST", &path(stream), &[JSON], body.as_bytes());
    assert_eq!(appended.status, 204);
}

/// A program that may be given as the next version.
pub(crate) fn program(lines: &str) -> (TempDir, PathBuf) {
    let directory = data_dir();
    let file = directory.path().join("next");
    std::fs::write(&file, format!("#!/bin/sh\n{lines}\n")).expect("it can be written");
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&file, mode).expect("it is ours");
    (directory, file)
}

/// The numbers of the next event of several streams that has some.
fn merged_numbers(connection: &mut Connection) -> Vec<u64> {
    loop {
        let event = connection.event().expect("the subscription goes on");
        let data = event.lines().filter_map(|line| line.strip_prefix("data:"));
        let data: Value = match serde_json::from_str(&data.collect::<String>()) {
            Ok(data) => data,
            // A comment.
            Err(_) => continue,
        };
        if let Some(messages) = data["messages"].as_array() {
            return messages.iter().filter_map(Value::as_u64).collect();
        }
    }
}

#[test]
fn whatever_is_connected_stays_and_gets_each_record_once() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    for stream in ["a", "b", "chat/x"] {
        encke.create(stream);
    }
    let mut follower = encke.subscribe("a", "-1");
    let mut several = encke.connect();
    several.send(&request("GET", "/v1/events?stream=a&stream=b", &[], b""));
    assert_eq!(several.head().status, 200);
    let mut pattern = encke.connect();
    pattern.send(&request(
        "GET",
        "/v1/events?stream=chat/**&stream=b",
        &[],
        b"",
    ));
    assert_eq!(pattern.head().status, 200);
    let mut channel = WebSocketClient::open(encke.address, "/v1/events", &[]);
    for stream in ["a", "b"] {
        let subscribe = json!({"type": "subscribe", "stream": stream, "offset": "-1"});
        channel.send(&subscribe.to_string());
        let answers = std::iter::from_fn(|| channel.message());
        let mut answers = answers.take_while(|answer| answer["type"] != "subscribed");
        assert!(answers.all(|answer| answer["type"] == "position"));
    }
    // Between two requests, and in the middle of a head.
    let mut idle = encke.connect();
    assert_eq!(idle.ask("GET", "/", &[], b"").status, 200);
    let mut partial = encke.connect();
    let whole = request("GET", &path("a"), &[], b"");
    let (before, behind) = whole.split_at(12);
    partial.send(before);
    for number in 1..=4 {
        append(&encke, "a", number);
        append(&encke, "b", 100 + number);
        append(&encke, "chat/x", 200 + number);
        let report = upgraded(data.path());
        assert_eq!(
            (&report["moved"], &report["closed"]),
            (&json!(6), &json!(0)),
            "{report}"
        );
    }
    assert_eq!(follower.numbers(4), [1, 2, 3, 4]);
    let mut numbers = Vec::new();
    while numbers.len() < 8 {
        numbers.extend(merged_numbers(&mut several));
    }
    assert_eq!(numbers, [1, 101, 2, 102, 3, 103, 4, 104]);
    let mut numbers = Vec::new();
    while numbers.len() < 8 {
        numbers.extend(merged_numbers(&mut pattern));
    }
    assert_eq!(numbers, [101, 201, 102, 202, 103, 203, 104, 204]);
    let mut numbers = Vec::new();
    while numbers.len() < 8 {
        let message = channel.message().expect("the channel is open");
        let records = message["data"].as_array().into_iter().flatten();
        numbers.extend(records.filter_map(Value::as_u64));
    }
    // Its subscriptions are each in order.
    let (of_a, of_b): (Vec<u64>, Vec<u64>) = numbers.into_iter().partition(|one| *one < 100);
    assert_eq!((of_a, of_b), (vec![1, 2, 3, 4], vec![101, 102, 103, 104]));
    // A channel that has moved takes messages, and idle connections requests.
    let answer = channel.ask(&json!({"type": "append", "stream": "a", "data": 5}).to_string());
    assert_eq!(answer["type"], "appended", "{answer}");
    assert_eq!(follower.numbers(1), [5]);
    assert_eq!(idle.ask("GET", "/", &[], b"").status, 200);
    partial.send(behind);
    let answer = partial.answer();
    assert_eq!(answer.body, b"[1,2,3,4,5]");
    // The process that was started is still there, and stops the server.
    assert_eq!(encke.terminate().code, Some(0));
    assert_eq!(follower.rest(), [0; 0]);
}

#[test]
fn sessions_of_tls_go_on() {
    let data = data_dir();
    let authority = Authority::new();
    let files = authority.issue("localhost");
    let encke = Encke::start_in(data.path(), &files.flags());
    let client = authority.client();
    let mut writer = TlsClient::open(&encke, &client);
    let (head, _) = writer.ask("PUT", &path("a"), &[JSON], b"");
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    let mut reader = TlsClient::open(&encke, &client);
    let target = format!("{}?offset=-1&live=sse", path("a"));
    let sent = reader.send(&request("GET", &target, &[], b""));
    sent.expect("the server reads");
    reader.until("\r\n\r\n");
    for number in 1..=4 {
        let report = upgraded(data.path());
        assert_eq!(
            (&report["moved"], &report["closed"]),
            (&json!(2), &json!(0)),
            "{report}"
        );
        let body = format!("{{\"n\":{number}}}");
        let (head, _) = writer.ask("POST", &path("a"), &[JSON], body.as_bytes());
        assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
        reader.until(&body);
    }
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_subscriber_that_takes_nothing_goes_on_where_it_was() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &["--tuning", "send-buffer=16KiB"]);
    encke.create("a");
    let mut slow = encke.subscribe_narrow("a");
    let pad = "x".repeat(30_000);
    let body = |number: u64| format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
    for number in 0..40 {
        let appended = encke.ask("POST", &path("a"), &[JSON], body(number).as_bytes());
        assert_eq!(appended.status, 204);
    }
    for number in 40..44 {
        let report = upgraded(data.path());
        assert_eq!(
            (&report["moved"], &report["closed"]),
            (&json!(1), &json!(0)),
            "{report}"
        );
        let appended = encke.ask("POST", &path("a"), &[JSON], body(number).as_bytes());
        assert_eq!(appended.status, 204);
    }
    let numbers: Vec<u64> = (0..44)
        .map(|_| {
            slow.message().expect("it goes on")["n"]
                .as_u64()
                .expect("ours")
        })
        .collect();
    assert!(numbers.iter().copied().eq(0..44), "{numbers:?}");
}

#[test]
fn requests_in_work_are_finished_and_what_can_not_move_is_told() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &["--tuning", "upgrade-drain=3s"]);
    encke.create("a");
    append(&encke, "a", 1);
    // A long poll is answered as if its time were over.
    let mut poll = encke.connect();
    let tail = encke.ask("GET", &path("a"), &[], b"");
    let offset = tail
        .field("Stream-Next-Offset")
        .expect("it is stated")
        .to_owned();
    let target = format!("{}?offset={offset}&live=long-poll", path("a"));
    poll.send(&request("GET", &target, &[], b""));
    // HTTP/2 is told that the connection ends.
    let mut http2 = Http2Client::open(encke.address, &[]);
    eventually("all are there", || {
        encke.metric("encke_connections", "") >= 3.0
    });
    let checked = upgrade(data.path(), &["--check"]);
    let checked: Value = serde_json::from_str(&checked.stdout).expect("a report");
    assert_eq!(checked["reasons"], json!([["HTTP/2", 1]]), "{checked}");
    assert_eq!(checked["process"], Value::Null);
    // A body arrives in two parts, with the upgrade between them.
    let mut slow = encke.connect();
    let whole = request("POST", &path("a"), &[JSON], b"[2,3]");
    let (before, behind) = whole.split_at(whole.len() - 2);
    slow.send(before);
    let report = std::thread::scope(|scope| {
        let report = scope.spawn(|| upgraded(data.path()));
        let answer = poll.answer();
        assert_eq!(answer.status, 204, "{answer:?}");
        http2.until(GOAWAY);
        slow.send(behind);
        report.join().expect("the upgrade")
    });
    assert_eq!(report["moved"].as_u64().expect("a count"), 2, "{report}");
    let _ = slow.answer();
    assert_eq!(poll.ask("GET", "/", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn what_is_being_stored_is_answered_however_short_the_time_for_others_is() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("the directory is ours");
    let fault = Fault::new(&data, dir.path(), "fdatasync:delay_enter=1500000:when=1");
    let encke = Encke::start_by(&mut fault.serve(&data, &["--tuning", "upgrade-drain=10ms"]));
    encke.create("a");
    let mut follower = encke.subscribe("a", "-1");
    fault.arm();
    let mut writer = encke.connect();
    writer.send(&request("POST", &path("a"), &[JSON], b"1"));
    let mut socket = WebSocketClient::open(encke.address, "/v1/events", &[]);
    socket.send(r#"{"type":"append","stream":"a","data":2}"#);
    wait_for_sync(&encke);
    let report = upgraded(&data);
    assert_eq!(report["closed"], 0, "{report}");
    assert_eq!(writer.answer().status, 204);
    let told = socket.message().expect("an answer");
    assert_eq!(told["type"], "appended", "{told}");
    let mut numbers = follower.numbers(2);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(encke.terminate().code, Some(0));
}

/// Upgrades a server to programs that fail, each of which is named with what is said of it then.
fn successors_fail(tuning: &str, programs: &[(String, &str)]) {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &["--tuning", tuning]);
    encke.create("a");
    let mut follower = encke.subscribe("a", "-1");
    let mut idle = encke.connect();
    assert_eq!(idle.ask("GET", "/", &[], b"").status, 200);
    let mut number = 0;
    for (lines, why) in programs {
        let (_directory, file) = program(lines);
        let file = file.to_str().expect("a path of ours");
        let ended = upgrade(data.path(), &["--program", file]);
        assert_eq!(ended.code, Some(1), "{lines}: {ended:?}");
        assert!(ended.stderr.contains(why), "{lines}: {ended:?}");
        number += 1;
        append(&encke, "a", number);
        assert_eq!(follower.numbers(1), [number], "{lines}");
        assert_eq!(idle.ask("GET", "/", &[], b"").status, 200, "{lines}");
    }
    // And then it can be upgraded.
    assert_eq!(upgraded(data.path())["moved"], json!(2));
    number += 1;
    append(&encke, "a", number);
    assert_eq!(follower.numbers(1), [number]);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_successor_that_says_nothing_changes_nothing() {
    let programs = [
        ("exec sleep 60", "has said nothing for 8s"),
        ("printf abcdefgh >&0; exec sleep 60", "the successor"),
    ];
    let programs = programs.map(|(lines, why)| (lines.to_owned(), why));
    // The real one must be in time.
    successors_fail("upgrade-timeout=8s", &programs);
}

#[test]
fn a_successor_that_fails_changes_nothing() {
    let encke = env!("CARGO_BIN_EXE_encke");
    let gone = "the successor has ended";
    let mut programs = vec![
        ("exit 3".to_owned(), gone),
        (format!("exec {encke} \"$@\" --no-such-flag"), gone),
        (
            format!("exec {encke} $(echo \"$@\" | sed s/127.0.0.1:0/127.0.0.1:1/)"),
            "listen would change",
        ),
        (
            format!("exec {encke} \"$@\" --tls-cert /nowhere --tls-key /nowhere"),
            "/nowhere",
        ),
    ];
    // It is killed at a system call: with the listeners, with the connections, at the lock, in the log, at its shards, at its last word.
    if strace_works() {
        for (call, fault, why) in [
            ("recvmsg", "signal=KILL:when=1", gone),
            ("recvmsg", "signal=KILL:when=2", gone),
            ("flock", "signal=KILL:when=1", gone),
            ("pwrite64", "signal=KILL:when=1", gone),
            ("epoll_create1", "signal=KILL:when=1", gone),
            ("epoll_create1", "signal=KILL:when=2", gone),
            ("flock", "error=EACCES:when=1", "gave up"),
        ] {
            let inject = format!("-e trace={call} -e inject={call}:{fault}");
            let traced = format!("exec strace -f -qq -o /dev/null {inject} {encke} \"$@\"");
            programs.push((traced, why));
        }
    }
    successors_fail("upgrade-timeout=30s", &programs);
}

/// Packages of several systems have a link in PATH that leads to the version.
#[test]
fn a_link_in_path_is_followed_anew() {
    let (data, folder) = (data_dir(), data_dir());
    let name = folder.path().join("encke");
    let leads_to = |program: &Path| {
        let _ = std::fs::remove_file(&name);
        std::os::unix::fs::symlink(program, &name).expect("it is ours");
    };
    let real = Path::new(env!("CARGO_BIN_EXE_encke"));
    leads_to(real);
    let path = std::env::var("PATH").expect("it is text");
    let of_server = serve(data.path(), &[]);
    let mut by_name = Command::new("sh");
    by_name
        .args(["-c", "exec encke \"$@\"", "sh"])
        .args(of_server.get_args())
        .env("PATH", format!("{}:{path}", folder.path().display()));
    without_settings(&mut by_name);
    let encke = Encke::start_by(&mut by_name);
    encke.create("a");
    let (_directory, fails) = program("exit 3");
    for _ in 0..2 {
        upgraded(data.path());
        leads_to(&fails);
        let ended = upgrade(data.path(), &[]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        leads_to(real);
    }
    append(&encke, "a", 1);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_signal_upgrades_and_the_server_ends_with_the_process_that_was_started() {
    let data = data_dir();
    let encke = Encke::start_by(serve(data.path(), &[]).env("ENCKE_LOG", "info"));
    encke.create("a");
    let mut follower = encke.subscribe("a", "-1");
    for number in 1..=2 {
        encke.signal(Signal::USR2);
        eventually("a successor serves", || {
            encke.log().matches("the successor serves").count() == number
        });
        append(&encke, "a", number as u64);
    }
    assert_eq!(follower.numbers(2), [1, 2]);
    encke.kill();
    assert_eq!(follower.rest(), [0; 0], "the server stops");
    let mut again = None;
    eventually("the log is closed", || {
        again = Encke::try_start_by(&mut serve(data.path(), &[])).ok();
        again.is_some()
    });
    let again = again.expect("it has started");
    assert_eq!(again.messages("a").len(), 2);
}

#[test]
fn only_a_server_starts_a_successor() {
    let data = data_dir();
    let mut serve = serve(data.path(), &["--successor"]);
    let ended = Ended::of(&mut serve);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("only a server that is upgraded"),
        "{ended:?}"
    );
    let ended = upgrade(data.path(), &[]);
    assert!(ended.stderr.contains("no server answers"), "{ended:?}");
}

#[test]
fn quiet_subscribers_are_kept_alive_however_often_the_server_is_upgraded() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &["--tuning", "heartbeat=3s"]);
    encke.create("a");
    let mut follower = encke.subscribe("a", "-1");
    follower.catch_up();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        upgraded(data.path());
        std::thread::sleep(Duration::from_secs(2));
    }
    assert!(follower.connection().has_input(), "no heartbeat for 8 s");
}

#[test]
fn the_process_that_was_started_ends_with_the_server_and_takes_no_other_child_for_it() {
    let data = data_dir();
    let of_server = serve(data.path(), &[]);
    // As the entry point of a container: a helper is a child of the process that becomes the server.
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "sleep 600 & exec \"$@\"", "sh"])
        .arg(of_server.get_program())
        .args(of_server.get_args());
    let encke = Encke::start_by(&mut command);
    let report = upgraded(data.path());
    let successor = report["process"].as_i64().expect("a process") as i32;
    let successor = rustix::process::Pid::from_raw(successor).expect("a number");
    rustix::process::kill_process(successor, Signal::KILL).expect("it is ours");
    assert_eq!(encke.wait().code, Some(128 + 9));
}

#[test]
fn a_signal_stops_the_server_while_a_successor_is_prepared() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    let (directory, file) = program("touch \"${0%/*}/begun\"; exec sleep 600");
    let mut asks = command(&["upgrade", "--program"]);
    let mut asking = asks
        .arg(&file)
        .arg(data.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    eventually("a successor is being prepared", || {
        directory.path().join("begun").exists()
    });
    let ended = upgrade(data.path(), &["--check"]);
    assert!(
        ended.stderr.contains("another successor is being prepared"),
        "{ended:?}"
    );
    let begun = Instant::now();
    assert_eq!(encke.terminate().code, Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "it waited for the successor"
    );
    asking.wait().expect("it ends with the server");
}
