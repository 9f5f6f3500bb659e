//! The socket of a running server at which backups get snapshots of its logs.
//!
//! It lies in the data directory, and the file's mode lets only the user of the server, and root, connect. Each connection has a thread and
//! at most one snapshot, which lasts as long as the connection: a client that vanishes leaves nothing.

use std::io::{self, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use encke_log::{LogSnapshot, Reader};
use encke_threads::spawn_restarting;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use rustix::fs::{Mode, OFlags};

use crate::wire::{
    FileListed, LogList, READ_BYTES_MAX, SnapshotList, SnapshotReply, SnapshotRequest, receive,
    send,
};

/// The socket of a running server.
#[derive(Debug)]
pub struct SnapshotServer {
    directory: PathBuf,
    state: Arc<Mutex<ServingState>>,
    thread: JoinHandle<()>,
}

/// The behaviour of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServingState {
    Serving,
    /// Tells clients to wait, until another process, or this one again, has the socket's name.
    Upgrading,
    Stopping,
}

/// What each connection needs.
#[derive(Debug)]
struct Shared {
    readers: Vec<Reader>,
    start: u64,
    metrics: SnapshotMetrics,
    state: Arc<Mutex<ServingState>>,
}

/// The metrics of the socket.
#[derive(Clone, Debug)]
pub struct SnapshotMetrics {
    /// The places that are taken, of [`SNAPSHOTS_MAX`].
    running: IntGauge,
    refused: IntCounter,
}

impl SnapshotMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// They are registered already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = SnapshotMetrics {
            running: IntGauge::new(
                "encke_backups_running",
                "Backups that run. Meanwhile what is removed from the logs keeps its space.",
            )?,
            refused: IntCounter::new(
                "encke_backups_refused_total",
                "Backups refused because two were running.",
            )?,
        };
        registry.register(Box::new(metrics.running.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        Ok(metrics)
    }
}

impl SnapshotServer {
    /// Listens in a data directory, which this process has for itself, and gives snapshots of its logs.
    ///
    /// # Errors
    /// The directory's file system has no sockets, or a thread cannot be made.
    pub fn start(
        directory: &Path,
        readers: Vec<Reader>,
        metrics: SnapshotMetrics,
    ) -> io::Result<SnapshotServer> {
        let mut start = [0; 8];
        aws_lc_rs::rand::fill(&mut start).map_err(io::Error::other)?;
        let listener = with_short_path(directory, NEW_SOCKET, |path| {
            // What a killed server has left; no other process has the directory.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            // In one step: a client meets this server or the one before.
            std::fs::rename(path, directory.join(SOCKET))?;
            Ok(listener)
        })?;
        let bound = std::fs::metadata(directory.join(SOCKET))?.ino();
        let state = Arc::new(Mutex::new(ServingState::Serving));
        let shared = Arc::new(Shared {
            readers,
            start: u64::from_le_bytes(start),
            metrics,
            state: Arc::clone(&state),
        });
        let place = directory.to_owned();
        let thread = spawn_restarting("encke-snapshots", move || {
            accept(&listener, &shared);
            keep_waiting(&listener, &place, bound);
        })?;
        Ok(SnapshotServer {
            directory: directory.to_owned(),
            state,
            thread,
        })
    }

    /// Ends all snapshots, and lets clients wait for the process that takes the server over.
    pub fn hand_over(self) {
        *self.state.lock() = ServingState::Upgrading;
        // Wakes the thread that accepts.
        let _ = connect(&self.directory);
    }

    /// Takes no more connections. Those that there are end by themselves.
    pub fn stop(self) {
        *self.state.lock() = ServingState::Stopping;
        // Wakes the thread that accepts.
        let woken = connect(&self.directory).is_ok();
        let _ = with_short_path(&self.directory, SOCKET, |path| std::fs::remove_file(path));
        if woken {
            let _ = self.thread.join();
        }
    }
}

/// A connection's place among [`SNAPSHOTS_MAX`].
struct Place {
    shared: Arc<Shared>,
}

