//! Runs a test in a process of its own: it measures its process, which the other tests share.

use std::process::Command;

/// Runs `body` in a new process in which only the test named `test` runs.
///
/// `test` is the whole name of the test that calls this, as `cargo test -- --list` prints it.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    // A name that matches no test would pass without a test.
    assert!(printed.contains("1 passed"), "{test}: {printed}{errors}");
}

const ALONE: &str = "ENCKE_BENCH_TEST_ALONE";
