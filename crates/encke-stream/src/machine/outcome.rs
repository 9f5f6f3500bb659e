//! The outcome of a command, and why a command is refused.

use std::borrow::Cow;
use std::sync::Arc;

use encke_log::StreamNo;
use serde::{Deserialize, Serialize};

use crate::stream::account::StorageExceeded;
use crate::stream::record::EndReason;
use crate::{AckLevel, Offset, Retention};

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stream exists.
    Created {
        /// The position after its data.
        tail: Offset,
        /// Its type.
        content_type: Box<str>,
        /// Whether it is closed.
        closed: bool,
        /// Its durability level.
        ack: AckLevel,
        /// How much of it is retained.
        retention: Retention,
        /// The stream existed before, with the same settings.
        existed: bool,
        /// Its number.
        no: StreamNo,
    },
    /// The data is in the stream.
    Appended {
        /// The position after its data.
        tail: Offset,
        /// Whether the stream is closed.
        closed: bool,
        /// Whether a reader has asked the producer to stop.
        stop_asked: bool,
        /// The producer's epoch and its highest accepted number.
        producer: Option<(u64, u64)>,
        /// The request is a repetition; the data was in the stream before.
        duplicate: bool,
    },
    /// The stream's records before a position are removed.
    Truncated {
        /// The position.
        floor: Offset,
        /// The position after its data.
        tail: Offset,
    },
    /// The stream is deleted.
    Deleted,
    /// A command of the fleet itself is done.
    Done,
    /// Nothing changed.
    Refused(Refusal),
}

impl Outcome {
    /// Whether the command changed its stream: it was not refused, and it is not a repetition.
    pub fn changes(&self) -> bool {
        match self {
            Outcome::Created { existed, .. } => !existed,
            Outcome::Appended { duplicate, .. } => !duplicate,
            Outcome::Truncated { .. } | Outcome::Deleted => true,
            Outcome::Done | Outcome::Refused(_) => false,
        }
    }
}

/// Why nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such stream.
    #[error("there is no such stream; PUT creates it")]
    NotFound,
    /// The stream was deleted and exists for its forks only.
    #[error("the stream was deleted; only its forks can be read")]
    Gone,
    /// A deleted stream that exists for its forks has the name.
    #[error("the name belongs to a deleted stream that forks still read")]
    NameKept,
    /// A stream of this name has other settings.
    #[error("the stream exists with another {what}: it has {has}, the request has {asked}")]
    Differs {
        /// The setting.
        what: Cow<'static, str>,
        /// The stream's value.
        has: String,
        /// The requested value.
        asked: String,
    },
    /// The stream is closed.
    #[error("the stream is closed and takes no more records")]
    Closed {
        /// Its final position.
        tail: Offset,
        /// Why it was closed, if that was said.
        end: Option<EndReason>,
    },
    /// The stream does not end where the request has expected.
    #[error(
        "the stream ends at {tail}, not at {asked}; read what was appended since, then try again"
    )]
    TailDiffers {
        /// Where it ends.
        tail: Offset,
        /// Where it was expected to end.
        asked: Offset,
    },
    /// The content type of the data differs from the stream's.
    #[error(
        "the stream's type is {has:?}, the data was sent as {asked:?}; send the field Content-Type: {has}"
    )]
    TypeDiffers {
        /// The stream's.
        has: Box<str>,
        /// The data's.
        asked: Box<str>,
    },
    /// `Stream-Seq` did not increase.
    #[error(
        "sequence conflict: Stream-Seq must increase: the last one was {last:?}, this one is {asked:?}"
    )]
    WriterSeq {
        /// The last accepted one.
        last: Box<str>,
        /// The one refused.
        asked: Box<str>,
    },
    /// The producer's epoch is stale.
    #[error("the producer's epoch is stale; the current epoch is {current}")]
    StaleEpoch {
        /// The current epoch.
        current: u64,
    },
    /// A new epoch does not start with sequence 0.
    #[error("a new epoch starts with sequence 0, not {received}")]
    EpochStart {
        /// The sequence that it started with.
        received: u64,
    },
    /// Requests of the producer are missing.
    #[error("the producer's next sequence is {expected}, not {received}")]
    SeqGap {
        /// The next sequence.
        expected: u64,
        /// The received sequence.
        received: u64,
    },
    /// The state of the name was evicted before the command was judged. The caller must look it up and try again.
    #[error("the stream's state is not in memory; nothing was stored, try again")]
    Evicted,
    /// Another log has the name or is about to give it.
    #[error("another stream is being created with this name; nothing was stored, try again")]
    NameBusy,
    /// The name of a fork belongs to another log than its source. On several nodes each log decides by itself.
    #[error(
        "in a fleet with several logs, a fork must have a name of its source's log; this one has not"
    )]
    ForkElsewhere,
    /// The order did not confirm the command in time. It may be stored, or be stored later.
    #[error("the fleet did not confirm the request in time; it may be stored or not: {0}")]
    Unknown(Arc<str>),
    /// Another node of the fleet has become the dispatcher.
    #[error("another node dispatches the jobs now; nothing was stored, try again")]
    NotDispatcher,
    /// The source of a fork does not exist.
    #[error("the stream to fork does not exist")]
    SourceNotFound,
    /// The source of a fork was deleted.
    #[error("the stream to fork was deleted")]
    SourceGone,
    /// The fork's offset is after the end of its source.
    #[error("the fork's offset {asked} is beyond the source's end at {tail}")]
    BeyondTail {
        /// Where the source ends.
        tail: Offset,
        /// The requested offset.
        asked: Offset,
    },
    /// The truncation's offset is after the end of the stream.
    #[error("the offset {asked} is beyond the stream's end at {tail}")]
    TruncateBeyondTail {
        /// Where the stream ends.
        tail: Offset,
        /// The requested offset.
        asked: Offset,
    },
    /// The fork's offset belongs to an earlier stream with the name of its source.
    #[error("the fork's offset {asked} belongs to an earlier stream with the name of its source")]
    BeforeStart {
        /// The requested offset.
        asked: Offset,
    },
    /// The fork's offset is below the floor of its source: some of the fork's data is removed.
    #[error(
        "some records before the fork's offset {asked} are removed; the source has everything after {floor}"
    )]
    NoLongerKept {
        /// The requested offset.
        asked: Offset,
        /// The source has everything after this position.
        floor: Offset,
    },
    /// The chain of sources is too long.
    #[error("a chain of forks has at most {depth_max} sources")]
    TooDeep {
        /// The most sources in a chain.
        depth_max: u32,
    },
    /// The record is too large for the log.
    #[error("the data is too large for one record of the log: {bytes} bytes, at most {bytes_max}")]
    TooLarge {
        /// The record's size.
        bytes: u64,
        /// The largest size of a record.
        bytes_max: u64,
    },
    /// The disk is full. Nothing was changed.
    #[error("the disk is full; nothing was stored")]
    NoSpace,
    /// The log takes nothing at the moment. Nothing was changed, and the log recovers by itself.
    #[error("the log takes no records at the moment; nothing was stored: {0}")]
    Stalled(Arc<str>),
    /// The log has failed and takes nothing more.
    #[error(
        "the log has failed and takes no more records; what is not acknowledged may be stored or not: {0}"
    )]
    LogFailed(Arc<str>),
    /// The account that would pay for the stream has used up what it may store.
    #[error("the quota of what the caller stores is used up")]
    StorageExceeded(StorageExceeded),
    /// A stream of this name belongs to another caller.
    #[error("the stream belongs to another caller")]
    NotOwner,
}
