//! The server's side of an upgrade: starts a successor, gives everything to it, and keeps everything until the successor serves.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use encke_access::MovedAuthority;
use encke_server::{MovedConnection, MovedOut, Moving};
use parking_lot::Mutex;
use rustix::net::sockopt::set_socket_linger;
use serde::Serialize;

use super::named_program::named_program;
use super::successor::own_formats;
use super::successor_args::{SuccessorArgs, is_successor_argument};
use super::successor_process::{Parent, SuccessorProcess};
use super::wire::{CONNECTIONS_AT_ONCE, FromSuccessor, Prepared, ServerShape, ToSuccessor, Wire};
use crate::failure::with_causes;

/// Starts successors of this process.
#[derive(Debug)]
pub(crate) struct Launcher {
    program: PathBuf,
    /// Those that this process was started with, and what a successor can't see by itself.
    arguments: Vec<OsString>,
}

/// A successor that has read its configuration. Nothing of the server was touched.
pub(crate) struct PreparedSuccessor {
    process: SuccessorProcess,
    wire: Wire,
    prepared: Prepared,
}

/// How a hand-over ended.
pub(crate) enum HandedOver {
    /// The successor serves.
    Done(ServingSuccessor),
    /// It does not, and what is still here goes on.
    Kept { moved: MovedOut, why: anyhow::Error },
}

/// A successor that serves. It says nothing to a service manager before this is dropped.
pub(crate) struct ServingSuccessor {
    pub(crate) process: SuccessorProcess,
    _wire: Wire,
}

impl Launcher {
    /// Notes how this process was started, before another program takes its program's name.
    pub(crate) fn of_this_process(begin: &SuccessorArgs) -> anyhow::Result<Self> {
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_default();
        let is_own = |argument: &OsString| !is_successor_argument(argument);
        Ok(Launcher {
            program: named_program(&name)?,
            arguments: arguments.filter(is_own).chain(begin.arguments()).collect(),
        })
    }

    /// Starts a successor. `program`: another one than that of this process.
    pub(crate) fn start(
        &self,
        program: Option<&Path>,
        parent: Parent,
    ) -> anyhow::Result<StartingSuccessor> {
        let program = program.unwrap_or(&self.program);
        let (socket, given) = UnixStream::pair()?;
        Ok(StartingSuccessor {
            process: SuccessorProcess::start(program, &self.arguments, given, parent)?,
            wire: Wire::new(socket),
        })
    }
}

/// A successor that has been started.
pub(crate) struct StartingSuccessor {
    process: SuccessorProcess,
    wire: Wire,
}

impl StartingSuccessor {
    pub(crate) fn process(&self) -> &SuccessorProcess {
        &self.process
    }

    /// Waits until it can go on, for at most `patience`. `is_one_way`: it may write data that this version can't read.
    pub(crate) fn prepared(
        self,
        own: &ServerShape,
        is_one_way: bool,
        patience: Duration,
    ) -> anyhow::Result<PreparedSuccessor> {
        let StartingSuccessor { process, mut wire } = self;
        let said = wire
            .set_patience(Some(patience))
            .and_then(|()| wire.receive());
        let why = match said {
            Ok(FromSuccessor::Prepared(prepared)) => {
                let one_way = || prepared.one_way(&own_formats()).filter(|_| !is_one_way);
                match prepared.obstacle(own).or_else(one_way) {
                    None => {
                        return Ok(PreparedSuccessor {
                            process,
                            wire,
                            prepared,
                        });
                    }
                    Some(why) => anyhow::anyhow!(why),
                }
            }
            Ok(FromSuccessor::Failed(why)) => anyhow::anyhow!("the successor gave up: {why}"),
            Ok(_) => anyhow::anyhow!("the successor said something else than that it is ready"),
            Err(error) => lost(&error, patience),
        };
        process.end();
        Err(why)
    }
}

impl PreparedSuccessor {
    /// The version of its program.
    pub(crate) fn version(&self) -> &str {
        &self.prepared.version
    }

    /// Ends it.
    pub(crate) fn dismiss(self) {
        self.process.end();
    }

    /// Gives everything to it. `close` closes the log. Each step may take `patience`.
    pub(crate) fn hand_over(
        mut self,
        moved: MovedOut,
        close: impl FnOnce() -> anyhow::Result<()>,
        attendant: Option<u32>,
        patience: Duration,
    ) -> HandedOver {
        if let Err(why) = self.give(&moved, close, attendant, patience) {
            self.dismiss();
            return HandedOver::Kept { moved, why };
        }
        match self.wire.receive::<FromSuccessor>() {
            Ok(FromSuccessor::Serving) => {}
            Err(error) if is_patience_over(&error) => {
                tracing::warn!("the successor has not said that it serves");
            }
            // It has sent something to clients, or not: nobody can go on with its connections.
            _ => {
                self.dismiss();
                let why = "the successor has ended when it was to serve; its connections are lost";
                reset_all(&moved.connections);
                let moved = MovedOut {
                    connections: Vec::new(),
                    ..moved
                };
                return HandedOver::Kept {
                    moved,
                    why: anyhow::anyhow!(why),
                };
            }
        }
        // Descriptors are closed with the process, and not before its successor has said that it serves.
        drop(moved);
        encke_log::release_directories();
        HandedOver::Done(ServingSuccessor {
            process: self.process,
            _wire: self.wire,
        })
    }

