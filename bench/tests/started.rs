//! `encke-bench read` and `encke-bench answers` as processes that start two servers of the same source.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod encke;

use serde_json::Value;
use std::process::Command;

/// Runs a command with both servers, and returns its report. Nothing is left of their data.
fn report(line: &str) -> Value {
    let data = tempfile::tempdir().unwrap();
    let program = encke::program().display();
    let start = format!("{program} serve --listen 127.0.0.1:{{port}} --data {{data}} --log error");
    let mut command = Command::new(env!("CARGO_BIN_EXE_encke-bench"));
    command
        .args(line.split(' '))
        .args([
            "--start",
            &start,
            "--beside-start",
            &start,
            "--json",
            "--data",
        ])
        .arg(data.path());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The turns of both servers in both rounds.
fn turns(report: &Value) -> Vec<&Value> {
    assert_eq!(report["servers"].as_array().unwrap().len(), 2);
    let rounds = report["rounds"].as_array().unwrap().iter();
    let turns: Vec<_> = rounds.flat_map(|round| round.as_array().unwrap()).collect();
    assert_eq!(turns.len(), 4);
    turns
}

#[test]
fn streams_are_read_whole() {
    for line in [
        "read --size 100 --megabytes 1 -n 3 --times 2 --rounds 2",
        "read --size 5300000 --megabytes 6 -n 2 --times 2 --rounds 2 --old 1",
    ] {
        let report = report(line);
        let bytes = report["stream_bytes"].as_u64().unwrap();
        let reads = report["readers"].as_u64().unwrap() * report["times"].as_u64().unwrap();
        for turn in turns(&report) {
            assert_eq!(turn["bytes"], bytes * reads, "{report:#}");
            let server = &turn["cost"]["server"];
            assert!(server["cpu_s"].as_f64().unwrap() >= 0.0);
            let resident = server["rss_bytes_max"].as_u64().unwrap();
            assert!(resident > server["rss_anon_bytes_before"].as_u64().unwrap());
        }
    }
}

#[test]
fn answers_reach_their_readers_once_and_in_order() {
    for line in [
        "answers -n 20 --rate 50 --duration 1s --rounds 2",
        "answers -n 20 --rate 50 --duration 1s --rounds 2 --content-type text/plain --batch 4",
    ] {
        let report = report(line);
        for turn in turns(&report) {
            assert_eq!(turn["appended"]["tokens"], 1_000, "{report:#}");
            assert_eq!(turn["delivered"], 3_000, "{report:#}");
            assert_eq!(turn["cuts"], 20, "{report:#}");
            assert!(turn["latency"]["p50_us"].as_f64().unwrap() > 0.0);
            assert!(turn["memory"]["open_bytes"].as_u64().unwrap() > 0);
        }
    }
}
