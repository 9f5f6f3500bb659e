//! What clients send: bytes to requests.

use encke_protocol::{Action, Headers, Request};
use rustix::net::{RecvFlags, recv};

use super::Shard;
use super::look::Parked;
use crate::close::CloseReason;
use crate::http::Rejection;
use crate::http::head::Head;
use crate::http::take::{Limits, Step, take};
use crate::slot::{Flags, State};

impl Shard {
    /// Reads what the socket holds. Events come once for each arrival, so it must be emptied or
    /// remembered as unread.
    pub(super) fn readable(&mut self, index: u32, half_closed: bool) {
        self.slots[index].flags.set(Flags::UNREAD, false);
        let mut scratch = std::mem::take(&mut self.scratch);
        for turn in 0.. {
            if turn == READS_PER_TURN || self.has_enough(index) {
                self.slots[index].flags.set(Flags::UNREAD, true);
                if turn == READS_PER_TURN && !self.has_enough(index) {
                    self.lag(index);
                }
                break;
            }
            let Some(fd) = self.slots[index].fd() else {
                break;
            };
            let read = match recv(fd, &mut scratch[..], RecvFlags::DONTWAIT) {
                Ok((read, _)) => read,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => {
                    self.close(index, CloseReason::HangUp);
                    break;
                }
            };
            if read == 0 {
                self.half_closed(index);
                break;
            }
            self.counts.bytes_in += read as u64;
            self.slots[index].active_s = self.clock.now_s();
            self.received(index, &scratch[..read], read == scratch.len());
            if !self.is_open(index) {
                break;
            }
            // A short read has emptied the socket, unless the end of the stream is behind it.
            if read < scratch.len() && !half_closed {
                break;
            }
        }
        self.scratch = scratch;
        if self.is_open(index) {
            self.weigh(index);
        }
    }

    /// Goes on with what was left in the buffers while a request was worked on.
    pub(super) fn resume(&mut self, index: u32) {
        let slot = &self.slots[index];
        if slot.state != State::Reading || slot.flags.has(Flags::BLOCKED) {
            return;
        }
        if self
            .busy
            .get(index)
            .is_some_and(|busy| !busy.input.is_empty())
        {
            self.input(index, &[]);
        }
        if self.is_open(index) && self.slots[index].flags.has(Flags::UNREAD) {
            self.readable(index, true);
        }
        if self.is_open(index) && self.slots[index].flags.has(Flags::ENDED) {
            self.half_closed(index);
        }
    }

    /// A request was not complete in time.
    pub(super) fn request_timeout(&mut self, index: u32) {
        let body_until_ms = self.busy.get(index).map_or(0, |busy| busy.body_until_ms);
        let refused = if body_until_ms > 0 && self.clock.now_ms() >= body_until_ms {
            Rejection::new(408, "body_timeout", "the request's body took too long")
        } else {
            Rejection::new(408, "timeout", "the request took too long to arrive")
        };
        self.refuse(index, &refused);
    }

    /// Whether the connection has sent as much ahead as it may.
    fn has_enough(&self, index: u32) -> bool {
        !self.reads(index)
            && !matches!(
                self.slots[index].state,
                State::Following | State::Several | State::Working | State::Lingering
            )
            && self.busy.get(index).is_some_and(|busy| {
                busy.input.len() >= self.parts.settings.pipeline_bytes_max
                    || !busy.input.is_empty() && !self.parts.buffers.have_room_for_requests()
            })
    }

    /// Whether the next request may be looked at.
    fn reads(&self, index: u32) -> bool {
        let slot = &self.slots[index];
        slot.state == State::Reading && !slot.flags.has(Flags::BLOCKED)
    }

    /// The client has closed its side. It waits for the answers to what it sent before, and for nothing else:
    /// a subscriber that does so hangs up.
    fn half_closed(&mut self, index: u32) {
        let last = self
            .busy
            .get(index)
            .is_none_or(|busy| busy.input.is_empty());
        let long = self.asks_for_long(index);
        let slot = &mut self.slots[index];
        let blocked = slot.flags.has(Flags::BLOCKED);
        match slot.state {
            State::Asking if long => self.close(index, CloseReason::HangUp),
            State::Committing | State::Asking | State::Fetching | State::Streaming if last => {
                slot.flags.set(Flags::KEEP, false);
            }
            State::Reading if blocked && last => slot.flags.set(Flags::CLOSING, true),
            State::Committing | State::Asking | State::Fetching | State::Streaming => {
                slot.flags.set(Flags::ENDED, true);
            }
            State::Reading if blocked => slot.flags.set(Flags::ENDED, true),
            _ => self.close(index, CloseReason::HangUp),
        }
    }

    fn received(&mut self, index: u32, bytes: &[u8], full: bool) {
        match self.slots[index].state {
            State::Reading if self.reads(index) => self.input(index, bytes),
            // A refused client is heard out for a while: most look for the answer only when they have sent everything.
            State::Lingering => {}
            State::Following | State::Several | State::Working if !full => {}
            // A subscriber has nothing to say, least of all that much.
            State::Following | State::Several | State::Working => {
                self.close(index, CloseReason::Talkative);
            }
            _ => self.busy(index).input.extend_from_slice(bytes),
        }
    }

