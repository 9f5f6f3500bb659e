//! The process of a successor, and how it is started: as a child, or under a service manager as a child of that.
//!
//! systemd reports the end of its own children only: for any other main process it waits in vain, and kills it at once when the service is
//! to stop. So a process between the server and its successor starts the successor and ends, and the kernel makes the successor a child
//! of the service manager.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::wire::Wire;
use crate::failure::{say, with_causes};

/// Whose child a successor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// This process, or the attendant once this process has ended.
    Server,
    /// The service manager.
    ServiceManager,
}

/// A process that was started, and can be ended by every clone of this.
#[derive(Clone, Debug)]
pub(crate) struct SuccessorProcess {
    number: u32,
    handle: Arc<Handle>,
}

#[derive(Debug)]
enum Handle {
    Child(Mutex<Child>),
    /// The process is a child of another one.
    Adopted(OwnedFd),
}

/// The reply of the process in between.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StarterReply {
    /// The descriptor of the process follows.
    Started {
        number: u32,
    },
    Failed(String),
}

impl SuccessorProcess {
    /// Starts a program whose standard input is the socket.
    pub(super) fn start(
        program: &Path,
        arguments: &[OsString],
        socket: UnixStream,
        parent: Parent,
    ) -> anyhow::Result<Self> {
        let started = match parent {
            Parent::Server => Self::child(program, arguments, socket),
            Parent::ServiceManager => Self::adopted(program, arguments, socket),
        };
        started.with_context(|| format!("{} can't be started", program.display()))
    }

    fn child(program: &Path, arguments: &[OsString], socket: UnixStream) -> anyhow::Result<Self> {
        let child = command(program, OwnedFd::from(socket))
            .args(arguments)
            .spawn()?;
        Ok(SuccessorProcess {
            number: child.id(),
            handle: Arc::new(Handle::Child(Mutex::new(child))),
        })
    }

    fn adopted(program: &Path, arguments: &[OsString], socket: UnixStream) -> anyhow::Result<Self> {
        let (own, given) = UnixStream::pair()?;
        // The program of this process, also when another version has replaced the file.
        let mut starter = command(Path::new(OWN_PROGRAM), OwnedFd::from(given))
            .arg(STARTER)
            .arg(program)
            .args(arguments)
            .spawn()
            .context("the process that starts it can't be started")?;
        let mut wire = Wire::new(own);
        let mut started = || -> anyhow::Result<Self> {
            wire.set_patience(Some(START_MAX))?;
            wire.send_descriptors(&[socket.as_fd()])?;
            match wire.receive()? {
                StarterReply::Started { number } => {
                    let handle = wire.receive_descriptors(1)?.pop();
                    let handle = handle.context("its descriptor is missing")?;
                    Ok(SuccessorProcess {
                        number,
                        handle: Arc::new(Handle::Adopted(handle)),
                    })
                }
                StarterReply::Failed(why) => anyhow::bail!(why),
            }
        };
        let process = started();
        if process.is_err() {
            // It may have ended by itself.
            let _ = starter.kill();
        }
        // Once it has ended, the successor is a child of the service manager.
        let ended = starter.wait();
        let process = process?;
        if let Err(error) = ended {
            process.end();
            return Err(error.into());
        }
        Ok(process)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Kills it, if it has not ended, and waits for its end.
    pub(crate) fn end(&self) {
        match &*self.handle {
            Handle::Child(child) => {
                let mut child = child.lock();
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
            }
            Handle::Adopted(process) => {
                let killed = pidfd_send_signal(process, Signal::KILL);
                if killed.is_err_and(|error| error != Errno::SRCH) {
                    // A sandbox may allow pidfd_open alone.
                    let number = i32::try_from(self.number).ok().and_then(Pid::from_raw);
                    let _ = number.map(|number| kill_process(number, Signal::KILL));
                }
                wait(process);
            }
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&self) {
        match &*self.handle {
            Handle::Child(child) => {
                let _ = child.lock().wait();
            }
            Handle::Adopted(process) => wait(process),
        }
    }
}

fn wait(process: &OwnedFd) {
    let mut wanted = [PollFd::new(process, PollFlags::IN)];
    while let Err(Errno::INTR) = poll(&mut wanted, None) {}
}

/// The process in between: starts the program that its arguments name, says so to the server, and ends.
pub(crate) fn start_for_server() -> ExitCode {
    match start_and_reply() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("encke: {}\n", with_causes(&error)));
            ExitCode::FAILURE
        }
    }
}

fn start_and_reply() -> anyhow::Result<()> {
    let mut wire = Wire::of_standard_input()?;
    let socket = wire.receive_descriptors(1)?.pop();
    let socket = socket.context("the server has sent no socket")?;
    let mut arguments = std::env::args_os().skip(2);
    let program = arguments.next().context("no program is named")?;
    let started = command(Path::new(&program), socket).args(arguments).spawn();
    let started = started.and_then(|mut child| {
        // It is not waited for before, so that the number is that of this process.
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let handle = handle.map_err(|error| {
            let _ = child.kill();
            io::Error::other(format!(
                "pidfd_open of Linux 5.3 or later is needed: {error}"
            ))
        })?;
        Ok((child.id(), handle))
    });
    match started {
        Ok((number, handle)) => {
            wire.send_with(&StarterReply::Started { number }, &[handle.as_fd()])?;
        }
        Err(error) => wire.send(&StarterReply::Failed(error.to_string()))?,
    }
    Ok(())
}

/// Whether this process is the one in between.
pub(crate) fn is_starter() -> bool {
    std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == STARTER)
}

fn command(program: &Path, standard_input: OwnedFd) -> Command {
    let mut command = Command::new(program);
    command
        // It names the process that is to say that it is alive, which is the successor then.
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::from(standard_input));
    command
}

const OWN_PROGRAM: &str = "/proc/self/exe";

/// The argument that selects [`start_for_server`]. It is not a public command.
const STARTER: &str = "--start-successor";

/// How long the process in between may take.
const START_MAX: Duration = Duration::from_secs(10);
