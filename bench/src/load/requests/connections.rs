//! How the engine opens its connections, reads from them and opens lost ones again.

use super::engine::Engine;
use super::line::{Line, State};
use super::{Mode, Traffic};
use crate::load::clock::{MILLISECOND_NS, monotonic_ns};
use crate::load::kinds::SubscriberKind;
use crate::load::poller::Ready;
use crate::load::socket::connected;
use crate::load::wire::http::{Framing, WireError, parse_head};
use crate::load::wire::transport::Wire;
use rustix::io::Errno;

/// The reason of a loss to the server's end of the connection.
const CLOSED: &str = "closed without an answer";

/// How long a line waits before it connects again.
const RECONNECT_NS: u64 = 20 * MILLISECOND_NS;

/// Connections that are begun between two polls, where lines that are connected must not wait for the others.
const CONNECTS_PER_POLL: usize = 64;

/// How long a line rests after the server has said that it is overloaded.
const REST_NS: u64 = 10 * MILLISECOND_NS;

impl<T: Traffic> Engine<'_, T> {
    /// Opens the connections that are due.
    pub(super) fn connect_due(&mut self, now_ns: u64) {
        let connects = match self.plan.mode {
            Mode::KeepAlive { .. } => usize::MAX,
            Mode::OneRequest => CONNECTS_PER_POLL,
        };
        for _ in 0..connects {
            let Some(&(_, index)) = self.down.front().filter(|(at_ns, _)| *at_ns <= now_ns) else {
                return;
            };
            self.down.pop_front();
            self.traffic.connecting(index);
            let server = self.plan.servers[index % self.plan.servers.len()];
            let opened = self
                .plan
                .sources
                .open(server, SubscriberKind::Http1)
                .and_then(|socket| {
                    self.poller.add_socket(&socket, index as u64)?;
                    Ok(socket)
                });
            match opened {
                Ok(socket) => {
                    let line = &mut self.lines[index];
                    line.socket = Some(socket);
                    line.state = State::Connecting;
                    line.waiting_since_ns = now_ns;
                }
                Err(error) => self.put_off(index, now_ns, &error.to_string()),
            }
        }
    }

    /// A line could not connect: it tries again later, or is given up.
    pub(super) fn put_off(&mut self, index: usize, now_ns: u64, reason: &str) {
        self.outcome.last_error = Some(reason.to_owned());
        let line = &mut self.lines[index];
        line.socket = None;
        match self.plan.mode {
            Mode::KeepAlive {
                reconnect_timeout_ns,
            } if now_ns < line.down_since_ns.saturating_add(reconnect_timeout_ns) => {
                line.state = State::Down;
                self.down.push_back((now_ns + RECONNECT_NS, index));
            }
            _ => self.give_up(index, reason),
        }
    }

    fn give_up(&mut self, index: usize, reason: &str) {
        self.lines[index].state = State::Ended;
        self.outcome.given_up += 1;
        self.traffic.given_up(index, reason);
    }

    /// Does what an event asks for.
    pub(super) fn serve(&mut self, event: Ready, buffer: &mut [u8]) {
        let Ok(index) = usize::try_from(event.token) else {
            return;
        };
        let line = &mut self.lines[index];
        if line.state == State::Connecting && event.writable {
            let Some(socket) = &line.socket else { return };
            match connected(socket) {
                Ok(()) => {
                    line.state = State::Open;
                    self.make_eager(index);
                }
                Err(error) => return self.put_off(index, monotonic_ns(), &error.to_string()),
            }
        }
        if self.lines[index].state != State::Open {
            return;
        }
        if event.writable {
            let line = &mut self.lines[index];
            if let Some(Err(error)) = line.socket.as_mut().map(Wire::flush) {
                return self.lose(index, &error.to_string());
            }
            if !self.lines[index].out.is_empty() {
                self.write(index);
            }
        }
        if event.readable {
            self.read(index, buffer, event.ended);
        }
    }

    fn read(&mut self, index: usize, buffer: &mut [u8], to_the_end: bool) {
        loop {
            let Some(socket) = &mut self.lines[index].socket else {
                return;
            };
            match socket.read(buffer) {
                Ok(0) => return self.ended(index),
                Ok(length) => {
                    let drained = socket.is_drained(length, buffer.len());
                    if let Err(error) = self.receive(index, &buffer[..length]) {
                        return self.lose(index, &error.to_string());
                    }
                    // A short read has emptied the socket, and what comes later is a new event,
                    // unless the peer's end arrived together with these bytes.
                    if drained && !to_the_end {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => return self.lose(index, &error.to_string()),
            }
        }
    }

    /// The server has closed the connection.
    fn ended(&mut self, index: usize) {
        let line = &mut self.lines[index];
        if let Some((Framing::UntilClose, status, _)) = line.body {
            self.complete(index, status, false);
        } else if line.in_flight == 0 {
            self.reopen(index, CLOSED);
        } else {
            self.lose(index, CLOSED);
        }
    }

    fn receive(&mut self, index: usize, bytes: &[u8]) -> Result<(), WireError> {
        let held = std::mem::take(&mut self.lines[index].held);
        if held.is_empty() {
            return self.parse(index, bytes);
        }
        let mut joined = held;
        joined.extend_from_slice(bytes);
        self.parse(index, &joined)
    }

    fn parse(&mut self, index: usize, mut bytes: &[u8]) -> Result<(), WireError> {
        while !bytes.is_empty() {
            let line = &mut self.lines[index];
            let (mut framing, status, keep_alive) = match line.body.take() {
                Some(body) => body,
                None if line.in_flight == 0 => return Err(WireError::BadHead),
                None => {
                    let Some((head, taken)) = parse_head(bytes)? else {
                        line.held = bytes.to_vec();
                        return Ok(());
                    };
                    bytes = &bytes[taken..];
                    self.traffic.head(index, &head);
                    if self.plan.mode == Mode::OneRequest {
                        self.end_line(index, head.status);
                        return Ok(());
                    }
                    (head.framing, head.status, head.keep_alive)
                }
            };
            while let Some(piece) = framing.next_piece(&mut bytes)? {
                self.traffic.body(index, piece);
            }
            if framing.is_done() {
                self.complete(index, status, keep_alive);
                if self.lines[index].state != State::Open {
                    return Ok(());
                }
            } else {
                line.body = Some((framing, status, keep_alive));
            }
        }
        Ok(())
    }

    fn complete(&mut self, index: usize, status: u16, keep_alive: bool) {
        let now_ns = monotonic_ns();
        self.traffic.done(index, status, now_ns);
        let line = &mut self.lines[index];
        line.body = None;
        line.in_flight -= 1;
        self.in_flight -= 1;
        line.waiting_since_ns = now_ns;
        line.exhausted = false;
        if !keep_alive {
            if line.in_flight > 0 {
                self.lose(index, CLOSED);
            } else {
                self.reopen(index, CLOSED);
            }
        } else if status == 429 || status == 503 {
            self.resting.push_back((now_ns + REST_NS, index));
        } else {
            self.make_eager(index);
        }
    }

    /// The only request of a line is answered: its connection stays open until the caller drops the outcome.
    fn end_line(&mut self, index: usize, status: u16) {
        let line = &mut self.lines[index];
        line.state = State::Ended;
        self.in_flight -= std::mem::take(&mut line.in_flight);
        self.outcome.answered.extend(line.socket.take());
        self.traffic.done(index, status, monotonic_ns());
    }

    /// The connection broke with requests in flight, or in a way that it should not have.
    pub(super) fn lose(&mut self, index: usize, reason: &str) {
        self.report_loss(index, reason);
        self.reopen(index, reason);
    }

    pub(super) fn report_loss(&mut self, index: usize, reason: &str) {
        self.outcome.lost += 1;
        self.outcome.last_error = Some(reason.to_owned());
        self.traffic.lost(index);
    }

    /// Connects a line again that is no longer connected, if the plan lets it.
    fn reopen(&mut self, index: usize, reason: &str) {
        let now_ns = monotonic_ns();
        let line = &mut self.lines[index];
        let eager = line.eager;
        self.in_flight -= line.in_flight;
        // Whatever was queued for the lost connection has been reported as lost. Its place in
        // the queue of eager lines stays, and is skipped there.
        *line = Line {
            eager,
            state: State::Down,
            down_since_ns: now_ns,
            ..Line::default()
        };
        match self.plan.mode {
            Mode::KeepAlive { .. } => self.down.push_front((now_ns, index)),
            Mode::OneRequest => self.give_up(index, reason),
        }
    }
}
