//! Errors of load tools and experiments.

use std::io;
use std::path::{Path, PathBuf};

use encke_log::{CommitError, OpenError};
use encke_stream::RestoreError;

use crate::load::wire::http::WireError;

/// Why a run could not be made. Faults of the server are in the report instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A signal ended an experiment.
    #[error("interrupted")]
    Interrupted,
    /// Options that contradict each other, or that are out of bounds.
    #[error("{0}")]
    Option(String),
    /// The server's URL can't be used.
    #[error("bad url {url:?}: {reason}")]
    BadUrl {
        /// The URL.
        url: String,
        /// The reason.
        reason: &'static str,
    },
    /// TLS can't be set up for the server's URL.
    #[error("tls: {why}")]
    Tls {
        /// The reason.
        why: String,
    },
    /// The server's name does not resolve.
    #[error("cannot resolve {host:?}")]
    Resolve {
        /// The host, with its port where one was given.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The limit on open files is too low for the run.
    #[error(
        "a process may open {limit} files here, the run needs {wanted}; raise the hard limit (ulimit -Hn)"
    )]
    TooFewDescriptors {
        /// The hard limit.
        limit: u64,
        /// Files that the run needs.
        wanted: u64,
    },
    /// A file or directory of the run.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The failed operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A system call that is not about a file.
    #[error("cannot {action}")]
    System {
        /// The failed operation.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A line of an acknowledgement log has another form than spray writes.
    #[error("{} line {line}: not an acknowledgement (expected: stream producer sequence)", path.display())]
    BadAckLog {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// Streams could not be created.
    #[error("{failed} of {asked} streams could not be created; the first answer was {first}")]
    Create {
        /// Streams that were not created.
        failed: u64,
        /// Streams of the run.
        asked: u64,
        /// Status or error of the first failure.
        first: String,
    },
    /// The server process did not start or ended early.
    #[error("the server {0}")]
    Server(String),
    /// A broker of a fleet did not start or ended early.
    #[error("the broker {} {reason}; --broker names another nats-server", program.display())]
    Broker {
        /// Its program.
        program: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The server's answer is not HTTP.
    #[error("cannot read the server's answer")]
    Wire(#[from] WireError),
    /// The server's answer has the wrong status.
    #[error("the server answered {status} to {request}")]
    Status {
        /// The request.
        request: String,
        /// The status.
        status: u16,
    },
    /// The log could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The streams could not be opened.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The log refused a batch.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Records were refused.
    #[error("{refused} of {records} records were refused; the first because: {first}")]
    Refused {
        /// Records refused.
        refused: u64,
        /// Records sent.
        records: u64,
        /// The reason for the first.
        first: String,
    },
    /// A thread of the run panicked or ended early.
    #[error("a {0} thread ended early")]
    Thread(&'static str),
    /// The file for the summary has no place for it.
    #[error("{} has no place for the figures: it needs a line {begin:?} and, below it, a line {end:?}", path.display())]
    NoPlace {
        /// The file.
        path: PathBuf,
        /// The line where the place begins.
        begin: &'static str,
        /// The line where it ends.
        end: &'static str,
    },
}

impl BenchError {
    /// An error of a file, for `map_err`.
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

    /// An error of the system, for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            action,
            source: source.into(),
        }
    }
}
