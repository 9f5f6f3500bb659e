//! What can keep an experiment from being made.

use std::io;
use std::path::{Path, PathBuf};

use encke_flood::FloodError;
use encke_flood::wire::http::WireError;
use encke_log::{CommitError, OpenError};
use encke_stream::RestoreError;

/// Why an experiment could not be made. What it found is in the report instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Somebody asked for the end of the run.
    #[error("interrupted")]
    Interrupted,
    /// A file or directory of the run.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something of the system that is no file.
    #[error("cannot {action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The log could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The streams could not be opened.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The log did not take a batch.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Records that should have been stored were refused.
    #[error("{refused} of {records} records were refused; the first because: {first}")]
    Refused {
        /// How many were refused.
        refused: u64,
        /// How many there were.
        records: u64,
        /// What was said to the first one.
        first: String,
    },
    /// The server that was started did not come up, or went away.
    #[error("the server {what}")]
    Server {
        /// What it did.
        what: String,
    },
    /// The server's answer was not HTTP.
    #[error("the server's answer can't be read: {0}")]
    Wire(#[from] WireError),
    /// The server answered, but not as it should have.
    #[error("the server answered {status} to {request}")]
    Status {
        /// The request.
        request: String,
        /// The answer's status.
        status: u16,
    },
    /// A flood or a spray could not be made.
    #[error(transparent)]
    Flood(#[from] FloodError),
    /// A thread of the experiment panicked, or ended before its time.
    #[error("a {0} thread ended before its time")]
    Thread(&'static str),
    /// The file into which the figures are to be put has no place for them.
    #[error("{} has no place for the figures: it needs a line {begin:?} and, below it, a line {end:?}", path.display())]
    NoPlace {
        /// The file.
        path: PathBuf,
        /// The line where the place begins.
        begin: &'static str,
        /// The line where it ends.
        end: &'static str,
    },
    /// Options that contradict each other.
    #[error("{0}")]
    Option(&'static str),
}

impl BenchError {
    /// Wraps what the system said about a file; made for `map_err`.
    pub(crate) fn file<E: Into<io::Error>>(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source: source.into(),
        }
    }

    /// Wraps what the system said otherwise; made for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            action,
            source: source.into(),
        }
    }
}
