//! Output: sends responses and records, and keeps what a socket does not take.

use std::time::Duration;

use encke_protocol::{Body, Response, for_event_source, problem};
use rustix::net::{Shutdown, shutdown};

use super::Shard;
use crate::connection::active::{Task, UnsentOutput};
use crate::connection::close::CloseReason;
use crate::connection::slot::Flags;
use crate::http::Rejection;
use crate::http::response::{Shape, encode};
use crate::transport::plain;

impl Shard {
    /// Sends a response, and then keeps or closes the connection, depending on the request and the server.
    pub(super) fn respond(&mut self, index: u32, response: &Response) {
        self.connections.begin_reading(index);
        self.note_refusal(index, response);
        let open = matches!(response.body, Body::Open(_));
        let keep = self.keeps_alive(index) && !open && self.stopping.is_none();
        self.send_response(index, response, keep);
    }

    /// Sends the response that opens a subscription, or a long body.
    pub(super) fn open(&mut self, index: u32, response: &Response) {
        let keep = self.keeps_alive(index);
        let out = self.encode(index, response, false, keep);
        self.send_raw(index, &out);
        self.give_back(out);
    }

    /// As [`Self::refuse`], with the response of a protocol.
    pub(super) fn refuse_with(&mut self, index: u32, response: &Response) {
        self.note_refusal(index, response);
        self.send_last(index, response);
    }

    /// Refuses a request whose end is not known: responds, then discards what still arrives, so that the response is not lost
    /// in a reset.
    pub(super) fn refuse(&mut self, index: u32, rejection: &Rejection) {
        if self.connections.slots[index].flags.has(Flags::HTTP2_STREAM) {
            // The end of the stream is known: what still arrives for it is discarded.
            self.connections.begin_reading(index);
            return self.reject(index, rejection);
        }
        // What came of its head. The input is not needed any more.
        let active = self.connections.active_mut(index);
        let input = active.map(|active| std::mem::take(&mut active.input));
        self.begin_refused_request(index, &input.unwrap_or_default());
        let response = self.rejection(index, rejection);
        self.send_last(index, &response);
    }

    /// Sends the last response of a connection, and discards what still arrives.
    fn send_last(&mut self, index: u32, response: &Response) {
        let out = self.encode(index, response, false, false);
        // What the socket does not take now is not worth waiting for.
        let sent = self.send(index, &out);
        self.give_back(out);
        if sent.is_none() {
            return;
        }
        self.complete_request(index);
        if self.connections.slots[index].flags.has(Flags::ENCRYPTED) {
            self.close_session(index);
        }
        self.linger(index);
    }

    /// Discards what a client still sends for a while, so that what it was sent last is not lost in a reset.
    pub(super) fn linger(&mut self, index: u32) {
        let active = self.connections.begin(index, Task::Lingering);
        active.input = Vec::new();
        active.pending = None;
        active.reminder = None;
        self.weigh(index);
        let slot = &mut self.connections.slots[index];
        slot.flags = slot.flags.of_transport();
        if let Some(fd) = slot.fd() {
            // A client that is gone already is noticed by the next event.
            let _ = shutdown(fd, Shutdown::Write);
        }
        self.set_deadline(index, self.clock.monotonic().after(LINGER));
    }

    /// Refuses a complete request; the connection stays open.
    pub(super) fn reject(&mut self, index: u32, rejection: &Rejection) {
        let response = self.rejection(index, rejection);
        let keep = self.keeps_alive(index);
        self.send_response(index, &response, keep);
    }

    /// Sends a part of a body without a length, and behind the last one its end. A subscriber's position stays where it is.
    pub(super) fn send_part(&mut self, index: u32, part: &[u8], is_last: bool) {
        let mut out = std::mem::take(&mut self.scratch.output);
        out.clear();
        let framing = self.connections.slots[index].framing();
        framing.part(part, &mut out);
        if is_last {
            framing.end(&mut out);
            self.complete_body(index, true);
        }
        self.send_raw(index, &out);
        self.give_back(out);
    }

