//! What can be asked of the streams, and what is answered.

use std::sync::Arc;

use crate::{AckLevel, Lifetime, Lookup, Offset, Retention, Stream};

/// A change that somebody asks for.
#[derive(Debug)]
pub enum Command {
    /// Make a stream, or make sure that it is there with just these settings.
    Create(Create),
    /// Add data, close, or both.
    Append(Append),
    /// Let go of a stream's records before a position. Repeating it changes nothing.
    Truncate {
        /// Which stream.
        target: Target,
        /// The first position that is kept; everything when left out.
        before: Option<Offset>,
        /// How safe it is when it is acknowledged; the stream's level when left out.
        ack: Option<AckLevel>,
    },
    /// Delete a stream.
    Delete {
        /// Which one.
        target: Target,
        /// How safe it is when it is acknowledged; the stream's level when left out.
        ack: Option<AckLevel>,
    },
}

/// A stream to be made.
#[derive(Debug)]
pub struct Create {
    /// Its name.
    pub name: Box<str>,
    /// Its type; a fork has its source's when this is left out.
    pub content_type: Option<Box<str>>,
    /// When it ends by itself; a fork has its source's when this is left out.
    pub lifetime: Option<Lifetime>,
    /// Whether it is complete with its first data.
    pub closed: bool,
    /// The stream it continues.
    pub fork: Option<ForkOf>,
    /// Its first data.
    pub data: Data,
    /// How safe its records are when their appends are acknowledged and when readers see them; a fork has its source's
    /// when this is left out, any other stream the server's.
    pub ack: Option<AckLevel>,
    /// What is kept of it; a fork keeps what its source does when this is left out, any other stream everything.
    pub retention: Option<Retention>,
    /// What was found of its name and its source's, so that it is still in memory when the command is
    /// judged.
    pub known: Vec<Lookup>,
}

/// The stream that a fork continues.
#[derive(Debug)]
pub struct ForkOf {
    /// Its source's name.
    pub source: Box<str>,
    /// Where it leaves the source; at the source's tail when left out.
    pub at: Option<Offset>,
}

/// Data to be added to a stream.
#[derive(Debug)]
pub struct Append {
    /// To which stream.
    pub target: Target,
    /// The type the data was sent as; must be the stream's unless there is no data.
    pub content_type: Option<Box<str>>,
    /// The idempotent producer.
    pub producer: Option<ProducerId>,
    /// The writer's own sequence (`Stream-Seq`), which must grow bytewise.
    pub writer_seq: Option<Box<str>>,
    /// Whether the stream is closed with this.
    pub closes: bool,
    /// How safe it is when it is acknowledged; the stream's level when left out.
    pub ack: Option<AckLevel>,
    /// The data.
    pub data: Data,
}

/// An idempotent producer and the number of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerId {
    /// Its name.
    pub id: Box<str>,
    /// Its session.
    pub epoch: u64,
    /// The request's number in the session.
    pub seq: u64,
}

/// Data as the log stores it and readers see it: bytes, or for JSON the messages with commas between.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How many units they hold: bytes, or messages for JSON.
    pub units: u32,
}

/// Which stream a command is for.
#[derive(Clone, Debug)]
pub enum Target {
    /// One that a look-up found, and what the command holds was checked against. When it has ended
    /// meanwhile, the command fails, even if another stream has its name.
    Known(Arc<Stream>),
    /// The one that has that name when the command is judged.
    Named(Box<str>),
}

impl Command {
    /// The name of the command's stream.
    pub(crate) fn name(&self) -> &str {
        let target = match self {
            Command::Create(create) => return &create.name,
            Command::Append(append) => &append.target,
            Command::Truncate { target, .. } | Command::Delete { target, .. } => target,
        };
        match target {
            Target::Known(stream) => &stream.name,
            Target::Named(name) => name,
        }
    }

    /// How safe it is to be when it is acknowledged, if it says so.
    pub fn ack(&self) -> Option<AckLevel> {
        match self {
            Command::Create(create) => create.ack,
            Command::Append(append) => append.ack,
            Command::Truncate { ack, .. } | Command::Delete { ack, .. } => *ack,
        }
    }

    /// What the command weighs in a queue that is bounded by bytes.
    pub fn weight_bytes(&self) -> usize {
        let payload = match self {
            Command::Create(create) => create.data.bytes.len() + create.name.len(),
            Command::Append(append) => append.data.bytes.len(),
            Command::Truncate { .. } | Command::Delete { .. } => 0,
        };
        payload + std::mem::size_of::<Command>()
    }
}

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
