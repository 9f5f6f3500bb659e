//! What is left of a server that was upgraded, where no service manager learns of its successor: the process by whose number the server is
//! known. It passes signals on, and ends with the last successor. In a container that is process 1.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::successor_args::SUCCESSOR;

/// The process that passes signals on to a server.
#[derive(Debug)]
pub(crate) struct Attendant(Mutex<Attended>);

/// The present server.
#[derive(Debug, Default)]
struct Attended {
    /// Its number; 0 for none.
    server: i32,
    /// It was asked to end by these. If it has ended because its successor serves, they are for that one.
    ends: Vec<i32>,
}

impl Attendant {
    /// An attendant of a successor. Successors of that become children of this process.
    pub(crate) fn of(successor: u32) -> Self {
        if let Err(error) = set_child_subreaper(Some(getpid())) {
            tracing::warn!(%error, "the next successor will not be a child of this process, which ends with the present one");
        }
        Attendant(Mutex::new(Attended {
            server: i32::try_from(successor).unwrap_or_default(),
            ends: Vec::new(),
        }))
    }

    /// Passes a signal on.
    pub(crate) fn pass_on(&self, signal: i32) {
        let mut attended = self.0.lock();
        attended.send(signal);
        if matches!(signal, SIGINT | SIGTERM) {
            attended.ends.push(signal);
        }
    }

    /// Waits until there is no server any more, and returns how the last one has ended.
    pub(crate) fn attend(&self) -> ExitCode {
        let mut ended = ExitCode::SUCCESS;
        // It fails when no child is left.
        while let Ok(Some((pid, status))) = wait(WaitOptions::empty()) {
            let mut attended = self.0.lock();
            if pid.as_raw_nonzero().get() != attended.server {
                continue;
            }
            let code = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => code,
                (None, Some(signal)) => 128 + signal,
                // It was stopped or goes on.
                (None, None) => continue,
            };
            ended = ExitCode::from(u8::try_from(code).unwrap_or(1));
            match successor() {
                Some(next) => attended.server = next,
                None => break,
            }
            for signal in attended.ends.clone() {
                attended.send(signal);
            }
        }
        ended
    }
}

impl Attended {
    fn send(&self, signal: i32) {
        if let (Some(server), Some(signal)) =
            (Pid::from_raw(self.server), Signal::from_named_raw(signal))
        {
            // It may have ended just now.
            let _ = kill_process(server, signal);
        }
    }
}

/// A child of this process that was started as a successor. One that is adopted appears when the process before it has ended, which may take
/// a moment.
fn successor() -> Option<i32> {
    let own = getpid().as_raw_nonzero().get().to_string();
    for _ in 0..ADOPTION_LOOKS {
        for process in std::fs::read_dir("/proc").ok()?.flatten() {
            let name = process.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            // The name of the program, in parentheses, may contain anything.
            let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
            let mut fields = behind.split_ascii_whitespace();
            let is_ours = fields.next() != Some("Z") && fields.next() == Some(own.as_str());
            if is_ours && is_successor(&process.path()) {
                return Some(number);
            }
        }
        std::thread::sleep(ADOPTION_PAUSE);
    }
    None
}

fn is_successor(process: &Path) -> bool {
    let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let mut arguments = line.split(|byte| *byte == 0);
    arguments.any(|argument| argument == SUCCESSOR.as_bytes())
}

const ADOPTION_LOOKS: usize = 3;
const ADOPTION_PAUSE: Duration = Duration::from_millis(5);
