//! `encke serve` as a process of its own, on a port of the system's choosing.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::load::{FloodArgs, FloodReport, flood};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process};

use crate::client::HttpClient;
use crate::experiment::lab::Lab;
use crate::load::scrape::Scrape;
use crate::{BenchError, proc};

/// When an append is acknowledged, as `--ack` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// After fdatasync.
    Synced,
    /// When its order is decided.
    Accepted,
}

/// How the server's disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Disk {
    /// As it is.
    Own,
    /// None: the log is in memory, where fdatasync has nothing to do.
    Memory,
    /// Every fdatasync takes 15 ms longer, as on the disk of the report.
    Slow,
    /// None, but with the tracer that makes a disk slow: what that alone costs the server's system calls.
    MemoryTraced,
}

impl Disk {
    /// Whether the log is in memory.
    pub(crate) fn is_memory(self) -> bool {
        matches!(self, Self::Memory | Self::MemoryTraced)
    }

    /// Whether the server runs under the tracer.
    pub(crate) fn is_traced(self) -> bool {
        matches!(self, Self::Slow | Self::MemoryTraced)
    }
}

/// A server that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    address: SocketAddr,
    /// The process that was started: the server, or what makes its disk slow.
    child: Child,
    /// The server itself.
    pid: u32,
}

impl Level {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Synced => "synced",
            Self::Accepted => "accepted",
        }
    }
}

impl Serving {
    /// Starts the program with its data in `data` and `more` options, and waits until it listens.
    pub(crate) fn start(
        lab: &Lab<'_>,
        data: &Path,
        level: Level,
        disk: Disk,
        more: &[&str],
    ) -> Result<Self, BenchError> {
        let mut command = match disk {
            Disk::Own | Disk::Memory => Command::new(&lab.program),
            Disk::MemoryTraced => slowed(&lab.program, 0)?,
            Disk::Slow => slowed(&lab.program, SLOWER_US)?,
        };
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"])
            .args(["--ack", level.name()])
            .args(more)
            .arg("--data")
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let child = command
            .spawn()
            .map_err(BenchError::file("start", &lab.program))?;
        let mut serving = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            pid: child.id(),
            child,
        };
        serving.address = serving.read_address()?;
        if disk.is_traced() {
            serving.pid = only_child_of(serving.child.id())?;
        }
        Ok(serving)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Its resident anonymous memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> Result<u64, BenchError> {
        proc::rss_anon_bytes(self.pid)
    }

    /// Floods it; where it is and how fast subscribers are opened need not be said.
    pub(crate) fn flood(&self, lab: &Lab<'_>, args: FloodArgs) -> Result<FloodReport, BenchError> {
        let args = FloodArgs {
            url: streams_url(self.address),
            rate: (f64::from(args.subscribers) / OPENING_SECONDS_MAX).max(OPENED_PER_SECOND),
            server_pid: Some(self.pid),
            ..args
        };
        let report = flood(&args, lab.stop())?;
        lab.check()?;
        Ok(report)
    }

    /// Ends it in good order.
    pub(crate) fn stop(mut self) -> Result<(), BenchError> {
        self.terminate();
        let begun = Instant::now();
        while begun.elapsed() < STOP_WAIT {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(BenchError::Server(format!("did not stop well: {status}")));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(BenchError::system("wait for the server")(error)),
            }
        }
        Err(BenchError::Server(format!(
            "did not stop within {} s",
            STOP_WAIT.as_secs()
        )))
    }

    fn read_address(&mut self) -> Result<SocketAddr, BenchError> {
        let out = self.child.stdout.take();
        let mut out = BufReader::new(out.expect("it was asked to be a pipe"));
        let mut line = String::new();
        out.read_line(&mut line)
            .map_err(BenchError::system("read what the server says"))?;
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| {
                BenchError::Server(format!("did not come up; it said {:?}", line.trim()))
            })?;
        // Whatever else it says is read, so that it never waits for us.
        std::thread::spawn(move || {
            let _ = out.read_to_end(&mut Vec::new());
        });
        Ok(address)
    }

    fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // If it is gone already, that is what was wanted.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // The tracer ends with the server.
        let begun = Instant::now();
        while begun.elapsed() < KILL_WAIT && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many connections a server, or the flood against it, may have open here.
pub(crate) fn connections_max() -> u64 {
    files_max().saturating_sub(FILES_RESERVED)
}

/// How many files a process may have open here.
pub(crate) fn files_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Where a server's streams live.
pub(crate) fn streams_url(server: SocketAddr) -> String {
    format!("http://{server}/v1/stream")
}

/// The server's figures now.
pub(crate) fn scrape(server: SocketAddr) -> Result<Scrape, BenchError> {
    let text = HttpClient::connect(server)?.succeed("GET", "/metrics", b"")?;
    Ok(Scrape::parse(&String::from_utf8_lossy(&text)))
}

/// Why no disk can be made slow here; `None` if it can.
pub(crate) fn no_slow_disk() -> Option<String> {
    let Some(strace) = strace() else {
        return Some(
            "strace, which makes every fdatasync take 15 ms longer, is not installed here".into(),
        );
    };
    let tried = tracing(&strace, SLOWER_US)
        .arg("/bin/true")
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "strace can't trace here: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("strace does not start here: {error}")),
    }
}

/// The program under a tracer that holds every fdatasync back. Only that call is stopped: all others run at full speed.
fn slowed(program: &Path, slower_us: u32) -> Result<Command, BenchError> {
    let strace = strace().ok_or(BenchError::Option("strace is not installed".into()))?;
    let mut command = tracing(&strace, slower_us);
    command.arg(program);
    Ok(command)
}

fn tracing(strace: &Path, slower_us: u32) -> Command {
    let mut command = Command::new(strace);
    command
        .args(["-f", "--seccomp-bpf", "-qqq", "-o", "/dev/null"])
        .args(["-e", "trace=fdatasync", "-e"])
        .arg(format!("inject=fdatasync:delay_exit={slower_us}"));
    command
}

fn strace() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("strace"))
        .find(|file| file.is_file())
}

fn only_child_of(pid: u32) -> Result<u32, BenchError> {
    let child = proc::children(pid)?.first().copied();
    child.ok_or_else(|| BenchError::Server("is gone".into()))
}

/// How much longer an fdatasync takes on a slow disk, in microseconds: the report's took 15 ms.
pub(crate) const SLOWER_US: u32 = 15_000;

/// Files that are neither the server's connections nor the flood's.
const FILES_RESERVED: u64 = 1_000;

/// How fast connections are opened at least, and how long it may take.
const OPENED_PER_SECOND: f64 = 5_000.0;
const OPENING_SECONDS_MAX: f64 = 100.0;

/// How long a stop may take: the server itself waits 5 s for what is under way.
const STOP_WAIT: Duration = Duration::from_secs(20);

/// How long a killed server may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(2);
