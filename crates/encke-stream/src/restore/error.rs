//! Why the streams of a log cannot be restored.

use encke_log::{OpenError, ReadError, Sequence};

use crate::load::LoadError;
use crate::record::BadRecord;
use crate::stored::FORMAT;

/// The log could not be opened, or holds what this version can't read.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A record that this version does not write.
    #[error("record {sequence} of the log: {source}")]
    Record {
        /// Which one.
        sequence: Sequence,
        /// What is wrong with it.
        source: BadRecord,
    },
    /// An entry of the checkpoint that this version does not write.
    #[error("the checkpoint's entry with the key {key:02x?}: {source}")]
    Entry {
        /// Its key.
        key: Vec<u8>,
        /// What is wrong with it.
        source: BadRecord,
    },
    /// The checkpoint could not be read.
    #[error("the checkpoint of the streams can't be read: {0}")]
    Checkpoint(#[from] ReadError),
    /// The checkpoint is of another version.
    #[error(
        "the checkpoint of the streams has format {found}, this version of encke reads format \
         {FORMAT} only"
    )]
    Format {
        /// Its version.
        found: u32,
    },
    /// A log's directory stands in another one's place.
    #[error(
        "record {sequence} is of a stream of log {found}, and this is log {log}: a log's directory is not in its place"
    )]
    OtherLog {
        /// The record.
        sequence: Sequence,
        /// The index of the log that is opened.
        log: usize,
        /// The one that the record's stream is in.
        found: usize,
    },
    /// A source that is not in sight could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The log could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}
