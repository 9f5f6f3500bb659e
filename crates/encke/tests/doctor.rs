//! `encke doctor` as a process, on this machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn doctor(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_encke"))
        .arg("doctor")
        .args(words)
        .env("ENCKE_LISTEN", "127.0.0.1:0")
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
    let names = ["directory", "file system", "free space", "fdatasync"];
    for name in names {
        let checks = checks.iter();
        assert_eq!(checks.filter(|check| check["name"] == name).count(), 1);
    }
    let place = &report["data"]["logs"][0];
    assert_eq!(place["there"], false);
    assert_eq!(place["need_bytes"], 5 * (64 << 20));
    assert!(place["free_bytes"].as_u64().unwrap() > 0);
    // Where the temporary directory is in memory it takes less than a microsecond.
    assert!(place["fdatasync"]["median_us"].is_u64());
    let wrong = doctor(folder.path(), &["--connections", "0"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn each_log_is_looked_at_and_data_that_a_server_would_refuse_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["-n", "1", "--data", "d", "--logs", "3"];
    let small = ["--segment", "1MiB", "--body-max", "256KiB"];
    let words = [&words[..], &small].concat();
    let good = doctor(folder.path(), &words);
    let text = String::from_utf8(good.stdout).unwrap();
    assert_eq!(good.status.code(), Some(0), "{text}");
    for log in 0..3 {
        assert!(text.contains(&format!("log {log}, free space")), "{text}");
    }
    // In the place of the second one is something else.
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/log-1"), b"").unwrap();
    let bad = doctor(folder.path(), &words);
    let text = String::from_utf8(bad.stdout).unwrap();
    assert_eq!(bad.status.code(), Some(5), "{text}");
    assert!(text.contains("FAILS   log 1, directory"), "{text}");
    assert!(text.contains("log-1 is not a directory"), "{text}");
    assert!(text.ends_with("\nThe server would not start.\n"), "{text}");
    let bad = doctor(folder.path(), &[&words[..], &["--json"]].concat());
    let report: Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(report["fits"], false);
    assert_eq!(report["data"]["logs"].as_array().unwrap().len(), 3);
    assert!(report["data"]["logs"][1]["unwritable"].is_string());
    let wrong = doctor(folder.path(), &["--logs", "65"]);
    assert_eq!(wrong.status.code(), Some(2));
}
