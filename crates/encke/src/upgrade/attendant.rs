//! What is left of a server that was upgraded, where no service manager learns of its successor: the process by whose number the server is
//! known. It passes signals on, and ends with the last successor. In a container that is process 1.

use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGHUP, SIGINT};

use crate::terminal::Terminal;

/// The process that passes signals on to a server.
#[derive(Debug, Default)]
pub(crate) struct Attendant {
    /// The server, by its number; 0 for none.
    server: AtomicI32,
}

impl Attendant {
    /// An attendant of a successor. Successors of that become children of this process.
    pub(crate) fn of(successor: u32) -> Self {
        if let Err(error) = set_child_subreaper(Some(getpid())) {
            tracing::warn!(%error, "the next successor will not be a child of this process, which ends with the present one");
        }
        Attendant {
            server: AtomicI32::new(i32::try_from(successor).unwrap_or_default()),
        }
    }

    /// Passes a signal on. What a terminal sends, the server gets as well.
    pub(crate) fn pass_on(&self, signal: i32, terminal: &Terminal) {
        let is_sent_to_all = terminal.is_there() && matches!(signal, SIGINT | SIGHUP);
        let server = Pid::from_raw(self.server.load(Ordering::SeqCst));
        if let (false, Some(server), Some(signal)) =
            (is_sent_to_all, server, Signal::from_named_raw(signal))
        {
            // It may have ended just now.
            let _ = kill_process(server, signal);
        }
    }

    /// Waits until there is no server any more, and returns how the last one has ended.
    pub(crate) fn attend(&self) -> ExitCode {
        let mut ended = ExitCode::SUCCESS;
        // It fails when no child is left.
        while let Ok(Some((pid, status))) = wait(WaitOptions::empty()) {
            if pid.as_raw_nonzero().get() != self.server.load(Ordering::SeqCst) {
                continue;
            }
            let code = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => code,
                (None, Some(signal)) => 128 + signal,
                // It was stopped or goes on.
                (None, None) => continue,
            };
            ended = ExitCode::from(u8::try_from(code).unwrap_or(1));
            self.server.store(child().unwrap_or(0), Ordering::SeqCst);
        }
        ended
    }
}

/// A child of this process. One that is adopted appears when the process before it has ended, which may take a moment.
fn child() -> Option<i32> {
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
            if fields.next() != Some("Z") && fields.next() == Some(own.as_str()) {
                return Some(number);
            }
        }
        std::thread::sleep(ADOPTION_PAUSE);
    }
    None
}

const ADOPTION_LOOKS: usize = 3;
const ADOPTION_PAUSE: Duration = Duration::from_millis(5);
