//! What a read of a stream gives, and how far it came.

use crate::ids::Sequence;
use crate::read::large::StreamRead;
use crate::segments::frame::{HEAD_BYTES, STREAM_BYTES};

/// How far a read came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEnd {
    /// All requested records up to this sequence were given. With `more` it is the last given record, otherwise the
    /// requested end, but never beyond the last published record. The next read can continue from here.
    pub last: Sequence,
    /// Whether there are more requested records.
    pub more: bool,
    /// The floor of a stream: its records up to this one are removed, 0 when none are, [`FORGOTTEN`](crate::FORGOTTEN) when
    /// all are. It includes what retention removed during the read. When it is above the requested position, records in
    /// between may have been removed. Of the global order: always 0; a read that begins too early fails with
    /// [`ReadError::NoLongerKept`](crate::ReadError::NoLongerKept).
    pub floor: Sequence,
}

/// What a read has given, and what it takes still.
pub(crate) struct ReadProgress {
    pub(crate) last: Option<Sequence>,
    /// How many more bytes of records that are given whole.
    pub(crate) left: usize,
    /// Bytes of large records. Nothing else is given behind them.
    large: usize,
    /// See [`StreamRead`].
    large_together: usize,
}

impl ReadProgress {
    pub(crate) fn new(read: &StreamRead) -> ReadProgress {
        ReadProgress {
            last: None,
            left: read.bytes_max,
            large: 0,
            large_together: read.large_together,
        }
    }

    pub(crate) fn takes_whole(&self) -> bool {
        self.last.is_none() || self.left > 0
    }

    pub(crate) fn takes_large(&self) -> bool {
        self.last.is_none() || self.large > 0 && self.large < self.large_together
    }

    pub(crate) fn has_large(&self) -> bool {
        self.large > 0
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.takes_whole() && !self.takes_large()
    }

    pub(crate) fn add(&mut self, sequence: Sequence, bytes: usize) {
        self.last = Some(sequence);
        self.left = self.left.saturating_sub(bytes);
    }

    pub(crate) fn add_large(&mut self, sequence: Sequence, bytes: usize) {
        self.last = Some(sequence);
        self.left = 0;
        self.large += bytes;
    }
}

/// The bytes of a frame in one stream beside its payload.
pub(crate) const FRAME_BYTES: usize = HEAD_BYTES + STREAM_BYTES;
