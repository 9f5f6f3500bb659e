//! Why a backup or a restore failed.

use std::io;
use std::path::{Path, PathBuf};

use encke_log::{CopyError, LayoutError};

/// A backup or a restore failed. What was stored before is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// No server answers at the directory.
    #[error("no server answers on {}. If it has stopped, its directory can be copied as it is; that of a running server cannot", directory.display())]
    NotRunning {
        /// The data directory.
        directory: PathBuf,
    },
    /// The server is being upgraded, or has ended while it was asked.
    #[error("the server on {} has gone away", directory.display())]
    Gone {
        /// The data directory.
        directory: PathBuf,
    },
    /// The operating system returned an error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file, directory or socket.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The server could not do what was asked.
    #[error("the server says: {0}")]
    Server(String),
    /// The server has sent what this version does not understand.
    #[error("the server is of another version: {0}")]
    Version(String),
    /// The place of backups is no URL or directory, or its settings are missing.
    #[error("{0}")]
    Place(String),
    /// Another backup writes to the directory.
    #[error("{} is in use by another backup", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// The object storage has refused a request, or did not answer.
    #[error("cannot {action} {key} in the bucket: {reason}")]
    Bucket {
        /// What failed.
        action: &'static str,
        /// The key of the object.
        key: String,
        /// Why.
        reason: String,
    },
    /// Something stored is missing, or is not what it was.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
    /// The list of files of a backup has a format of another version.
    #[error("the list of files of the backup has format {format}, and this version knows {known}")]
    OtherFormat {
        /// Its format.
        format: u32,
        /// The one of this version.
        known: u32,
    },
    /// There is no such backup.
    #[error("{0}")]
    NoBackup(String),
    /// The files of a log could not be written.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The directory of the data is not empty or not complete, or the directories of its logs could not be made.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

impl BackupError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> BackupError {
        move |source| BackupError::Io {
            path: path.to_owned(),
            action,
            source,
        }
    }
}
