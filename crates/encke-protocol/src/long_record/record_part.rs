//! The part of a record that a reader gets.

use encke_clock::WallTime;
use encke_stream::{Item, MediaKind, Offset};

/// The part of a record that belongs to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPart {
    pub(crate) kind: MediaKind,
    /// Units that the reader has.
    pub(crate) skip: u32,
    /// Units from the beginning of the record after which the rest belongs to another stream.
    pub(crate) take: u32,
    /// The position behind the part.
    pub(crate) end: Offset,
    pub(crate) time: WallTime,
}

impl RecordPart {
    /// The first byte of the data that is needed. Messages are counted from the beginning.
    pub(super) fn first_byte(&self) -> u64 {
        match self.kind {
            MediaKind::Json => 0,
            MediaKind::Text | MediaKind::Binary => self.skip.into(),
        }
    }

    /// The position behind a number of units, counted from the beginning of the record.
    pub(crate) fn position(&self, units: u32) -> Offset {
        let item = Item {
            data: &[],
            skip: self.skip,
            take: self.take,
            end: self.end,
            time: self.time,
        };
        item.position(units)
    }
}
