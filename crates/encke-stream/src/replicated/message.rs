//! Messages of the replicated order: a batch of commands, whole or in parts.
//!
//! | bytes | content |
//! |---|---|
//! | 2 | `EK`: other messages do not belong to the order and are ignored by all nodes alike |
//! | 1 | the format, by its number |
//! | … | the header: [`Header`] in postcard |
//! | … | the batch, or a part of it |
//!
//! A batch is a count and as many commands, in postcard. Before a command with [`CommandExtras`] are a mark and these.
//!
//! Nodes of two releases that follow each other take part in one fleet: a release that brings a format reads it, and writes the one before; the
//! release behind it writes it. So each reads what the other writes, in either direction, and nodes are upgraded one after the other. A
//! further variant of a command or a further field is a new format, because older releases could not read it.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::chain::{BatchId, Tip};
use crate::Command;
use crate::machine::command::CommandExtras;
use crate::machine::outcome::Refusal;

/// What precedes the content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) batch: BatchId,
    /// What the node had applied when it sent the batch.
    pub(super) applied: TipCheck,
    /// The index of the part.
    pub(super) part: u32,
    /// The number of parts; at least 1.
    pub(super) parts: u32,
}

/// A position of the order, and the first bits of the hash of all messages up to it. Nodes compare it with what they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TipCheck {
    pub(super) position: u64,
    pub(super) hash: u64,
}

impl From<Tip> for TipCheck {
    fn from(tip: Tip) -> TipCheck {
        TipCheck {
            position: tip.position,
            hash: tip.hash as u64,
        }
    }
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// A batch or a part of one.
    BatchPart(Header, &'a [u8]),
    /// It does not belong to the order.
    Foreign,
}

/// A message that this version cannot read, although it belongs to the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// A later version has written it.
    #[error("it has format {found}, and this version of encke reads the formats {} to {}: upgrade this node, one release after the other", READ_FORMATS.start(), READ_FORMATS.end())]
    Format {
        /// Its format.
        found: u8,
    },
    /// It is damaged.
    #[error("it is damaged")]
    Damaged,
}

impl<'a> Message<'a> {
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Message<'a>, BadMessage> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Ok(Message::Foreign);
        };
        let (format, rest) = rest.split_first().ok_or(BadMessage::Damaged)?;
        if !READ_FORMATS.contains(format) {
            return Err(BadMessage::Format { found: *format });
        }
        let (header, content): (Header, _) =
            postcard::take_from_bytes(rest).map_err(|_| BadMessage::Damaged)?;
        if header.parts == 0 || header.part >= header.parts {
            return Err(BadMessage::Damaged);
        }
        Ok(Message::BatchPart(header, content))
    }
}

/// Encodes a batch in messages of at most about `bytes_max` bytes.
pub(super) fn encode(
    batch: &BatchId,
    applied: Tip,
    content: &[u8],
    bytes_max: usize,
) -> Vec<Vec<u8>> {
    let room = part_bytes_max(bytes_max);
    let parts = content.len().div_ceil(room).max(1) as u32;
    let mut chunks = content.chunks(room);
    let messages = (0..parts).map(|part| {
        let header = Header {
            batch: batch.clone(),
            applied: applied.into(),
            part,
            parts,
        };
        let mut message = MAGIC.to_vec();
        message.push(WRITTEN_FORMAT);
        let mut message = postcard::to_extend(&header, message).expect(GROWING);
        message.extend_from_slice(chunks.next().unwrap_or_default());
        message
    });
    messages.collect()
}

/// The content of a part in a message of at most `message_bytes_max` bytes.
fn part_bytes_max(message_bytes_max: usize) -> usize {
    message_bytes_max.saturating_sub(HEADER_BYTES_MAX).max(1)
}

/// The largest command for messages of at most this size: nodes drop a batch of very many parts.
pub(super) fn content_bytes_max(message_bytes_max: usize) -> usize {
    part_bytes_max(message_bytes_max).saturating_mul(PARTS_MAX)
}

/// The content of a batch that is being built.
#[derive(Debug, Default)]
pub(super) struct Content {
    count: u32,
    commands: Vec<u8>,
}

