//! The real binary as a process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{
    Connection, PATIENCE, Response, Subscriber, eventually, first_segment, freeze, overdue,
};

/// A server that runs; killed when dropped.
pub(crate) struct Encke {
    child: Child,
    pub(crate) address: SocketAddr,
    stderr: PathBuf,
    // Kept open, because a server may act otherwise when its output is closed.
    stdout: Option<BufReader<ChildStdout>>,
    _stderr_dir: TempDir,
    _data: Option<TempDir>,
}

/// How a command that was to end by itself ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; nothing if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// How a server ended that was asked to.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) code: Option<i32>,
    /// All that it logged.
    pub(crate) log: String,
}

/// An empty directory for a server's data.
pub(crate) fn data_dir() -> TempDir {
    overdue::bound();
    TempDir::with_prefix("encke-system-").expect("the temporary directory can be written")
}

/// The binary with these arguments, and no setting from the environment. The proxies of the environment do not exist: none may be used.
pub(crate) fn command(arguments: &[&str]) -> Command {
    overdue::bound();
    let mut command = Command::new(env!("CARGO_BIN_EXE_encke"));
    command.args(arguments);
    without_settings(&mut command);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:1");
        command.env(name.to_lowercase(), "http://127.0.0.1:1");
    }
    command
}

impl Ended {
    /// Runs a command to its end, and kills it when that does not come.
    pub(crate) fn of(command: &mut Command) -> Ended {
        let output = tempfile::tempdir().expect("the temporary directory can be written");
        let path = |name: &str| output.path().join(name);
        let file = |name: &str| File::create(path(name)).expect("a file can be made");
        // What a command that is killed leaves behind.
        if !command.get_envs().any(|(name, _)| name == "TMPDIR") {
            command.env("TMPDIR", output.path());
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .expect("the command starts");
        let status = wait(&mut child);
        let read = |name: &str| std::fs::read_to_string(path(name)).expect("output is text");
        Ended {
            code: status.code(),
            stdout: read("stdout"),
            stderr: read("stderr"),
        }
    }
}

impl Encke {
    /// Starts a server with data of its own.
    pub(crate) fn start(flags: &[&str]) -> Encke {
        let data = data_dir();
        let mut encke = Encke::start_in(data.path(), flags);
        encke._data = Some(data);
        encke
    }

    /// Starts a server on that data.
    pub(crate) fn start_in(data: &Path, flags: &[&str]) -> Encke {
        Encke::start_by(&mut serve(data, flags))
    }

    /// Starts a server by a command that becomes one.
    pub(crate) fn start_by(command: &mut Command) -> Encke {
        Encke::try_start_by(command)
            .unwrap_or_else(|ended| panic!("the server did not start: {ended:?}"))
    }

