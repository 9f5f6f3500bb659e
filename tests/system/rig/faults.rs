//! Faults and delays of system calls, injected by strace.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Encke, can_use, data_dir, eventually, serve, without_settings};

/// A fault of the calls on files of a log. It begins when the test arms it, so that nothing the set-up does, however
/// often, can meet it.
///
/// strace compares the path of each call's file with a path. The log's directory gets that path when the fault is armed.
pub(crate) struct Fault {
    /// The directory of the log.
    log: PathBuf,
    /// The path of that directory from `arm` on; a link leads there from the path before.
    armed: PathBuf,
    inject: String,
    /// The files, by their names in the directory.
    files: Vec<String>,
}

impl Fault {
    /// A fault of the first segment, as strace's `inject` takes it. `aside` is a directory of the test on the same disk; strace counts only calls
    /// after `arm`, and it counts those of each thread apart.
    pub(crate) fn new(log: &Path, aside: &Path, inject: &str) -> Fault {
        let aside = aside.canonicalize().expect("the test made it");
        Fault {
            log: log.to_owned(),
            armed: aside.join("armed"),
            inject: format!("inject={inject}"),
            files: vec![first_segment_name()],
        }
    }

    /// The fault of these files instead.
    pub(crate) fn on(mut self, files: &[&str]) -> Fault {
        self.files = files.iter().map(|file| (*file).to_owned()).collect();
        self
    }

    /// The command of a server that meets the fault once it is armed.
    pub(crate) fn serve(&self, data: &Path, flags: &[&str]) -> Command {
        let mut how = ["-o", "/dev/null", "-e", &self.inject]
            .map(OsString::from)
            .to_vec();
        for file in &self.files {
            how.push(OsString::from("-P"));
            how.push(self.armed.join(file).into_os_string());
        }
        traced(how, &serve(data, flags))
    }

    /// From now on the calls fail.
    pub(crate) fn arm(&self) {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        // The link takes the directory's place in one step: the server may open files there at any time.
        std::os::unix::fs::symlink(&self.armed, &self.armed).expect("the path is free");
        renameat_with(CWD, &self.log, CWD, &self.armed, RenameFlags::EXCHANGE)
            .expect("both are on one disk");
    }
}

/// Waits until the thread that commits is within `fdatasync`. It stays there for as long as a fault delays the call. Other threads,
/// such as the one that states the end of the log, have syncs of their own.
pub(crate) fn wait_for_sync(encke: &Encke) {
    const FDATASYNC: &str = if cfg!(target_arch = "x86_64") {
        "75"
    } else {
        "83"
    };
    // To make a call fail, strace replaces its number.
    const FAILING: &str = "-1";
    let tasks = format!("/proc/{}/task", encke.pid());
    let syncs = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.ok()?.path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let call = std::fs::read_to_string(task.join("syscall")).ok()?;
        Some(
            name.starts_with("sequencer")
                && [FDATASYNC, FAILING].contains(&call.split(' ').next()?),
        )
    };
    eventually("a sync has begun", || {
        let tasks = std::fs::read_dir(&tasks).expect("it runs");
        tasks.filter_map(syncs).any(|syncs| syncs)
    });
}

/// A thread of a server that strace slows, until this is dropped.
pub(crate) struct Slowed {
    strace: Child,
    /// The thread, in `/proc`.
    task: PathBuf,
}

impl Slowed {
    /// Slows the thread with that name, as strace's `inject` says.
    pub(crate) fn new(encke: &Encke, thread: &str, inject: &str) -> Slowed {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", encke.pid())).expect("it runs");
        let named = |task: &PathBuf| {
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            name.trim_end() == thread
        };
        let mut tasks = tasks.map(|task| task.expect("it can be listed").path());
        let task = tasks.find(named).expect("a thread");
        let strace = Command::new("strace")
            .args(["-qqq", "-o", "/dev/null", "-p"])
            .arg(task.file_name().expect("its number"))
            .args(["-e", &format!("inject={inject}")])
            .stdin(Stdio::null())
            .spawn();
        let slowed = Slowed {
            strace: strace.expect("strace works"),
            task,
        };
        eventually("strace is attached", || {
            // A thread that the call has ended is gone.
            let Ok(status) = std::fs::read_to_string(slowed.task.join("status")) else {
                return true;
            };
            let tracer = status
                .lines()
                .find_map(|line| line.strip_prefix("TracerPid:"));
            tracer.is_some_and(|tracer| tracer.trim() != "0")
        });
        slowed
    }

    /// Whether the thread is in one of the calls with these numbers.
    pub(crate) fn is_within(&self, calls: &[&str]) -> bool {
        let call = std::fs::read_to_string(self.task.join("syscall")).unwrap_or_default();
        call.split(' ')
            .next()
            .is_some_and(|call| calls.contains(&call))
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// The `nth` call of this name by one of the threads; the first is 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) name: String,
    nth: usize,
}

impl Call {
    /// The calls with which a command changes a directory or its content, in their order. `run` runs the command under
    /// strace to its end.
    pub(crate) fn observe<T>(command: &Command, run: impl FnOnce(Command) -> T) -> (Vec<Call>, T) {
        let aside = data_dir();
        let trace = aside.path().join("trace");
        let output = trace.to_str().expect("it is text");
        let ended = run(traced(
            ["-o", output, "-e", &format!("trace={CHANGES}")],
            command,
        ));
        let text = std::fs::read_to_string(&trace).expect("strace writes it");
        (calls(&text), ended)
    }

    /// The command, killed when one of its threads makes this call.
    pub(crate) fn kills(&self, command: &Command) -> Command {
        self.injects("signal=KILL", command)
    }

    /// The command, whose call fails because the disk is full.
    pub(crate) fn finds_no_room(&self, command: &Command) -> Command {
        self.injects("error=ENOSPC", command)
    }

    fn injects(&self, fault: &str, command: &Command) -> Command {
        let inject = format!("inject={}:{fault}:when={}", self.name, self.nth);
        traced(["-o", "/dev/null", "-e", &inject], command)
    }
}

/// The calls that a trace lists, each with its place among those of its thread.
fn calls(trace: &str) -> Vec<Call> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some((name, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            continue;
        }
        let nth = counts.entry((thread, name)).or_default();
        *nth += 1;
        calls.push(Call {
            name: name.to_owned(),
            nth: *nth,
        });
    }
    calls
}

/// The path of a log's first segment.
pub(crate) fn first_segment(log: &Path) -> PathBuf {
    log.join(first_segment_name())
}

fn first_segment_name() -> String {
    format!("{:020}.segment", 1)
}

/// The command under strace. The server is the process that is started, and strace a bystander.
pub(crate) fn traced(how: impl IntoIterator<Item: AsRef<OsStr>>, serve: &Command) -> Command {
    let mut command = Command::new("strace");
    command
        .args(["-D", "-f", "-qqq"])
        .args(how)
        .arg(serve.get_program())
        .args(serve.get_args());
    without_settings(&mut command);
    command.env("ENCKE_LOG", "error");
    command
}

pub(crate) fn strace_works() -> bool {
    can_use("strace", || {
        Command::new("strace")
            .args(["-D", "-f", "-qqq", "-o", "/dev/null", "true"])
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// The calls that change a directory or what is in it.
const CHANGES: &str = "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,link,symlink,fsync,fdatasync,pwrite64,write,\
    ftruncate,fallocate";
