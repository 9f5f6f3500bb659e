//! The frames of an HTTP/2 connection: what arrives, what goes out, and how it ends.

use std::time::Duration;

use h2::Reason;

use super::state::Http2;
use super::stream::mark_dirty;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::http2::frame_meter::Flood;
use crate::http2::frames::{Http2End, SEND_BYTES_MAX};

impl Http2 {
    /// Handles received bytes.
    pub(crate) fn received(&mut self, bytes: &[u8], is_blocked: bool, cx: &mut Context<'_>) {
        if self.frames.finished {
            return;
        }
        match self.frames.receive(bytes, cx.clock.elapsed()) {
            Ok(()) => self.pump(is_blocked, cx),
            Err(flood) => {
                let reason = match flood {
                    Flood::Control => CloseReason::Http2Flood,
                    Flood::Resets => CloseReason::Http2Resets,
                };
                self.end(Reason::ENHANCE_YOUR_CALM, reason, cx);
            }
        }
    }

    /// The socket has taken everything, or a turn is over in which something was written.
    pub(crate) fn flush(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        self.frames.queued = false;
        self.pump(is_blocked, cx);
    }

    /// The server stops.
    pub(crate) fn stop(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        for id in self.order.clone() {
            if self.leave_channel(id, is_blocked, cx) {
                continue;
            }
            match self.streams.get(&id) {
                Some(stream) if stream.is_receiving() => {
                    self.end_exchange(id, CloseReason::Stopping, cx);
                }
                // The last event says where to continue.
                Some(stream) if stream.is_subscribed() => {
                    cx.push(ConnectionEffect::Dismiss(id, CloseReason::Stopping));
                }
                _ => self.on_stop(id, is_blocked, cx),
            }
        }
        // Some clients drop what comes behind a GOAWAY.
        self.frames.refuse_streams();
        mark_dirty(&mut self.frames, cx);
    }

    /// Says that no more streams are accepted, once the subscribers of a stopping server have their ends.
    fn say_goodbye(&mut self, cx: &mut Context<'_>) {
        let is_subscribed = |id| {
            let stream = self.streams.get(id);
            stream.is_some_and(|stream| stream.is_subscribed())
        };
        let is_due = cx.stopping && self.frames.leaving && !self.frames.said_goaway;
        if is_due && !self.order.iter().any(is_subscribed) {
            // `h2` writes a GOAWAY before data that waits.
            self.poll(cx);
            self.frames.begin_leaving();
        }
    }

    /// Closes a connection without requests that is idle for too long, or one with a request whose head takes too long: until
    /// that is complete, no other frame may come.
    pub(crate) fn check_idle(&mut self, idle_timeout: Duration, cx: &mut Context<'_>) {
        if self.frames.finished {
            return;
        }
        let head = self.frames.head_since();
        let now = cx.clock.elapsed();
        let is_late = |since: Duration| now.saturating_sub(since) >= cx.settings.request_timeout;
        let idle = cx.clock.passed_at_least(self.frames.idle_since_s);
        let is_idle = self.order.is_empty() && idle >= idle_timeout;
        if is_idle || head.is_some_and(is_late) {
            self.end(Reason::NO_ERROR, CloseReason::Idle, cx);
        }
    }

    /// Polls the frames, sends what that leads to, begins new exchanges and looks at the others.
    fn pump(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        for _ in 0..POLLS_PER_TURN {
            self.write_unsent(is_blocked, cx);
            self.poll(cx);
            if self.frames.finished {
                return;
            }
            let end = self.frames.end();
            for accepted in self.frames.take_accepted() {
                self.begin_exchange(accepted, is_blocked, cx);
            }
            if let Some(end) = end {
                return self.ended(end, cx);
            }
            self.visit_streams(is_blocked, cx);
            self.say_goodbye(cx);
            if self.frames.leaving && self.order.is_empty() {
                let reason = match cx.stopping {
                    true => CloseReason::Stopping,
                    false => CloseReason::RequestsPerConnection,
                };
                return self.end(Reason::NO_ERROR, reason, cx);
            }
            if !self.frames.dirty {
                break;
            }
        }
        cx.push(ConnectionEffect::Weigh(self.id));
    }

    /// Writes the messages that were gathered for this poll.
    fn write_unsent(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        for id in std::mem::take(&mut self.unsent) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.write_unsent(&mut self.frames, is_blocked, cx);
                self.settle(id, cx);
            }
        }
    }

    /// Looks at the exchanges after a poll.
    fn visit_streams(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        let received = std::mem::take(&mut self.frames.received);
        let starved = std::mem::take(&mut self.frames.starved);
        if !received && !starved || self.order.is_empty() {
            return;
        }
        let first = std::mem::take(&mut self.frames.first) % self.order.len();
        let order = self.order.clone();
        for place in 0..order.len() {
            let place = (first + place) % order.len();
            let id = order[place];
            if received {
                self.receive_on_stream(id, is_blocked, cx);
            }
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            if !starved || stream.outbound.is_none() {
                continue;
            }
            let waits = is_blocked || cx.effects.output.len() >= SEND_BYTES_MAX;
            if !waits && stream.has_capacity() {
                self.writable(id, is_blocked, cx);
            } else {
                // Those that come later were not served: they are the first ones next time.
                if waits && !self.frames.starved {
                    self.frames.first = place;
                }
                self.frames.starved = true;
            }
        }
    }

    /// `h2` has ended the connection, and written what the client is to know.
    fn ended(&mut self, end: Http2End, cx: &mut Context<'_>) {
        let reason = match end {
            Http2End::Complete => CloseReason::HangUp,
            Http2End::Violation => CloseReason::Http2Violation,
            Http2End::Excess => CloseReason::Http2Excess,
        };
        self.forget_all(reason, cx);
        self.finish(reason, cx);
    }

    /// Ends the connection: the client gets a GOAWAY with the reason.
    pub(crate) fn end(&mut self, code: Reason, reason: CloseReason, cx: &mut Context<'_>) {
        // What was written so far goes out before the GOAWAY, behind which nothing does.
        self.poll(cx);
        self.forget_all(reason, cx);
        self.frames.abort(code);
        self.poll(cx);
        self.finish(reason, cx);
    }

    /// The last frame is written: closes the socket behind it.
    fn finish(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        self.frames.finished = true;
        cx.push(match reason {
            // What a client still sends must not reset the connection before it has read why it ends.
            CloseReason::Http2Violation
            | CloseReason::Http2Excess
            | CloseReason::Http2Flood
            | CloseReason::Http2Resets
            | CloseReason::RequestsPerConnection
            // The client has said that it leaves, and may send more before it does.
            | CloseReason::HangUp => ConnectionEffect::CloseGently(reason),
            reason => ConnectionEffect::CloseBehind(reason),
        });
    }
}

/// Polls of a connection at a time, at most: each may let exchanges write that waited for the one before.
const POLLS_PER_TURN: u32 = 4;
