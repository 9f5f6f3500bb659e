//! The program: signals, output, exit codes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use serde_json::Value;
use server::{Behaviour, Server};
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

fn load(words: &str, server: &Server) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_encke-bench"));
    command.args(words.split_ascii_whitespace());
    command.args(["--url", &server.url]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}\n{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

#[test]
fn everything_at_once() {
    let server = Server::start(Behaviour {
        chunked: true,
        ..Behaviour::default()
    });
    let dir = tempfile::tempdir().unwrap();
    let (record, plot) = (dir.path().join("run.csv"), dir.path().join("run.svg"));
    let words = format!(
        "flood -n 20 --publish 200 --publishers 3 --duration 700ms --churn 20 --json \
         --progress 100ms --floor 300ms --server-pid {} --record {} --plot {}",
        std::process::id(),
        record.display(),
        plot.display()
    );
    let output = load(&words, &server).output().unwrap();
    let report = json(&output);
    assert!(output.status.success(), "{report:#}");
    assert_eq!(report["opening"]["opened"], 20);
    let messages = report["deliveries"]["messages"].as_u64().unwrap();
    assert!(
        messages > 80 && messages == server.stored() as u64,
        "{report:#}"
    );
    for fault in ["missing", "duplicates", "reordered"] {
        assert_eq!(report["faults"][fault]["count"], 0);
    }
    assert!(report["connections"]["hung_up"].as_u64().unwrap() > 3);
    // The server is this very process, and has worked.
    assert!(report["server"]["cpu_per_delivery_us"].as_f64().unwrap() > 0.0);
    assert!(
        report["server"]["memory_open"]["rss_anon_bytes"]
            .as_u64()
            .unwrap()
            > 100_000
    );
    let floor = &report["floor"];
    assert!(floor["sends"].as_u64().unwrap() > 20, "{floor:#}");
    let cost = floor["cpu_per_send_us"].as_f64().unwrap();
    assert!((0.2..500.0).contains(&cost), "{floor:#}");
    assert!(floor["ratio"].as_f64().unwrap() > 0.0);
    assert!(report["samples"].as_array().unwrap().len() >= 2);
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(
        progress.contains("  closed 0  failed 0  events ")
            && progress.contains("  hung up ")
            && progress.contains("  server "),
        "{progress}"
    );
    assert!(std::fs::read_to_string(&record).unwrap().lines().count() > 2);
    assert!(std::fs::read_to_string(&plot).unwrap().contains("RssAnon"));
}

#[test]
fn a_signal_ends_a_run_with_its_report() {
    let server = Server::start(Behaviour {
        chunked: true,
        ..Behaviour::default()
    });
    // What a line of progress shows once all connections are open and messages are acknowledged.
    let publishing =
        |line: &str| line.contains("acknowledged ") && !line.contains("acknowledged 0");
    let open = |line: &str| line.contains("active 6 ");
    let both = |line: &str| open(line) && publishing(line);
    for (words, is_under_way) in [
        (
            "flood -n 6 --publish 100 --publishers 2 --json",
            &both as &dyn Fn(&str) -> bool,
        ),
        ("flood -n 6 --json", &open),
        ("spray -m 5 --rate 100 --json", &publishing),
    ] {
        let words = format!("{words} --progress 100ms");
        let mut child = load(&words, &server).spawn().unwrap();
        let mut progress = BufReader::new(child.stderr.take().unwrap()).lines();
        let begun = progress.any(|line| is_under_way(&line.unwrap()));
        assert!(begun, "{words} ended by itself");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let report = json(&output);
        assert_eq!(output.status.code(), Some(0), "{words}: {report:#}");
        assert!(report["seconds"].as_f64().unwrap() > 0.0);
        if words.starts_with("flood") {
            assert_eq!(report["connections"]["active"], 6, "{words}");
        }
    }
}

#[test]
fn exit_codes_and_messages() {
    let faulty = Server::start(Behaviour {
        lost: vec![("flood/0", 2)],
        ..Behaviour::default()
    });
    let words = "flood -n 1 --publish 100 --publishers 1 --duration 300ms";
    let output = load(words, &faulty).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("1 missing, 0 duplicates, 0 reordered"),
        "{text}"
    );
    assert!(text.contains("stream \"flood/0\", subscriber 0"), "{text}");

    for (words, code, message) in [
        (
            "flood --slow 5",
            2,
            "encke-bench: the slow pause when publishing begins, so --slow needs --publish",
        ),
        (
            "flood --server-pid 4294967295",
            1,
            "encke-bench: cannot read /proc/4294967295/stat: No such file",
        ),
        (
            "verify /nonexistent/acks",
            1,
            "encke-bench: cannot open /nonexistent/acks: No such file",
        ),
    ] {
        let output = load(words, &faulty).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.starts_with(message), "{text}");
        assert!(output.stdout.is_empty());
    }
}