    /// Starts a server, or returns how the attempt ended.
    pub(crate) fn try_start_by(command: &mut Command) -> Result<Encke, Ended> {
        let stderr_dir = tempfile::tempdir().expect("the temporary directory can be written");
        let stderr = stderr_dir.path().join("stderr");
        overdue::bound_with(&stderr);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&stderr).expect("a file can be made"))
            .spawn()
            .expect("the server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut line = String::new();
        if says_something(stdout.get_ref()) {
            stdout.read_line(&mut line).expect("it prints text");
        } else {
            child.kill().expect("it is ours");
            wait(&mut child);
            let log = std::fs::read_to_string(&stderr).unwrap_or_default();
            panic!("the server neither started nor ended:\n{log}");
        }
        let address = line.trim_end().strip_prefix("listening on ");
        let plain = address.and_then(|url| url.strip_prefix("http://"));
        let secure = address.and_then(|url| url.strip_prefix("https://"));
        let Some(address) = plain.or(secure) else {
            let status = wait(&mut child);
            return Err(Ended {
                code: status.code(),
                stdout: line,
                stderr: std::fs::read_to_string(&stderr).unwrap_or_default(),
            });
        };
        Ok(Encke {
            address: address.parse().expect("an address and a port"),
            child,
            stderr,
            stdout: Some(stdout),
            _stderr_dir: stderr_dir,
            _data: None,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    /// A connection from 127.0.0.`client`, which is a client of its own.
    pub(crate) fn connect_from(&self, client: u8) -> Connection {
        Connection::open_from(client, self.address)
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, target: &str, fields: &[&str], body: &[u8]) -> Response {
        self.connect().ask(method, target, fields, body)
    }

    /// Makes a stream of JSON messages.
    pub(crate) fn create(&self, stream: &str) {
        let made = self.ask("PUT", &path(stream), &[JSON], b"");
        assert_eq!(made.status, 201, "{made:?}");
    }

    /// Subscribes by server-sent events from an offset on.
    pub(crate) fn subscribe(&self, stream: &str, offset: &str) -> Subscriber {
        Subscriber::open(self.address, &path(stream), offset)
    }

    /// The same from the stream's beginning, by a client whose socket is soon full.
    pub(crate) fn subscribe_narrow(&self, stream: &str) -> Subscriber {
        let connection = Connection::open_narrow(self.address);
        let mut subscriber = Subscriber::over(connection, &path(stream), "offset=-1");
        subscriber.accepted();
        subscriber
    }

    /// All that a stream of JSON numbers holds.
    pub(crate) fn numbers(&self, stream: &str) -> Vec<u64> {
        self.messages(stream)
            .iter()
            .map(|message| message.as_u64().expect("a number"))
            .collect()
    }

    /// All that a stream of JSON messages holds.
    pub(crate) fn messages(&self, stream: &str) -> Vec<serde_json::Value> {
        let mut connection = self.connect();
        let mut messages = Vec::new();
        let mut offset = "-1".to_owned();
        loop {
            let target = format!("{}?offset={offset}", path(stream));
            let page = connection.ask("GET", &target, &[], b"");
            assert_eq!(page.status, 200, "{page:?}");
            let part: Vec<serde_json::Value> = serde_json::from_slice(&page.body).expect("JSON");
            messages.extend(part);
            if page.field("Stream-Up-To-Date") == Some("true") {
                return messages;
            }
            page.field("Stream-Next-Offset")
                .expect("a place to go on at")
                .clone_into(&mut offset);
        }
    }

    /// The sum of a metric over all its labels that hold `label`; 0 if it is not there.
    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        let shown = self.ask("GET", "/metrics", &[], b"");
        assert_eq!(shown.status, 200, "{shown:?}");
        let text = String::from_utf8(shown.body).expect("metrics are text");
        text.lines()
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(key, _)| key.split('{').next() == Some(name) && key.contains(label))
            .map(|(_, value)| value.parse::<f64>().expect("a number"))
            .sum()
    }

    /// How many requests or connections were refused for that reason.
    pub(crate) fn refused(&self, reason: &str) -> u64 {
        self.metric("encke_refused_total", &format!("reason=\"{reason}\"")) as u64
    }

    /// Its standard output, behind the line that says where it listens. Once this is dropped, the server can't write to it.
    pub(crate) fn take_stdout(&mut self) -> BufReader<ChildStdout> {
        self.stdout.take().expect("it was not taken before")
    }

    /// What it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Waits until it has logged that text, and returns all that it has logged. A thread of its own writes the log.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        eventually(text, || self.log().contains(text));
        self.log()
    }

    /// Seconds of processor time that it has used.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        // The name may hold spaces; behind it, utime and stime are the 12th and 13th field.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .expect("a name")
            .split(' ')
            .collect();
        let ticks: u64 = fields[12].parse::<u64>().expect("a number")
            + fields[13].parse::<u64>().expect("a number");
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    /// Seconds of processor time that each of its threads has used, by the thread's number and name.
    pub(crate) fn cpu_seconds_of_threads(&self) -> BTreeMap<(String, String), f64> {
        let tasks = format!("/proc/{}/task", self.pid());
        let seconds = |task: std::io::Result<std::fs::DirEntry>| {
            let task = task.ok()?;
            let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
            let (name, rest) = stat.rsplit_once(')')?;
            let name = name.split_once('(')?.1.to_owned();
            let fields: Vec<&str> = rest.split(' ').collect();
            let ticks =
                fields.get(12)?.parse::<u64>().ok()? + fields.get(13)?.parse::<u64>().ok()?;
            let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            Some((
                (task.file_name().to_string_lossy().into_owned(), name),
                seconds,
            ))
        };
        let tasks = std::fs::read_dir(tasks).expect("it runs");
        tasks.filter_map(seconds).collect()
    }

