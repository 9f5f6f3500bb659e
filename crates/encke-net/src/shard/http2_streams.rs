//! Streams of HTTP/2 connections. Each is a slot without a socket, whose request goes the way of all requests; in place of the
//! socket's buffer it has the windows of the stream and of its connection.

use encke_protocol::{Body, Headers, OriginReader, Response};
use h2::Reason;

use super::Shard;
use crate::clock::Monotonic;
use crate::connection::active::Task;
use crate::connection::close::CloseReason;
use crate::connection::owners::Owner;
use crate::connection::slot::{Flags, SlotState};
use crate::http::body::too_large;
use crate::http2::connection::{AcceptedStream, SEND_BYTES_MAX};
use crate::http2::request::Http2Request;
use crate::http2::response::{self, HeadShape};
use crate::http2::stream::{BodyStep, Http2Stream, IncomingBody};

impl Shard {
    /// Begins a stream: its request is answered now, or when its body is complete.
    pub(super) fn begin_stream(&mut self, connection: u32, accepted: AcceptedStream) {
        let (request, mut respond) = accepted;
        let Some(http2) = self.http2_mut(connection) else {
            return;
        };
        if http2.leaving {
            // The client may send the request again on another connection.
            respond.send_reset(Reason::REFUSED_STREAM);
            return self.mark_dirty(connection);
        }
        let index = self.connections.add_stream(self.clock.now_s());
        if let Some(http2) = self.http2_mut(connection) {
            http2.streams.push(index);
        }
        let stream = Http2Stream::new(connection, respond);
        self.http2.streams.insert(index, stream);
        self.counts.http2_streams += 1;
        // A proxy's streams may be those of several clients. Otherwise the connection is what is counted for its owner.
        let trusted = self.owners.of(connection).trusted;
        self.owners.set(
            index,
            Owner {
                address: None,
                trusted,
            },
        );
        self.count_stream(connection);
        let (request, body) = Http2Request::of(request);
        let (head, fields) = (request.head(), request.fields());
        self.begin_request(index, &head, &fields);
        let of_connection = self.connections.slots[connection].flags;
        let flags = &mut self.connections.slots[index].flags;
        flags.set(Flags::HEAD_ONLY, head.method == "HEAD");
        for flag in [Flags::TLS, Flags::OPERATOR] {
            flags.set(flag, of_connection.has(flag));
        }
        let settings = &self.context.settings;
        let bytes_max = settings.request_limits().body_bytes_max(head.method);
        let checked = request.check(&fields).and_then(|length| match length {
            Some(length) if length > bytes_max as u64 => Err(too_large(bytes_max)),
            length => Ok(length),
        });
        let length = match checked {
            Ok(length) => length,
            Err(rejection) => return self.reject(index, &rejection),
        };
        if body.is_end_stream() {
            return self.ask(index, &head, &fields, Vec::new(), false);
        }
        let body_timeout = settings.body_timeout;
        if let Err(response) = self.admit_head(index, &head, &fields) {
            return self.respond(index, &response);
        }
        let until = self.clock.monotonic().after(body_timeout);
        // The only expectation that passes the checks.
        if Headers(&fields).first("Expect").is_some()
            && let Some(stream) = self.http2.streams.get_mut(index)
        {
            stream.invite();
            self.mark_dirty(connection);
        }
        drop(fields);
        let body = IncomingBody::new(request, body, length, until);
        self.connections
            .begin(index, Task::ReceivingBody(Box::new(body)));
        self.await_body(index, until);
        self.weigh(index);
        self.receive_body(index);
    }

    /// Looks at a stream after frames of its connection have arrived.
    pub(super) fn receive_on_stream(&mut self, index: u32) {
        if !self.connections.is_open(index) {
            return;
        }
        let stream = self.http2.streams.get_mut(index);
        if stream.is_some_and(Http2Stream::is_reset) {
            self.close(index, CloseReason::HangUp);
        } else {
            self.receive_body(index);
        }
    }

