//! The frames of a client, taken off the input until a message must wait.

use super::state::WebSocket;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::websocket::close_code::CloseCode;
use crate::websocket::deflate::Inflation;
use crate::websocket::frame::encode_pong;
use crate::websocket::message::Message;
use crate::websocket::receive::{MessageEvent, ReceiveOptions};
use crate::websocket::violation::Violation;

impl WebSocket {
    /// Takes frames off the input until a message must wait.
    pub(super) fn take_frames(&mut self, rest: &mut &[u8], is_blocked: bool, cx: &mut Context<'_>) {
        while !rest.is_empty() && !self.is_closing && !is_blocked {
            if self.work.as_ref().is_some_and(|work| work.is_full()) {
                return;
            }
            let message_bytes_max = match self.channel.has_caller() {
                true => cx.settings.body_bytes_max,
                false => cx.settings.body_bytes_max.min(STRANGER_BYTES_MAX),
            };
            let options = ReceiveOptions {
                message_bytes_max,
                deflate: self.deflate,
            };
            let now = cx.clock.elapsed();
            let received = self.receiver.receive(rest, options, &mut self.meter, now);
            match received {
                Ok(None) => return,
                Ok(Some(event)) => self.take(event, cx),
                Err(violation) => return self.violated(violation, cx),
            }
        }
    }

    pub(super) fn take(&mut self, event: MessageEvent, cx: &mut Context<'_>) {
        if let (MessageEvent::Message(_) | MessageEvent::Compressed(_), Some(work)) =
            (&event, &mut self.work)
        {
            work.rest = None;
        }
        match event {
            MessageEvent::Message(message) => self.take_message(message, cx),
            MessageEvent::Compressed(compressed) => {
                // A refused message is not inflated, so that the refusal cannot name its id.
                if self.count("", cx) {
                    let settings = cx.settings;
                    let bytes_max = settings.websocket_inflated_bytes_max;
                    let bytes_max = bytes_max.min(settings.body_bytes_max);
                    self.work().inflation = Some(Inflation::new(compressed, bytes_max));
                    self.inflate(cx);
                }
            }
            MessageEvent::Ping(payload) => encode_pong(&payload, &mut cx.effects.output),
            MessageEvent::Pong(_) => {}
            MessageEvent::Close(close) => {
                let code = close.map(|close| close.code);
                self.begin_end(code, CloseReason::HangUp, None, cx);
            }
        }
    }

    /// Inflates a piece of the message whose turn it is, once for each event of the channel: the next one follows behind the deliveries of
    /// the turn.
    pub(super) fn inflate(&mut self, cx: &mut Context<'_>) {
        let Some(inflation) = self.work.as_mut().and_then(|work| work.inflation.as_mut()) else {
            return;
        };
        let step = match std::mem::replace(&mut self.has_inflated, true) {
            true => Ok(None),
            false => inflation.step(INFLATED_BYTES_AT_ONCE),
        };
        match step {
            Ok(None) => {
                cx.push(ConnectionEffect::Queue(self.place.exchange));
                cx.push(ConnectionEffect::Grow(self.place.exchange));
            }
            Ok(Some(message)) => {
                self.work().inflation = None;
                self.take_counted(message, cx);
            }
            Err(violation) => self.violated(violation, cx),
        }
    }

    fn take_message(&mut self, message: Message, cx: &mut Context<'_>) {
        let text = match &message {
            Message::Text(text) => text,
            Message::Binary(_) => "",
        };
        if self.count(text, cx) {
            self.take_counted(message, cx);
        }
    }

    fn take_counted(&mut self, message: Message, cx: &mut Context<'_>) {
        match message {
            Message::Text(text) => self.begin(text, cx),
            Message::Binary(_) => {
                let reason = CloseReason::WebSocketViolation;
                self.close(CloseCode::UNSUPPORTED_DATA, reason, cx);
            }
        }
    }

    pub(super) fn violated(&mut self, violation: Violation, cx: &mut Context<'_>) {
        tracing::debug!(%violation, "a client violated WebSocket");
        let reason = CloseReason::WebSocketViolation;
        self.close(violation.close_code(), reason, cx);
    }
}

/// Bytes of compressed messages that are read and written in one turn.
pub(crate) const INFLATED_BYTES_AT_ONCE: usize = 64 << 10;

/// Bytes of a message of a client that has not said who it is: a token, and what stands around it.
const STRANGER_BYTES_MAX: usize = 16 << 10;
