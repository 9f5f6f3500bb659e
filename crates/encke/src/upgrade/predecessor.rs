//! The server's side of an upgrade: starts a successor, gives everything to it, and keeps everything until the successor serves.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use encke_access::MovedAuthority;
use encke_server::{MovedConnection, MovedOut};
use parking_lot::Mutex;
use rustix::net::sockopt::set_socket_linger;
use serde::Serialize;

use super::named_program::named_program;
use super::successor::own_formats;
use super::successor_args::{SuccessorArgs, is_successor_argument};
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
    child: Child,
    wire: Wire,
    prepared: Prepared,
}

/// How a hand-over ended.
pub(crate) enum HandedOver {
    /// The successor serves.
    Done { successor: u32 },
    /// It does not, and what is still here goes on.
    Kept { moved: MovedOut, why: anyhow::Error },
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
    pub(crate) fn start(&self, program: Option<&Path>) -> anyhow::Result<StartingSuccessor> {
        let program = program.unwrap_or(&self.program);
        let (socket, given) = UnixStream::pair()?;
        let child = Command::new(program)
            .args(&self.arguments)
            // It names the process that is to say that it is alive, which is the successor then.
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(OwnedFd::from(given)))
            .spawn()
            .with_context(|| format!("{} can't be started", program.display()))?;
        Ok(StartingSuccessor {
            child,
            wire: Wire::new(socket),
        })
    }
}

/// A successor that has been started.
pub(crate) struct StartingSuccessor {
    child: Child,
    wire: Wire,
}

impl StartingSuccessor {
    /// Waits until it can go on, for at most `patience`. `is_one_way`: it may write data that this version can't read.
    pub(crate) fn prepared(
        self,
        own: &ServerShape,
        is_one_way: bool,
        patience: Duration,
    ) -> anyhow::Result<PreparedSuccessor> {
        let StartingSuccessor {
            mut child,
            mut wire,
        } = self;
        let said = wire
            .set_patience(Some(patience))
            .and_then(|()| wire.receive());
        let why = match said {
            Ok(FromSuccessor::Prepared(prepared)) => {
                let one_way = || prepared.one_way(&own_formats()).filter(|_| !is_one_way);
                match prepared.obstacle(own).or_else(one_way) {
                    None => {
                        return Ok(PreparedSuccessor {
                            child,
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
        end(&mut child);
        Err(why)
    }
}

impl PreparedSuccessor {
    /// The version of its program.
    pub(crate) fn version(&self) -> &str {
        &self.prepared.version
    }

    /// Ends it.
    pub(crate) fn dismiss(mut self) {
        end(&mut self.child);
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
                return HandedOver::Kept {
                    moved: without_connections(moved),
                    why: anyhow::anyhow!(why),
                };
            }
        }
        // Descriptors are closed with the process, and not before its successor has said that it serves.
        drop(moved);
        HandedOver::Done {
            successor: self.child.id(),
        }
    }

    fn give(
        &mut self,
        moved: &MovedOut,
        close: impl FnOnce() -> anyhow::Result<()>,
        attendant: Option<u32>,
        patience: Duration,
    ) -> anyhow::Result<()> {
        self.wire.set_patience(Some(patience))?;
        let wire = Mutex::new(&mut self.wire);
        // The successor opens the log while connections are still on their way.
        let (sent, closed) = std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(moved, &wire));
            let closed = close()
                .context("the log could not be closed")
                .and_then(|()| {
                    let told = wire.lock().send(&ToSuccessor::LogClosed);
                    told.map_err(|error| lost(&error, patience))
                });
            (sending.join(), closed)
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

/// The listeners, with an end of the connections that no client takes for one.
fn without_connections(lost: MovedOut) -> MovedOut {
    for moving in &lost.connections {
        // Where it fails the connection is gone already.
        let _ = set_socket_linger(&moving.socket, Some(Duration::ZERO));
    }
    MovedOut {
        connections: Vec::new(),
        ..lost
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// One line for the log.
pub(crate) fn not_upgraded(why: &anyhow::Error) -> String {
    format!(
        "the server was not upgraded and goes on: {}",
        with_causes(why)
    )
}
