//! Runs imports, and looks at what they have made.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use serde_json::value::RawValue;
use tempfile::TempDir;

use crate::rig::{Encke, Ended, command, eventually, path};

/// An import, and the directory of its state.
pub(super) struct Importer {
    pub(super) state: TempDir,
    source: String,
    destination: String,
}

/// An import that runs; killed when dropped.
pub(super) struct Running {
    pub(super) child: Child,
    stderr: PathBuf,
    pub(super) stdout: PathBuf,
}

impl Importer {
    pub(super) fn new(source: String, destination: &Encke) -> Importer {
        Importer {
            state: TempDir::new().expect("the temporary directory can be written"),
            source,
            destination: format!("http://{}", destination.address),
        }
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&["import", &self.source]);
        command
            .args(arguments)
            .args(["--to", &self.destination, "--state"])
            .arg(self.state.path());
        command
    }

    /// Runs to the end, which is good, and returns the report.
    pub(super) fn run(&self, arguments: &[&str]) -> Value {
        let ended = Ended::of(self.command(arguments).arg("--json"));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.stdout).expect("a report")
    }

    pub(super) fn start(&self, arguments: &[&str]) -> Running {
        let file = |name: &str| self.state.path().join(name);
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let open = |path: &Path| File::create(path).expect("a file can be made");
        let child = self
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(open(&stdout))
            .stderr(open(&stderr))
            .spawn()
            .expect("the command starts");
        Running {
            child,
            stderr,
            stdout,
        }
    }

    /// What an offset has become.
    pub(super) fn offset(&self, arguments: &[&str]) -> Ended {
        let mut command = command(&["import", "offset", "--state"]);
        Ended::of(command.arg(self.state.path()).args(arguments))
    }

    /// The pairs of offsets in the map of a stream, whose name needs no escapes.
    pub(super) fn map(&self, name: &str) -> Vec<(String, String)> {
        let text = self.journal(name);
        let lines = text.lines().skip(1).map(|line| {
            serde_json::from_str::<Value>(line).expect("each line of a journal is JSON")
        });
        let text = |line: &Value, name: &str| line[name].as_str().expect("text").to_owned();
        lines
            .filter(|line| line.get("behind").is_none())
            .map(|line| (text(&line, "source"), text(&line, "offset")))
            .collect()
    }

    pub(super) fn journal(&self, name: &str) -> String {
        let path = self.state.path().join(format!("{name}.jsonl"));
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

impl Running {
    fn says(&self) -> String {
        std::fs::read_to_string(&self.stderr).expect("it is ours")
    }

    pub(super) fn wait_until_it_follows(&mut self) {
        eventually("the import follows", || {
            let ended = self.child.try_wait().expect("it is ours");
            assert_eq!(ended, None, "it has ended: {}", self.says());
            self.says().contains("up to date, following")
        });
    }

    /// Asks it to stop, and returns its exit code and what it printed.
    pub(super) fn stop(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it is ours");
        let code = self.ended();
        (
            code,
            std::fs::read_to_string(&self.stdout).expect("it is ours"),
        )
    }

    pub(super) fn ended(&mut self) -> Option<i32> {
        let mut code = None;
        eventually("the import has ended", || {
            code = self
                .child
                .try_wait()
                .expect("it is ours")
                .map(|status| status.code());
            code.is_some()
        });
        code.flatten()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It is gone already, or now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All bytes of a stream from an offset on, as a client gets them.
pub(super) fn contents(encke: &Encke, stream: &str, offset: &str) -> Vec<u8> {
    let page = encke.ask(
        "GET",
        &format!("{}?offset={offset}", path(stream)),
        &[],
        b"",
    );
    assert_eq!(
        (page.status, page.field("Stream-Up-To-Date")),
        (200, Some("true")),
        "{page:?}"
    );
    page.body
}

/// Whether both have the same messages, or the same bytes.
pub(super) fn same(one: &Encke, other: &Encke, stream: &str) -> bool {
    let (one, other) = (contents(one, stream, "-1"), contents(other, stream, "-1"));
    let messages = |body: &[u8]| serde_json::from_slice::<Vec<Box<RawValue>>>(body).ok();
    match (messages(&one), messages(&other)) {
        (Some(one), Some(other)) => one
            .iter()
            .map(|one| one.get())
            .eq(other.iter().map(|one| one.get())),
        _ => one == other,
    }
}

pub(super) fn append(encke: &Encke, stream: &str, content_type: &str, body: &[u8]) -> String {
    let answer = encke.ask("POST", &path(stream), &[content_type], body);
    assert_eq!(answer.status, 204, "{answer:?}");
    answer
        .field("Stream-Next-Offset")
        .expect("a position")
        .to_owned()
}

pub(super) fn streams_of(encke: &Encke) -> String {
    format!("http://{}/v1/stream", encke.address)
}
