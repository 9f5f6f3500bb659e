//! HTTP/2 connections: feeds received bytes to `h2`, begins a stream for each request, and sends what was written to streams.
//!
//! A connection is polled when bytes arrive, when its socket takes more, and once behind the deliveries of a turn in which
//! something was written to it. After each poll the shard looks at its streams: at the bodies that arrive, at those that the
//! client has reset, and at those that wait for a window. So nothing in a connection needs to wake anything.

use std::time::Duration;

use h2::Reason;

use super::Shard;
use crate::connection::active::Task;
use crate::connection::close::CloseReason;
use crate::connection::slot::Flags;
use crate::http2::connection::{Http2Connection, Http2End, SEND_BYTES_MAX};
use crate::http2::frame_meter::Flood;

impl Shard {
    /// The first bytes of a connection are the preface of HTTP/2. `input` begins with it.
    pub(super) fn begin_http2(&mut self, index: u32, input: &[u8]) {
        let mut connection = Http2Connection::new(&self.context.settings, self.clock.now_s());
        if self.is_turned_away(index) {
            // Its streams are refused, and the client may send their requests again.
            connection.begin_leaving();
        }
        let task = Task::Http2(Box::new(connection));
        self.connections.begin(index, task).deadline = None;
        self.counts.http2_connections += 1;
        self.receive_frames(index, input);
    }

    /// Handles received bytes of an HTTP/2 connection.
    pub(super) fn receive_frames(&mut self, index: u32, bytes: &[u8]) {
        let now = self.clock.elapsed();
        let Some(http2) = self.http2_mut(index) else {
            return;
        };
        if http2.finished {
            return;
        }
        match http2.receive(bytes, now) {
            Ok(()) => self.pump(index),
            Err(flood) => {
                let reason = match flood {
                    Flood::Control => CloseReason::Http2Flood,
                    Flood::Resets => CloseReason::Http2Resets,
                };
                self.end_http2(index, Reason::ENHANCE_YOUR_CALM, reason);
            }
        }
    }

    /// Sends what was written to streams in this turn.
    pub(super) fn flush_http2(&mut self) {
        for token in std::mem::take(&mut self.http2.dirty) {
            let Some(index) = self.connections.find(token) else {
                continue;
            };
            let Some(http2) = self.http2_mut(index) else {
                continue;
            };
            http2.queued = false;
            if http2.dirty {
                self.pump(index);
            }
        }
    }

    /// The socket of an HTTP/2 connection takes more: its streams go on, and its input is read again.
    pub(super) fn resume_http2(&mut self, index: u32) {
        self.pump(index);
        if self.is_http2(index) && self.connections.slots[index].flags.has(Flags::UNREAD) {
            self.readable(index, true);
        }
    }

    /// Polls a connection, sends what that leads to, begins its new streams and looks at the others.
    fn pump(&mut self, index: u32) {
        for _ in 0..POLLS_PER_TURN {
            if !self.flush_frames(index) {
                return;
            }
            let Some(http2) = self.http2_mut(index) else {
                return;
            };
            if http2.finished {
                return;
            }
            let end = http2.end();
            for stream in http2.take_accepted() {
                self.begin_stream(index, stream);
            }
            if let Some(end) = end {
                return self.http2_ended(index, end);
            }
            self.visit_streams(index);
            let stopping = self.stopping.is_some();
            let Some(http2) = self.http2_mut(index) else {
                return;
            };
            if http2.leaving && http2.streams.is_empty() {
                let reason = match stopping {
                    true => CloseReason::Stopping,
                    false => CloseReason::RequestsPerConnection,
                };
                return self.end_http2(index, Reason::NO_ERROR, reason);
            }
            if !http2.dirty {
                break;
            }
        }
        self.weigh(index);
    }

    /// Polls a connection and sends what its streams have written. False: it is closed.
    pub(super) fn flush_frames(&mut self, index: u32) -> bool {
        let Some(http2) = self.http2_mut(index) else {
            return false;
        };
        let output = http2.poll();
        if http2.has_news() {
            self.mark_dirty(index);
        }
        if output.is_empty() {
            return true;
        }
        let active = self.connections.active_mut(index);
        match active.and_then(|active| active.pending.as_mut()) {
            // Frames without data, behind those that the socket has not taken.
            Some(pending) => {
                pending.bytes.drain(..pending.sent);
                pending.sent = 0;
                pending.bytes.extend_from_slice(&output);
                self.weigh(index);
            }
            None => self.send_raw(index, &output),
        }
        self.is_http2(index)
    }

    /// Has a connection polled before the shard waits.
    pub(super) fn mark_dirty(&mut self, index: u32) {
        let token = self.connections.slots.token(index);
        let Some(http2) = self.http2_mut(index) else {
            return;
        };
        http2.dirty = true;
        // Each poll clears the mark, and what it leads to sets it again: one place in the list is enough.
        if !std::mem::replace(&mut http2.queued, true) {
            self.http2.dirty.push(token);
        }
    }

