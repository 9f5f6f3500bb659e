//! Why a stream could not be copied.

use std::time::Duration;

use crate::journal::JournalError;

/// Why a stream could not be copied. Addresses are shown without their queries, which can hold signatures.
#[derive(Debug, thiserror::Error)]
pub enum CopyFailure {
    /// No response came.
    #[error("{url} can't be reached: {why}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// What the client of HTTP says.
        why: String,
    },
    /// A response came to its end too early.
    #[error("{url}: the response was cut off: {why}")]
    CutOff {
        /// What was asked.
        url: String,
        /// What was missing.
        why: String,
    },
    /// A response is an error.
    #[error("{method} {url} got {status}{detail}")]
    Refused {
        /// The request.
        method: &'static str,
        /// What was asked.
        url: String,
        /// The status of the response.
        status: u16,
        /// What the response says, behind a colon, or nothing.
        detail: String,
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// Pages end before the stream does, because a cache has older ones, for example.
    #[error("{url}: the stream ends at {tail}, and reading comes to {reached} only")]
    Behind {
        /// The stream.
        url: String,
        /// Where it ends.
        tail: String,
        /// Where reading came to.
        reached: String,
    },
    /// A response is none of the protocol.
    #[error("{url}: {why}")]
    Protocol {
        /// What was asked.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// What the destination has is not what the source has.
    #[error("the destination differs: {why}")]
    Differs {
        /// In what.
        why: String,
    },
    /// Another writer appends to the stream at the destination.
    #[error(
        "somebody else writes to the stream at the destination ({why}); let writers go there when the import has ended"
    )]
    WrittenByOthers {
        /// How it shows.
        why: String,
    },
    /// The state can't be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// It was tried for too long.
    #[error("given up after {after:.0?} without progress: {last}")]
    GaveUp {
        /// For how long it was tried.
        after: Duration,
        /// What happened last.
        last: Box<CopyFailure>,
    },
}

impl CopyFailure {
    /// Whether the same may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            CopyFailure::Unreachable { .. }
            | CopyFailure::CutOff { .. }
            | CopyFailure::Behind { .. } => true,
            CopyFailure::Refused { status, .. } => TRANSIENT.contains(status),
            _ => false,
        }
    }

    /// When the server wants to be asked again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            CopyFailure::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Statuses of overload, of restarts, and of proxies whose server does not answer.
const TRANSIENT: [u16; 7] = [408, 425, 429, 500, 502, 503, 504];