    /// Takes requests off the input until one must be waited for.
    fn input(&mut self, index: u32, new: &[u8]) {
        let mut kept = Vec::new();
        if let Some(busy) = self.busy.get_mut(index)
            && !busy.input.is_empty()
        {
            kept = std::mem::take(&mut busy.input);
            kept.extend_from_slice(new);
        }
        let mut rest = if kept.is_empty() { new } else { &kept[..] };
        while !rest.is_empty() && self.is_open(index) && self.reads(index) {
            match self.take_request(index, &mut rest) {
                Ok(true) => {}
                Ok(false) => break,
                Err(refused) => {
                    self.refuse(index, &refused);
                    return;
                }
            }
        }
        if !self.is_open(index) {
            return;
        }
        if !rest.is_empty() {
            self.busy(index).input = rest.to_vec();
        }
        if self.slots[index].state == State::Reading && !self.slots[index].flags.has(Flags::BLOCKED)
        {
            self.await_rest(index, !rest.is_empty());
        }
    }

    /// Part of a request is there: the rest must come in time.
    fn await_rest(&mut self, index: u32, partial_head: bool) {
        let waits = self
            .busy
            .get(index)
            .is_some_and(|busy| busy.body.is_some() || partial_head);
        if !waits {
            self.settle(index);
            return;
        }
        self.weigh(index);
        if !self.parts.buffers.have_room_for_requests() {
            let refused = Rejection::new(
                503,
                "buffers_max",
                "the requests that are on their way already are as many as the server takes",
            );
            self.refuse(index, &refused.retry(1));
            return;
        }
        let timeout_ms = self.parts.settings.request_timeout.as_millis() as u64;
        let body_timeout_ms = self.parts.settings.body_timeout.as_millis() as u64;
        let now_ms = self.clock.now_ms();
        let deadline_ms = now_ms + timeout_ms;
        // A head has one deadline, or a byte now and then would hold it off for ever; a body has
        // a new one with each part, because it may be large.
        let busy = self.busy(index);
        if busy.body.is_some() {
            if busy.body_until_ms == 0 {
                busy.body_until_ms = now_ms + body_timeout_ms;
            }
            let deadline_ms = deadline_ms.min(busy.body_until_ms);
            self.deadline(index, deadline_ms);
        } else if busy.deadline_ms == 0 {
            self.deadline(index, deadline_ms);
        }
    }

    /// Takes one step: a whole request, its head, or a part of its body. False: more is needed.
    fn take_request(&mut self, index: u32, rest: &mut &[u8]) -> Result<bool, Rejection> {
        if self.slots[index].flags.has(Flags::NAMELESS) {
            return self.take_preface(index, rest);
        }
        let settings = &self.parts.settings;
        let limits = Limits {
            head_bytes_max: settings.head_bytes_max,
            body_bytes_max: settings.body_bytes_max,
        };
        let mut body = self.busy.get_mut(index).and_then(|busy| busy.body.take());
        let step = take(&mut body, rest, limits, |head, fields, content| {
            self.dispatch(index, head, fields, content);
        })?;
        if let Some(body) = body {
            self.busy(index).body = Some(body);
        }
        if step == (Step::Head { invites: true }) {
            self.send_raw(index, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        Ok(step != Step::More)
    }

    fn dispatch(&mut self, index: u32, head: &Head<'_>, fields: &[(&str, &[u8])], body: Vec<u8>) {
        self.counts.requests += 1;
        if let Some(busy) = self.busy.get_mut(index) {
            busy.deadline_ms = 0;
            busy.body_until_ms = 0;
        }
        let slot = &mut self.slots[index];
        slot.requests = slot.requests.saturating_add(1);
        let requests_max = self.parts.settings.requests_per_connection;
        let last = requests_max > 0 && slot.requests >= requests_max;
        let keep = head.keep_alive && self.stopping.is_none() && !last;
        let flags = &mut slot.flags;
        flags.set(Flags::KEEP, keep);
        flags.set(Flags::HEAD_ONLY, head.method == "HEAD");
        flags.set(Flags::PLAIN, head.version == 0);
        let caller = match self.whose(index, fields) {
            Ok(caller) => caller,
            Err(refused) => {
                self.turn_away(index, &refused);
                return;
            }
        };
        let answer = self.parts.router.request(Request {
            method: head.method,
            path: head.path,
            query: head.query,
            headers: Headers(fields),
            body,
            caller,
            now_ms: self.clock.now_ms(),
        });
        match answer {
            Action::Load(load) => {
                let parked = Parked::new(head, fields, caller, load.body);
                self.look(index, load.name, parked);
            }
            answer => self.answer(index, answer),
        }
    }
}

/// A client that sends without pause is left for the others after so many reads.
const READS_PER_TURN: u32 = 16;