    fn give(
        &mut self,
        moved: &MovedOut,
        close: impl FnOnce() -> anyhow::Result<()>,
        attendant: Option<u32>,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let wire = Mutex::new(&mut self.wire);
        let takes_locks = self.prepared.takes_locks;
        let send_all = || -> io::Result<()> {
            wire.lock().set_patience(Some(patience))?;
            send(moved, &wire)
        };
        // Whatever else fails: before that this process can't open the log again.
        let close_log = || {
            close().context("the log could not be closed")?;
            let told = send_closed(takes_locks, &mut wire.lock());
            told.map_err(|error| lost(&error, patience))
        };
        let (sent, closed) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("connections-out".to_owned());
            match thread.spawn_scoped(scope, send_all) {
                // The successor opens the log while connections are still on their way.
                Ok(sending) => {
                    let closed = close_log();
                    (sending.join(), closed)
                }
                // The system refuses a thread, so the log waits for the connections.
                Err(_) => (Ok(send_all()), close_log()),
            }
        });
        closed?;
        let sent =
            sent.map_err(|_| anyhow::anyhow!("the thread that sends connections panicked"))?;
        sent.map_err(|error| lost(&error, patience))?;
        let lost = |error: io::Error| lost(&error, patience);
        match self.wire.receive().map_err(lost)? {
            FromSuccessor::Ready => {}
            FromSuccessor::Failed(why) => anyhow::bail!("the successor gave up: {why}"),
            _ => anyhow::bail!("the successor said something else than that it is ready"),
        }
        self.wire
            .send(&ToSuccessor::Serve { attendant })
            .map_err(lost)
    }
}

/// The same as [`ToSuccessor`], of what stays here.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Kept<'a> {
    Connections(Vec<&'a MovedConnection>),
    Callers(&'a [MovedAuthority]),
}

/// Sends listeners and connections. Each message and its descriptors go out together.
fn send(moved: &MovedOut, wire: &Mutex<&mut Wire>) -> io::Result<()> {
    let listeners = &moved.listeners;
    let clients = listeners.clients.iter().map(AsFd::as_fd);
    let all: Vec<BorrowedFd<'_>> = clients
        .chain(listeners.operators.iter().map(AsFd::as_fd))
        .collect();
    let message = ToSuccessor::Listeners {
        clients: listeners.clients.len(),
        operators: listeners.operators.is_some(),
    };
    wire.lock().send_with(&message, &all)?;
    for some in moved.connections.chunks(CONNECTIONS_AT_ONCE) {
        let connections = some.iter().map(|moving| &*moving.connection);
        let message = Kept::Connections(connections.collect());
        let sockets: Vec<_> = some.iter().map(|moving| moving.socket.as_fd()).collect();
        wire.lock().send_with(&message, &sockets)?;
    }
    wire.lock().send(&Kept::Callers(&moved.authorities))
}

/// Says that the log is closed, after the descriptors of the directories that stay locked.
fn send_closed(takes_locks: bool, wire: &mut Wire) -> io::Result<()> {
    if takes_locks {
        let held = encke_log::copy_held_directories()?;
        let directories: Vec<_> = held.iter().map(AsFd::as_fd).collect();
        let count = directories.len();
        wire.send_with(&ToSuccessor::Directories { count }, &directories)?;
    } else {
        encke_log::release_directories();
    }
    wire.send(&ToSuccessor::LogClosed)
}

fn is_patience_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn lost(error: &io::Error, patience: Duration) -> anyhow::Error {
    match error.kind() {
        _ if is_patience_over(error) => {
            anyhow::anyhow!("the successor has said nothing for {patience:?}")
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => {
            anyhow::anyhow!("the successor has ended; its log says why")
        }
        _ => anyhow::anyhow!("the successor can't be talked to: {error}"),
    }
}

/// Lets these connections, once they are dropped, end in a way that no client takes for the end of a response.
pub(crate) fn reset_all(connections: &[Moving]) {
    for moving in connections {
        // Where it fails the connection is gone already.
        let _ = set_socket_linger(&moving.socket, Some(Duration::ZERO));
    }
}

/// One line for the log.
pub(crate) fn not_upgraded(why: &anyhow::Error) -> String {
    format!(
        "the server was not upgraded and goes on: {}",
        with_causes(why)
    )
}
