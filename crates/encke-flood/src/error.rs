//! What can keep a run from happening, or end it early.

use std::io;
use std::path::PathBuf;

/// Why a run could not be made. What a server does wrong during a run is in the report instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloodError {
    /// The server's URL can't be used.
    #[error("bad url {url:?}: {reason}")]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server's name could not be resolved.
    #[error("cannot resolve {host:?}")]
    Resolve {
        /// The host, with its port where one was given.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Options that contradict each other, or that are out of bounds.
    #[error("{0}")]
    BadOption(String),
    /// The limit on open files leaves no room for the run.
    #[error(
        "a process may open {limit} files here, too few for {wanted}; raise the hard limit (ulimit -Hn)"
    )]
    TooFewDescriptors {
        /// The hard limit.
        limit: u64,
        /// How many the run needs in one process.
        wanted: u64,
    },
    /// Streams could not be created.
    #[error("{failed} of {asked} streams could not be created; the first answer was {first}")]
    Create {
        /// How many failed.
        failed: u64,
        /// How many were asked for.
        asked: u64,
        /// Status or error of the first failure.
        first: String,
    },
    /// A worker process did not start, or ended before its time.
    #[error(
        "worker {worker} ended unexpectedly: {reason} (does the program call encke_flood::become_worker_if_asked first?)"
    )]
    Worker {
        /// Which worker, from 0.
        worker: usize,
        /// What is known about its end.
        reason: String,
    },
    /// The server's process can't be looked at.
    #[error("cannot read {path:?}")]
    Probe {
        /// The file in question.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the run (acknowledgements, recording, plot) can't be read or written.
    #[error("cannot {action} {path:?}")]
    File {
        /// `open`, `read` or `write`.
        action: &'static str,
        /// The file in question.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of an acknowledgement log is not what this version writes.
    #[error("{path:?} line {line}: not an acknowledgement (expected: stream producer sequence)")]
    BadAckLog {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// A system call failed that a run can't do without.
    #[error("cannot {action}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl FloodError {
    /// Wraps a failed system call; made for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            action,
            source: source.into(),
        }
    }
}
