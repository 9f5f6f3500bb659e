//! A reader of standard error that hangs: the pipe is full, and the server serves and stops nevertheless.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use tempfile::TempDir;

use crate::rig::{Encke, data_dir, eventually, request, serve};

/// A pipe that a server has as its standard error, and that no program reads.
struct HungPipe {
    directory: TempDir,
    /// Both ends, without waiting.
    pipe: File,
}

impl HungPipe {
    fn new() -> HungPipe {
        let directory = data_dir();
        let path = directory.path().join("stderr");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("a pipe can be made");
        let pipe = rustix::fs::open(&path, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty());
        HungPipe {
            directory,
            pipe: pipe.expect("it is ours").into(),
        }
    }

    /// The command with this pipe as its standard error.
    fn of(&self, of: &Command) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$0\" \"$@\" 2> \"$STDERR\""])
            .arg(of.get_program())
            .args(of.get_args())
            .env("STDERR", self.path());
        for (name, value) in of.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("stderr")
    }

    /// Fills it.
    fn fill(&mut self) {
        loop {
            match self.pipe.write(b"#") {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads until some text was written, and returns all of it.
    fn read_until(&mut self, text: &str) -> String {
        let mut read = Vec::new();
        eventually("the log is written", || {
            let mut part = [0; 64 << 10];
            match self.pipe.read(&mut part) {
                Ok(count) => read.extend_from_slice(&part[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            String::from_utf8_lossy(&read).contains(text)
        });
        String::from_utf8(read).expect("a log is text")
    }
}

fn serving(data: &Path, flags: &[&str], level: &str) -> Command {
    let mut command = serve(data, flags);
    command.env("ENCKE_LOG", level);
    command
}

#[test]
fn lines_of_requests_are_dropped_and_counted() {
    let (data, mut stderr) = (data_dir(), HungPipe::new());
    let encke = Encke::start_by(&mut stderr.of(&serving(data.path(), &[], "debug")));
    stderr.fill();
    encke.create("s");
    let mut connection = encke.connect();
    let long = request("GET", &format!("/{}", "x".repeat(2_000)), &[], b"");
    eventually("lines are dropped", || {
        connection.send(&long.repeat(100));
        for _ in 0..100 {
            assert_eq!(connection.answer().status, 404);
        }
        encke.metric("encke_program_log_dropped_total", "queue_full") > 0.0
    });
    // The queue is bounded.
    assert!(encke.metric("encke_mailbox_depth", "program-log") <= 2.0 * 16_384.0);
    // The log continues when the pipe is read again.
    let log = stderr.read_until("lines of this log were dropped");
    assert!(log.contains("path=/xxx"), "{log}");
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    stderr.fill();
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn refused_strangers_fill_it() {
    let (data, mut stderr) = (data_dir(), HungPipe::new());
    let config = data_dir();
    let config = config.path().join("encke.toml");
    let text = "[access]\n[[access.issuers]]\nissuer = 'https://a.example'\naudience = 'encke'\nalgorithms = ['HS256']\n\
                secret = '0123456789abcdef0123456789abcdef'\n";
    std::fs::write(&config, text).expect("it can be written");
    let config = config.to_str().expect("the path is text");
    let flags = ["--config", config];
    let encke = Encke::start_by(&mut stderr.of(&serving(data.path(), &flags, "info")));
    // Each is refused with a line of the audit log, of 2 KiB.
    let path = format!("/v1/stream/{}", "x".repeat(1_000));
    for client in 2..=200 {
        let refused = encke.connect_from(client).ask("GET", &path, &[], b"");
        assert_eq!(refused.status, 401, "{refused:?}");
    }
    stderr.fill();
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_server_starts_with_it_and_a_second_signal_stops_at_once() {
    use rustix::process::Signal;
    let (data, mut stderr) = (data_dir(), HungPipe::new());
    stderr.fill();
    let encke = Encke::start_by(&mut stderr.of(&serving(data.path(), &[], "debug")));
    encke.create("s");
    encke.connect().append("s", 1);
    assert_eq!(encke.numbers("s"), [1]);
    encke.signal(Signal::TERM);
    let code = encke.terminate().code;
    assert!(code == Some(0) || code == Some(128 + 15), "{code:?}");
}

#[test]
fn a_failure_ends_the_process() {
    let (data, mut stderr) = (data_dir(), HungPipe::new());
    let encke = Encke::start_in(data.path(), &[]);
    stderr.fill();
    let second = stderr.of(&serving(data.path(), &[], "info"));
    let ended = Encke::try_start_by(&mut { second }).err();
    assert_eq!(ended.expect("the data are in use").code, Some(3));
    drop(encke);
}
