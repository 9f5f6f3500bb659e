//! What is left of a server that was upgraded, where no service manager learns of its successor: a small process with the number by which
//! the server is known, which passes signals on and ends with the last successor. In a container that is process 1.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::failure::Failed;
use crate::terminal::Terminal;

/// The arguments of the hidden command `encke attend`.
#[derive(Args, Debug)]
pub(crate) struct AttendArgs {
    /// The process that serves
    server: u32,
}

/// Makes this process the attendant of a server that it has started.
///
/// # Errors
/// The program can't be started; this process goes on.
pub(crate) fn become_attendant(program: &Path, server: u32) -> std::io::Result<Infallible> {
    let mut command = Command::new(program);
    Err(command.arg("attend").arg(server.to_string()).exec())
}

/// Passes signals on until the last server ends, and ends as it has.
pub(crate) fn attend(args: &AttendArgs) -> Result<ExitCode, Failed> {
    // The successors of the server are then children of this process.
    set_child_subreaper(Some(rustix::process::getpid()))
        .context("this system has no processes that adopt others")?;
    let terminal = Terminal::of_this_process();
    let handled = [SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR2, SIGCHLD];
    let mut signals = Signals::new(handled).context("signals can't be caught")?;
    let mut server = Pid::from_raw(args.server as i32);
    let mut ended = ExitCode::SUCCESS;
    loop {
        while let Some((pid, code)) = reap() {
            if Some(pid) == server {
                server = None;
                ended = code;
            }
        }
        if server.is_none() {
            server = child();
        }
        let Some(serving) = server else {
            return Ok(ended);
        };
        for signal in signals.wait() {
            let passed_on = match signal {
                // What a terminal sends, the server gets as well.
                SIGINT | SIGQUIT | SIGHUP if terminal.is_there() => None,
                SIGCHLD => None,
                signal => Signal::from_named_raw(signal),
            };
            if let Some(signal) = passed_on {
                // It may have ended just now, which is noticed next.
                let _ = kill_process(serving, signal);
            }
        }
    }
}

/// A child that has ended, and how.
fn reap() -> Option<(Pid, ExitCode)> {
    let (pid, status) = wait(WaitOptions::NOHANG).ok()??;
    let code = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(1),
        (None, None) => return reap(),
    };
    Some((pid, ExitCode::from(code)))
}

/// A child of this process. One that was adopted appears when the process before it has ended, which may take a moment.
fn child() -> Option<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get().to_string();
    for _ in 0..ADOPTION_LOOKS {
        let processes = std::fs::read_dir("/proc").ok()?;
        for process in processes.flatten() {
            let Some(number) = process
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            // The name of the program, in parentheses, may contain anything.
            let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
            let mut fields = behind.split_ascii_whitespace();
            if fields.next() != Some("Z") && fields.next() == Some(own.as_str()) {
                return Pid::from_raw(number);
            }
        }
        std::thread::sleep(ADOPTION_PAUSE);
    }
    None
}

const ADOPTION_LOOKS: usize = 3;
const ADOPTION_PAUSE: Duration = Duration::from_millis(5);
