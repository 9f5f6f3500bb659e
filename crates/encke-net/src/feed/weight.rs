//! The unit of lag: bytes in units so large that 32 bits are enough.

use encke_stream::{Offset, Stream};

/// What a record of that many bytes adds to the lag of a subscriber that has not got it.
pub(crate) fn weight(bytes: usize) -> u32 {
    // A record is at most half a segment.
    u32::try_from(bytes as u64 / WEIGHT_BYTES).map_or(u32::MAX, |weight| weight.saturating_add(1))
}

/// Whether retention has removed something behind that position of a stream.
pub(crate) fn lacks(stream: &Stream, at: Offset) -> bool {
    let facts = stream.facts();
    at != Offset::START && at.sequence < facts.floor && at < facts.tail
}

/// Bytes in a piece; 32 bits of them are 256 GiB.
pub(crate) const WEIGHT_BYTES: u64 = 64;
