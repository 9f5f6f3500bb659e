//! What can go wrong, with what the reader needs to act.

use crate::segment;
use crate::{Sequence, StreamNo};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why a log could not be opened. Nothing was changed, unless a write failed while the tail was being repaired.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another log in this one, has the directory.
    #[error("{} is in use by another process: only one may have a log open", directory.display())]
    Locked {
        /// The directory of the log.
        directory: PathBuf,
    },
    /// There is a directory and no log in it. Only commands that look at a log say this; opening makes one.
    #[error("{} holds no log", directory.display())]
    NoLog {
        /// The directory.
        directory: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done to it.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no room for the first segment.
    #[error("no room in {} for a segment of {bytes} bytes: {source}", directory.display())]
    NoSpace {
        /// The directory of the log.
        directory: PathBuf,
        /// The size of the segment that was to be made.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// `segment_bytes` is out of bounds.
    #[error("segments of {bytes} bytes are not possible: between {min} and {max} are")]
    SegmentBytes {
        /// What was asked for.
        bytes: u64,
        /// The smallest size.
        min: u64,
        /// The largest size.
        max: u64,
    },
    /// A file has the name of a segment and is none.
    #[error("{} is not a segment of a log: it does not begin as one", file.display())]
    NotASegment {
        /// The file.
        file: PathBuf,
    },
    /// The directory was written by a version of Encke with another format.
    #[error("{} was written in format {found}, this Encke reads format {supported} only", file.display())]
    Version {
        /// The segment that says so.
        file: PathBuf,
        /// Its format.
        found: u16,
        /// The format that can be read.
        supported: u16,
    },
    /// The directory was written with the other byte order.
    #[error("{} was written with another byte order: the log is little-endian on every machine", file.display())]
    ByteOrder {
        /// The segment that says so.
        file: PathBuf,
    },
    /// History could not be opened or read.
    #[error("cannot {action} the history in {}: {reason}", path.display())]
    History {
        /// Where history is.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What it said.
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
    #[error("{} can't be used: {what}{}", file.display(), cure(file.parent().unwrap_or(Path::new("."))))]
    Superblock {
        /// A copy that is missing or damaged.
        file: PathBuf,
        /// What is wrong with each copy.
        what: String,
    },
    /// Segments are missing, so records are.
    #[error("the records {from} to {upto} are missing in {}: no segment holds them, such as {}{}",
        directory.display(), segment::name(*from), cure(directory))]
    Missing {
        /// The directory of the log.
        directory: PathBuf,
        /// The first record that is missing.
        from: Sequence,
        /// The last record that is missing.
        upto: Sequence,
    },
    /// Something that was durable is damaged.
    #[error("{} is damaged at byte {position}, where record {sequence} is due: {what}; it was durable, so it is not dropped{}",
        file.display(), cure(file.parent().unwrap_or(Path::new("."))))]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Where in it, in bytes.
        position: u64,
        /// The record that should be there.
        sequence: Sequence,
        /// What was found, and how it is known that it was durable.
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

/// The end of the message for what only a human may decide.
fn cure(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        " (`encke log check {directory}` tells all that is wrong, `encke log repair --accept-loss {directory}` drops it)"
    )
}

/// Why a frame could not be taken into the batch. The batch is as it was.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppendError {
    /// The frame does not fit a segment.
    #[error("a frame of {bytes} bytes is too large: {max} is the most")]
    TooLarge {
        /// The size of the frame with its head.
        bytes: u64,
        /// The largest frame that can be stored.
        max: u64,
    },
    /// The frame names more streams than a frame can.
    #[error("a frame in {streams} streams is not possible: {max} is the most")]
    TooManyStreams {
        /// How many it names.
        streams: usize,
        /// How many it may.
        max: usize,
    },
}

/// Why a batch was not written or not made durable.
#[derive(Debug, Error, Clone)]
#[non_exhaustive]
pub enum CommitError {
    /// There is no room. Nothing of the batch was written, and the batch is still there: [`Log::write`](crate::Log::write)
    /// may be called again when there is room, or [`Log::abandon`](crate::Log::abandon) drops it.
    #[error("no room for another segment of {bytes} bytes: {reason}")]
    NoSpace {
        /// How much room is wanted, in bytes.
        bytes: u64,
        /// What the system said.
        reason: Arc<str>,
    },
    /// Too many segments wait for history, and history does not take them. Nothing of the batch was written, and the batch is
    /// still there, as with [`CommitError::NoSpace`]; history is tried again by itself.
    #[error("the log takes no more records until history takes the sealed segments: {reason}")]
    HistoryFailed {
        /// What history said.
        reason: Arc<str>,
    },
    /// An earlier write or sync failed, or this one did. Nothing will be acknowledged any more; the process should say so
    /// and start again, so that recovery finds out what is really on the disk.
    #[error("the log takes no more records: {reason}")]
    Poisoned {
        /// What failed first.
        reason: Arc<str>,
    },
}

/// Why records could not be read. It never means that there are none.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system refused.
    #[error("cannot read {} at byte {position}: {source}", file.display())]
    Io {
        /// The segment.
        file: PathBuf,
        /// Where in it, in bytes.
        position: u64,
        /// What the system said.
        source: io::Error,
    },
    /// What is there is not what was written.
    #[error("{} is damaged at byte {position}, where record {sequence} is due: {what}", file.display())]
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
    /// History could not be read, or is damaged; or the log it belongs to is closed.
    #[error("cannot read the history in {}: {reason}", path.display())]
    History {
        /// Where history is.
        path: PathBuf,
        /// What it said.
        reason: String,
        /// Whether the disk could not be read; otherwise what it gave is damaged.
        io: bool,
    },
    /// A stream is asked for from before what is still kept of it. The log itself does not say this: it gives what is there, and
    /// tells by [`ReadEnd::floor`](crate::ReadEnd::floor) what is not; it is for those who must not pass over a gap.
    #[error("what stream {stream} had between record {after} and record {floor} is no longer kept")]
    BelowFloor {
        /// The stream.
        stream: StreamNo,
        /// The position that was asked for.
        after: Sequence,
        /// Its records up to this one are gone.
        floor: Sequence,
    },
    /// A stream is asked for what was accepted in memory only, and the log failed before it was written. The log itself does
    /// not say this, because it does not know what was accepted: see [`Reader::given_up`](crate::Reader::given_up).
    #[error(
        "what stream {stream} has behind record {after} was accepted and never written: {reason}"
    )]
    NeverWritten {
        /// The stream.
        stream: StreamNo,
        /// The last record that was written, of whatever stream.
        after: Sequence,
        /// Why the log failed.
        reason: Arc<str>,
    },
    /// The global order is asked for from before what is still kept.
    #[error("the records up to {oldest} are no longer kept in the global order; {after} and later was asked for", oldest = oldest - 1)]
    NoLongerKept {
        /// The position that was asked for.
        after: Sequence,
        /// The oldest record that is still there.
        oldest: Sequence,
    },
}
