//! Errors of the log, with what a caller needs to act.

use crate::disk::file_name;
use crate::ids::{Sequence, StreamNo};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why a log could not be opened. Nothing was changed, unless a write failed while the tail was being repaired.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another log in this process, has locked the directory.
    #[error("{} is in use by another process: only one may have a log open", directory.display())]
    Locked {
        /// The directory of the log.
        directory: PathBuf,
    },
    /// The directory holds no log. Only commands that need an existing log return this; [`Log::open`](crate::Log::open)
    /// makes one.
    #[error("{} holds no log", directory.display())]
    NoLog {
        /// The directory.
        directory: PathBuf,
    },
    /// A command has begun to make the log, and has not ended.
    #[error("{} is not complete: {what}", directory.display())]
    Unfinished {
        /// The directory of the log.
        directory: PathBuf,
        /// The interrupted command, and the remedy.
        what: String,
    },
    /// The operating system returned an error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// There is no room for the first segment.
    #[error("no room in {} for a segment of {bytes} bytes: {source}", directory.display())]
    NoSpace {
        /// The directory of the log.
        directory: PathBuf,
        /// The size of the segment.
        bytes: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// `segment_bytes` is out of bounds.
    #[error("segments of {bytes} bytes are not possible: the size must be between {min} and {max}")]
    SegmentBytes {
        /// The requested size.
        bytes: u64,
        /// The smallest size.
        min: u64,
        /// The largest size.
        max: u64,
    },
    /// A file has the name of a segment, and its content is something else.
    #[error("{} is not a segment of a log: it does not begin as one", file.display())]
    NotASegment {
        /// The file.
        file: PathBuf,
    },
    /// The directory was written by a version of Encke with another format.
    #[error("{} was written in format {found}, this Encke reads format {supported} only", file.display())]
    Version {
        /// The segment.
        file: PathBuf,
        /// Its format.
        found: u16,
        /// The format that can be read.
        supported: u16,
    },
    /// The directory was written with the other byte order.
    #[error("{} was written with another byte order: the log is little-endian on every machine", file.display())]
    ByteOrder {
        /// The segment.
        file: PathBuf,
    },
    /// History could not be opened or read.
    #[error("cannot {action} the history in {}: {reason}", path.display())]
    History {
        /// Where history is.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// The reason.
        reason: String,
    },
    /// A repair is not possible.
    #[error("{} can't be repaired: {what}; restore the directory from a copy", place.display())]
    BeyondRepair {
        /// What is damaged.
        place: PathBuf,
        /// What is wrong, and what is missing for a repair.
        what: String,
    },
    /// There is no sound copy of the superblock, which states what the directory must hold.
    #[error("{} can't be used: {what}{}", file.display(), repair_hint(file.parent().unwrap_or(Path::new("."))))]
    Superblock {
        /// A copy that is missing or damaged.
        file: PathBuf,
        /// What is wrong with each copy.
        what: String,
    },
    /// Segments are missing, and with them records.
    #[error("the records {from} to {upto} are missing in {}: no segment holds them, such as {}{}",
        directory.display(), file_name::segment(*from), repair_hint(directory))]
    Missing {
        /// The directory of the log.
        directory: PathBuf,
        /// The first record that is missing.
        from: Sequence,
        /// The last record that is missing.
        upto: Sequence,
    },
    /// Something that was durable is damaged.
    #[error("{} is damaged at byte {position}, where record {sequence} is expected: {what}; it was durable, so it is not dropped{}",
        file.display(), repair_hint(file.parent().unwrap_or(Path::new("."))))]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Where in it, in bytes.
        position: u64,
        /// The record that should be there.
        sequence: Sequence,
        /// What was found, and why it is certain that the record was durable.
        what: String,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> OpenError {
        OpenError::Io {
            path: path.to_owned(),
            action,
            source,
        }
    }
}

/// The end of messages about damage: an operator has to decide about a loss.
fn repair_hint(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        " (`encke log check {directory}` lists all damage, `encke log repair --accept-loss {directory}` drops it)"
    )
}