    /// Sends bytes on a stream. Returns how many its windows and the socket take; None: the stream is closed.
    pub(super) fn send_on_stream(&mut self, index: u32, bytes: &[u8]) -> Option<usize> {
        let complete = self.connections.slots[index]
            .flags
            .has(Flags::BODY_COMPLETE);
        if bytes.is_empty() && !complete {
            // What its windows allow stays reserved for what is read next: to ask for nothing gives it to the other streams.
            return Some(0);
        }
        let mut sent = 0;
        loop {
            let connection = self.http2.streams.get(index)?.connection;
            let rest = &bytes[sent..];
            let room = SEND_BYTES_MAX.saturating_sub(self.http2_mut(connection)?.unflushed);
            let waits = self.connections.is_blocked(connection);
            if !rest.is_empty() && (waits || room == 0) {
                if waits
                    || !self.flush_frames(connection)
                    || self.connections.is_blocked(connection)
                {
                    break;
                }
                continue;
            }
            let part = &rest[..rest.len().min(room)];
            let ends = complete && part.len() == rest.len();
            let stream = self.http2.streams.get_mut(index)?;
            let Ok(count) = stream.send(part, ends) else {
                self.close(index, CloseReason::HangUp);
                return None;
            };
            if let Some(http2) = self.http2_mut(connection) {
                http2.sent_data(count);
            }
            self.mark_dirty(connection);
            sent += count;
            if count < part.len() || sent == bytes.len() {
                break;
            }
        }
        if !self.connections.is_open(index) {
            return None;
        }
        if sent > 0 {
            self.connections.slots[index].active_s = self.clock.now_s();
            self.requests.sent(index, sent);
        }
        if sent < bytes.len() {
            let connection = self.http2.streams.get(index)?.connection;
            self.http2_mut(connection)?.starved = true;
        }
        Some(sent)
    }

    /// Whether the windows let a blocked stream send.
    pub(super) fn has_capacity(&mut self, index: u32) -> bool {
        let stream = self.http2.streams.get_mut(index);
        stream.is_some_and(Http2Stream::has_capacity)
    }

