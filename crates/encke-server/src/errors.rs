//! Why a server cannot start or stop.

use encke_log::CommitError;
use encke_net::{ReactorError, ThreadPanicked};

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The reactor could not be started.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// The pools cannot be restored from their streams.
    #[error(transparent)]
    Pools(#[from] encke_jobs::ReplayError),
    /// The subscriptions cannot be restored from their streams.
    #[error(transparent)]
    Subscriptions(#[from] encke_subscriptions::SubscriptionReplayError),
    /// The revoked credentials cannot be restored from their stream.
    #[error("cannot restore the revoked credentials: {0}")]
    Revocations(String),
    /// The node cannot follow its fleet.
    #[error(transparent)]
    Fleet(Box<dyn std::error::Error + Send + Sync>),
    /// There are no random bytes for the keys of tokens.
    #[error("cannot make keys for tokens: {0}")]
    Random(std::io::Error),
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
    #[error(transparent)]
    Panicked(#[from] ThreadPanicked),
}
