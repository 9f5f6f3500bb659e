//! How a channel ends, and what it gives up before.

use encke_protocol::{ChannelClose, ChannelEnd};

use super::state::WebSocket;
use super::work::{Ending, PendingMessage, RestUntil, Work};
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::websocket::close::{encode_close, encode_empty_close};
use crate::websocket::close_code::CloseCode;
use crate::websocket::receive::MessageReceiver;

impl WebSocket {
    pub(super) fn close(&mut self, code: CloseCode, reason: CloseReason, cx: &mut Context<'_>) {
        self.begin_end(Some(code), reason, None, cx);
    }

    /// Closes the channel as its protocol wants.
    pub(super) fn close_as(&mut self, close: &ChannelClose, cx: &mut Context<'_>) {
        let code = CloseCode::new(close.code).unwrap_or(CloseCode::INTERNAL_ERROR);
        self.begin_end(
            Some(code),
            CloseReason::ByProtocol(close.label),
            Some(close.why),
            cx,
        );
    }

    /// The close code for an end, in the protocol of the channel if that has one.
    pub(super) fn code_for(&self, end: ChannelEnd, code: CloseCode) -> CloseCode {
        let own = self.channel.close_code(end);
        own.and_then(CloseCode::new).unwrap_or(code)
    }

    /// A message was not served. Closes a channel whose clients come back then, and do not repeat the message.
    pub(super) fn close_unserved(&mut self, cx: &mut Context<'_>) {
        let code = self.channel.close_code(ChannelEnd::Unserved);
        if let Some(code) = code.and_then(CloseCode::new) {
            self.close(code, CloseReason::Unserved, cx);
        }
    }

    /// Looks at nothing more, and sends a close frame behind the responses to what is under way.
    pub(super) fn begin_end(
        &mut self,
        code: Option<CloseCode>,
        reason: CloseReason,
        why: Option<&'static str>,
        cx: &mut Context<'_>,
    ) {
        if self.is_closing {
            return;
        }
        self.is_closing = true;
        self.receiver = MessageReceiver::new();
        let work = self.work.take().unwrap_or_default();
        let (pending, begun): (Vec<_>, Vec<_>) = work
            .exchanges
            .into_iter()
            .partition(|pending| pending.key == 0);
        let long = work.long;
        self.channel.closes();
        let feeds = self.feeds.drain(..).map(|feed| feed.id);
        let begun = begun.iter().map(PendingMessage::id);
        let waiting = work.waiting.iter().map(|waiting| waiting.id);
        for id in feeds.chain(begun).chain(waiting) {
            cx.push(ConnectionEffect::Ended(id, reason));
        }
        let ending = Ending {
            code,
            reason,
            why,
            until: cx.clock.monotonic().after(cx.settings.request_timeout),
        };
        *self.work() = Work {
            exchanges: pending,
            // The messages that it holds back are lost.
            long,
            ending: Some(ending),
            ..Work::default()
        };
        self.settle(cx);
    }

    /// Sends the close frame, behind which nothing follows.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) {
        let ending = self.work.as_ref().and_then(|work| work.ending);
        let Some(Ending {
            code, reason, why, ..
        }) = ending
        else {
            return;
        };
        match (code, reason) {
            (None, _) => encode_empty_close(&mut cx.effects.output),
            (Some(code), CloseReason::HangUp) => encode_close(code, "", &mut cx.effects.output),
            (Some(code), reason) => {
                let why = why.unwrap_or(reason.why());
                encode_close(code, why, &mut cx.effects.output);
            }
        }
        self.forget_all(reason, cx);
        cx.push(ConnectionEffect::CloseChannel(self.place.exchange, reason));
    }

    /// The connection is closed: gives up what its exchanges have elsewhere.
    pub(crate) fn forget_all(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        let work = self.work.take().unwrap_or_default();
        let exchanges = work.exchanges.iter().map(PendingMessage::id);
        let waiting = work.waiting.iter().map(|waiting| waiting.id);
        let feeds = self.feeds.drain(..).map(|feed| feed.id);
        for id in exchanges.chain(waiting).chain(feeds) {
            cx.push(ConnectionEffect::Ended(id, reason));
        }
    }

    /// Sets the deadlines of a message of which a part is there. The parts of the next message have time of their own.
    pub(super) fn await_rest(&mut self, cx: &mut Context<'_>) {
        if self.receiver.is_idle() || self.is_closing {
            return;
        }
        let now = cx.clock.monotonic();
        let (part, whole) = (
            now.after(cx.settings.request_timeout),
            now.after(cx.settings.body_timeout),
        );
        let rest = &mut self.work().rest;
        let whole = rest.map_or(whole, |rest| rest.whole);
        *rest = Some(RestUntil { part, whole });
        cx.push(ConnectionEffect::Grow(self.place.exchange));
    }

    /// Gives up what is not needed while nothing is under way, and ends a channel that waits for that.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        let has_caller = self.channel.has_caller();
        let Some(work) = &mut self.work else {
            return cx.push(ConnectionEffect::Weigh(self.place.exchange));
        };
        if has_caller {
            work.caller_until = None;
        }
        if work.ending.is_some() && work.exchanges.is_empty() {
            return self.end(cx);
        }
        if work.is_half_closed && !work.is_busy() {
            work.is_half_closed = false;
            return self.begin_end(None, CloseReason::HangUp, None, cx);
        }
        let is_large = !work.input.is_empty();
        if work.is_over() {
            self.work = None;
        }
        cx.push(match is_large {
            true => ConnectionEffect::Grow(self.place.exchange),
            false => ConnectionEffect::Weigh(self.place.exchange),
        });
    }
}