/// Why a frame was not added to the batch. The batch is unchanged.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppendError {
    /// The frame does not fit a segment.
    #[error("a frame of {bytes} bytes is too large: the limit is {max}")]
    TooLarge {
        /// The size of the frame with its head.
        bytes: u64,
        /// The largest frame that can be stored.
        max: u64,
    },
    /// The frame names more streams than a frame can.
    #[error("a frame in {streams} streams is not possible: the limit is {max}")]
    TooManyStreams {
        /// The number of streams.
        streams: usize,
        /// The largest number.
        max: usize,
    },
}

/// Why a batch was not written or not made durable.
#[derive(Debug, Error, Clone)]
#[non_exhaustive]
pub enum CommitError {
    /// There is no room. Nothing of the batch was written, and the batch is kept: [`Log::write`](crate::Log::write) may
    /// be called again when there is room, or [`Log::abandon`](crate::Log::abandon) drops the batch.
    #[error("no room for another segment of {bytes} bytes: {reason}")]
    NoSpace {
        /// The required room, in bytes.
        bytes: u64,
        /// The error of the system.
        reason: Arc<str>,
    },
    /// Too many segments wait for history, which does not take them. Nothing of the batch was written, and the batch is
    /// kept, as with [`CommitError::NoSpace`]. The background retries.
    #[error("the log takes no more records until history takes the sealed segments: {reason}")]
    HistoryFailed {
        /// Why history fails.
        reason: Arc<str>,
    },
    /// This or an earlier write or sync failed. The log acknowledges nothing more. The process should report this and
    /// start again, so that recovery finds out what is on the disk.
    #[error("the log takes no more records: {reason}")]
    Poisoned {
        /// The first failure.
        reason: Arc<str>,
    },
}

/// Why records could not be read. It never means that there are no records.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system returned an error.
    #[error("cannot read {} at byte {position}: {source}", file.display())]
    Io {
        /// The segment.
        file: PathBuf,
        /// Where in it, in bytes.
        position: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The content is not what was written.
    #[error("{} is damaged at byte {position}, where record {sequence} is expected: {what}", file.display())]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Where in it, in bytes.
        position: u64,
        /// The record that should be there.
        sequence: Sequence,
        /// What was found.
        what: &'static str,
    },
    /// History could not be read, or is damaged, or its log is closed.
    #[error("cannot read the history in {}: {reason}", path.display())]
    History {
        /// Where history is.
        path: PathBuf,
        /// The reason.
        reason: String,
        /// Whether the disk could not be read; otherwise the content is damaged.
        io: bool,
    },
    /// A read of a stream begins below its floor. The log does not return this error: it gives the records that are
    /// there, and [`ReadEnd::floor`](crate::ReadEnd::floor). It is for callers that must not skip a gap.
    #[error("the records of stream {stream} after {after} up to {floor} are no longer kept")]
    BelowFloor {
        /// The stream.
        stream: StreamNo,
        /// The requested position.
        after: Sequence,
        /// The records up to this one are removed.
        floor: Sequence,
    },
    /// A read asks for records that were accepted in memory only, and the log failed before it wrote them. The log does
    /// not return this error, because it does not know what was accepted; see
    /// [`Reader::given_up`](crate::Reader::given_up).
    #[error(
        "the records of stream {stream} after {after} were accepted and never written: {reason}"
    )]
    NeverWritten {
        /// The stream.
        stream: StreamNo,
        /// The last record that was written, of any stream.
        after: Sequence,
        /// Why the log failed.
        reason: Arc<str>,
    },
    /// A read of the global order begins before the oldest segment.
    #[error("the records up to {oldest} are no longer kept in the global order; the read begins after {after}", oldest = oldest - 1)]
    NoLongerKept {
        /// The requested position.
        after: Sequence,
        /// The oldest record that is kept.
        oldest: Sequence,
    },
}
