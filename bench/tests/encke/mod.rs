//! The server for tests of this program with a real server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "some tests start servers by the tool under test")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// A server on a free port, with its data in `folder/data`; killed when dropped.
pub(crate) struct Encke {
    child: Child,
    /// Where its streams are.
    pub(crate) url: String,
}

impl Encke {
    /// Starts it in `folder`, with more options of the command line.
    pub(crate) fn start(folder: &Path, options: &[&str]) -> Self {
        let mut child = Command::new(program())
            .args(["serve", "--listen", "127.0.0.1:0", "--data", "data"])
            .args(["--log", "error"])
            .args(options)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let url = line.trim_end().strip_prefix("listening on ").unwrap();
        Self {
            child,
            url: format!("{url}/v1/stream"),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Encke {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
