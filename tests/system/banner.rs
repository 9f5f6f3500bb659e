//! What the server prints at its start: every command and address works against this server as it is configured.

use std::io::BufRead;
use std::path::Path;
use std::process::Command;

use crate::rig::{Encke, Ended, JSON, command, data_dir, serve, without_settings};

/// The lines behind the addresses, up to the one that ends the text.
fn advice(encke: &mut Encke) -> Vec<String> {
    let mut lines = Vec::new();
    for line in encke.take_stdout().lines() {
        let line = line.expect("it prints text");
        let is_last = line.ends_with("Stop with Ctrl-C.");
        lines.push(line);
        if is_last {
            return lines;
        }
    }
    panic!("no text to try: {lines:?}");
}

/// The commands, without the one that follows the stream; and the address of metrics.
fn commands(lines: &[String]) -> (String, Option<String>) {
    let commands = lines.iter().filter_map(|line| line.strip_prefix("  "));
    let finite = commands.filter(|one| !one.starts_with("curl -N "));
    let script = finite.map(|one| format!("{one}\n")).collect();
    let last = lines.last().expect("it printed lines");
    let metrics = last.split_once("metrics ").map(|(_, metrics)| metrics);
    let metrics = metrics.and_then(|metrics| metrics.split(". ").next());
    (script, metrics.map(str::to_owned))
}

/// Runs commands as a user types them. A response with an error is a failure.
fn typed(script: &str, bin: &Path) -> Ended {
    std::fs::create_dir_all(bin).expect("it is ours");
    let link = bin.join("encke");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_encke"), &link).expect("it is ours");
    }
    std::fs::write(
        bin.join(".curlrc"),
        "fail-with-body\nsilent\nmax-time = 60\n",
    )
    .expect("it is ours");
    let path = std::env::var("PATH").expect("there are commands");
    let mut shell = Command::new("bash");
    without_settings(&mut shell);
    shell.args(["-euc", script]).env("CURL_HOME", bin);
    shell.env("PATH", format!("{}:{path}", bin.display()));
    Ended::of(&mut shell)
}

/// What a server with these flags prints works, and the message that it appends is there.
fn works(flags: &[&str], field: &[&str]) -> Option<String> {
    let directory = data_dir();
    let mut encke = Encke::start_by(&mut serve(&directory.path().join("data"), flags));
    // The README makes this stream before.
    let fields = [&[JSON], field].concat();
    let made = encke.ask("PUT", "/v1/stream/hello", &fields, b"");
    assert_eq!(made.status, 201, "{made:?}");
    let lines = advice(&mut encke);
    let (script, metrics) = commands(&lines);
    let bin = directory.path().join("bin");
    let ended = typed(&script, &bin);
    assert_eq!(ended.code, Some(0), "{script}{ended:?}");
    let stored = encke.ask("GET", "/v1/stream/hello?offset=-1", field, b"");
    let text = String::from_utf8_lossy(&stored.body);
    assert_eq!(text, "[{\"text\":\"Hello, world\"}]");
    if let Some(url) = metrics.as_ref().filter(|text| !text.contains(' ')) {
        let ended = typed(&format!("curl {url}"), &bin);
        assert!(
            ended.stdout.contains("encke_build_info"),
            "{url}: {ended:?}"
        );
    }
    metrics
}

#[test]
fn what_the_server_prints_works_without_access_control() {
    let metrics = works(&[], &[]);
    assert!(metrics.is_some_and(|url| url.ends_with("/metrics")));
    let metrics = works(&["--open", "--admin-listen", "0"], &[]);
    assert!(metrics.is_some_and(|url| url.ends_with("/metrics")));
    assert_eq!(works(&["--open", "--admin-listen", "none"], &[]), None);
}

#[test]
fn what_the_server_prints_works_with_access_control() {
    let directory = data_dir();
    let config = directory.path().join("my encke.toml");
    std::fs::write(&config, CONFIG).expect("a file can be written");
    let config = config.to_str().expect("the path is text");
    let allow = [
        "--allow",
        "create,append,read=/v1/stream/hello",
        "--issuer",
        "app",
        "--expires",
        "5m",
    ];
    let made = Ended::of(command(&["token", "--config", config]).args(allow));
    let field = format!("Authorization: Bearer {}", made.stdout.trim());
    let flags = ["--config", config, "--admin-listen"];
    let metrics = works(&[&flags[..], &["0"]].concat(), &[&field]);
    assert!(metrics.is_some_and(|url| url.ends_with("/metrics")));
    let metrics = works(&[&flags[..], &["none"]].concat(), &[&field]);
    assert!(metrics.is_some_and(|text| text.ends_with("for callers with the action admin")));
}

/// Two issuers could sign; the tokens of the first may not use the stream.
const CONFIG: &str = r#"
[access]

[[access.issuers]]
name = "bounded"
issuer = "https://bounded.example"
audience = "encke"
algorithms = ["HS256"]
secret = "a secret of more than thirty-two bytes, for tests"
grants = [{ actions = ["read"], paths = ["/v1/stream/a"] }]

[[access.issuers]]
name = "app"
issuer = "https://app.example"
audience = "encke"
algorithms = ["HS256"]
lifetime-max = "5m"
secret = "another secret of more than thirty-two bytes"
"#;
