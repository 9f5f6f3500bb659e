//! What happens to a channel.

use encke_protocol::{ChannelEnd, FeedEnd};

use super::messages::ChannelWriter;
use super::state::{OpenedChannel, WebSocket};
use super::work::{LongMessage, RestUntil, Work};
use crate::clients::callers::CallerEnd;
use crate::clock::Monotonic;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::{ExchangeEvent, end_of_caller};
use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::websocket::close_code::CloseCode;
use crate::websocket::frame::{ControlPayload, encode_ping};
use crate::websocket::frame_meter::LightFrameMeter;
use crate::websocket::receive::MessageReceiver;

impl WebSocket {
    /// A channel that has just been opened.
    pub(crate) fn new(place: ExchangePlace, opened: OpenedChannel, cx: &mut Context<'_>) -> Self {
        let caller_until = cx.clock.monotonic().after(cx.settings.request_timeout);
        let mut websocket = WebSocket {
            place,
            channel: opened.opening.channel,
            receiver: MessageReceiver::new(),
            meter: LightFrameMeter::new(),
            deflate: opened.deflate,
            feeds: Vec::new(),
            work: Some(Box::new(Work {
                input: opened.input.into(),
                first: opened.opening.first,
                caller_until: Some(caller_until),
                ..Work::default()
            })),
            awaits_pong: false,
            has_inflated: false,
            is_closing: false,
        };
        websocket.go_on(false, cx);
        websocket
    }

    /// Handles received bytes.
    pub(crate) fn received(&mut self, bytes: &[u8], is_blocked: bool, cx: &mut Context<'_>) {
        self.awaits_pong = false;
        self.has_inflated = false;
        if self.is_closing {
            return;
        }
        let has_input = self.work.as_ref().is_some_and(|work| work.has_input());
        if has_input || is_blocked || self.long_feed().is_some() {
            self.work().input.append(bytes);
            self.go_on(is_blocked, cx);
        } else {
            let mut rest = bytes;
            self.take_frames(&mut rest, is_blocked, cx);
            if !rest.is_empty() && !self.is_closing {
                self.work().input.append(rest);
            }
            self.settle(cx);
        }
        self.await_rest(cx);
    }

    /// The client sends nothing more: it gets the responses to what it has sent. One that only listens has hung up.
    pub(crate) fn half_closed(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        match &mut self.work {
            Some(work) if work.is_busy() && !is_blocked && work.long.is_none() => {
                work.is_half_closed = true;
            }
            _ => cx.push(ConnectionEffect::CloseChannel(
                self.place.exchange,
                CloseReason::HangUp,
            )),
        }
    }

    /// The socket has taken everything.
    pub(crate) fn drained(&mut self, cx: &mut Context<'_>) {
        self.has_inflated = false;
        for feed in &self.feeds {
            cx.push(ConnectionEffect::Deliver(feed.id, None));
        }
        if self.long_feed().is_none() {
            self.inflate(cx);
        }
        self.go_on(false, cx);
        cx.push(ConnectionEffect::Receive);
    }

    /// Handles an event of one of its exchanges.
    pub(crate) fn on(
        &mut self,
        id: ExchangeId,
        event: ExchangeEvent,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        self.has_inflated = false;
        if matches!(event, ExchangeEvent::Queued) {
            // Its turn has come to inflate a further piece.
            if !is_blocked && self.long_feed().is_none() {
                self.inflate(cx);
            }
        } else if self.waits(id) {
            self.ask_again(event, cx);
        } else if let Some(place) = self.exchange(id) {
            let mut pending = self.work().exchanges.swap_remove(place);
            let may_begin = pending.key != 0;
            let mut writer = ChannelWriter::default();
            let start = cx.effects.output.len();
            pending.exchange.on(event, &mut writer, cx);
            self.hold(start, cx);
            self.keep(pending, cx);
            if may_begin {
                self.regrant(cx);
            }
            if writer.is_unserved {
                self.close_unserved(cx);
            }
        }
        self.go_on(is_blocked, cx);
        // What was left in the socket because so much was under way.
        cx.push(ConnectionEffect::Receive);
    }

    /// The last fragment is written: what was held back follows, and the other feeds have their turn.
    pub(crate) fn end_long_message(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        let long = self.work.as_mut().and_then(|work| work.long.take());
        let Some(LongMessage { held, .. }) = long else {
            return;
        };
        cx.effects.output.extend_from_slice(&held);
        for feed in &self.feeds {
            cx.push(ConnectionEffect::Deliver(feed.id, None));
        }
        if !is_blocked {
            self.inflate(cx);
        }
        self.go_on(is_blocked, cx);
        cx.push(ConnectionEffect::Receive);
    }

