//! Where workers live: a thread of this process while its descriptors suffice, else processes.

use super::lines::LineReader;
use super::pipe::{Command, Counters, Final, Report, Work};
use super::worker;
use crate::BenchError;
use rustix::fd::{AsFd as _, OwnedFd};
use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The environment variable that makes a program a worker.
const ROLE: &str = "ENCKE_FLOOD_ROLE";

/// What a process of the run is for, other than the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It holds subscribers.
    Worker,
    /// It reads what the bare send loop sends.
    Sink,
}

impl Role {
    const ALL: [Self; 2] = [Self::Worker, Self::Sink];

    fn name(self) -> &'static str {
        match self {
            Self::Worker => "flood-worker",
            Self::Sink => "flood-sink",
        }
    }
}

/// Does a worker's work and ends the process, if the process was started to do that; else returns
/// at once.
///
/// A program that calls [`flood`](crate::load::flood) calls this first in `main`, before it looks at its
/// arguments: runs that need more descriptors than one process may have start the same program again.
pub fn become_worker_if_asked() {
    let Ok(name) = std::env::var(ROLE) else {
        return;
    };
    let Some(role) = Role::ALL.into_iter().find(|role| role.name() == name) else {
        return;
    };
    // A Ctrl-C reaches all processes of the terminal. The coordinator ends the run in good order,
    // so its workers have to survive the signal: this flag is set, and nobody looks at it.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default());
    if let Ok(input) = std::io::stdin().as_fd().try_clone_to_owned() {
        let output = std::io::stdout();
        match role {
            Role::Worker => worker::run(input, output),
            Role::Sink => super::floor::sink(input, output),
        }
    }
    std::process::exit(0);
}

/// Starts this very program again, in a role of its own, with pipes to and from it.
pub(crate) fn start_process(role: Role) -> Result<(Child, File, LineReader), BenchError> {
    // Not `current_exe`: that names a file which may have been replaced since.
    let mut child = std::process::Command::new("/proc/self/exe")
        .arg(role.name())
        .env(ROLE, role.name())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(BenchError::system("start a worker process"))?;
    let to = child.stdin.take().map(OwnedFd::from).map(File::from);
    let from = child.stdout.take().map(OwnedFd::from).map(LineReader::new);
    let both = to.zip(from).expect("both ends were asked to be pipes");
    Ok((child, both.0, both.1))
}

/// A running worker.
#[derive(Debug)]
pub(crate) struct Worker {
    number: usize,
    /// Closed to make the worker end.
    to: Option<File>,
    status: Arc<Mutex<Status>>,
    threads: Vec<JoinHandle<()>>,
    child: Option<Child>,
}

/// What is known of a worker.
#[derive(Debug, Default)]
struct Status {
    counters: Counters,
    last: Option<Box<Final>>,
    /// Whether its last report has come: from then on it may end.
    reported: bool,
    /// Why it has ended, once it has, without its last report.
    ended: Option<String>,
}

impl Worker {
    /// Starts a worker as a thread or as a process.
    pub(crate) fn start(number: usize, work: &Work, process: bool) -> Result<Self, BenchError> {
        // Until it has spoken, a worker counts as one that has everything still before it.
        let counters = Counters {
            pending: u64::from(work.share()),
            ..Counters::default()
        };
        let status = Arc::new(Mutex::new(Status {
            counters,
            ..Status::default()
        }));
        let mut threads = Vec::new();
        let (child, to, from) = if process {
            let (child, to, from) = start_process(Role::Worker)?;
            (Some(child), to, from)
        } else {
            let pipe = || std::io::pipe().map_err(BenchError::system("make a pipe"));
            let ((input, to), (from, output)) = (pipe()?, pipe()?);
            threads.push(std::thread::spawn(move || {
                worker::run(input.into(), output);
            }));
            (
                None,
                File::from(OwnedFd::from(to)),
                LineReader::new(from.into()),
            )
        };
        let listener = Arc::clone(&status);
        threads.push(std::thread::spawn(move || listen(from, &listener)));
        let mut worker = Self {
            number,
            to: Some(to),
            status,
            threads,
            child,
        };
        worker.write(work)?;
        Ok(worker)
    }

    /// Tells the worker something.
    pub(crate) fn tell(&mut self, command: &Command) -> Result<(), BenchError> {
        self.write(command)
    }

    /// How the worker stood lately; an error when it has ended before its time.
    pub(crate) fn counters(&self) -> Result<Counters, BenchError> {
        let status = self.status();
        match &status.ended {
            Some(reason) if !status.reported => Err(self.error(reason)),
            _ => Ok(status.counters.clone()),
        }
    }

    /// The worker's last report, once it is there.
    pub(crate) fn take_final(&self) -> Option<Box<Final>> {
        self.status().last.take()
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        // A listener that panicked has left nothing half-done that matters here.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&mut self, value: &impl serde::Serialize) -> Result<(), BenchError> {
        let mut line = serde_json::to_vec(value).map_err(|error| self.error(&error.to_string()))?;
        line.push(b'\n');
        let Some(to) = &mut self.to else {
            return Err(self.error("it has been ended"));
        };
        to.write_all(&line).map_err(|error| {
            let reason = self.status().ended.clone();
            self.error(&reason.unwrap_or_else(|| error.to_string()))
        })
    }

    fn error(&self, reason: &str) -> BenchError {
        BenchError::Worker {
            worker: self.number,
            reason: reason.to_owned(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input ends the worker, and the end of its output the listener.
        self.to = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

fn listen(mut from: LineReader, status: &Mutex<Status>) {
    let mut ended = "it has closed its output".to_owned();
    while let Ok(Some(line)) = from.wait_line() {
        let report = serde_json::from_slice(&line);
        let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
        match report {
            Ok(Report::Progress(counters)) => status.counters = counters,
            Ok(Report::Final(last)) => {
                status.counters = last.counters.clone();
                status.last = Some(last);
                status.reported = true;
            }
            Ok(Report::Failed(reason)) => {
                status.ended = Some(reason);
                return;
            }
            Err(_) => ended = format!("it said {:?}", String::from_utf8_lossy(&line)),
        }
    }
    let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
    status.ended.get_or_insert(ended);
}
