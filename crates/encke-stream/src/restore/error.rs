//! Why the streams of a log cannot be restored.

use encke_log::{CommitError, OpenError, ReadError, Sequence};

use crate::at_rest::load::LoadError;
use crate::at_rest::stored::{EARLIEST_FORMAT, FORMAT};
use crate::stream::record::BadRecord;

/// The log cannot be opened, or holds something that this version cannot read.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A record that this version does not write.
    #[error("record {sequence} of the log: {source}")]
    Record {
        /// The record.
        sequence: Sequence,
        /// The cause.
        source: BadRecord,
    },
    /// An entry of the checkpoint that this version does not write.
    #[error("the checkpoint's entry with the key {key:02x?}: {source}")]
    Entry {
        /// Its key.
        key: Vec<u8>,
        /// The cause.
        source: BadRecord,
    },
    /// The checkpoint cannot be read.
    #[error("cannot read the checkpoint of the streams: {0}")]
    Checkpoint(#[from] ReadError),
    /// The checkpoint has another version.
    #[error(
        "the checkpoint of the streams has format {found}, this version of encke reads the formats \
         {EARLIEST_FORMAT} to {FORMAT}"
    )]
    Format {
        /// Its version.
        found: u32,
    },
    /// The directory belongs to another log.
    #[error(
        "record {sequence} belongs to log {found}, but this is log {log}: the directories of the logs are in the wrong order"
    )]
    OtherLog {
        /// The record.
        sequence: Sequence,
        /// The index of the log that is being opened.
        log: usize,
        /// The index of the log that the record belongs to.
        found: usize,
    },
    /// A server by itself opens the directory of a node.
    #[error("the directory belongs to a node of a fleet: start it with --fleet")]
    OfAFleet,
    /// A node opens the directory of a server by itself.
    #[error(
        "the directory belongs to a server by itself, not to a node of a fleet: a node starts with an empty directory"
    )]
    OfOneServer,
    /// A node lacks records of a stream in which the server keeps its state.
    #[error(
        "retention of an earlier version has removed records of the server's own stream {name:?}: empty the data directory, so that the \
         node copies the logs of another one"
    )]
    OwnStateRemoved {
        /// The name of the stream.
        name: Box<str>,
    },
    /// The source of a fork cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The first mark of a node of a fleet cannot be written.
    #[error("cannot begin the log of a node: {0}")]
    Begin(#[from] CommitError),
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}
