//! Commands whose standard output is closed or full: none panics, a full disk is an error, and a reader that has gone ends nothing.

use std::fs::File;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::rig::{Encke, command, data_dir, path};

/// A configuration of access control with a key that signs.
fn signing_config() -> (TempDir, String) {
    let folder = data_dir();
    let file = folder.path().join("encke.toml");
    let config = "[[access.issuers]]
issuer = 'https://a.example'
audience = 'encke'
algorithms = ['HS256']
secret = 'a secret of more than thirty-two bytes, for tests'
[[access.signing-keys]]
kid = 'links'
secret = 'another secret of more than thirty-two bytes'
";
    std::fs::write(&file, config).expect("it is ours");
    let file = file.to_str().expect("text").to_owned();
    (folder, file)
}

/// Runs a command with that standard output; its exit code, and what it says on standard error.
fn run(arguments: &[&str], stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let mut command: Command = command(arguments);
    let output = command.stdin(Stdio::null()).stdout(stdout).output();
    let output = output.expect("it starts");
    let stderr = String::from_utf8(output.stderr).expect("text");
    (output.status.code(), stderr)
}

/// A pipe whose reader has gone.
fn closed_pipe() -> std::io::PipeWriter {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer
}

#[test]
fn a_full_or_closed_standard_output_is_no_panic() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    let address = format!("http://{}", encke.address);
    let stream = format!("{address}{}", path("s"));
    let (_folder, config) = signing_config();
    let stopped = data_dir();
    let other = Encke::start_in(stopped.path(), &[]);
    other.create("s");
    assert_eq!(other.terminate().code, Some(0));
    let stopped = stopped.path().to_str().expect("text");
    for arguments in [
        &["serve", "--check"][..],
        &["doctor", "--data", stopped],
        &["doctor", "--json", "--data", stopped],
        &["health", &address],
        &["token", "--config", &config, "--allow", "read=/v1/stream/s"],
        &["token", "new-key"],
        &["sign", "--config", &config, &stream],
        &["completions", "bash"],
        &["log", "check", stopped],
        &["log", "dump", stopped],
        &["--help"],
        &["--version"],
        &["serve", "--help"],
    ] {
        let (expected, said) = run(arguments, Stdio::null());
        let says = |stderr: &str| stderr.replace(&said, "").trim().to_owned();
        let full = File::options().write(true).open("/dev/full");
        let (code, stderr) = run(arguments, full.expect("it is there"));
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
        assert!(
            code.is_some_and(|code| code > 0),
            "{arguments:?}: {code:?} {stderr}"
        );
        assert!(
            stderr.contains("No space left on device"),
            "{arguments:?}: {stderr:?}"
        );
        let (code, stderr) = run(arguments, closed_pipe());
        assert_eq!(
            (code, says(&stderr)),
            (expected, String::new()),
            "{arguments:?}"
        );
    }
}
