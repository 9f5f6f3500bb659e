//! Input: reads from sockets and takes requests from the bytes.

use encke_protocol::{Headers, Response};

use super::Shard;
use super::accept::no_place;
use super::encrypted::Received;
use crate::connection::active::Task;
use crate::connection::close::CloseReason;
use crate::connection::slot::{Flags, SlotState};
use crate::http::Rejection;
use crate::http::head::{self, Head, NO_FIELDS};
use crate::http::take::{ParseStep, take};
use crate::http2::connection::{PREFACE, PREFACE_LINE};
use crate::transport::plain;

impl Shard {
    /// Reads what the socket holds. Epoll reports each arrival once, so the socket must be emptied or marked as unread.
    pub(super) fn readable(&mut self, index: u32, half_closed: bool) {
        if !self.connections.is_open(index) {
            return;
        }
        self.connections.slots[index]
            .flags
            .set(Flags::UNREAD, false);
        let mut scratch = std::mem::take(&mut self.scratch.input);
        for turn in 0.. {
            if turn == READS_PER_TURN || self.has_enough(index) {
                self.connections.slots[index].flags.set(Flags::UNREAD, true);
                if turn == READS_PER_TURN && !self.has_enough(index) {
                    self.queue(index);
                }
                break;
            }
            let (count, drained, last) = match self.receive(index, &mut scratch) {
                Received::Bytes { count, drained } => (count, drained, false),
                Received::Last { count } => (count, true, true),
                Received::Nothing | Received::Closed => break,
            };
            if count > 0 {
                self.counts.bytes_in += count as u64;
                self.connections.slots[index].active_s = self.clock.now_s();
                self.received(index, &scratch[..count], !drained);
                if !self.connections.is_open(index) {
                    break;
                }
            }
            if last {
                self.half_closed(index);
                break;
            }
            // A short read has emptied the socket, unless the end of the input is behind it.
            if drained && !half_closed {
                break;
            }
        }
        self.scratch.input = scratch;
        self.weigh(index);
    }

    /// Receives bytes of the application.
    fn receive(&mut self, index: u32, scratch: &mut [u8]) -> Received {
        let slot = &self.connections.slots[index];
        if slot.flags.has(Flags::ENCRYPTED) {
            return self.receive_encrypted(index, scratch);
        }
        let Some(fd) = slot.fd() else {
            return Received::Closed;
        };
        match plain::receive(fd, scratch) {
            Ok(0) => Received::Last { count: 0 },
            Ok(count) => Received::Bytes {
                count,
                drained: count < scratch.len(),
            },
            Err(rustix::io::Errno::AGAIN) => Received::Nothing,
            Err(_) => {
                self.close(index, CloseReason::HangUp);
                Received::Closed
            }
        }
    }

    /// Continues with input that was left in the buffers while a request was in work.
    pub(super) fn resume(&mut self, index: u32) {
        if !self.connections.reads(index) {
            return;
        }
        let active = self.connections.active(index);
        if active.is_some_and(|active| !active.input.is_empty()) {
            self.input(index, &[]);
        }
        let flags = self.connections.slots[index].flags;
        if flags.has(Flags::UNREAD) {
            self.readable(index, true);
        }
        if self.connections.slots[index].flags.has(Flags::HALF_CLOSED) {
            self.half_closed(index);
        }
    }

    /// Refuses a request that was not complete in time.
    pub(super) fn request_timeout(&mut self, index: u32) {
        let task = self.connections.active(index).map(|active| &active.task);
        let body_until = match task {
            Some(Task::Reading { body_until, .. }) => *body_until,
            Some(Task::ReceivingBody(body)) => Some(body.until),
            _ => None,
        };
        if self.is_turned_away(index) {
            return self.refuse(index, &no_place());
        }
        let now = self.clock.monotonic();
        let rejection = if body_until.is_some_and(|until| now >= until) {
            Rejection::new(408, "body_timeout", "the request's body took too long")
        } else {
            Rejection::new(408, "timeout", "the request took too long to arrive")
        };
        self.refuse(index, &rejection);
    }

    /// Whether a connection is subscribed to one or several streams.
    pub(super) fn is_subscribed(&self, index: u32) -> bool {
        match self.connections.slots[index].state {
            SlotState::Subscribed(_) => true,
            SlotState::Active => {
                let active = self.connections.active(index);
                active.is_some_and(|active| active.subscriber().is_some())
            }
            _ => false,
        }
    }

    /// Whether the connection only receives events.
    pub(super) fn is_listener(&self, index: u32) -> bool {
        let active = self.connections.active(index);
        self.is_subscribed(index)
            || active.is_some_and(|active| matches!(active.task, Task::Working { .. }))
    }

