//! The socket of a running server at which it is asked to upgrade. It lies in the data directory, and the mode of the file lets only the
//! user of the server, and root, connect.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use encke_backup::with_short_path;
use encke_threads::spawn_restarting;
use serde::{Deserialize, Serialize};

use super::wire::Wire;

/// What a server is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UpgradeRequest {
    /// Only say whether it could be upgraded, and what would be closed.
    #[serde(default)]
    pub(crate) check: bool,
    /// The program of the successor; without it, that of the server.
    #[serde(default)]
    pub(crate) program: Option<PathBuf>,
    /// The successor may write data that this version can't read.
    #[serde(default)]
    pub(crate) one_way: bool,
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UpgradeAnswer {
    /// It was upgraded, or could be.
    Done(UpgradeReport),
    /// It was not, and goes on as before.
    Kept { why: String },
}

/// What was moved, or would be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UpgradeReport {
    /// The version of the successor's program.
    pub(crate) version: String,
    /// The process that serves; none before an upgrade.
    pub(crate) process: Option<u32>,
    /// Connections that have moved, or would.
    pub(crate) moved: usize,
    /// Connections that were closed, or would be.
    pub(crate) closed: usize,
    /// Of those that would be closed: how many for which reason.
    pub(crate) reasons: Vec<(String, usize)>,
    /// How long nothing was read or delivered, in milliseconds.
    pub(crate) paused_ms: Option<u64>,
}

/// Asks a server to upgrade, and waits for the answer.
pub(crate) struct UpgradeAsker {
    pub(crate) request: UpgradeRequest,
    wire: Wire,
}

/// The socket.
pub(crate) struct UpgradeSocket {
    directory: PathBuf,
    stopping: Arc<AtomicBool>,
}

impl UpgradeAsker {
    /// Answers. The one who has asked may be gone.
    pub(crate) fn answer(mut self, answer: &UpgradeAnswer) {
        if let Err(error) = self.wire.send(answer) {
            tracing::debug!(%error, "the one who has asked for an upgrade has gone");
        }
    }
}

impl UpgradeSocket {
    /// Listens in a data directory, which this process has for itself. `pass_on` gets what is asked.
    pub(crate) fn start<T: Send + 'static>(
        directory: &Path,
        asks: Sender<T>,
        pass_on: impl Fn(UpgradeAsker) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let listener = with_short_path(directory, SOCKET, |path| {
            // What a killed server has left; no other process has the directory.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => UnixListener::bind(path),
            }
        })?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopping);
        spawn_restarting("encke-upgrade", move || {
            for connection in listener.incoming() {
                if stops.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(connection) = connection else {
                    // No descriptors are left, most likely.
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                // One at a time: who connects and says nothing keeps others out for a moment only.
                match read(connection) {
                    Ok(asked) => {
                        if asks.send(pass_on(asked)).is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::debug!(%error, "a request for an upgrade was not read"),
                }
            }
        })?;
        Ok(UpgradeSocket {
            directory: directory.to_owned(),
            stopping,
        })
    }

    /// Takes no more requests.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Its thread ends by itself: it may be waiting for one who says nothing.
        let _ = connect(&self.directory);
        let _ = with_short_path(&self.directory, SOCKET, |path| std::fs::remove_file(path));
    }
}

/// Asks the server of a data directory.
pub(crate) fn ask(directory: &Path, request: &UpgradeRequest) -> io::Result<UpgradeAnswer> {
    let mut wire = Wire::new(connect(directory)?);
    wire.send(request)?;
    wire.receive()
}

fn connect(directory: &Path) -> io::Result<UnixStream> {
    with_short_path(directory, SOCKET, |path| UnixStream::connect(path))
}

fn read(connection: UnixStream) -> io::Result<UpgradeAsker> {
    let mut wire = Wire::new(connection);
    wire.set_patience(Some(ASK_MAX))?;
    let request = wire.receive()?;
    Ok(UpgradeAsker { request, wire })
}

/// The socket in the data directory.
const SOCKET: &str = "upgrade";

/// How long a thread that can't accept a connection waits.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a request may take to arrive.
const ASK_MAX: Duration = Duration::from_secs(2);
