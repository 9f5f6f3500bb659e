//! The outcome of a command, and why a command is refused.

use std::sync::Arc;

use crate::{AckLevel, Offset, Retention};

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stream is there.
    Created {
        /// The position behind its data.
        tail: Offset,
        /// Its type.
        content_type: Box<str>,
        /// Whether it is closed.
        closed: bool,
        /// How safe its records are when readers see them.
        ack: AckLevel,
        /// What is kept of it.
        retention: Retention,
        /// It was there before, with the same settings.
        existed: bool,
    },
    /// The data is in the stream.
    Appended {
        /// The position behind its data.
        tail: Offset,
        /// Whether the stream is closed.
        closed: bool,
        /// The producer's epoch and its highest accepted number.
        producer: Option<(u64, u64)>,
        /// It was there before: the request is a repetition.
        duplicate: bool,
    },
    /// The stream's records before a position are gone.
    Truncated {
        /// The position.
        floor: Offset,
        /// The position behind its data.
        tail: Offset,
    },
    /// The stream is deleted.
    Deleted,
    /// Nothing changed.
    Refused(Refusal),
}

impl Outcome {
    /// Whether the command changed its stream: it was not refused, and it is no repetition.
    pub fn changes(&self) -> bool {
        match self {
            Outcome::Created { existed, .. } => !existed,
            Outcome::Appended { duplicate, .. } => !duplicate,
            Outcome::Truncated { .. } | Outcome::Deleted => true,
            Outcome::Refused(_) => false,
        }
    }
}

/// Why nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such stream.
    #[error("there is no such stream")]
    NotFound,
    /// The stream was deleted and is kept for its forks only.
    #[error("the stream was deleted; only its forks can be read")]
    Gone,
    /// The stream's name is taken by one that is kept for its forks.
    #[error("the name belongs to a deleted stream that forks still read")]
    NameKept,
    /// A stream of that name has other settings.
    #[error("the stream exists with another {what}: it has {has}, the request says {asked}")]
    Differs {
        /// Which setting.
        what: &'static str,
        /// As it is.
        has: String,
        /// As it was asked for.
        asked: String,
    },
    /// The stream is closed.
    #[error("the stream is closed")]
    Closed {
        /// Its final position.
        tail: Offset,
    },
    /// Data of another type than the stream's.
    #[error("the stream's type is {has:?}, the data was sent as {asked:?}")]
    TypeDiffers {
        /// The stream's.
        has: Box<str>,
        /// The data's.
        asked: Box<str>,
    },
    /// `Stream-Seq` did not grow.
    #[error("Stream-Seq must grow: the last one was {last:?}, this one is {asked:?}")]
    WriterSeq {
        /// The last accepted one.
        last: Box<str>,
        /// The one refused.
        asked: Box<str>,
    },
    /// The producer's epoch is over.
    #[error("the producer's epoch is over: epoch {current} is in force")]
    StaleEpoch {
        /// The epoch in force.
        current: u64,
    },
    /// A new epoch does not start at 0.
    #[error("a new epoch starts with sequence 0, not {received}")]
    EpochStart {
        /// What it started with.
        received: u64,
    },
    /// Requests of the producer are missing.
    #[error("the producer's next sequence is {expected}, not {received}")]
    SeqGap {
        /// The number that comes next.
        expected: u64,
        /// The number that came.
        received: u64,
    },
    /// What is known of the name was let go of before the command was judged. Look it up and ask
    /// again.
    #[error("the stream's state is not in memory; nothing was stored, try again")]
    Evicted,
    /// Another log gives or has the name just now.
    #[error("the name is being given to another stream; nothing was stored, try again")]
    NameBusy,
    /// The source of a fork does not exist.
    #[error("the stream to fork does not exist")]
    SourceNotFound,
    /// The source of a fork was deleted.
    #[error("the stream to fork was deleted")]
    SourceGone,
    /// A fork behind its source's end.
    #[error("the fork's offset {asked} is beyond the source's end at {tail}")]
    BeyondTail {
        /// Where the source ends.
        tail: Offset,
        /// Where the fork should begin.
        asked: Offset,
    },
    /// A truncation behind the stream's end.
    #[error("the offset {asked} is beyond the stream's end at {tail}")]
    TruncateBeyondTail {
        /// Where the stream ends.
        tail: Offset,
        /// Before which position everything should go.
        asked: Offset,
    },
    /// A fork from before its source's beginning: the offset is of an earlier stream of that name.
    #[error("the fork's offset {asked} is of an earlier stream with its source's name")]
    BeforeStart {
        /// Where the fork should begin.
        asked: Offset,
    },
    /// A fork from a position below its source's floor: what the fork should begin with is gone.
    #[error(
        "of what is before the fork's offset {asked} some is no longer kept; the source has everything behind {floor}"
    )]
    NoLongerKept {
        /// Where the fork should begin.
        asked: Offset,
        /// Behind which position the source has everything.
        floor: Offset,
    },
    /// A fork of a fork of a fork… has too many sources.
    #[error("a fork has at most {depth_max} sources, one behind the other")]
    TooDeep {
        /// How many it may have.
        depth_max: u32,
    },
    /// One record must fit in the log.
    #[error("the data is too large for one record of the log: {bytes} bytes, at most {bytes_max}")]
    TooLarge {
        /// The record's size.
        bytes: u64,
        /// The most that one may have.
        bytes_max: u64,
    },
    /// The disk is full; nothing was changed.
    #[error("the disk is full; nothing was stored")]
    NoSpace,
    /// The log takes nothing for now; nothing was changed, and it goes on by itself.
    #[error("the log takes nothing for now, so nothing was stored: {0}")]
    Stalled(Arc<str>),
    /// The log failed and takes nothing more.
    #[error("the log has failed and takes nothing more: {0}")]
    LogFailed(Arc<str>),
}