    pub(super) fn is_lingering(&self, index: u32) -> bool {
        let active = self.connections.active(index);
        active.is_some_and(|active| matches!(active.task, Task::Lingering))
    }

    /// Whether the connection has pipelined as much as it may.
    fn has_enough(&self, index: u32) -> bool {
        let Some(active) = self.connections.active(index) else {
            return false;
        };
        let discards = self.is_listener(index) || matches!(active.task, Task::Lingering);
        if self.connections.reads(index) || discards {
            return false;
        }
        if matches!(active.task, Task::Http2(_)) {
            return self.has_http2_backlog(index);
        }
        let input = &active.input;
        input.len() >= self.context.settings.pipeline_bytes_max
            || !input.is_empty() && self.context.buffers.are_crowded()
    }

    /// The client has closed its side. It gets the responses to its earlier requests; for a subscriber it is a hang-up.
    fn half_closed(&mut self, index: u32) {
        let long = self.waits_long(index);
        let reason = self.last_reason(index);
        let (active, slot) = self.connections.parts_mut(index);
        let Some(active) = active else {
            return self.close(index, CloseReason::HangUp);
        };
        let last = active.input.is_empty();
        match (&active.task, &mut active.pending) {
            (Task::AwaitingDispatch { .. }, _) if long => self.close(index, CloseReason::HangUp),
            (
                Task::AwaitingCommit(_)
                | Task::AwaitingDispatch { .. }
                | Task::AwaitingLoad(_)
                | Task::AwaitingKeys(_)
                | Task::AwaitingOrder(_)
                | Task::AwaitingRead(_)
                | Task::AwaitingCompression(_)
                | Task::Streaming { .. },
                _,
            ) => match last {
                true => slot.flags.set(Flags::KEEP_ALIVE, false),
                false => slot.flags.set(Flags::HALF_CLOSED, true),
            },
            (Task::Reading { .. }, Some(pending)) => match last {
                true => {
                    pending.close.get_or_insert(reason);
                }
                false => slot.flags.set(Flags::HALF_CLOSED, true),
            },
            _ => self.close(index, CloseReason::HangUp),
        }
    }

    pub(super) fn received(&mut self, index: u32, bytes: &[u8], full: bool) {
        if self.connections.reads(index) {
            self.input(index, bytes);
        } else if self.is_listener(index) {
            // A subscriber has no reason to send this much.
            if full {
                self.close(index, CloseReason::Talkative);
            }
        } else if self.is_http2(index) {
            self.receive_frames(index, bytes);
        } else if !self.is_lingering(index) {
            // Most other clients read the response only after they have sent everything.
            let active = self.connections.activate(index);
            active.input.extend_from_slice(bytes);
        }
    }

    /// Takes requests off the input until one must wait.
    fn input(&mut self, index: u32, new: &[u8]) {
        let mut kept = Vec::new();
        if let Some(active) = self.connections.active_mut(index)
            && !active.input.is_empty()
        {
            kept = std::mem::take(&mut active.input);
            kept.extend_from_slice(new);
        }
        let mut rest = if kept.is_empty() { new } else { &kept[..] };
        while !rest.is_empty() && self.connections.reads(index) {
            match self.take_request(index, &mut rest) {
                Ok(true) => {}
                Ok(false) => break,
                Err(rejection) => {
                    self.refuse(index, &rejection);
                    return;
                }
            }
        }
        if !self.connections.is_open(index) {
            return;
        }
        if !rest.is_empty() {
            self.connections.activate(index).input = rest.to_vec();
        }
        if self.connections.reads(index) {
            self.await_rest(index, !rest.is_empty());
        }
    }

    /// Sets the deadline for the rest of a request.
    fn await_rest(&mut self, index: u32, partial_head: bool) {
        let now = self.clock.monotonic();
        let body_timeout = self.context.settings.body_timeout;
        let request_timeout = self.context.settings.request_timeout;
        let active = self.connections.active_mut(index);
        let body_until = match active.map(|active| &mut active.task) {
            Some(Task::Reading {
                body: Some(_),
                body_until,
            }) => Some(*body_until.get_or_insert(now.after(body_timeout))),
            _ => None,
        };
        if body_until.is_none() && !partial_head {
            self.connections.settle(index);
            return;
        }
        self.weigh(index);
        if !self.has_memory(index) {
            return;
        }
        let deadline = now.after(request_timeout);
        // A head has one deadline, so that single bytes do not extend it. A body has a new one with each part, because it may be
        // large.
        if let Some(body_until) = body_until {
            self.set_deadline(index, deadline.min(body_until));
        } else if self.connections.activate(index).deadline.is_none() {
            self.set_deadline(index, deadline);
        }
    }

