//! Messages of a channel: between the fragments of a long one, others are held back.

use super::state::WebSocket;
use super::work::LongMessage;
use crate::connection::context::Context;
use crate::connection::exchange_id::ExchangeId;
use crate::websocket::frame::{DataKind, encode_message};

impl WebSocket {
    /// A feed begins a message in fragments. The client's messages wait for its end.
    pub(crate) fn begin_long_message(&mut self, feed: ExchangeId) {
        let held = Vec::new();
        self.work().long.get_or_insert(LongMessage { feed, held });
    }

    /// Writes a message, or holds it back.
    pub(super) fn write(&mut self, message: &[u8], cx: &mut Context<'_>) {
        let start = cx.effects.output.len();
        write_message(message, cx);
        self.hold(start, cx);
    }

    /// Holds back the messages that were written from a place of the output on, if they would stand between fragments.
    pub(super) fn hold(&mut self, start: usize, cx: &mut Context<'_>) {
        let long = self.work.as_mut().and_then(|work| work.long.as_mut());
        if let Some(long) = long {
            long.held.extend(cx.effects.output.drain(start..));
        }
    }
}

pub(super) fn write_message(message: &[u8], cx: &mut Context<'_>) {
    if !message.is_empty() {
        encode_message(DataKind::Text, false, message, &mut cx.effects.output);
    }
}
