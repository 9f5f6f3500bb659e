//! Why a reactor cannot start, or did not stop cleanly.

use std::net::SocketAddr;

use crate::transport::tls::TlsError;

/// Why a reactor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
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
    /// A shard could not take over the connections of another process; its message is in the log.
    #[error("a shard could not take over its connections")]
    NotTakenOver,
    /// The system refuses a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A thread of this kind panicked; its message is in the log.
#[derive(Debug, thiserror::Error)]
#[error("a {0} thread panicked")]
pub struct ThreadPanicked(pub &'static str);
