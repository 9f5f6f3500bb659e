//! How many messages were appended to a stream.

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