    /// Sends bytes that belong together; a subscriber's position stays where it is.
    pub(super) fn send_raw(&mut self, index: u32, bytes: &[u8]) {
        let Some(sent) = self.send(index, bytes) else {
            return;
        };
        if sent < bytes.len() {
            let reached = self.is_subscribed(index).then(|| self.position(index));
            self.block(
                index,
                UnsentOutput {
                    bytes: bytes[sent..].to_vec(),
                    sent: 0,
                    reached,
                    close: None,
                },
            );
        }
    }

    /// Sends bytes. Returns how many the socket took; None: the connection is closed.
    pub(super) fn send(&mut self, index: u32, bytes: &[u8]) -> Option<usize> {
        if !self.connections.is_open(index) {
            return None;
        }
        let slot = &self.connections.slots[index];
        if slot.flags.has(Flags::HTTP2_STREAM) {
            return self.send_on_stream(index, bytes);
        }
        let sent = match slot.flags.has(Flags::ENCRYPTED) {
            true => self.send_encrypted(index, bytes)?,
            false => match plain::send(slot.fd()?, bytes) {
                Ok(sent) => sent,
                Err(_) => {
                    self.close(index, CloseReason::HangUp);
                    return None;
                }
            },
        };
        if sent > 0 {
            self.counts.bytes_out += sent as u64;
            self.connections.slots[index].active_s = self.clock.now_s();
            self.requests.sent(index, sent);
        }
        Some(sent)
    }

    /// Keeps what the socket did not take.
    pub(super) fn block(&mut self, index: u32, pending: UnsentOutput) {
        if !pending.bytes.is_empty() && !self.context.buffers.have_room() {
            self.cut(index, CloseReason::BuffersMax);
            return;
        }
        if !self.watch_output(index) {
            return;
        }
        let stall_timeout = self.context.settings.stall_timeout;
        self.connections.activate(index).pending = Some(pending);
        self.falls_behind(index);
        self.weigh(index);
        self.set_deadline(index, self.clock.monotonic().after(stall_timeout));
    }

    /// Continues a blocked connection whose socket is writable.
    pub(super) fn writable(&mut self, index: u32) {
        let active = self.connections.active_mut(index);
        let Some(mut pending) = active.and_then(|active| active.pending.take()) else {
            return;
        };
        let Some(sent) = self.send(index, &pending.bytes[pending.sent..]) else {
            return;
        };
        let stall_timeout = self.context.settings.stall_timeout;
        let deadline = self.clock.monotonic().after(stall_timeout);
        pending.sent += sent;
        let unsent = pending.sent < pending.bytes.len() || self.has_unsent_record(index);
        let active = self.connections.activate(index);
        if unsent {
            // A subscriber that was sent a farewell gets no more time.
            let dismissed = pending.close.is_some_and(CloseReason::is_dismissal);
            if sent > 0 && !dismissed {
                active.deadline = Some(deadline);
            }
            active.pending = Some(pending);
            return;
        }
        active.deadline = None;
        if let Task::Reading { body: None, .. } = active.task {
            self.complete_request(index);
        }
        if let Some(reason) = pending.close {
            self.close(index, reason);
            return;
        }
        self.weigh(index);
        if self.is_streaming(index) {
            // Each part of a long body has its own time.
            self.is_abreast(index);
            self.stream_on(index);
        } else if let Some(reached) = pending.reached {
            self.reached(index, reached);
            self.flush(index);
        } else if self.is_http2(index) {
            self.resume_http2(index);
        } else {
            self.resume(index);
        }
        self.connections.settle(index);
    }

    /// The reason for closing a connection after a response.
    pub(super) fn last_reason(&self, index: u32) -> CloseReason {
        let requests_max = self.context.settings.requests_per_connection;
        let requests = self.connections.slots[index].requests;
        match requests_max > 0 && requests >= requests_max {
            true => CloseReason::RequestsPerConnection,
            false => CloseReason::Done,
        }
    }

