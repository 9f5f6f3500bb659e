//! What clients are sent, and what their sockets don't take at once.

use encke_protocol::{Response, problem};
use encke_stream::Offset;
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use super::Shard;
use crate::close::CloseReason;
use crate::http::Rejection;
use crate::http::response::{Shape, encode};
use crate::slot::{Flags, State};

impl Shard {
    /// Sends a response. The connection is kept or closed after it, as the request and the server say.
    pub(super) fn respond(&mut self, index: u32, response: &Response) {
        self.slots[index].state = State::Reading;
        if response.status >= 400 {
            let status = response.status.to_string();
            let refused = &self.parts.metrics.refused;
            refused.with_label_values(&[&status]).inc();
        }
        let flags = self.slots[index].flags;
        let open = matches!(response.body, encke_protocol::Body::Open(_));
        let keep = flags.has(Flags::KEEP) && !open && self.stopping.is_none();
        let out = self.encode(index, response, flags.has(Flags::HEAD_ONLY), keep);
        self.finish(index, &out, keep);
        self.give_back(out);
    }

    /// Sends the response that opens a subscription, or a long answer.
    pub(super) fn open(&mut self, index: u32, response: &Response) {
        let keep = self.slots[index].flags.has(Flags::KEEP);
        let out = self.encode(index, response, false, keep);
        self.send_raw(index, &out);
        self.give_back(out);
    }

    /// Refuses a request whose end is not known: answers, then throws away what still comes, so
    /// that the answer is not lost in a reset.
    pub(super) fn refuse(&mut self, index: u32, refused: &Rejection) {
        let response = self.refusal(index, refused);
        let out = self.encode(index, &response, false, false);
        // What the socket does not take now is not worth waiting for.
        let sent = self.send(index, &out);
        self.give_back(out);
        if sent.is_none() || !self.is_open(index) {
            return;
        }
        self.busy.remove(index);
        self.slots[index].state = State::Lingering;
        self.slots[index].flags = Flags::default();
        if let Some(fd) = self.slots[index].fd() {
            // A client that is gone already is noticed by the next event.
            let _ = shutdown(fd, Shutdown::Write);
        }
        self.deadline(index, self.clock.now_ms() + LINGER_MS);
    }

    /// Refuses a request that is complete; the connection goes on.
    pub(super) fn turn_away(&mut self, index: u32, refused: &Rejection) {
        let response = self.refusal(index, refused);
        let flags = self.slots[index].flags;
        let keep = flags.has(Flags::KEEP);
        let out = self.encode(index, &response, flags.has(Flags::HEAD_ONLY), keep);
        self.finish(index, &out, keep);
        self.give_back(out);
    }

    /// The answer to a request that is refused, which is counted by its reason.
    fn refusal(&self, index: u32, refused: &Rejection) -> Response {
        tracing::debug!(
            client = %self.client_name(index),
            status = refused.status,
            reason = refused.reason,
            "refused a request"
        );
        let reason = &self.parts.metrics.refused;
        reason.with_label_values(&[refused.reason]).inc();
        problem::rejected(
            refused.status,
            refused.reason,
            &refused.message,
            refused.retry_s,
        )
    }

    /// Sends bytes that belong together; a subscriber's position stays where it is.
    pub(super) fn send_raw(&mut self, index: u32, bytes: &[u8]) {
        let Some(sent) = self.send(index, bytes) else {
            return;
        };
        if sent < bytes.len() {
            let state = self.slots[index].state;
            let following = matches!(state, State::Following | State::Several);
            let reached = following.then(|| self.position(index));
            self.block(index, &bytes[sent..], reached, false);
        }
    }

