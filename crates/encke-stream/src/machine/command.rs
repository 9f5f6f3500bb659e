//! Commands: the changes that clients request.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_log::{Sequence, StreamNo};
use serde::{Deserialize, Serialize};

use crate::replicated::DispatcherTerm;
use crate::stream::account::Payer;
use crate::stream::record::EndReason;
use crate::stream::viewer::Viewer;
use crate::stream::writers::ProducerId;
use crate::{AckLevel, Lifetime, Lookup, Offset, Retention, Stream};

/// A change that a client requests.
#[derive(Debug, Serialize, Deserialize)]
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
    /// What the nodes of a fleet tell each other.
    Fleet(FleetCommand),
    /// Appends to streams of one log, in order, up to the first that is refused: what the last one says is in the log only if
    /// everything before it is. The outcome is that of the last, or the refusal.
    // Behind the others: the numbers of variants that are encoded must not change.
    Series(Vec<Append>),
}

/// A command that a node of a fleet sends on its own account. Every node decides it alike, by the time of its batch.
#[derive(Debug, Serialize, Deserialize)]
pub enum FleetCommand {
    /// Ends a stream if its lifetime is over.
    End {
        /// The stream.
        stream: NamedStream,
    },
    /// Removes records that are past the stream's retention.
    Trim {
        /// The stream.
        stream: NamedStream,
        /// The last record that is removed.
        floor: Sequence,
        /// Not before this time of the order, because the records are removed by their age; 1970 if by their number or size.
        due: WallTime,
    },
    /// Begins the sliding lifetime of a stream that was read again.
    Renew {
        /// The stream.
        stream: NamedStream,
    },
    /// Frees the name of a node that does not return: the fleet forgets what it knows of the node's batches.
    Leave {
        /// The name of the node.
        node: Box<str>,
    },
    /// Begins a term of the dispatcher, if it is later than the term that the log knows.
    Dispatch {
        /// The index of the log.
        log: usize,
        /// The dispatcher.
        next: DispatcherTerm,
    },
    /// Changes nothing. Its reply says that the node has applied everything that was acknowledged before the command was
    /// sent.
    Barrier {
        /// The index of the log.
        log: usize,
    },
    /// Closes a stream if its producer has appended nothing for too long.
    // Behind the others: the numbers of variants that are encoded must not change.
    Abandon {
        /// The stream.
        stream: NamedStream,
    },
}

/// A stream as the nodes of a fleet name it to each other. If it has ended, nothing happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedStream {
    /// Its number.
    pub no: StreamNo,
    /// Its name.
    pub name: Box<str>,
}

/// The creation of a stream.
#[derive(Debug, Serialize, Deserialize)]
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
    /// What few creations have.
    #[serde(skip)]
    pub extras: CreateExtras,
    /// The results of looking up its name and its source's name. They keep the streams in memory until the command is
    /// judged.
    #[serde(skip)]
    pub known: Vec<Lookup>,
}

impl Create {
    /// The creation of an open stream without data that is no fork, with the server's settings.
    pub fn new(name: impl Into<Box<str>>) -> Create {
        Create {
            name: name.into(),
            content_type: None,
            lifetime: None,
            closed: false,
            fork: None,
            data: Data::default(),
            ack: None,
            retention: None,
            extras: CreateExtras::default(),
            known: Vec::new(),
        }
    }
}

/// What few creations have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateExtras {
    /// The name of the caller to whom the stream belongs; if None, as the source for a fork and nobody otherwise.
    pub owner: Option<Box<str>>,
    /// It is closed when nothing was appended for so many seconds.
    pub producer_timeout_s: Option<u32>,
    /// Its metadata, in JSON.
    pub metadata: Option<Box<str>>,
    /// Whose streams of its name the creator may use: one that exists is confirmed to nobody else.
    pub viewer: Viewer,
    /// Whose streams of the source's name the creator may use.
    pub source_viewer: Viewer,
    /// It is acknowledged as synced, whatever the level of the stream.
    pub acks_synced: bool,
    /// Who pays for the stream.
    pub payer: Option<Box<Payer>>,
}

