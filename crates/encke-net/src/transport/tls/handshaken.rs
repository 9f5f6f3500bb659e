//! What a shard gets back from a handshake thread.

use std::os::fd::OwnedFd;

use super::handshake::{Established, FailureReason};

/// The end of a handshake.
#[derive(Debug)]
pub(crate) struct Handshaken {
    pub(crate) socket: OwnedFd,
    pub(crate) outcome: Result<Established, FailureReason>,
}
