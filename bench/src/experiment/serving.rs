//! `encke serve` as a process of its own, on a port of the system's choosing.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
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
}

/// A server that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    address: SocketAddr,
    child: Child,
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
        let mut command = Command::new(&lab.program);
        if disk == Disk::Slow {
            command.env(PRELOAD, lab.folder().join(SLOW_DISK));
        }
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
            child,
        };
        serving.address = serving.read_address()?;
        Ok(serving)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its resident anonymous memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> Result<u64, BenchError> {
        proc::rss_anon_bytes(self.pid())
    }

    /// Floods it; where it is and how fast subscribers are opened need not be said.
    pub(crate) fn flood(&self, lab: &Lab<'_>, args: FloodArgs) -> Result<FloodReport, BenchError> {
        let args = FloodArgs {
            url: streams_url(self.address),
            rate: (f64::from(args.subscribers) / OPENING_SECONDS_MAX).max(OPENED_PER_SECOND),
            server_pid: Some(self.pid()),
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
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // If it is gone already, that is what was wanted.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
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

/// Builds the library that makes a disk slow. Returns why no disk can be made slow here; `None` if one can.
pub(crate) fn no_slow_disk(lab: &Lab<'_>) -> Option<String> {
    let library = lab.folder().join(SLOW_DISK);
    let source = library.with_extension("c");
    let compiled = std::fs::write(&source, include_str!("slow_disk.c")).and_then(|()| {
        Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&library)
            .arg(format!("-DSLOWER_US={SLOWER_US}"))
            .arg(&source)
            .status()
    });
    if !compiled.is_ok_and(|status| status.success()) {
        return Some("cc, which compiles the library that slows fdatasync, failed".into());
    }
    // The dynamic linker lists what it loads and ends. A program that is linked statically runs without the library.
    let loaded = Command::new(&lab.program)
        .arg("--version")
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env(PRELOAD, &library)
        .output();
    let is_loaded =
        loaded.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(SLOW_DISK));
    (!is_loaded).then(|| "the server's program loads no library".to_owned())
}

/// How much longer an fdatasync takes on a slow disk, in microseconds: the report's took 15 ms.
pub(crate) const SLOWER_US: u32 = 15_000;

/// The library that makes a disk slow, in the lab's folder, and the variable that names the libraries to load.
const SLOW_DISK: &str = "slow_disk.so";
const PRELOAD: &str = "LD_PRELOAD";

/// Files that are neither the server's connections nor the flood's.
const FILES_RESERVED: u64 = 1_000;

/// How fast connections are opened at least, and how long it may take.
const OPENED_PER_SECOND: f64 = 5_000.0;
const OPENING_SECONDS_MAX: f64 = 100.0;

/// How long a stop may take: the server itself waits 5 s for what is under way.
const STOP_WAIT: Duration = Duration::from_secs(20);