    /// Kills it as a crash would: it gets no chance to do anything.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is ours");
        wait(&mut self.child);
    }

    /// Stops it until [`Signal::CONT`].
    pub(crate) fn freeze(&self) {
        freeze(Pid::from_child(&self.child));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is ours");
    }

    /// Asks it to stop.
    pub(crate) fn terminate(self) -> Stopped {
        self.stop(Signal::TERM)
    }

    /// Asks it to stop by that signal.
    pub(crate) fn stop(mut self, signal: Signal) -> Stopped {
        self.signal(signal);
        let status = wait(&mut self.child);
        let log = self.log();
        assert!(!log.contains("panicked"), "a thread panicked:\n{log}");
        Stopped {
            code: status.code(),
            log,
        }
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(mut self) -> Stopped {
        let status = wait(&mut self.child);
        Stopped {
            code: status.code(),
            log: self.log(),
        }
    }

    /// Waits until a metric has that value.
    pub(crate) fn wait_for_metric(&self, name: &str, value: f64) {
        let mut connection = self.connect();
        eventually(&format!("{name} is {value}"), || {
            let shown = connection.ask("GET", "/metrics", &[], b"");
            let text = String::from_utf8(shown.body).expect("metrics are text");
            text.lines().any(|line| line == format!("{name} {value}"))
        });
    }
}

impl Drop for Encke {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            // It is gone already, or now.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// The command that serves on a free port.
pub(crate) fn serve(data: &Path, flags: &[&str]) -> Command {
    serve_on("127.0.0.1:0", data, flags)
}

/// The command that serves on an address.
pub(crate) fn serve_on(listen: &str, data: &Path, flags: &[&str]) -> Command {
    let mut command = command(&["serve", "--listen", listen, "--tuning", HOSTS, "--data"]);
    command.arg(data).args(flags).env("ENCKE_LOG", "warn");
    command
}

/// The hosts that requests of tests name.
const HOSTS: &str = "hosts=encke,push.example,x,u";

/// The address for operators, which a server prints behind the one for everybody.
pub(crate) fn operators_address(stdout: &mut BufReader<ChildStdout>) -> SocketAddr {
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it prints text");
    line.trim_end()
        .strip_prefix("for operators on http://")
        .and_then(|address| address.parse().ok())
        .unwrap_or_else(|| panic!("no address for operators: {line}"))
}

/// The newest segment of a log.
pub(crate) fn newest_segment(data: &Path) -> PathBuf {
    std::fs::read_dir(data)
        .expect("the directory is there")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "segment")
        })
        .max()
        .expect("a log has a segment")
}

/// Those of the streams that a log made, by what its first segment holds.
pub(crate) fn made_in(log: &Path, names: &[String]) -> BTreeSet<String> {
    let mut written = Vec::new();
    let file = File::open(first_segment(log)).expect("the log has begun");
    let read = file.take(256 << 10).read_to_end(&mut written);
    read.expect("it can be read");
    let is_there = |name: &&String| {
        // The name with its length before, and behind it the length of its type.
        let needle = [&[name.len() as u8], name.as_bytes(), b"\x10"].concat();
        written.windows(needle.len()).any(|at| at == needle)
    };
    names.iter().filter(is_there).cloned().collect()
}

/// Where a stream is found.
pub(crate) fn path(stream: &str) -> String {
    format!("/v1/stream/{stream}")
}

/// Removes all settings from the environment of a command.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ENCKE_") {
            command.env_remove(name);
        }
    }
}

/// Waits until there is output, or its end; whether that came in time.
fn says_something(output: &ChildStdout) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec::try_from(PATIENCE).expect("it is short");
    let mut wanted = [PollFd::new(output, PollFlags::IN)];
    poll(&mut wanted, Some(&patience)).expect("a pipe can be waited for") > 0
}

/// Waits for a process to end, and ends it when it takes too long.
fn wait(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return status;
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the process did not end");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The field that says a body is JSON.
pub(crate) const JSON: &str = "Content-Type: application/json";
