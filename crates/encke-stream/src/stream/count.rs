//! How many messages were appended to a stream.

use serde::{Deserialize, Serialize};

use crate::stream::Facts;
use crate::{MediaKind, Offset, Source};

/// How many messages were appended to a stream: of JSON streams those of all appends, of others the appends with data. Unknown for a
/// fork that begins inside its source, because nothing counts the messages before a position, and for a stream whose state an older
/// version has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageCount(u64);

impl MessageCount {
    /// Not known.
    pub const UNKNOWN: MessageCount = MessageCount(u64::MAX);

    /// What a new stream has from its source.
    pub(crate) fn inherited(source: Option<&Source>) -> Self {
        let Some(source) = source else {
            return MessageCount(0);
        };
        let facts = source.stream.state().next;
        match source.at {
            Offset::START => MessageCount(0),
            at if at == facts.tail => facts.counted,
            _ => MessageCount::UNKNOWN,
        }
    }

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

    fn plus(self, messages: u64) -> Self {
        match self {
            MessageCount::UNKNOWN => self,
            MessageCount(known) => MessageCount(known + messages),
        }
    }
}

impl Facts {
    /// How many messages were appended to the stream, those of its source included, and those that were removed. `None`: it is a fork that
    /// begins inside its source, or an older version has stored it.
    pub fn messages(&self) -> Option<u64> {
        (self.counted != MessageCount::UNKNOWN).then_some(self.counted.0)
    }
}