/// The stream that a fork continues.
#[derive(Debug, Serialize, Deserialize)]
pub struct ForkOf {
    /// Its source's name.
    pub source: Box<str>,
    /// The position at which it leaves the source; the source's tail if None.
    pub at: Option<Offset>,
}

/// An append to a stream.
#[derive(Debug, Serialize, Deserialize)]
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
    /// What few appends have.
    #[serde(skip)]
    pub extras: AppendExtras,
}

/// What few appends have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendExtras {
    /// Why the append closes the stream.
    pub end: Option<EndReason>,
    /// Whether it asks the producer to stop. A repetition changes nothing.
    pub asks_stop: bool,
    /// The stream's metadata from here on, in JSON.
    pub metadata: Option<Box<str>>,
    /// Where the stream must end before the append.
    pub if_tail: Option<Offset>,
}

/// What few commands have. Nodes of a fleet send it before the command, so that all others have the form that they have always had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CommandExtras {
    /// Of a creation.
    Create(CreateExtras),
    /// Of an append.
    Append(AppendExtras),
}

/// Data as the log stores it and readers see it: bytes, or for JSON the messages with commas between.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// How many units they hold: bytes, or messages for JSON.
    pub units: u32,
}

/// The stream that a command is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Target {
    /// The stream that has this name when the command is judged. It must belong to nobody.
    Named(Box<str>),
    /// The same, for data that was read in the form of a content type: the stream must have it.
    Read {
        /// The stream's name.
        name: Box<str>,
        /// The content type.
        media: Box<str>,
    },
    /// The stream that has this name when the command is judged. It must belong to this owner.
    Owned {
        /// The stream's name.
        name: Box<str>,
        /// The owner.
        owner: Box<str>,
        /// The content type that it must have, for data that was read in its form.
        media: Option<Box<str>>,
    },
    /// A stream that a look-up found; the command was checked against it. If it has ended meanwhile, the command fails,
    /// even if another stream has its name.
    // The last variant: the numbers of variants that are encoded must not depend on it.
    #[serde(skip)]
    Known(Arc<Stream>),
}

impl Target {
    /// The stream's name.
    pub fn name(&self) -> &str {
        match self {
            Target::Known(stream) => &stream.name,
            Target::Named(name) | Target::Read { name, .. } | Target::Owned { name, .. } => name,
        }
    }

    /// The target for other nodes. The name decides: another node may know a newer stream of that name. But what the sender may do was
    /// judged by the owner of this one.
    fn of(stream: &Stream, media: Option<Box<str>>) -> Target {
        let name = stream.name.clone();
        match (stream.owner(), media) {
            (None, None) => Target::Named(name),
            (None, Some(media)) => Target::Read { name, media },
            (Some(owner), media) => Target::Owned {
                name,
                owner: owner.into(),
                media,
            },
        }
    }

    /// Makes the target one that other nodes understand.
    fn detach(&mut self) {
        if let Target::Known(stream) = self {
            *self = Target::of(stream, None);
        }
    }

    /// The content type that the stream must have, for data that was read in its form.
    pub(crate) fn media(&self) -> Option<&str> {
        match self {
            Target::Read { media, .. } => Some(media),
            Target::Owned { media, .. } => media.as_deref(),
            Target::Named(_) | Target::Known(_) => None,
        }
    }

