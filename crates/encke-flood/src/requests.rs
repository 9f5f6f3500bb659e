//! The request engine: many keep-alive connections in one epoll loop, each with a bounded number
//! of requests in flight, all in all at a rate or as fast as answers come.
//!
//! What is asked and what is made of the answers is up to a [`Traffic`]. A connection that is lost
//! is opened again, for as long as the plan's patience lasts.

use crate::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::error::FloodError;
use crate::poller::{Poller, Ready};
use crate::socket::{Sources, connected};
use crate::wire::http::{Framing, Head, WireError, parse_head};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often the loop looks at its stop flag when nothing happens.
const LOOK_NS: u64 = 50 * MILLISECOND_NS;

/// How long a connection waits for an answer before it counts as lost.
const ANSWER_NS_MAX: u64 = 30 * SECOND_NS;

/// How long a line waits before it connects again.
const RECONNECT_NS: u64 = 20 * MILLISECOND_NS;

/// How long a line rests after the server has said that it is overloaded.
const REST_NS: u64 = 10 * MILLISECOND_NS;

/// The size of the buffer that all lines read into.
const READ_BYTES: usize = 64 * 1024;

/// What is asked of the server, and what becomes of the answers. Answers come in the order of the
/// requests of a line.
pub(crate) trait Traffic {
    /// Appends the next request of `line` to `out`; `due_ns` is when the plan's pace wanted it.
    /// False when this line has nothing more to ask for now; it is asked again after its next
    /// answer, and has ended once nothing of it is in flight.
    fn next(&mut self, line: usize, due_ns: u64, out: &mut Vec<u8>) -> bool;

    /// The head of the answer to the oldest request of `line`.
    fn head(&mut self, _line: usize, _head: &Head<'_>) {}

    /// A piece of its body.
    fn body(&mut self, _line: usize, _piece: &[u8]) {}

    /// The end of the answer.
    fn done(&mut self, line: usize, status: u16, now_ns: u64);

    /// The connection of `line` is gone; what was in flight on it will never be answered.
    fn lost(&mut self, line: usize);

    /// Called once after each batch of answers.
    fn turn(&mut self) -> Result<(), FloodError> {
        Ok(())
    }
}

/// How requests are made.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Where to.
    pub(crate) server: SocketAddr,
    /// From where.
    pub(crate) sources: Sources,
    /// Over how many connections.
    pub(crate) lines: usize,
    /// How many requests may be in flight on each.
    pub(crate) depth: usize,
    /// How many requests a second in all; `None` for as fast as answers come.
    pub(crate) rate: Option<f64>,
    /// When to stop, counted from the first request.
    pub(crate) duration_ns: u64,
    /// How long a line tries to connect again before it is given up.
    pub(crate) patience_ns: u64,
    /// How long to wait for the last answers.
    pub(crate) grace_ns: u64,
}

/// What became of the connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// Connections that were open and broke, or whose answers were no HTTP.
    pub(crate) lost: u64,
    /// Lines that were given up.
    pub(crate) given_up: u64,
    /// Why the last connection broke or did not come about.
    pub(crate) last_error: Option<String>,
    /// When the first request was sent, in nanoseconds of the monotonic clock.
    pub(crate) started_ns: u64,
    /// When the last answer was awaited.
    pub(crate) ended_ns: u64,
}

/// Makes requests until the traffic ends, the time is over, or `stop` is set.
pub(crate) fn run(
    plan: Plan,
    traffic: &mut impl Traffic,
    stop: &AtomicBool,
) -> Result<Outcome, FloodError> {
    let mut engine = Engine {
        poller: Poller::new()?,
        lines: (0..plan.lines).map(|_| Line::default()).collect(),
        eager: VecDeque::with_capacity(plan.lines),
        resting: VecDeque::new(),
        outcome: Outcome::default(),
        dirty: Vec::new(),
        connect_at_ns: 0,
        traffic,
        plan,
    };
    engine.run(stop)?;
    Ok(engine.outcome)
}

struct Engine<'a, T> {
    plan: Plan,
    traffic: &'a mut T,
    poller: Poller,
    lines: Vec<Line>,
    /// Lines that may send, the longest waiting first. Invariant: exactly those with `eager` set.
    eager: VecDeque<usize>,
    /// Lines that rest, each with the time until when; in order of time.
    resting: VecDeque<(u64, usize)>,
    /// Lines that have something to write.
    dirty: Vec<usize>,
    /// When the first of the lines that are down may connect again; `u64::MAX` when none is down.
    connect_at_ns: u64,
    outcome: Outcome,
}

