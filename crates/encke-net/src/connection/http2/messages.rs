//! Messages of a channel on their way into its stream.

use super::input::StreamInput;
use super::stream::{Stream, mark_dirty};
use crate::connection::context::Context;
use crate::connection::exchange::writer::ResponseWriter;
use crate::http2::frames::Http2Frames;

impl Stream {
    /// Has messages of its channel sent with the next poll; many at once are sent now. Returns how many bytes are taken.
    pub(super) fn send_messages(
        &mut self,
        bytes: &[u8],
        frames: &mut Http2Frames,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) -> usize {
        if self.outbound.is_some() {
            self.write_unsent(frames, is_blocked, cx);
            return 0;
        }
        let Some(channel) = self.channel_mut() else {
            return bytes.len();
        };
        if channel.unsent.len() + bytes.len() <= GATHERED_BYTES_MAX {
            channel.unsent.extend_from_slice(bytes);
            mark_dirty(frames, cx);
            return bytes.len();
        }
        self.write_unsent(frames, is_blocked, cx);
        match self.outbound {
            Some(_) => 0,
            None => self.send(bytes, false, frames, is_blocked, cx),
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        match &self.input {
            StreamInput::Channel(channel) => !channel.unsent.is_empty(),
            _ => false,
        }
    }

    /// Sends the messages that wait for the next poll.
    pub(super) fn write_unsent(
        &mut self,
        frames: &mut Http2Frames,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        let channel = self.channel_mut();
        let unsent = channel.map(|channel| std::mem::take(&mut channel.unsent));
        if let Some(unsent) = unsent.filter(|unsent| !unsent.is_empty()) {
            self.writer(frames, is_blocked).part(&unsent, false, cx);
        }
    }
}

/// Bytes of messages that are gathered for one frame: as many as every client takes in one.
const GATHERED_BYTES_MAX: usize = 16 << 10;