    /// Sends the head of a response on a stream; what is left to send is its body.
    pub(super) fn encode_on_stream(
        &mut self,
        index: u32,
        response: &Response,
        head_only: bool,
        reader: &OriginReader,
    ) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.scratch.output);
        out.clear();
        let sized = !matches!(response.body, Body::Open(_) | Body::Parts(_));
        let bodiless = head_only || matches!(response.status, 204 | 304);
        if !bodiless {
            out.extend_from_slice(response.body.as_ref());
        }
        let flags = &mut self.connections.slots[index].flags;
        flags.set(Flags::BODY_COMPLETE, sized || bodiless);
        let request = self.requests.get_mut(index);
        let request_id = request.and_then(|request| request.text.request_id());
        let request_id = request_id.and_then(|id| std::str::from_utf8(id).ok());
        let is_tls = self.connections.slots[index].flags.has(Flags::TLS);
        let shape = HeadShape {
            head_only,
            cross_origin: self.context.router.cross_origin(reader),
            hsts: self.hsts.as_deref().filter(|_| is_tls),
            request_id,
        };
        let head = response::head(response, shape, self.clock.date());
        self.begin_response(index, response.status, 0);
        let ends = (sized || bodiless) && out.is_empty();
        let connection = self.http2.streams.get_mut(index).map(|stream| {
            match head {
                // One that is reset meanwhile is closed after the next poll.
                Some(head) => drop(stream.respond(head, ends)),
                None => stream.reset(Reason::INTERNAL_ERROR),
            }
            stream.connection
        });
        if let Some(connection) = connection {
            self.mark_dirty(connection);
        }
        out
    }

    /// Everything of a response is sent or pending, and what closes it now is its end.
    pub(super) fn complete_body(&mut self, index: u32, on: bool) {
        let flags = &mut self.connections.slots[index].flags;
        flags.set(Flags::BODY_COMPLETE, on);
    }

    /// Closes a stream: behind a complete response with its end, otherwise with a reset.
    pub(super) fn close_stream(&mut self, index: u32, reason: CloseReason) {
        let Some(stream) = self.http2.streams.get(index) else {
            return;
        };
        let connection = stream.connection;
        let complete = self.connections.slots[index]
            .flags
            .has(Flags::BODY_COMPLETE)
            && !self.connections.is_blocked(index);
        if !complete && reason != CloseReason::HangUp {
            // A reset discards what `h2` has not written yet, such as the last event.
            if !self.flush_frames(connection) || !self.connections.is_open(index) {
                return;
            }
            let code = self.reset_code(index, reason);
            if let Some(stream) = self.http2.streams.get_mut(index) {
                stream.reset(code);
            }
            if let Some(label) = reason.label() {
                let cut = &self.context.metrics.http2_streams_cut;
                cut.with_label_values(&[label]).inc();
            }
        } else if complete && let Some(stream) = self.http2.streams.get_mut(index) {
            // Nothing, if the end went out with the last bytes.
            let _ = stream.send(&[], true);
        }
        let now_s = self.clock.now_s();
        if let Some(http2) = self.http2_mut(connection) {
            http2.forget(index, now_s);
        }
        self.mark_dirty(connection);
        self.drop_stream(index, reason);
    }

    /// Frees what a stream has, without a word to the client.
    pub(super) fn drop_stream(&mut self, index: u32, reason: CloseReason) {
        if !self.connections.is_open(index) {
            return;
        }
        if let Some(stream) = self.http2.streams.remove(index)
            && let Some(http2) = self.http2_mut(stream.connection)
        {
            http2.read_ahead.forget(stream.read_ahead);
        }
        self.counts.http2_streams -= 1;
        self.release(index, reason);
    }

    /// The slot of the socket that a slot's bytes go through: its own, but for a stream.
    pub(super) fn socket_of(&self, index: u32) -> u32 {
        match self.http2.streams.get(index) {
            Some(stream) if self.connections.slots[index].flags.has(Flags::HTTP2_STREAM) => {
                stream.connection
            }
            _ => index,
        }
    }

    /// Takes what has arrived of a body, and asks the protocols when it is complete.
    fn receive_body(&mut self, index: u32) {
        let limits = self.context.settings.request_limits();
        let active = self.connections.active_mut(index);
        let Some(Task::ReceivingBody(body)) = active.map(|active| &mut active.task) else {
            return;
        };
        let until = body.until;
        let bytes_max = limits.body_bytes_max(body.method());
        let step = body.receive(bytes_max);
        if step != (BodyStep::More { grown: false }) {
            // The windows are open again.
            let connection = self.socket_of(index);
            self.mark_dirty(connection);
        }
        match step {
            BodyStep::More { grown: false } => {}
            BodyStep::More { grown: true } => {
                self.weigh(index);
                if self.has_memory(index) {
                    self.await_body(index, until);
                }
            }
            BodyStep::TooLarge => self.refuse(index, &too_large(bytes_max)),
            BodyStep::Reset => self.close(index, CloseReason::HangUp),
            BodyStep::Complete => {
                let active = self.connections.active_mut(index);
                let task = active.map(|active| std::mem::take(&mut active.task));
                if let Some(Task::ReceivingBody(body)) = task {
                    let (request, bytes) = body.into_parts();
                    let (head, fields) = (request.head(), request.fields());
                    self.ask(index, &head, &fields, bytes, true);
                }
                self.weigh(index);
            }
        }
    }

    /// Sets the deadline for the next part of a body.
    fn await_body(&mut self, index: u32, until: Monotonic) {
        let timeout = self.context.settings.request_timeout;
        self.set_deadline(index, self.clock.monotonic().after(timeout).min(until));
    }

    /// Counts a request of a connection, which may be its last.
    fn count_stream(&mut self, connection: u32) {
        let requests_max = self.context.settings.requests_per_connection;
        let slot = &mut self.connections.slots[connection];
        slot.requests = slot.requests.saturating_add(1);
        if requests_max > 0 && slot.requests >= requests_max {
            self.stop_http2(connection);
        }
    }

    /// What a stream is reset with. A request that was not looked at may be sent again as it is.
    fn reset_code(&self, index: u32, reason: CloseReason) -> Reason {
        let task = self.connections.active(index).map(|active| &active.task);
        let unseen = matches!(task, Some(Task::ReceivingBody(_)))
            || self.connections.slots[index].state == SlotState::Idle;
        match reason {
            CloseReason::Stopping if unseen => Reason::REFUSED_STREAM,
            CloseReason::Internal | CloseReason::Unreadable => Reason::INTERNAL_ERROR,
            _ => Reason::CANCEL,
        }
    }
}
