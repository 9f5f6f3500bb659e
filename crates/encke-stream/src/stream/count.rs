//! How much was appended to a stream: messages, and bytes.

use serde::{Deserialize, Serialize};

use crate::MediaKind;

/// How many messages were appended to a stream: of JSON streams those of all appends, of others the appends with data. Unknown for a
/// fork that begins inside its source, because nothing counts the messages before a position, and for a stream whose state an older
/// version has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageCount(u64);

impl MessageCount {
    /// Not known.
    pub const UNKNOWN: MessageCount = MessageCount(u64::MAX);

    /// The count with an append of so many units.
    #[must_use]
    pub fn with(self, units: u32, kind: MediaKind) -> Self {
        match kind {
            MediaKind::Json => self.plus(u64::from(units)),
            MediaKind::Text | MediaKind::Binary => self.plus(u64::from(units > 0)),
        }
    }

    /// The sum, if both are known.
    #[must_use]
    pub(crate) fn and(self, other: MessageCount) -> Self {
        match other {
            MessageCount::UNKNOWN => MessageCount::UNKNOWN,
            MessageCount(other) => self.plus(other),
        }
    }

    /// The count without what is in it twice.
    #[must_use]
    pub(crate) fn without(self, twice: MessageCount) -> Self {
        match (self, twice) {
            (MessageCount::UNKNOWN, _) | (_, MessageCount::UNKNOWN) => MessageCount::UNKNOWN,
            (MessageCount(known), MessageCount(twice)) => MessageCount(known.saturating_sub(twice)),
        }
    }

    /// The number, if it is known.
    pub fn known(self) -> Option<u64> {
        (self != MessageCount::UNKNOWN).then_some(self.0)
    }

    fn plus(self, messages: u64) -> Self {
        match self {
            MessageCount::UNKNOWN => self,
            MessageCount(known) => MessageCount(known + messages),
        }
    }
}

/// How many bytes of data were appended to a stream, its creation included, those included that were removed since. A fork has its own
/// and not those of its source. Unknown for a stream whose state an older version has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteCount(u64);

impl ByteCount {
    /// Not known.
    pub const UNKNOWN: ByteCount = ByteCount(u64::MAX);

    /// The bytes of one record.
    pub fn of(data: &[u8]) -> Self {
        ByteCount(data.len() as u64)
    }

    /// The sum, if both are known.
    #[must_use]
    pub fn and(self, other: ByteCount) -> Self {
        match (self, other) {
            (ByteCount::UNKNOWN, _) | (_, ByteCount::UNKNOWN) => ByteCount::UNKNOWN,
            (ByteCount(some), ByteCount(more)) => ByteCount(some.saturating_add(more)),
        }
    }

    /// The count without what is in it twice.
    #[must_use]
    pub(crate) fn without(self, twice: ByteCount) -> Self {
        match (self, twice) {
            (ByteCount::UNKNOWN, _) | (_, ByteCount::UNKNOWN) => ByteCount::UNKNOWN,
            (ByteCount(known), ByteCount(twice)) => ByteCount(known.saturating_sub(twice)),
        }
    }

    /// The number, if it is known.
    pub fn known(self) -> Option<u64> {
        (self != ByteCount::UNKNOWN).then_some(self.0)
    }
}
