//! A snapshot of a running server, from its socket.

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use encke_log::LayoutError;

use crate::error::BackupError;
use crate::server::connect;
use crate::wire::{READ_BYTES_MAX, SnapshotList, SnapshotReply, SnapshotRequest, receive, send};

/// Whether a server is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One that does not run is an error.
    NotRunning,
    /// It ran a moment ago, and is expected to return.
    Returns,
}

/// The files of all logs of a running server. The server keeps what it removes meanwhile until this is dropped.
#[derive(Debug)]
pub(crate) struct ServerSnapshot {
    directory: PathBuf,
    connection: BufReader<UnixStream>,
    pub(crate) list: SnapshotList,
}

impl ServerSnapshot {
    /// Asks the server that runs on a data directory for a snapshot. Waits while the server is upgraded.
    ///
    /// # Errors
    /// No server runs there, this process may not connect to it, or the snapshot cannot be taken.
    pub(crate) fn take(
        directory: &Path,
        mut patience: Patience,
    ) -> Result<ServerSnapshot, BackupError> {
        if let Err(error @ LayoutError::Unfinished { .. }) = encke_log::logs_in(directory) {
            return Err(error.into());
        }
        let begun = Instant::now();
        loop {
            match ServerSnapshot::ask_for_one(directory) {
                Err(BackupError::Gone { .. }) if begun.elapsed() < RETURN_TIME_MAX => {
                    patience = Patience::Returns;
                }
                Err(BackupError::NotRunning { .. })
                    if patience == Patience::Returns && begun.elapsed() < RETURN_TIME_MAX => {}
                taken => return taken,
            }
            std::thread::sleep(RETURN_PAUSE);
        }
    }

    fn ask_for_one(directory: &Path) -> Result<ServerSnapshot, BackupError> {
        let connection = connect(directory).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => BackupError::NotRunning {
                directory: directory.to_owned(),
            },
            _ => BackupError::io(directory, "connect to the server on")(source),
        })?;
        let timeout = connection.set_read_timeout(Some(ANSWER_TIME_MAX));
        timeout.map_err(BackupError::io(directory, "connect to the server on"))?;
        let mut snapshot = ServerSnapshot {
            directory: directory.to_owned(),
            connection: BufReader::new(connection),
            list: SnapshotList {
                start: 0,
                logs: Vec::new(),
            },
        };
        match snapshot.ask(&SnapshotRequest::Snapshot)? {
            SnapshotReply::Snapshot(list) => snapshot.list = list,
            other => return Err(unexpected(other)),
        }
        Ok(snapshot)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        let files = self.list.logs.iter().flat_map(|log| &log.files);
        files.map(|file| file.bytes).sum()
    }

    pub(crate) fn log_ids(&self) -> Vec<u64> {
        self.list.logs.iter().map(|log| log.log_id).collect()
    }

    /// Reads a part of a file, as much as there is.
    pub(crate) fn read(
        &mut self,
        (log, file): (usize, usize),
        from: u64,
        buffer: &mut [u8],
    ) -> Result<usize, BackupError> {
        let mut read = 0;
        while read < buffer.len() {
            let asked = SnapshotRequest::Read {
                log,
                file,
                from: from + read as u64,
                bytes: (buffer.len() - read).min(READ_BYTES_MAX),
            };
            let bytes = match self.ask(&asked)? {
                SnapshotReply::Bytes(0) => break,
                SnapshotReply::Bytes(bytes) => bytes,
                other => return Err(unexpected(other)),
            };
            let Some(into) = buffer.get_mut(read..read + bytes) else {
                return Err(unexpected(SnapshotReply::Bytes(bytes)));
            };
            let received = self.connection.read_exact(into);
            received.map_err(|source| self.failed(source))?;
            read += bytes;
        }
        Ok(read)
    }

    fn ask(&mut self, asked: &SnapshotRequest) -> Result<SnapshotReply, BackupError> {
        // A server that takes no more connections says so, and closes: that is in this side's socket already.
        let sent = send(self.connection.get_mut(), asked);
        let said = receive(&mut self.connection, SAID_BYTES_MAX);
        match (said, sent) {
            (Ok(Some(SnapshotReply::Upgrading)), _) | (Ok(None), Ok(())) => Err(self.gone()),
            (Ok(Some(said)), _) => Ok(said),
            (_, Err(error)) | (Err(error), _) => Err(self.failed(error)),
        }
    }

    fn failed(&self, source: io::Error) -> BackupError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => self.gone(),
            _ => BackupError::io(&self.directory, "talk to the server on")(source),
        }
    }

    fn gone(&self) -> BackupError {
        BackupError::Gone {
            directory: self.directory.clone(),
        }
    }
}

fn unexpected(said: SnapshotReply) -> BackupError {
    match said {
        SnapshotReply::Failed(why) => BackupError::Server(why),
        other => BackupError::Version(format!("{other:?} is not expected")),
    }
}

/// A list of files of the largest log.
const SAID_BYTES_MAX: u64 = 256 << 20;
/// A snapshot waits for the background work of the log.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
/// How long a server is waited for that is upgraded, or has ended during a backup.
const RETURN_TIME_MAX: Duration = Duration::from_secs(120);
const RETURN_PAUSE: Duration = Duration::from_millis(100);