    /// Looks at the streams of a connection after a poll.
    fn visit_streams(&mut self, index: u32) {
        let Some(http2) = self.http2_mut(index) else {
            return;
        };
        let received = std::mem::take(&mut http2.received);
        let starved = std::mem::take(&mut http2.starved);
        if !received && !starved || http2.streams.is_empty() {
            return;
        }
        let first = std::mem::take(&mut http2.first) % http2.streams.len();
        let mut streams = std::mem::take(&mut self.http2.visited);
        if let Some(http2) = self.http2_mut(index) {
            streams.extend_from_slice(&http2.streams);
        }
        for place in 0..streams.len() {
            let place = (first + place) % streams.len();
            let stream = streams[place];
            if received {
                self.receive_on_stream(stream);
            }
            if !starved || !self.connections.is_open(stream) || !self.connections.is_blocked(stream)
            {
                continue;
            }
            let waits = self.connections.is_blocked(index);
            if !waits && self.has_capacity(stream) {
                self.writable(stream);
            } else if let Some(http2) = self.http2_mut(index) {
                // Those that come later were not served: they are the first ones next time.
                if waits && !http2.starved {
                    http2.first = place;
                }
                http2.starved = true;
            }
        }
        streams.clear();
        self.http2.visited = streams;
    }

    /// Closes the streams of a connection whose socket is closed, or is about to be.
    pub(super) fn close_streams(&mut self, index: u32, reason: CloseReason) {
        let Some(http2) = self.http2_mut(index) else {
            return;
        };
        for stream in std::mem::take(&mut http2.streams) {
            self.drop_stream(stream, reason);
        }
    }

    /// Ends a connection: the client gets a GOAWAY with the reason.
    pub(super) fn end_http2(&mut self, index: u32, code: Reason, reason: CloseReason) {
        // What was written so far goes out before the GOAWAY, behind which nothing does.
        if !self.flush_frames(index) {
            return;
        }
        self.close_streams(index, reason);
        if let Some(http2) = self.http2_mut(index) {
            http2.abort(code);
        }
        if self.flush_frames(index) {
            self.finish_http2(index, reason);
        }
    }

    /// `h2` has ended a connection, and written what the client is to know.
    fn http2_ended(&mut self, index: u32, end: Http2End) {
        let reason = match end {
            Http2End::Complete => CloseReason::HangUp,
            Http2End::Violation => CloseReason::Http2Violation,
            Http2End::Excess => CloseReason::Http2Excess,
        };
        self.close_streams(index, reason);
        self.finish_http2(index, reason);
    }

    /// The last frame is sent or pending: closes the socket behind it.
    fn finish_http2(&mut self, index: u32, reason: CloseReason) {
        if let Some(http2) = self.http2_mut(index) {
            http2.finished = true;
        }
        let active = self.connections.active_mut(index);
        if let Some(pending) = active.and_then(|active| active.pending.as_mut()) {
            pending.close.get_or_insert(reason);
            return;
        }
        match reason {
            // What a client still sends must not reset the connection before it has read why it ends.
            CloseReason::Http2Violation
            | CloseReason::Http2Excess
            | CloseReason::Http2Flood
            | CloseReason::Http2Resets
            | CloseReason::RequestsPerConnection
            // The client has said that it leaves, and may send more before it does.
            | CloseReason::HangUp => {
                if let Some(label) = reason.label() {
                    let closed = &self.context.metrics.closed;
                    closed.with_label_values(&[label]).inc();
                }
                tracing::debug!(
                    client = %self.client_name(index),
                    reason = reason.name(),
                    "ended an HTTP/2 connection"
                );
                self.counts.http2_connections -= 1;
                self.linger(index);
            }
            reason => self.close(index, reason),
        }
    }

    /// Closes an HTTP/2 connection without streams that is idle for too long, or one with a request whose head takes too long: until
    /// that is complete, no other frame may come.
    pub(super) fn visit_http2(&mut self, index: u32) {
        let now_s = self.clock.now_s();
        let now = self.clock.elapsed();
        let request_timeout = self.context.settings.request_timeout;
        let idle_timeout = self.idle_timeout(index);
        let Some(http2) = self.http2_mut(index) else {
            return;
        };
        let head = http2.head_since();
        if head.is_some_and(|since| now.saturating_sub(since) >= request_timeout) {
            return self.end_http2(index, Reason::NO_ERROR, CloseReason::Idle);
        }
        let idle_s = now_s.saturating_sub(http2.idle_since_s);
        if http2.streams.is_empty() && Duration::from_secs(u64::from(idle_s)) >= idle_timeout {
            self.end_http2(index, Reason::NO_ERROR, CloseReason::Idle);
        }
    }

    /// The server stops: a connection accepts no more streams and closes behind the last one.
    pub(super) fn stop_http2(&mut self, index: u32) {
        if let Some(http2) = self.http2_mut(index) {
            http2.begin_leaving();
            self.mark_dirty(index);
        }
    }

    /// Whether so much output waits for the socket of an HTTP/2 connection that its input is left there.
    pub(super) fn has_http2_backlog(&self, index: u32) -> bool {
        let active = self.connections.active(index);
        active.is_some_and(|active| {
            matches!(active.task, Task::Http2(_))
                && active
                    .pending
                    .as_ref()
                    .is_some_and(|pending| pending.bytes.len() - pending.sent >= SEND_BYTES_MAX)
        })
    }

    pub(super) fn is_http2(&self, index: u32) -> bool {
        let active = self.connections.active(index);
        active.is_some_and(|active| matches!(active.task, Task::Http2(_)))
    }

    pub(super) fn http2_mut(&mut self, index: u32) -> Option<&mut Http2Connection> {
        match &mut self.connections.active_mut(index)?.task {
            Task::Http2(http2) => Some(http2),
            _ => None,
        }
    }
}

/// Polls of a connection in a turn, at most: each may let streams write that waited for the one before.
const POLLS_PER_TURN: u32 = 4;
