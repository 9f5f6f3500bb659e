//! Commands: the changes that clients request.

use std::sync::Arc;

use crate::writers::ProducerId;
use crate::{AckLevel, Lifetime, Lookup, Offset, Retention, Stream};

/// A change that a client requests.
#[derive(Debug)]
pub enum Command {
    /// Creates a stream, or confirms that it exists with these settings.
    Create(Create),
    /// Appends data, closes the stream, or both.
    Append(Append),
    /// Removes the records of a stream before a position. A repetition changes nothing.
    Truncate {
        /// The stream.
        target: Target,
        /// The first position that stays; the tail if None.
        before: Option<Offset>,
        /// The durability level of the acknowledgement; the stream's level if None.
        ack: Option<AckLevel>,
    },
    /// Deletes a stream.
    Delete {
        /// The stream.
        target: Target,
        /// The durability level of the acknowledgement; the stream's level if None.
        ack: Option<AckLevel>,
    },
}

/// The creation of a stream.
#[derive(Debug)]
pub struct Create {
    /// Its name.
    pub name: Box<str>,
    /// Its content type; if None, the source's for a fork and the default otherwise.
    pub content_type: Option<Box<str>>,
    /// When it ends by itself; if None, as the source for a fork and never otherwise.
    pub lifetime: Option<Lifetime>,
    /// Whether the stream is complete with its first data.
    pub closed: bool,
    /// The stream that it continues.
    pub fork: Option<ForkOf>,
    /// Its first data.
    pub data: Data,
    /// Its durability level; if None, the source's for a fork and the server's otherwise.
    pub ack: Option<AckLevel>,
    /// How much of it is retained; if None, as the source for a fork and everything otherwise.
    pub retention: Option<Retention>,
    /// The results of looking up its name and its source's name. They keep the streams in memory until the command is
    /// judged.
    pub known: Vec<Lookup>,
}

/// The stream that a fork continues.
#[derive(Debug)]
pub struct ForkOf {
    /// Its source's name.
    pub source: Box<str>,
    /// The position at which it leaves the source; the source's tail if None.
    pub at: Option<Offset>,
}

/// An append to a stream.
#[derive(Debug)]
pub struct Append {
    /// The stream.
    pub target: Target,
    /// The content type of the data. It must be the stream's unless there is no data.
    pub content_type: Option<Box<str>>,
    /// The idempotent producer.
    pub producer: Option<ProducerId>,
    /// The writer's own sequence (`Stream-Seq`), which must increase bytewise.
    pub writer_seq: Option<Box<str>>,
    /// Whether the append closes the stream.
    pub closes: bool,
    /// The durability level of the acknowledgement; the stream's level if None.
    pub ack: Option<AckLevel>,
    /// The data.
    pub data: Data,
}

/// Data as the log stores it and readers see it: bytes, or for JSON the messages with commas between.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How many units they hold: bytes, or messages for JSON.
    pub units: u32,
}

/// The stream that a command is for.
#[derive(Clone, Debug)]
pub enum Target {
    /// A stream that a look-up found; the command was checked against it. If it has ended meanwhile, the command fails,
    /// even if another stream has its name.
    Known(Arc<Stream>),
    /// The stream that has this name when the command is judged.
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

    /// The durability level that the command names for its acknowledgement.
    pub fn ack(&self) -> Option<AckLevel> {
        match self {
            Command::Create(create) => create.ack,
            Command::Append(append) => append.ack,
            Command::Truncate { ack, .. } | Command::Delete { ack, .. } => *ack,
        }
    }

    /// The weight of the command in a queue that is bounded by bytes.
    pub fn weight_bytes(&self) -> usize {
        let payload = match self {
            Command::Create(create) => create.data.bytes.len() + create.name.len(),
            Command::Append(append) => append.data.bytes.len(),
            Command::Truncate { .. } | Command::Delete { .. } => 0,
        };
        payload + std::mem::size_of::<Command>()
    }
}
