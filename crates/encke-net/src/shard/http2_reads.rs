//! What is read for the responses on streams of HTTP/2: only what their windows take, and little for each of many.

use super::Shard;
use crate::connection::active::UnsentOutput;
use crate::connection::slot::Flags;
use crate::http2::read_ahead::{ReadAhead, StreamReadAhead};

impl Shard {
    /// How much of `wanted` may be read for a connection's response now.
    pub(super) fn grant_read(&mut self, index: u32, wanted: usize) -> usize {
        let granted = self.with_read_ahead(index, |all, own| all.grant(own, wanted));
        granted.unwrap_or(wanted)
    }

    /// What was read for a connection has arrived.
    pub(super) fn read_arrived(&mut self, index: u32) {
        self.with_read_ahead(index, ReadAhead::arrived);
    }

    /// Notes what a stream holds now.
    pub(super) fn hold_on_stream(&mut self, index: u32, bytes: usize) {
        self.with_read_ahead(index, |all, own| all.hold(own, bytes));
    }

    /// Whether a response goes on when its stream's windows open: nothing is read for it before.
    pub(super) fn awaits_window(&mut self, index: u32) -> bool {
        if !self.connections.slots[index].flags.has(Flags::HTTP2_STREAM) {
            return false;
        }
        let connection = self.socket_of(index);
        if !self.connections.is_blocked(connection) && self.has_capacity(index) {
            return false;
        }
        if let Some(http2) = self.http2_mut(connection) {
            http2.starved = true;
        }
        let reached = self.is_subscribed(index).then(|| self.position(index));
        let nothing = UnsentOutput {
            reached,
            ..UnsentOutput::default()
        };
        self.block(index, nothing);
        true
    }

    /// Changes what a stream has read ahead, and its connection. `None`: it is no stream.
    fn with_read_ahead<T>(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut ReadAhead, &mut StreamReadAhead) -> T,
    ) -> Option<T> {
        if !self.connections.slots[index].flags.has(Flags::HTTP2_STREAM) {
            return None;
        }
        let stream = self.http2.streams.get(index)?;
        let (connection, mut own) = (stream.connection, stream.read_ahead);
        let changed = change(&mut self.http2_mut(connection)?.read_ahead, &mut own);
        if let Some(stream) = self.http2.streams.get_mut(index) {
            stream.read_ahead = own;
        }
        Some(changed)
    }
}
