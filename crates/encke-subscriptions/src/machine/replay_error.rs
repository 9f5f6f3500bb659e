//! Why subscriptions cannot be recovered.

use crate::record::BadSubscriptionRecord;

/// Why the subscriptions could not be recovered.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionReplayError {
    /// A stream could not be looked up or read.
    #[error("cannot read the stream {stream:?}, which subscriptions need: {reason}")]
    Unreadable {
        /// The stream, or what its name begins with.
        stream: String,
        /// The reason.
        reason: String,
    },
    /// A record that this version does not write.
    #[error("record {sequence} of the stream {stream:?} of the subscriptions: {source}")]
    Record {
        /// The stream.
        stream: String,
        /// The record's sequence.
        sequence: u64,
        /// The reason.
        source: BadSubscriptionRecord,
    },
    /// The current segment does not exist.
    #[error("missing stream {stream:?}, the current segment of the journal of subscriptions")]
    Missing {
        /// The stream.
        stream: String,
    },
}
