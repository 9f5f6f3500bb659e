//! `encke doctor` as people run it, on this very machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn doctor(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_encke"))
        .arg("doctor")
        .args(words)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
fn the_exit_code_says_whether_so_many_fit() {
    let folder = tempfile::tempdir().unwrap();
    let few = doctor(folder.path(), &["--connections", "1"]);
    let text = String::from_utf8(few.stdout).unwrap();
    assert_eq!(few.status.code(), Some(0), "{text}");
    assert!(text.contains("1 connections fit"), "{text}");
    assert!(text.contains("fdatasync"), "{text}");

    // Nobody's memory holds the kernel's part of these.
    let many = doctor(folder.path(), &["-n", "100000000", "--json"]);
    assert_eq!(many.status.code(), Some(5));
    let report: Value = serde_json::from_slice(&many.stdout).unwrap();
    assert_eq!(report["fits"], false);
    assert_eq!(report["connections"], 100_000_000);
    assert!(report["memory_total_bytes"].as_u64().unwrap() > 400_000_000_000);
    let checks = report["checks"].as_array().unwrap();
    let files = checks
        .iter()
        .find(|check| check["name"] == "RLIMIT_NOFILE, hard")
        .unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 100_000_512) {
        assert_eq!(files["verdict"], "too_low");
        assert_eq!(files["set"][0]["line"], "LimitNOFILE=100000512");
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing stays"
    );
    let wrong = doctor(folder.path(), &["--connections", "0"]);
    assert_eq!(wrong.status.code(), Some(2));
}
