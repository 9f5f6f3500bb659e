//! A worker's connections: opened, read, lost, and reopened.

use super::subscriber::{Refusal, Stage, Step, Subscriber};
use super::worker::Worker;
use crate::load::clock::{MILLISECOND_NS, monotonic_ns};
use crate::load::poller::Ready;
use crate::load::socket::connected;
use rustix::io::Errno;
use std::cmp::Reverse;

/// How often in a row a subscriber tries to come back before it is given up.
const TRIES_MAX: u8 = 10;

/// How long a subscriber waits after its first failure to come back; each further wait is twice
/// as long, up to 64 times.
const RETRY_NS: u64 = 50 * MILLISECOND_NS;

/// The most different reasons of failure that are counted.
const REASONS_MAX: usize = 32;

impl Worker {
    pub(super) fn connect(&mut self, index: usize, now_ns: u64) {
        let kind = self.subscribers[index].traits.kind;
        let opened = self.sources.open(self.server, kind).and_then(|socket| {
            self.poller.add_socket(&socket, index as u64)?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => {
                let subscriber = &mut self.subscribers[index];
                subscriber.socket = Some(socket);
                subscriber.stage = Stage::Connecting;
                subscriber.since_ns = now_ns;
            }
            Err(error) => self.fail(index, now_ns, error_text(error)),
        }
    }

    pub(super) fn serve(&mut self, event: Ready, buffer: &mut [u8]) {
        let index = event.token as usize;
        let Some(subscriber) = self.subscribers.get_mut(index) else {
            return;
        };
        let Some(socket) = &mut subscriber.socket else {
            return;
        };
        if matches!(subscriber.stage, Stage::Connecting) {
            if !event.writable {
                return;
            }
            if let Err(error) = connected(&*socket) {
                return self.fail(index, monotonic_ns(), error_text(error));
            }
            self.ask(index);
        } else if event.writable
            && let Err(error) = socket.flush()
        {
            return self.fail(index, monotonic_ns(), error_text(error));
        }
        if event.readable {
            if self.paused && self.subscribers[index].traits.slow {
                self.subscribers[index].traits.unread = true;
                return;
            }
            self.read(index, buffer, event.ended);
        }
    }

    /// Sends the next request of a subscriber whose connection is free for one.
    fn ask(&mut self, index: usize) {
        let subscriber = &mut self.subscribers[index];
        self.request.clear();
        subscriber.ask(&self.requests, &mut self.request);
        let Some(socket) = &mut subscriber.socket else {
            return;
        };
        // A request of a few hundred bytes always fits into a socket that has nothing else to send.
        match socket.send(&self.request) {
            Ok(sent) if sent == self.request.len() => subscriber.asked(),
            Ok(_) => self.fail(index, monotonic_ns(), "request cut short".into()),
            Err(error) => self.fail(index, monotonic_ns(), error_text(error)),
        }
    }

    /// Reads until the socket is empty; `to_the_end` when its end may already be there.
    pub(super) fn read(&mut self, index: usize, buffer: &mut [u8], to_the_end: bool) {
        let number = index as u32;
        loop {
            let subscriber = &mut self.subscribers[index];
            let Some(socket) = &mut subscriber.socket else {
                return;
            };
            let length = match socket.read(buffer) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(error) => return self.fail(index, monotonic_ns(), error_text(error)),
            };
            let drained = socket.is_drained(length, buffer.len());
            let now_ns = monotonic_ns();
            self.tally.now_ns = now_ns;
            let result = match length {
                0 => subscriber.ended(),
                _ => {
                    self.request.clear();
                    let bytes = &buffer[..length];
                    subscriber.receive(number, bytes, &mut self.tally, &mut self.request)
                }
            };
            self.note_active(index, now_ns);
            match result {
                Ok(Step::Wait) => {}
                Ok(Step::ComeBack) => {
                    self.counters.closed += 1;
                    return self.leave(index, now_ns);
                }
                Ok(Step::Closed) => {
                    self.counters.closed += 1;
                    self.counters.over += 1;
                    return self.disconnect(index, Stage::Over);
                }
                Err(refusal) => return self.fail(index, now_ns, refusal_text(&refusal)),
            }
            if !self.request.is_empty() && !self.reply(index, now_ns) {
                return;
            }
            if self.subscribers[index].traits.hang_up && self.hang_up_if_settled(index, now_ns) {
                return;
            }
            if drained && !to_the_end {
                return;
            }
        }
    }