impl Place {
    /// Only the thread that accepts takes places.
    fn take(shared: &Arc<Shared>) -> Self {
        shared.metrics.running.inc();
        Place {
            shared: Arc::clone(shared),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.metrics.running.dec();
    }
}

/// Gives snapshots while the server serves.
fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        let state = *shared.state.lock();
        if state != ServingState::Serving {
            if let (ServingState::Upgrading, Ok(mut connection)) = (state, connection) {
                let _ = send(&mut connection, &SnapshotReply::Upgrading);
            }
            return;
        }
        let Ok(mut connection) = connection else {
            // No descriptors are left, most likely.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if shared.metrics.running.get() >= SNAPSHOTS_MAX {
            shared.metrics.refused.inc();
            let why = format!("{SNAPSHOTS_MAX} backups are being made, and no more at a time");
            let _ = send(&mut connection, &SnapshotReply::Failed(why));
            continue;
        }
        let place = Place::take(shared);
        let thread = std::thread::Builder::new().name("encke-snapshot".to_owned());
        let spawned = thread.spawn(move || {
            if let Err(error) = serve(connection, &place.shared) {
                tracing::warn!(%error, "a backup was broken off");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a backup");
        }
    }
}

/// Tells clients to wait, until another socket has the name of this one.
fn keep_waiting(listener: &UnixListener, directory: &Path, bound: u64) {
    let is_bound = || {
        let there = std::fs::metadata(directory.join(SOCKET));
        there.is_ok_and(|there| there.ino() == bound)
    };
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    while is_bound() {
        match listener.accept() {
            Ok((mut connection, _)) => {
                let _ = send(&mut connection, &SnapshotReply::Upgrading);
            }
            Err(_) => std::thread::sleep(UPGRADE_PAUSE),
        }
    }
}

/// Answers a client until it ends.
fn serve(connection: UnixStream, shared: &Shared) -> io::Result<()> {
    // A client that stands still must not keep the space of what is removed meanwhile.
    connection.set_read_timeout(Some(PAUSE_MAX))?;
    connection.set_write_timeout(Some(PAUSE_MAX))?;
    let mut from = BufReader::new(connection.try_clone()?);
    let mut to = connection;
    let mut snapshots: Vec<LogSnapshot> = Vec::new();
    let mut buffer = Vec::new();
    while let Some(asked) = receive(&mut from, ASKED_BYTES_MAX)? {
        if *shared.state.lock() == ServingState::Upgrading {
            return send(&mut to, &SnapshotReply::Upgrading);
        }
        match asked {
            SnapshotRequest::Snapshot => {
                // The one before gives its space back first.
                snapshots.clear();
                let taken = shared.readers.iter().map(Reader::snapshot);
                match taken.collect() {
                    Ok(taken) => snapshots = taken,
                    Err(error) => {
                        send(&mut to, &SnapshotReply::Failed(format!("{error}")))?;
                        continue;
                    }
                }
                let list = SnapshotList {
                    start: shared.start,
                    logs: snapshots.iter().map(list).collect(),
                };
                send(&mut to, &SnapshotReply::Snapshot(list))?;
            }
            SnapshotRequest::Read {
                log,
                file,
                from,
                bytes,
            } => {
                let snapshot = snapshots.get(log).ok_or(io::ErrorKind::InvalidInput)?;
                buffer.resize(bytes.min(READ_BYTES_MAX), 0);
                match snapshot.read(file, from, &mut buffer) {
                    Ok(read) => {
                        send(&mut to, &SnapshotReply::Bytes(read))?;
                        to.write_all(&buffer[..read])?;
                    }
                    // The process that takes over removes what a snapshot has linked.
                    Err(_) if *shared.state.lock() == ServingState::Upgrading => {
                        return send(&mut to, &SnapshotReply::Upgrading);
                    }
                    Err(error) => send(&mut to, &SnapshotReply::Failed(error.to_string()))?,
                }
            }
        }
    }
    Ok(())
}

fn list(snapshot: &LogSnapshot) -> LogList {
    let last = snapshot.last_segment();
    let files = snapshot.files().enumerate().map(|(file, (name, bytes))| {
        let written_at = snapshot.written_at(file);
        let since = written_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        FileListed {
            name: name.to_owned(),
            bytes,
            written_ns: since.map(|since| since.as_nanos()),
            grows: Some(file) == last,
        }
    });
    LogList {
        log_id: snapshot.log_id(),
        upto: snapshot.upto(),
        directories: snapshot.directories().to_vec(),
        files: files.collect(),
    }
}

/// Connects to the server of a data directory.
pub(crate) fn connect(directory: &Path) -> io::Result<UnixStream> {
    with_short_path(directory, SOCKET, |path| UnixStream::connect(path))
}

/// Calls `work` with a path of a socket in a directory that is short enough for any depth of the directory: an address of a socket has 107
/// bytes at most.
///
/// # Errors
/// There is no such directory, or what `work` says.
pub fn with_short_path<T>(
    directory: &Path,
    socket: &str,
    work: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    let held = rustix::fs::open(directory, flags, Mode::empty())?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&held);
    work(&PathBuf::from(format!("/proc/self/fd/{number}/{socket}")))
}

/// The socket in the data directory.
const SOCKET: &str = "snapshots";
/// Its name before it takes the place of that of the server before.
const NEW_SOCKET: &str = "snapshots.new";
/// The pause between two looks for clients during an upgrade.
const UPGRADE_PAUSE: Duration = Duration::from_millis(20);
/// Connections at a time, each of which may have a snapshot.
pub const SNAPSHOTS_MAX: i64 = 2;
const ASKED_BYTES_MAX: u64 = 4 << 10;
/// The longest time that a client reads nothing, or asks for nothing.
const PAUSE_MAX: Duration = Duration::from_secs(300);