    pub(super) fn give_back(&mut self, mut out: Vec<u8>) {
        out.clear();
        out.shrink_to(OUT_BYTES_KEPT);
        self.scratch.output = out;
    }

    /// Counts a response that refuses, and adds its line to the audit log.
    fn note_refusal(&mut self, index: u32, response: &Response) {
        if let Some(note) = &response.audit {
            self.audit(index, note, response.status);
        }
        if response.status >= 400 {
            let status = response.status.to_string();
            let refused = &self.context.metrics.refused;
            refused.with_label_values(&[&status]).inc();
        }
    }

    fn keeps_alive(&self, index: u32) -> bool {
        self.connections.slots[index].flags.has(Flags::KEEP_ALIVE)
    }

    /// The response to a request that is refused, which is counted by its reason.
    pub(super) fn rejection(&self, index: u32, rejection: &Rejection) -> Response {
        tracing::debug!(
            client = %self.client_name(index),
            status = rejection.status,
            reason = rejection.reason,
            "refused a request"
        );
        let refused = &self.context.metrics.refused;
        refused.with_label_values(&[rejection.reason]).inc();
        problem::rejected(
            rejection.status,
            rejection.reason,
            &rejection.message,
            rejection.retry_s,
        )
    }

    fn send_response(&mut self, index: u32, response: &Response, keep: bool) {
        let head_only = self.connections.slots[index].flags.has(Flags::HEAD_ONLY);
        let out = self.encode(index, response, head_only, keep);
        self.finish(index, &out, keep);
        self.give_back(out);
    }

    fn finish(&mut self, index: u32, bytes: &[u8], keep: bool) {
        let Some(sent) = self.send(index, bytes) else {
            return;
        };
        if sent < bytes.len() {
            let close = (!keep).then(|| self.last_reason(index));
            self.block(
                index,
                UnsentOutput {
                    bytes: bytes[sent..].to_vec(),
                    close,
                    ..UnsentOutput::default()
                },
            );
            return;
        }
        self.complete_request(index);
        if keep {
            self.connections.settle(index);
        } else {
            let reason = self.last_reason(index);
            self.close(index, reason);
        }
    }

    fn encode(
        &mut self,
        index: u32,
        response: &Response,
        head_only: bool,
        keep_alive: bool,
    ) -> Vec<u8> {
        let reader = self.take_reader(index);
        let flags = self.connections.slots[index].flags;
        let slot = &mut self.connections.slots[index];
        slot.flags.set(Flags::TAKES_EVENTS, false);
        let softened = match flags.has(Flags::TAKES_EVENTS) {
            true => for_event_source(response),
            false => None,
        };
        let response = softened.as_ref().unwrap_or(response);
        if flags.has(Flags::HTTP2_STREAM) {
            return self.encode_on_stream(index, response, head_only, &reader);
        }
        let mut out = std::mem::take(&mut self.scratch.output);
        out.clear();
        let request = self.requests.get_mut(index);
        let request_id = request.and_then(|request| request.text.request_id());
        let shape = Shape {
            head_only,
            keep_alive,
            cross_origin: self.context.router.cross_origin(&reader),
            hsts: self.hsts.as_deref().filter(|_| flags.has(Flags::TLS)),
            framing: self.connections.slots[index].framing(),
            request_id: request_id.and_then(|id| std::str::from_utf8(id).ok()),
        };
        let head_bytes = encode(response, shape, self.clock.date(), &mut out);
        self.begin_response(index, response.status, head_bytes);
        out
    }
}

/// How long a refused client may continue to send before it is closed.
const LINGER: Duration = Duration::from_secs(2);

/// The largest buffer that is kept for the next response.
const OUT_BYTES_KEPT: usize = 1 << 20;