    /// Takes the stream that a look-up found, if any, and leaves an empty name. A clone would write twice to a counter that all
    /// clients of the stream share.
    pub(crate) fn take_known(&mut self) -> Option<Arc<Stream>> {
        match std::mem::replace(self, Target::Named(Box::default())) {
            Target::Known(stream) => Some(stream),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Whether a stream of the name is the one that was meant, as far as its owner says.
    pub(crate) fn admits(&self, stream: &Stream) -> bool {
        match self {
            Target::Known(_) => true,
            Target::Named(_) | Target::Read { .. } => stream.owner().is_none(),
            Target::Owned { owner, .. } => stream.owner() == Some(owner),
        }
    }
}

impl Append {
    /// The append of nothing to a stream, by no producer.
    pub fn to(target: Target) -> Append {
        Append {
            target,
            content_type: None,
            producer: None,
            writer_seq: None,
            closes: false,
            ack: None,
            data: Data::default(),
            extras: AppendExtras::default(),
        }
    }

    /// Makes the append one that other nodes understand.
    fn detach(&mut self) {
        if let Target::Known(stream) = &self.target
            && self.data.units > 0
        {
            // The data has the form of this stream. Another stream of the name must have the same.
            let media = Some(stream.media.name.clone());
            self.target = Target::of(stream, media);
        }
        self.target.detach();
    }
}

impl FleetCommand {
    /// The stream that it is for, if it is for one.
    pub(crate) fn stream(&self) -> Option<&NamedStream> {
        match self {
            FleetCommand::End { stream }
            | FleetCommand::Trim { stream, .. }
            | FleetCommand::Renew { stream }
            | FleetCommand::Abandon { stream } => Some(stream),
            FleetCommand::Barrier { .. }
            | FleetCommand::Dispatch { .. }
            | FleetCommand::Leave { .. } => None,
        }
    }
}

impl NamedStream {
    pub(crate) fn of(stream: &Stream) -> NamedStream {
        NamedStream {
            no: stream.no,
            name: stream.name.clone(),
        }
    }
}

impl Command {
    /// The name of the command's stream, for a series that of the last append; empty if it has none.
    pub fn name(&self) -> &str {
        let target = match self {
            Command::Series(appends) => {
                return appends.last().map_or("", |append| append.target.name());
            }
            Command::Create(create) => return &create.name,
            Command::Fleet(command) => {
                return command.stream().map_or("", |stream| &stream.name);
            }
            Command::Append(append) => &append.target,
            Command::Truncate { target, .. } | Command::Delete { target, .. } => target,
        };
        target.name()
    }

    /// Whether the command is for the log as a whole.
    pub(crate) fn is_for_log(&self) -> bool {
        matches!(self, Command::Fleet(command) if command.stream().is_none())
    }

    /// Makes the command one that other nodes understand.
    pub(crate) fn detach(&mut self) {
        match self {
            Command::Create(create) => create.known.clear(),
            Command::Append(append) => append.detach(),
            Command::Series(appends) => appends.iter_mut().for_each(Append::detach),
            Command::Truncate { target, .. } | Command::Delete { target, .. } => target.detach(),
            Command::Fleet(_) => {}
        }
    }

    /// What few commands have; `None` if it is the default.
    pub(crate) fn extras(&self) -> Option<CommandExtras> {
        match self {
            Command::Create(create) if create.extras != CreateExtras::default() => {
                Some(CommandExtras::Create(create.extras.clone()))
            }
            Command::Append(append) if append.extras != AppendExtras::default() => {
                Some(CommandExtras::Append(append.extras.clone()))
            }
            _ => None,
        }
    }

    /// Sets what the command has. False: it can't have it.
    pub(crate) fn set_extras(&mut self, extras: CommandExtras) -> bool {
        match (self, extras) {
            (Command::Create(create), CommandExtras::Create(extras)) => create.extras = extras,
            (Command::Append(append), CommandExtras::Append(extras)) => append.extras = extras,
            _ => return false,
        }
        true
    }

    /// The durability level that the command names for its acknowledgement.
    pub fn ack(&self) -> Option<AckLevel> {
        match self {
            Command::Create(create) if create.extras.acks_synced => Some(AckLevel::Synced),
            Command::Create(create) => create.ack,
            Command::Append(append) => append.ack,
            Command::Truncate { ack, .. } | Command::Delete { ack, .. } => *ack,
            Command::Fleet(_) | Command::Series(_) => None,
        }
    }

    /// The weight of the command in a queue that is bounded by bytes.
    pub fn weight_bytes(&self) -> usize {
        let payload = match self {
            Command::Create(create) => {
                let metadata = create.extras.metadata.as_ref();
                create.data.bytes.len() + create.name.len() + metadata.map_or(0, |text| text.len())
            }
            Command::Append(append) => {
                let metadata = append.extras.metadata.as_ref();
                append.data.bytes.len() + metadata.map_or(0, |text| text.len())
            }
            Command::Series(appends) => appends
                .iter()
                .map(|append| append.data.bytes.len() + size_of::<Append>())
                .sum(),
            Command::Truncate { .. } | Command::Delete { .. } | Command::Fleet(_) => 0,
        };
        payload + std::mem::size_of::<Command>()
    }
}
