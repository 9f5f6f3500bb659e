//! The engine's loop: selects the connection that sends next, and the time.

use super::line::{Line, State};
use super::{Mode, Outcome, RequestPlan, Traffic};
use crate::BenchError;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::poller::Poller;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often the loop looks at its stop flag when nothing happens.
const LOOK_NS: u64 = 50 * MILLISECOND_NS;

/// How long a connection waits for an answer before it counts as lost.
const ANSWER_NS_MAX: u64 = 30 * SECOND_NS;

/// The reason of a loss for want of an answer.
const NO_ANSWER: &str = "no answer in time";

/// The size of the buffer that all lines read into.
const READ_BYTES: usize = 64 * 1024;

/// The engine at work.
pub(super) struct Engine<'a, T> {
    pub(super) plan: RequestPlan,
    pub(super) traffic: &'a mut T,
    pub(super) poller: Poller,
    pub(super) lines: Vec<Line>,
    /// Lines that may send, the longest waiting first. Invariant: exactly those with `eager` set.
    pub(super) eager: VecDeque<usize>,
    /// Lines that rest, each with the time until when; in order of time.
    pub(super) resting: VecDeque<(u64, usize)>,
    /// Lines that have something to write.
    pub(super) dirty: Vec<usize>,
    /// Lines to connect, each with the time from when; in order of time. Invariant: exactly those that
    /// are `New` or `Down`.
    pub(super) down: VecDeque<(u64, usize)>,
    /// Requests in flight on all lines.
    pub(super) in_flight: usize,
    pub(super) outcome: Outcome,
}

impl<'a, T: Traffic> Engine<'a, T> {
    /// An engine that has not begun.
    pub(super) fn new(plan: RequestPlan, traffic: &'a mut T) -> Result<Self, BenchError> {
        Ok(Self {
            poller: Poller::new()?,
            lines: (0..plan.lines).map(|_| Line::default()).collect(),
            eager: VecDeque::with_capacity(plan.lines),
            resting: VecDeque::new(),
            outcome: Outcome::default(),
            dirty: Vec::new(),
            down: (0..plan.lines).map(|index| (0, index)).collect(),
            in_flight: 0,
            traffic,
            plan,
        })
    }

    /// Makes requests until the end.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<Outcome, BenchError> {
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
            self.wake_rested(now_ns);
            if self.outcome.started_ns == 0 && self.can_start() {
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
            let mut wake_ns = now_ns + LOOK_NS;
            if started && stopped_ns.is_none() {
                wake_ns = wake_ns.min(self.send_due(now_ns, &mut sent)).min(end_ns);
            }
            self.flush();
            self.traffic.turn()?;
            let in_flight = self.in_flight > 0;
            let over = match stopped_ns {
                Some(since) => !in_flight || now_ns >= since + self.plan.grace_ns,
                None => started && !in_flight && self.all_ended(),
            };
            if over {
                break;
            }
            // After the requests that are due: to connect takes longer than to send.
            self.connect_due(now_ns);
            for queue in [&self.resting, &self.down] {
                if let Some(&(at_ns, _)) = queue.front() {
                    wake_ns = wake_ns.min(at_ns);
                }
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
                self.report_loss(index, NO_ANSWER);
            }
        }
        self.traffic.turn()?;
        self.outcome.ended_ns = monotonic_ns();
        if self.outcome.started_ns == 0 {
            self.outcome.started_ns = self.outcome.ended_ns;
        }
        Ok(self.outcome)
    }

    /// Whether requests may be sent: see [`Mode`].
    fn can_start(&self) -> bool {
        let undecided = |line: &Line| matches!(line.state, State::New | State::Connecting);
        self.plan.mode == Mode::OneRequest || !self.lines.iter().any(undecided)
    }

    fn all_ended(&self) -> bool {
        self.down.is_empty() && self.lines.iter().all(Line::has_ended)
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

    /// Lets a line send again, if it can.
    pub(super) fn make_eager(&mut self, index: usize) {
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
                self.in_flight += 1;
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

    /// Writes as much as the socket takes.
    pub(super) fn write(&mut self, index: usize) {
        let line = &mut self.lines[index];
        while let (Some(socket), true) = (&mut line.socket, line.written < line.out.len()) {
            match socket.send(&line.out[line.written..]) {
                Ok(written) => line.written += written,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => return self.lose(index, &error.to_string()),
            }
        }
        line.out.clear();
        line.written = 0;
    }

    /// Gives up waits that have lasted too long, where it is not the plan's end that limits them.
    fn sweep(&mut self, now_ns: u64) {
        if self.plan.mode == Mode::OneRequest {
            return;
        }
        for index in 0..self.lines.len() {
            let line = &self.lines[index];
            if now_ns < line.waiting_since_ns.saturating_add(ANSWER_NS_MAX) {
                continue;
            }
            if line.state == State::Open && line.in_flight > 0 {
                self.lose(index, NO_ANSWER);
            } else if line.state == State::Connecting {
                self.put_off(index, now_ns, "no connection in time");
            }
        }
    }
}
