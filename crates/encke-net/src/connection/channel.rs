//! Channels of a connection: the one that has a connection of HTTP/1.1 to itself, or those in streams of HTTP/2.

use super::close::CloseReason;
use super::context::Context;
use super::effect::ConnectionEffect;
use super::exchange_id::{ExchangeId, ExchangePlace};
use super::state::{Connection, Wire};
use super::timer::Timer;
use super::websocket::WebSocket;

impl Connection {
    /// A request that opens a channel gives it the connection.
    pub(super) fn open_channel(&mut self, cx: &mut Context<'_>) {
        match &self.wire {
            Wire::Http1(http1) if http1.opens_channel() => {}
            _ => return,
        }
        let wire = std::mem::replace(&mut self.wire, Wire::Lingering);
        if let Wire::Http1(http1) = wire
            && let Some(opened) = http1.into_channel(cx)
        {
            self.timer = Timer::default();
            let place = ExchangePlace {
                exchange: self.id,
                connection: self.id,
            };
            let mut websocket = WebSocket::new(place, opened, cx);
            if cx.stopping {
                websocket.leave(CloseReason::Stopping, cx);
            }
            self.wire = Wire::WebSocket(Box::new(websocket));
            self.set_channel_deadline(cx);
        }
    }

    /// Gives something to the channel that an exchange is, and whether its client takes nothing now. False: it is none.
    pub(crate) fn with_channel(
        &mut self,
        id: ExchangeId,
        cx: &mut Context<'_>,
        give: impl FnOnce(&mut WebSocket, bool, &mut Context<'_>),
    ) -> bool {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::WebSocket(websocket) if id == self.id => give(websocket, is_blocked, cx),
            Wire::Http2(http2) => return http2.with_channel(id, is_blocked, cx, give),
            Wire::WebSocket(_) | Wire::Http1(_) | Wire::Handshaking | Wire::Lingering => {
                return false;
            }
        }
        self.set_channel_deadline(cx);
        true
    }

    /// The feeds of the channel that an exchange is.
    pub(crate) fn feeds_of(&self, id: ExchangeId) -> Vec<ExchangeId> {
        match &self.wire {
            Wire::WebSocket(websocket) if id == self.id => websocket.feeds(),
            Wire::Http2(http2) => http2.feeds_of(id),
            _ => Vec::new(),
        }
    }

    /// The feed of the channel that an exchange is of which a message is sent in fragments.
    pub(crate) fn long_feed_of(&self, id: ExchangeId) -> Option<ExchangeId> {
        match &self.wire {
            Wire::WebSocket(websocket) if id == self.id => websocket.long_feed(),
            Wire::Http2(http2) => http2.long_feed_of(id),
            _ => None,
        }
    }

    /// The number by which messages name the channel that an exchange is.
    pub(crate) fn channel_number(&self, id: ExchangeId) -> Option<u64> {
        match &self.wire {
            Wire::WebSocket(websocket) if id == self.id => websocket.number(),
            Wire::Http2(http2) => http2.channel_number(id),
            _ => None,
        }
    }

    /// Whether a channel has the connection to itself.
    pub(crate) fn is_channel(&self) -> bool {
        matches!(self.wire, Wire::WebSocket(_))
    }

    /// The feeds of the channel that has the connection to itself, with their keys.
    pub(crate) fn channel_feeds(&self) -> Vec<(ExchangeId, u32)> {
        match &self.wire {
            Wire::WebSocket(websocket) => websocket.keyed_feeds(),
            _ => Vec::new(),
        }
    }

    /// Sets the deadline of a channel that has its connection to itself. While the client takes nothing, that has one.
    pub(super) fn set_channel_deadline(&mut self, cx: &mut Context<'_>) {
        if let Wire::WebSocket(websocket) = &self.wire
            && self.outbound.is_none()
        {
            websocket.set_deadline(&mut self.timer, cx);
        }
    }

    /// Ends a channel behind its close frame.
    pub(super) fn close_channel(
        &mut self,
        id: ExchangeId,
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        let is_blocked = self.outbound.is_some();
        match &mut self.wire {
            Wire::Http2(http2) => http2.close_channel(id, reason, is_blocked, cx),
            Wire::WebSocket(_) => cx.push(match reason {
                CloseReason::HangUp => ConnectionEffect::CloseBehind(reason),
                reason => ConnectionEffect::CloseGently(reason),
            }),
            Wire::Http1(_) | Wire::Handshaking | Wire::Lingering => {}
        }
    }
}