impl Content {
    pub(super) fn push(&mut self, command: &Command) {
        let mut commands = std::mem::take(&mut self.commands);
        if let Some(extras) = command.extras() {
            commands.push(EXTRAS_MARK);
            commands = postcard::to_extend(&extras, commands).expect(GROWING);
        }
        self.commands = postcard::to_extend(command, commands).expect(GROWING);
        self.count += 1;
    }

    /// Adds a command that has at most `bytes_max` bytes.
    pub(super) fn push_within(
        &mut self,
        command: &Command,
        bytes_max: usize,
    ) -> Result<(), Refusal> {
        let before = self.commands.len();
        self.push(command);
        let bytes = self.commands.len() - before;
        if bytes <= bytes_max {
            return Ok(());
        }
        self.commands.truncate(before);
        self.count -= 1;
        Err(Refusal::TooLarge {
            bytes: bytes as u64,
            bytes_max: bytes_max as u64,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.commands.len()
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let mut content = postcard::to_allocvec(&self.count).expect(GROWING);
        content.extend_from_slice(&self.commands);
        content
    }
}

/// The commands of a whole batch.
pub(super) fn commands(content: &[u8]) -> Result<Vec<Command>, BadMessage> {
    let (count, mut rest): (u32, _) =
        postcard::take_from_bytes(content).map_err(|_| BadMessage::Damaged)?;
    // A command takes at least a byte, so a wrong count reserves no more than the message has.
    let mut commands = Vec::with_capacity((count as usize).min(rest.len()));
    for _ in 0..count {
        let mut extras: Option<CommandExtras> = None;
        if let Some(marked) = rest.strip_prefix(&[EXTRAS_MARK]) {
            let (found, after) =
                postcard::take_from_bytes(marked).map_err(|_| BadMessage::Damaged)?;
            extras = Some(found);
            rest = after;
        }
        let (mut command, after): (Command, _) =
            postcard::take_from_bytes(rest).map_err(|_| BadMessage::Damaged)?;
        if extras.is_some_and(|extras| !command.set_extras(extras)) {
            return Err(BadMessage::Damaged);
        }
        commands.push(command);
        rest = after;
    }
    match rest {
        [] => Ok(commands),
        _ => Err(BadMessage::Damaged),
    }
}

const MAGIC: &[u8] = b"EK";

/// The formats that this release reads. With the feature `next-format` this is a build as the next release will be, for tests.
const READ_FORMATS: RangeInclusive<u8> = 1..=if cfg!(feature = "next-format") { 2 } else { 1 };

/// The format that this release writes, which the release before and the next one read.
const WRITTEN_FORMAT: u8 = 1;

/// What a command with [`CommandExtras`] begins with. No command has this number.
const EXTRAS_MARK: u8 = 0x7f;

/// Room for what precedes the content, and for what the shared log adds: the names of the node and the fleet have at most 64 bytes and
/// come several times, numbers have at most 20.
const HEADER_BYTES_MAX: usize = 640;

/// The most parts of a command. A batch of commands has at most twice as many, which all nodes must join ([`Assembly`](super::assembly::Assembly)).
const PARTS_MAX: usize = 2_500;

const GROWING: &str = "growing a vector is the only thing that writes here";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicated::chain::Applied;

    fn batch() -> BatchId {
        BatchId {
            node: "a".into(),
            at: Applied::default(),
        }
    }

    #[test]
    fn a_format_of_a_later_release_is_named() {
        let mut message = encode(&batch(), Tip::default(), b"content", 1 << 20).remove(0);
        assert!(matches!(
            Message::decode(&message),
            Ok(Message::BatchPart(_, b"content"))
        ));
        message[MAGIC.len()] = READ_FORMATS.end() + 1;
        let error = Message::decode(&message).unwrap_err();
        let found = READ_FORMATS.end() + 1;
        assert_eq!(error, BadMessage::Format { found });
        assert!(error.to_string().contains("upgrade this node"), "{error}");
        message[MAGIC.len()] = 0;
        assert_eq!(
            Message::decode(&message),
            Err(BadMessage::Format { found: 0 })
        );
    }
}
