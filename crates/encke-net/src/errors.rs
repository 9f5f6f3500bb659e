//! Why a server cannot start or stop.

use std::net::SocketAddr;

use encke_log::CommitError;

use crate::transport::tls::TlsError;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: rustix::io::Errno,
    },
    /// Certificates or keys can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system refuses something that a shard needs.
    #[error("cannot set up a shard: {0}")]
    Shard(#[from] rustix::io::Errno),
    /// The pools cannot be restored from their streams.
    #[error(transparent)]
    Pools(#[from] encke_jobs::ReplayError),
    /// The revoked credentials cannot be restored from their stream.
    #[error("cannot restore the revoked credentials: {0}")]
    Revocations(String),
    /// The node cannot follow its fleet.
    #[error(transparent)]
    Fleet(Box<dyn std::error::Error + Send + Sync>),
    /// The system refuses a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a stop was not clean.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// A log could not be closed.
    #[error("the log could not be closed: {0}")]
    Log(#[from] CommitError),
    /// A thread panicked; its message is in the log.
    #[error("a {0} thread panicked")]
    Panicked(&'static str),
}