    /// Ends a feed in the middle of something, or behind its last bytes.
    pub(crate) fn end_exchange(
        &mut self,
        id: ExchangeId,
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        if let Some(place) = self.feeds.iter().position(|feed| feed.id == id) {
            let feed = self.feeds.swap_remove(place);
            let end = match reason {
                CloseReason::Deleted => FeedEnd::Deleted,
                CloseReason::Ended => FeedEnd::Told,
                reason if reason.is_dismissal() => FeedEnd::Dismissed,
                reason => FeedEnd::Failed(reason.why()),
            };
            let message = self.channel.ended(feed.key, end);
            self.write(&message, cx);
            cx.push(ConnectionEffect::Ended(id, reason));
            if self.long_feed() == Some(id) {
                // Its message can't be completed.
                return self.close(CloseCode::INTERNAL_ERROR, reason, cx);
            }
            let code = self.channel.close_code(ChannelEnd::FeedEnded);
            if let Some(code) = code.and_then(CloseCode::new) {
                self.close(code, reason, cx);
            }
        } else if let Some(place) = self.exchange(id) {
            self.work().exchanges.swap_remove(place);
            cx.push(ConnectionEffect::Ended(id, reason));
            self.close(CloseCode::INTERNAL_ERROR, reason, cx);
        }
        self.settle(cx);
    }

    /// Sends the last message of a feed, which has lost more than it may, or is sent elsewhere.
    pub(crate) fn dismiss(
        &mut self,
        id: ExchangeId,
        farewell: &[u8],
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        let start = cx.effects.output.len();
        cx.effects.output.extend_from_slice(farewell);
        self.hold(start, cx);
        self.end_exchange(id, reason, cx);
    }

    /// Nothing was sent for a while: asks the client whether it is still there. One that has not answered the last time is gone.
    pub(crate) fn beat(&mut self, cx: &mut Context<'_>) {
        if self.awaits_pong {
            let code = self.code_for(ChannelEnd::NoPong, CloseCode::TIMED_OUT);
            return self.close(code, CloseReason::NoPong, cx);
        }
        self.awaits_pong = true;
        encode_ping(&ControlPayload::default(), &mut cx.effects.output);
    }

    /// The time of the channel's caller is over.
    pub(crate) fn end_caller(&mut self, end: CallerEnd, cx: &mut Context<'_>) {
        let reason = end_of_caller(end, cx);
        let farewell = self.channel.farewell(reason.why());
        self.write(&farewell, cx);
        let code = match end {
            CallerEnd::Expired => CloseCode::CALLER_EXPIRED,
            CallerEnd::Revoked => CloseCode::CALLER_REVOKED,
        };
        self.close(code, reason, cx);
    }

    /// The server stops, or does not follow its fleet.
    pub(crate) fn leave(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        let code = match reason {
            CloseReason::Stopping => self.code_for(ChannelEnd::Stopping, CloseCode::GOING_AWAY),
            _ => self.code_for(ChannelEnd::ServedElsewhere, CloseCode::SERVED_ELSEWHERE),
        };
        self.close(code, reason, cx);
    }

    /// A deadline has passed.
    pub(crate) fn time_out(&mut self, cx: &mut Context<'_>) {
        let now = cx.clock.monotonic();
        let Some(work) = &self.work else {
            return;
        };
        let has_passed = |until: Option<Monotonic>| until.is_some_and(|until| until <= now);
        if has_passed(work.ending.map(|ending| ending.until)) {
            self.end(cx);
        } else if has_passed(work.caller_until) {
            self.close(CloseCode::TIMED_OUT, CloseReason::Unauthenticated, cx);
        } else if has_passed(work.rest.map(RestUntil::first)) {
            self.close(CloseCode::TIMED_OUT, CloseReason::SlowMessage, cx);
        }
    }

    /// Goes on with what has arrived, until a message must wait.
    pub(super) fn go_on(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        while let Some(work) = &mut self.work
            && !is_blocked
            && work.long.is_none()
            && !work.is_full()
            && !self.is_closing
        {
            if !work.first.is_empty() {
                let first = work.first.remove(0);
                match String::from_utf8(first) {
                    Ok(text) => {
                        if self.count(&text, cx) {
                            self.begin(text, cx);
                        }
                    }
                    Err(_) => self.close(CloseCode::INTERNAL_ERROR, CloseReason::Internal, cx),
                }
                continue;
            }
            if work.input.is_empty() {
                break;
            }
            let mut input = std::mem::take(&mut work.input);
            let mut rest = input.rest();
            self.take_frames(&mut rest, is_blocked, cx);
            let taken = input.rest().len() - rest.len();
            input.take(taken);
            if !self.is_closing {
                self.work().input = input;
            }
        }
        self.settle(cx);
    }
}