/// One connection, through all its reconnects.
#[derive(Debug, Default)]
struct Line {
    socket: Option<OwnedFd>,
    state: State,
    /// Requests that are not yet written in full, and how much of them is.
    out: Vec<u8>,
    written: usize,
    /// The beginning of an answer's head.
    held: Vec<u8>,
    /// The body that is being read, and the status and keep-alive of its answer.
    body: Option<(Framing, u16, bool)>,
    in_flight: usize,
    /// When the oldest answer was last waited for anew.
    waiting_since_ns: u64,
    /// When the connection went down, and when to try again.
    down_since_ns: u64,
    retry_at_ns: u64,
    eager: bool,
    exhausted: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Down,
    Connecting,
    Open,
    GivenUp,
}

impl<T: Traffic> Engine<'_, T> {
    fn run(&mut self, stop: &AtomicBool) -> Result<(), FloodError> {
        let begun_ns = monotonic_ns();
        let mut buffer = vec![0; READ_BYTES];
        let mut ready = Vec::new();
        let mut swept_ns = begun_ns;
        let mut sent: u64 = 0;
        let mut stopped_ns = None;
        for line in &mut self.lines {
            line.down_since_ns = begun_ns;
        }
        loop {
            let now_ns = monotonic_ns();
            self.connect_due(now_ns);
            self.wake_rested(now_ns);
            if self.outcome.started_ns == 0 && self.all_decided() {
                self.outcome.started_ns = now_ns;
            }
            let end_ns = self
                .outcome
                .started_ns
                .saturating_add(self.plan.duration_ns);
            let started = self.outcome.started_ns > 0;
            if stopped_ns.is_none() && (stop.load(Ordering::Relaxed) || started && now_ns >= end_ns)
            {
                stopped_ns = Some(now_ns);
            }
            let mut wake_ns = self.connect_at_ns.min(now_ns + LOOK_NS);
            if started && stopped_ns.is_none() {
                wake_ns = wake_ns.min(self.send_due(now_ns, &mut sent)).min(end_ns);
            }
            self.flush();
            self.traffic.turn()?;
            let in_flight = self.lines.iter().any(|line| line.in_flight > 0);
            let over = match stopped_ns {
                Some(since) => !in_flight || now_ns >= since + self.plan.grace_ns,
                None => started && !in_flight && self.lines.iter().all(Line::has_ended),
            };
            if over {
                break;
            }
            if let Some(&(until_ns, _)) = self.resting.front() {
                wake_ns = wake_ns.min(until_ns);
            }
            self.poller.wait(wake_ns, |event| ready.push(event))?;
            for event in ready.drain(..) {
                self.serve(event, &mut buffer);
            }
            let now_ns = monotonic_ns();
            if now_ns >= swept_ns + SECOND_NS {
                swept_ns = now_ns;
                self.sweep(now_ns);
            }
        }
        for index in 0..self.lines.len() {
            if self.lines[index].in_flight > 0 {
                self.lose(index, "no answer in time");
            }
        }
        self.traffic.turn()?;
        self.outcome.ended_ns = monotonic_ns();
        if self.outcome.started_ns == 0 {
            self.outcome.started_ns = self.outcome.ended_ns;
        }
        Ok(())
    }

    /// Whether every line has connected or has failed to at least once.
    fn all_decided(&self) -> bool {
        let undecided = |line: &Line| match line.state {
            State::Connecting => true,
            State::Down => line.retry_at_ns == 0,
            State::Open | State::GivenUp => false,
        };
        !self.lines.iter().any(undecided)
    }

    fn connect_due(&mut self, now_ns: u64) {
        if now_ns < self.connect_at_ns {
            return;
        }
        self.connect_at_ns = u64::MAX;
        for index in 0..self.lines.len() {
            let line = &mut self.lines[index];
            if line.state != State::Down {
                continue;
            }
            if line.retry_at_ns > now_ns {
                self.connect_at_ns = self.connect_at_ns.min(line.retry_at_ns);
                continue;
            }
            let opened = self
                .plan
                .sources
                .connect(self.plan.server)
                .and_then(|socket| {
                    self.poller.add_socket(&socket, index as u64)?;
                    Ok(socket)
                });
            match opened {
                Ok(socket) => {
                    line.socket = Some(socket);
                    line.state = State::Connecting;
                    line.waiting_since_ns = now_ns;
                }
                Err(error) => self.put_off(index, now_ns, &error.to_string()),
            }
        }
    }

    /// A line could not connect: it tries again later, or is given up.
    fn put_off(&mut self, index: usize, now_ns: u64, reason: &str) {
        let line = &mut self.lines[index];
        line.socket = None;
        line.state = State::Down;
        line.retry_at_ns = now_ns + RECONNECT_NS;
        if now_ns >= line.down_since_ns.saturating_add(self.plan.patience_ns) {
            line.state = State::GivenUp;
            self.outcome.given_up += 1;
        } else {
            self.connect_at_ns = self.connect_at_ns.min(line.retry_at_ns);
        }
        self.outcome.last_error = Some(reason.to_owned());
    }

    fn wake_rested(&mut self, now_ns: u64) {
        while let Some(&(until_ns, index)) = self.resting.front() {
            if until_ns > now_ns {
                break;
            }
            self.resting.pop_front();
            self.make_eager(index);
        }
    }

    fn make_eager(&mut self, index: usize) {
        let line = &mut self.lines[index];
        if !line.eager && line.state == State::Open && line.in_flight < self.plan.depth {
            line.eager = true;
            self.eager.push_back(index);
        }
    }

    /// Writes all requests that are due. Returns when the next one is.
    fn send_due(&mut self, now_ns: u64, sent: &mut u64) -> u64 {
        while let Some(&index) = self.eager.front() {
            let due_ns = match self.plan.rate {
                None => now_ns,
                Some(rate) => {
                    let after_ns = *sent as f64 / rate * SECOND_NS as f64;
                    self.outcome.started_ns.saturating_add(after_ns as u64)
                }
            };
            if due_ns > now_ns {
                return due_ns;
            }
            let line = &mut self.lines[index];
            self.eager.pop_front();
            line.eager = false;
            if line.state != State::Open {
                continue;
            }
            if line.out.is_empty() {
                self.dirty.push(index);
            }
            // At a rate, one request each in turn; else all that fit, to be written at once.
            let room = self.plan.depth - line.in_flight;
            for _ in 0..if self.plan.rate.is_some() { 1 } else { room } {
                line.exhausted = !self.traffic.next(index, due_ns, &mut line.out);
                if line.exhausted {
                    break;
                }
                if line.in_flight == 0 {
                    line.waiting_since_ns = now_ns;
                }
                line.in_flight += 1;
                *sent += 1;
            }
            if !line.exhausted {
                self.make_eager(index);
            }
        }
        u64::MAX
    }

    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            self.write(index);
        }
        self.dirty = dirty;
    }

    fn write(&mut self, index: usize) {
        let line = &mut self.lines[index];
        while let (Some(socket), true) = (&line.socket, line.written < line.out.len()) {
            match rustix::net::send(
                socket,
                &line.out[line.written..],
                rustix::net::SendFlags::NOSIGNAL,
            ) {
                Ok(written) => line.written += written,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => return self.lose(index, &error.to_string()),
            }
        }
        line.out.clear();
        line.written = 0;
    }

    fn serve(&mut self, event: Ready, buffer: &mut [u8]) {
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
        if event.writable && !self.lines[index].out.is_empty() {
            self.write(index);
        }
        if event.readable {
            self.read(index, buffer, event.ended);
        }
    }

    fn read(&mut self, index: usize, buffer: &mut [u8], to_the_end: bool) {
        loop {
            let Some(socket) = &self.lines[index].socket else {
                return;
            };
            match rustix::io::read(socket, &mut *buffer) {
                Ok(0) => return self.ended(index),
                Ok(length) => {
                    if let Err(error) = self.receive(index, &buffer[..length]) {
                        return self.lose(index, &error.to_string());
                    }
                    // A short read has emptied the socket, and what comes later is a new event,
                    // unless the peer's end was told together with these bytes.
                    if length < buffer.len() && !to_the_end {
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
            self.reopen(index);
        } else {
            self.lose(index, "the server has closed the connection");
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
        line.waiting_since_ns = now_ns;
        line.exhausted = false;
        if !keep_alive {
            if line.in_flight > 0 {
                self.lose(index, "the server has closed the connection");
            } else {
                self.reopen(index);
            }
        } else if status == 429 || status == 503 {
            self.resting.push_back((now_ns + REST_NS, index));
        } else {
            self.make_eager(index);
        }
    }

    /// The connection broke with requests in flight, or in a way that it should not have.
    fn lose(&mut self, index: usize, reason: &str) {
        self.outcome.lost += 1;
        self.outcome.last_error = Some(reason.to_owned());
        self.traffic.lost(index);
        self.reopen(index);
    }

    fn reopen(&mut self, index: usize) {
        let now_ns = monotonic_ns();
        let line = &mut self.lines[index];
        let eager = line.eager;
        // Whatever was queued for the lost connection has been reported as lost. Its place in
        // the queue of eager lines stays, and is skipped there.
        *line = Line {
            eager,
            down_since_ns: now_ns,
            retry_at_ns: now_ns,
            ..Line::default()
        };
        self.connect_at_ns = self.connect_at_ns.min(now_ns);
    }

    fn sweep(&mut self, now_ns: u64) {
        for index in 0..self.lines.len() {
            let line = &self.lines[index];
            if now_ns < line.waiting_since_ns.saturating_add(ANSWER_NS_MAX) {
                continue;
            }
            if line.state == State::Open && line.in_flight > 0 {
                self.lose(index, "no answer in time");
            } else if line.state == State::Connecting {
                self.put_off(index, now_ns, "no connection in time");
            }
        }
    }
}

impl Line {
    /// Whether this line will make no more requests.
    fn has_ended(&self) -> bool {
        self.state == State::GivenUp || self.exhausted && self.in_flight == 0
    }
}