    /// Takes one step: a complete request, its head, or a part of its body. False: more is needed.
    fn take_request(&mut self, index: u32, rest: &mut &[u8]) -> Result<bool, Rejection> {
        let slot = &self.connections.slots[index];
        if slot.flags.has(Flags::AWAITS_PROXY) {
            return self.take_preface(index, rest);
        }
        let first = slot.requests == 0;
        let limits = self.context.settings.request_limits();
        let mut body = match self.connections.active_mut(index).map(|a| &mut a.task) {
            Some(Task::Reading { body, .. }) => body.take(),
            _ => None,
        };
        if first && body.is_none() && rest.starts_with(PREFACE_LINE) {
            return Ok(self.take_http2_preface(index, rest));
        }
        let before = *rest;
        let admitted = body.is_some();
        let step = take(&mut body, rest, limits, |head, fields, content| {
            self.ask(index, head, fields, content, admitted);
        });
        let step = match step {
            Ok(step) => step,
            Err(rejection) => {
                self.begin_refused_request(index, before);
                return Err(rejection);
            }
        };
        if let ParseStep::Head { .. } = step
            && let Some(body) = &body
            && let Err(response) = self.begin_body(index, &body.head)
        {
            // What comes of the body is discarded.
            *rest = &[];
            self.refuse_with(index, &response);
            return Ok(false);
        }
        if body.is_some()
            && let Task::Reading { body: kept, .. } = &mut self.connections.activate(index).task
        {
            *kept = body;
        }
        if step == (ParseStep::Head { invites: true }) {
            self.send_raw(index, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        Ok(step != ParseStep::More)
    }

    /// A head is complete whose body is still to come.
    fn begin_body(&mut self, index: u32, head: &[u8]) -> Result<(), Box<Response>> {
        let mut fields = NO_FIELDS;
        // It was parsed before it was kept.
        let Ok(Some((head, count))) = head::parse(head, &mut fields) else {
            return Ok(());
        };
        // Its time counts from now on.
        self.begin_request(index, &head, &fields[..count]);
        self.admit_head(index, &head, &fields[..count])
    }

    /// Takes the preface of HTTP/2 and all that follows it off the input. False: more of it is needed.
    fn take_http2_preface(&mut self, index: u32, rest: &mut &[u8]) -> bool {
        if rest.len() < PREFACE.len() && PREFACE.starts_with(rest) {
            return false;
        }
        // What is no preface behind its first line is a violation of HTTP/2, to which it says so.
        let input = std::mem::take(rest);
        self.begin_http2(index, input);
        true
    }

    /// Asks the protocols for the action of a request, and performs it. `admitted`: its head was before its body came.
    pub(super) fn ask(
        &mut self,
        index: u32,
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        body: Vec<u8>,
        admitted: bool,
    ) {
        self.counts.requests += 1;
        self.begin_request(index, head, fields);
        if let Some(active) = self.connections.active_mut(index) {
            active.deadline = None;
            active.task = Task::default();
        }
        let turned_away = self.is_turned_away(index);
        let slot = &mut self.connections.slots[index];
        slot.requests = slot.requests.saturating_add(1);
        let requests_max = self.context.settings.requests_per_connection;
        let last = requests_max > 0 && slot.requests >= requests_max;
        let keep = head.keep_alive && self.stopping.is_none() && !last && !turned_away;
        let flags = &mut slot.flags;
        flags.set(Flags::KEEP_ALIVE, keep);
        flags.set(Flags::HEAD_ONLY, head.method == "HEAD");
        flags.set(Flags::HTTP_1_0, head.version == 0);
        let takes_events = head.method == "GET" && takes_events(fields);
        flags.set(
            Flags::TAKES_EVENTS,
            takes_events && self.context.router.opens_events(head.path, head.query),
        );
        if flags.has(Flags::OPERATOR) {
            let socket = self.socket_of(index);
            let token = self.connections.slots.token(socket);
            if let Some(operators) = &mut self.operators {
                operators.note_request(token);
            }
        }
        let caller = match admitted {
            true => self.identify(index, fields).map(|(caller, _)| caller),
            false => self.caller(index, fields),
        };
        let caller = match caller {
            Ok(caller) => caller,
            Err(rejection) => {
                self.name_reader(index, head, fields);
                self.reject(index, &rejection);
                return;
            }
        };
        self.route(index, head, fields, body, caller);
    }
}

/// Whether a client takes an event stream and nothing else, as an `EventSource` says (HTML, section 9.2.2).
fn takes_events(fields: &[(&str, &[u8])]) -> bool {
    let accept = Headers(fields).first("Accept").unwrap_or_default();
    accept
        .trim_ascii()
        .eq_ignore_ascii_case(b"text/event-stream")
}

/// Reads of one connection in a turn; a client that sends without pause leaves time for the others.
const READS_PER_TURN: u32 = 16;
