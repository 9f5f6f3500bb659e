//! What a shard keeps of HTTP/2 beside its slots.

use crate::connection::by_slot::BySlot;
use crate::connection::slot::Token;
use crate::http2::stream::Http2Stream;

/// The streams, and what must be polled.
#[derive(Debug, Default)]
pub(super) struct Http2Tables {
    /// Streams by the numbers of their slots.
    pub(super) streams: BySlot<Http2Stream>,
    /// Connections that must be polled before the shard waits.
    pub(super) dirty: Vec<Token>,
    /// Memory for a list of streams.
    pub(super) visited: Vec<u32>,
}