    /// Sends what a subscriber owes the server for what it has read, such as a pong. False: it failed.
    fn reply(&mut self, index: usize, now_ns: u64) -> bool {
        let Some(socket) = &mut self.subscribers[index].socket else {
            return false;
        };
        // A few bytes always fit into a socket that has nothing else to send.
        let reason = match socket.send(&self.request) {
            Ok(sent) if sent == self.request.len() => return true,
            Ok(_) => "reply cut short".into(),
            Err(error) => error_text(error),
        };
        self.fail(index, now_ns, reason);
        false
    }

    /// Counts a new subscriber.
    fn note_active(&mut self, index: usize, now_ns: u64) {
        let is_listening = self.subscribers[index].is_listening();
        let Subscriber {
            traits,
            tries,
            returned_ns,
            ..
        } = &mut self.subscribers[index];
        if traits.active || !is_listening || !traits.ready {
            return;
        }
        traits.active = true;
        *returned_ns = now_ns;
        *tries = 0;
        self.counters.active += 1;
        if std::mem::replace(&mut traits.known, true) {
            self.counters.returned += 1;
        } else {
            self.note_settled(now_ns);
        }
    }

    pub(super) fn hang_up_if_settled(&mut self, index: usize, now_ns: u64) -> bool {
        let settled = self.subscribers[index].is_settled();
        if settled {
            self.counters.hung_up += 1;
            if let Some(socket) = self.subscribers[index].socket.take() {
                self.leaving
                    .hang_up(socket.into_socket(), &self.poller, monotonic_ns());
            }
            self.disconnect(index, Stage::Away);
            self.returns.push(Reverse((now_ns + self.away_ns, index)));
        }
        settled
    }

    /// The server has closed the connection in good order: the subscriber comes back.
    fn leave(&mut self, index: usize, now_ns: u64) {
        self.disconnect(index, Stage::Away);
        self.returns.push(Reverse((now_ns, index)));
    }

    /// A connection did not come about, or broke.
    pub(super) fn fail(&mut self, index: usize, now_ns: u64, reason: String) {
        self.counters.failed += 1;
        let known = self.counters.reasons.contains_key(&reason);
        let room = self.counters.reasons.len() < REASONS_MAX;
        let reason = if known || room {
            reason
        } else {
            "other".to_owned()
        };
        *self.counters.reasons.entry(reason).or_default() += 1;
        self.disconnect(index, Stage::Away);
        let subscriber = &mut self.subscribers[index];
        if !subscriber.traits.ready {
            subscriber.stage = Stage::Over;
            self.never_ready += 1;
            return self.note_settled(now_ns);
        }
        subscriber.tries += 1;
        if subscriber.tries > TRIES_MAX {
            subscriber.stage = Stage::Over;
            self.counters.given_up += 1;
            return;
        }
        let wait_ns = RETRY_NS << (subscriber.tries - 1).min(6);
        self.returns.push(Reverse((now_ns + wait_ns, index)));
    }

    fn disconnect(&mut self, index: usize, stage: Stage) {
        let number = index as u32;
        let subscriber = &mut self.subscribers[index];
        subscriber.disconnected(number, &mut self.tally);
        subscriber.stage = stage;
        if std::mem::take(&mut subscriber.traits.active) {
            self.counters.active -= 1;
        }
    }

    fn note_settled(&mut self, now_ns: u64) {
        if self.pending() == 0 && self.counters.settled_ns == 0 {
            self.counters.settled_ns = now_ns;
        }
    }

    pub(super) fn pending(&self) -> u64 {
        (self.subscribers.len() as u64).saturating_sub(self.tally.ready + self.never_ready)
    }
}

fn error_text(error: Errno) -> String {
    match error {
        Errno::CONNREFUSED => "connection refused".into(),
        Errno::CONNRESET => "connection reset".into(),
        Errno::TIMEDOUT => "connection timed out".into(),
        Errno::MFILE => "too many open files".into(),
        Errno::ADDRNOTAVAIL => "no free port".into(),
        other => other.to_string(),
    }
}

fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Status(status) => format!("status {status}"),
        Refusal::Wire(error) => error.to_string(),
        Refusal::Ended => "closed before the answer was complete".into(),
        Refusal::Closed(code) => format!("closed with {code}"),
    }
}
