//! What can be asked of the streams, and what is answered.

use std::sync::Arc;

use crate::writers::ProducerId;
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