    /// Sends; how many bytes the socket took, or nothing when the connection is gone.
    pub(super) fn send(&mut self, index: u32, bytes: &[u8]) -> Option<usize> {
        if !self.is_open(index) {
            return None;
        }
        let fd = self.slots[index].fd()?;
        loop {
            match send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => {
                    self.counts.bytes_out += sent as u64;
                    self.slots[index].active_s = self.clock.now_s();
                    return Some(sent);
                }
                Err(rustix::io::Errno::AGAIN) => return Some(0),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    self.close(index, CloseReason::HangUp);
                    return None;
                }
            }
        }
    }

    /// Keeps what the socket did not take. `reached` is a subscriber's position once it is out.
    pub(super) fn block(&mut self, index: u32, rest: &[u8], reached: Option<Offset>, ended: bool) {
        if !rest.is_empty() && !self.parts.buffers.have_room() {
            self.cut(index, CloseReason::BuffersMax);
            return;
        }
        if !self.watch_output(index) {
            return;
        }
        let stall_ms = self.parts.settings.stall_timeout.as_millis() as u64;
        let busy = self.busy(index);
        busy.output.clear();
        busy.output.extend_from_slice(rest);
        busy.sent = 0;
        busy.reached = reached;
        busy.ended = ended;
        self.slots[index].flags.set(Flags::BLOCKED, true);
        self.falls_behind(index);
        self.weigh(index);
        self.deadline(index, self.clock.now_ms() + stall_ms);
    }

    /// The socket takes more.
    pub(super) fn writable(&mut self, index: u32) {
        let Some(busy) = self.busy.get_mut(index) else {
            return;
        };
        let output = std::mem::take(&mut busy.output);
        let start = busy.sent;
        let Some(sent) = self.send(index, &output[start..]) else {
            return;
        };
        let stall_ms = self.parts.settings.stall_timeout.as_millis() as u64;
        let deadline_ms = self.clock.now_ms() + stall_ms;
        let busy = self.busy(index);
        busy.sent += sent;
        if busy.sent < output.len() {
            busy.output = output;
            // Who was told that it is closed is not waited for any longer.
            if sent > 0 && busy.reason.is_none() {
                busy.deadline_ms = deadline_ms;
            }
            return;
        }
        busy.sent = 0;
        busy.deadline_ms = 0;
        let (reached, ended) = (busy.reached.take(), std::mem::take(&mut busy.ended));
        let reason = busy.reason.take();
        let closing = self.slots[index].flags.has(Flags::CLOSING);
        self.slots[index].flags.set(Flags::BLOCKED, false);
        if ended || closing {
            let reason = reason.unwrap_or_else(|| self.last_reason(index));
            self.close(index, reason);
            return;
        }
        self.weigh(index);
        if self.slots[index].state == State::Streaming {
            // Each part of a long answer has its own time.
            self.is_abreast(index);
        }
        match reached {
            None if self.slots[index].state == State::Streaming => self.stream_on(index),
            Some(reached) => {
                self.reached(index, reached);
                self.flush(index);
            }
            None => self.resume(index),
        }
        if self.is_open(index) {
            self.settle(index);
        }
    }

    /// Forgets what a connection that is no longer busy was busy with.
    pub(super) fn settle(&mut self, index: u32) {
        if let Some(busy) = self.busy.get_mut(index) {
            if busy.is_idle() && !self.slots[index].flags.has(Flags::BLOCKED) {
                self.busy.remove(index);
            } else if self.slots[index].state == State::Reading && busy.body.is_none() {
                busy.deadline_ms = 0;
            }
        }
    }

    fn finish(&mut self, index: u32, bytes: &[u8], keep: bool) {
        let Some(sent) = self.send(index, bytes) else {
            return;
        };
        if sent < bytes.len() {
            self.slots[index].flags.set(Flags::CLOSING, !keep);
            self.block(index, &bytes[sent..], None, false);
        } else if keep {
            self.settle(index);
        } else {
            let reason = self.last_reason(index);
            self.close(index, reason);
        }
    }

    /// Why a connection is closed behind an answer.
    fn last_reason(&self, index: u32) -> CloseReason {
        let requests_max = self.parts.settings.requests_per_connection;
        if requests_max > 0 && self.slots[index].requests >= requests_max {
            CloseReason::RequestsPerConnection
        } else {
            CloseReason::Done
        }
    }

    fn encode(
        &mut self,
        index: u32,
        response: &Response,
        head_only: bool,
        keep_alive: bool,
    ) -> Vec<u8> {
        let chunks = !self.slots[index].flags.has(Flags::PLAIN);
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let shape = Shape {
            head_only,
            keep_alive,
            chunks,
        };
        encode(response, shape, self.clock.date(), &mut out);
        out
    }

    pub(super) fn give_back(&mut self, mut out: Vec<u8>) {
        out.clear();
        out.shrink_to(OUT_BYTES_KEPT);
        self.out = out;
    }
}

/// How long a refused client may go on sending before it is closed.
const LINGER_MS: u64 = 2_000;

/// A buffer that one large response made larger is not kept so.
const OUT_BYTES_KEPT: usize = 1 << 20;
