//! A short round of the load tools as processes, against the real server. `started.rs` has those that start servers themselves,
//! `experiments.rs` the experiments and `million`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod encke;

use encke::Encke;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs a command twice, as a reader and as a program would. Returns its text and its JSON.
fn reports(folder: &Path, line: &str) -> (String, Value) {
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_encke-bench"));
        command.args(line.split_ascii_whitespace()).args(more);
        let output = command.current_dir(folder).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{line}: {text}{errors}");
        text
    };
    let json = serde_json::from_str(&run(&["--json"])).unwrap();
    (run(&[]), json)
}

#[test]
fn a_flood_of_every_kind_is_delivered_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = Encke::start(folder.path(), &["--connections-per-address", "0"]);
    let line = format!(
        "flood --url {} --server-pid {} -n 30 --kinds http1,http2,websocket --publish 100 --publishers 4 --duration 3s \
         --pause 500ms --pause-after 500ms --slow 3 --churn 5 --floor 200ms",
        server.url,
        server.pid()
    );
    let (text, json) = reports(folder.path(), &line);
    for name in [
        "latency",
        "  of the slow",
        "hang-ups",
        "floor",
        "descriptors",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
    }
    assert!(text.ends_with("verdict          every message once and in order\n"));
    assert_eq!(json["opening"]["opened"], 30);
    assert!(
        json["deliveries"]["messages"].as_u64() > Some(100),
        "{json:#}"
    );
}

#[test]
fn hostile_clients_do_not_disturb_a_flood() {
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "--connections-per-address",
        "0",
        "--tuning",
        "request-timeout=1s",
    ];
    let server = Encke::start(folder.path(), &options);
    let line = format!(
        "flood --url {} -n 10 --publish 50 --duration 4s --hostile 20",
        server.url
    );
    let (text, json) = reports(folder.path(), &line);
    assert!(
        text.contains("\nhostile          20 clients connected "),
        "{text}"
    );
    assert_eq!(json["connections"]["closed"], 0, "{json:#}");
    assert_eq!(json["hostile"]["deeds"]["clients"], 20);
}

#[test]
fn storms_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let server = Encke::start(folder.path(), &[]);
    let (url, pid) = (&server.url, server.pid());
    let line = format!("storm --url {url} --server-pid {pid} -n 50 --storms 2 --away 50ms");
    let (text, json) = reports(folder.path(), &line);
    assert!(text.contains("50 of 50 served"), "{text}");
    assert_eq!(json["storms"][1]["served"], 50);
}

#[test]
fn what_a_spray_has_acknowledged_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let server = Encke::start(folder.path(), &[]);
    let (url, pid) = (&server.url, server.pid());
    let line = format!(
        "spray --url {url} --server-pid {pid} -p 4 -m 20 --messages 400 --rate 2000 --ack-log acknowledged"
    );
    let (text, json) = reports(folder.path(), &line);
    assert!(
        text.contains("\nacknowledged     400 of 400 messages"),
        "{text}"
    );
    assert_eq!(json["acknowledged"], 400);
    let (text, json) = reports(folder.path(), &format!("verify acknowledged --url {url}"));
    assert!(text.ends_with("verdict          everything acknowledged is there, in order, once\n"));
    assert_eq!(json["acknowledged"], 800);
    assert_eq!(json["findings"]["found"], 800);

    let other = tempfile::tempdir().unwrap();
    let other = Encke::start(other.path(), &[]);
    let beside = format!("--beside {} --beside-pid {}", other.url, other.pid());
    let line = format!(
        "spray --url {url} --server-pid {pid} -p 4 -m 20 --messages 400 --rounds 2 {beside}"
    );
    let (text, json) = reports(folder.path(), &line);
    assert!(text.contains("in the middle round"), "{text}");
    assert_eq!(json["rounds"].as_array().unwrap().len(), 2);
}
