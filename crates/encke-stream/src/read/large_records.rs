//! How reads take large records: whole, by their beginnings, or in parts.

use std::time::Instant;

use encke_log::FileRange;

/// How a read takes large records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeRecords {
    /// Whole.
    Whole,
    /// Of a record of which the reader wants more than [`RECORD_BYTES`], only the beginning, and nothing behind it.
    Beginnings,
    /// In parts.
    Parts(PartRead),
}

impl LargeRecords {
    pub(super) fn parts(self) -> Option<PartRead> {
        match self {
            LargeRecords::Parts(parts) => Some(parts),
            LargeRecords::Whole | LargeRecords::Beginnings => None,
        }
    }
}

/// How a read takes large records in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRead {
    /// Bytes of the first record that were read before.
    pub had: u64,
    /// Data of a file may stay there, if its verification began since then: the piece names the place.
    pub in_file: Option<Instant>,
    /// A record is large if its frame in the log has at least so many bytes.
    pub large_bytes: u32,
    /// A part has at most the bytes of the read, even if the log gives the record whole.
    pub is_bounded: bool,
}

impl PartRead {
    /// A read that has had so many bytes of its first record.
    pub fn behind(had: u64) -> Self {
        PartRead {
            had,
            in_file: None,
            large_bytes: LARGE_BYTES,
            is_bounded: false,
        }
    }
}

/// A part of a large record.
#[derive(Debug)]
pub struct LargePart {
    /// It is the first one of its record.
    pub begins: bool,
    /// The part.
    pub data: LargeData,
}

/// The data of a part.
#[derive(Debug)]
pub enum LargeData {
    /// In memory.
    Bytes(Vec<u8>),
    /// In a file.
    File(FileRange),
}

/// Bytes of a record that a read of the global order gives, at most. The rest is read by [`Fetch::rest_of_record`](crate::Fetch::rest_of_record).
pub const RECORD_BYTES: usize = 64 << 10;

/// A frame from which on a record is read in parts.
const LARGE_BYTES: u32 = 64 << 10;
