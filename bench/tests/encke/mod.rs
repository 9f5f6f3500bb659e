//! The server for tests of this program with a real server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The `encke` program: `ENCKE_BIN` (an absolute path) if it is set, otherwise one that this builds from the same source with the
/// profile of this test. Cargo builds only the binaries of a test's own package.
pub(crate) fn program() -> &'static Path {
    static SERVER: OnceLock<PathBuf> = OnceLock::new();
    SERVER.get_or_init(|| match std::env::var_os("ENCKE_BIN") {
        Some(program) => program.into(),
        None => build(),
    })
}

fn build() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_encke-bench"))
        .parent()
        .unwrap();
    let profile = match folder.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "encke", "--bin", "encke"])
        .args(["--profile", profile, "--target-dir"])
        .arg(folder.parent().unwrap())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .unwrap();
    assert!(status.success(), "encke can't be built");
    folder.join("encke")
}
