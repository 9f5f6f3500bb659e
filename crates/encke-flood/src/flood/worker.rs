//! A worker: one epoll loop that holds its share of the run's subscribers.
//!
//! It opens connections at its rate, brings back whom the server cuts off, makes some hang up and
//! some pause as it is told, and closes the books when the coordinator says so.

use super::lines::LineReader;
use super::pipe::{Command, Counters, Report, Work};
use super::subscriber::{Mode, Refusal, Stage, Step, Subscriber};
use super::tally::Tally;
use crate::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::error::FloodError;
use crate::poller::{Poller, Ready};
use crate::produce::Expected;
use crate::random::Random;
use crate::socket::{Sources, connected, raise_descriptor_limit};
use crate::wire::target::{Requests, Streams, Target};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::Write;

/// How often a worker says how it stands.
const PROGRESS_NS: u64 = 200 * MILLISECOND_NS;

/// How often a worker looks whether all is there, once it has been told to finish.
const FINISH_LOOK_NS: u64 = 20 * MILLISECOND_NS;

/// How long a connection may take to be made and answered.
const ANSWER_NS_MAX: u64 = 10 * SECOND_NS;

/// How often in a row a subscriber tries to come back before it is given up.
const TRIES_MAX: u8 = 10;

/// How long a subscriber waits after its first failure to come back; each further wait is twice
/// as long, up to 64 times.
const RETRY_NS: u64 = 50 * MILLISECOND_NS;

/// How many different reasons of failure are told apart.
const REASONS_MAX: usize = 32;

/// The size of the buffer that all subscribers read into.
const READ_BYTES: usize = 256 * 1024;

/// The token of the pipe that commands come from.
const COMMANDS: u64 = u64::MAX - 1;

/// Does the work that `input` describes, and reports to `output`. Returns when the work is done,
/// or when the coordinator has gone.
pub(crate) fn run(input: OwnedFd, mut output: impl Write) {
    if let Err(error) = work(input, &mut output) {
        // With the coordinator gone there is nobody to tell.
        let _ = say(&mut output, &Report::Failed(error.to_string()));
    }
}

fn work(input: OwnedFd, output: &mut impl Write) -> Result<(), FloodError> {
    let mut commands = LineReader::new(input);
    let Some(line) = commands
        .wait_line()
        .map_err(FloodError::system("read commands"))?
    else {
        return Ok(());
    };
    let work: Work = serde_json::from_slice(&line)
        .map_err(|error| FloodError::system("understand the work")(std::io::Error::from(error)))?;
    Worker::new(work)?.run(&mut commands, output)
}

fn say(output: &mut impl Write, report: &Report) -> Result<(), FloodError> {
    let mut line = serde_json::to_vec(report)
        .map_err(std::io::Error::from)
        .map_err(FloodError::system("report"))?;
    line.push(b'\n');
    output
        .write_all(&line)
        .and_then(|()| output.flush())
        .map_err(FloodError::system("report"))
}

struct Worker {
    work: Work,
    target: Target,
    requests: Requests,
    sources: Sources,
    poller: Poller,
    subscribers: Vec<Subscriber>,
    tally: Tally,
    counters: Counters,
    /// How many subscribers have failed before they were ready.
    stillborn: u64,
    /// How many have made their first attempt.
    begun: usize,
    /// Who comes back, and when.
    returns: BinaryHeap<Reverse<(u64, usize)>>,
    random: Random,
    started_ns: u64,
    /// Hang-ups that churn has made so far.
    churned: u64,
    churn_from_ns: u64,
    paused: bool,
    finish: Option<Finish>,
    request: Vec<u8>,
}

/// What must be there before the worker is done.
struct Finish {
    expected: HashMap<u32, Vec<Expected>>,
    quiet_ns: u64,
    since_ns: u64,
}

impl Worker {
    fn new(work: Work) -> Result<Self, FloodError> {
        raise_descriptor_limit();
        let target = Target::parse(&work.url)?;
        let streams = match work.streams {
            0 => Streams::one(&work.name),
            count => Streams::numbered(&work.name, count),
        };
        let mode = if work.long_poll {
            Mode::LongPoll
        } else {
            Mode::Sse
        };
        let numbers = (work.first..work.subscribers).step_by(work.step.max(1) as usize);
        let slow_from = work.subscribers - work.slow.min(work.subscribers);
        let subscribers: Vec<_> = numbers
            .map(|number| Subscriber::new(number % streams.count(), number >= slow_from))
            .collect();
        Ok(Self {
            requests: Requests::new(&target, &streams, &work.content_type)?,
            sources: Sources::new(target.address, subscribers.len() as u32, work.sources),
            poller: Poller::new()?,
            tally: Tally::new(mode, work.format, work.run),
            counters: Counters {
                pending: subscribers.len() as u64,
                ..Counters::default()
            },
            stillborn: 0,
            begun: 0,
            returns: BinaryHeap::new(),
            random: Random::new(u64::from(work.run) << 32 | u64::from(work.first)),
            started_ns: monotonic_ns(),
            churned: 0,
            churn_from_ns: 0,
            paused: false,
            finish: None,
            request: Vec::new(),
            subscribers,
            target,
            work,
        })
    }

    fn run(mut self, commands: &mut LineReader, output: &mut impl Write) -> Result<(), FloodError> {
        self.poller
            .add_pipe(commands.as_fd(), COMMANDS)
            .map_err(FloodError::system("watch the commands"))?;
        let mut buffer = vec![0; READ_BYTES];
        let mut ready = Vec::new();
        let (mut said_ns, mut swept_ns, mut looked_ns) = (0, self.started_ns, 0);
        loop {
            let now_ns = monotonic_ns();
            let mut wake_ns = self.open_due(now_ns);
            wake_ns = wake_ns.min(self.return_due(now_ns));
            wake_ns = wake_ns.min(self.churn_due(now_ns));
            wake_ns = wake_ns.min(self.pause_due(now_ns, &mut buffer));
            if now_ns >= said_ns + PROGRESS_NS {
                said_ns = now_ns;
                self.update_counters();
                say(output, &Report::Progress(self.counters.clone()))?;
            }
            if now_ns >= swept_ns + SECOND_NS {
                swept_ns = now_ns;
                self.sweep(now_ns);
            }
            wake_ns = wake_ns.min(said_ns + PROGRESS_NS);
            if self.finish.is_some() {
                if now_ns >= looked_ns + FINISH_LOOK_NS {
                    looked_ns = now_ns;
                    if self.is_finished(now_ns) {
                        break;
                    }
                }
                wake_ns = wake_ns.min(looked_ns + FINISH_LOOK_NS);
            }
            self.poller.wait(wake_ns, |event| ready.push(event))?;
            for event in ready.drain(..) {
                if event.token != COMMANDS {
                    self.serve(event, &mut buffer);
                    continue;
                }
                let open = commands
                    .fill()
                    .map_err(FloodError::system("read commands"))?;
                while let Some(line) = commands.take_line() {
                    self.obey(&line, &mut buffer)?;
                }
                if !open {
                    return Ok(());
                }
            }
        }
        self.report(output)?;
        // Connections stay until the coordinator has measured what they take in the server.
        while commands
            .fill()
            .map_err(FloodError::system("read commands"))?
        {}
        Ok(())
    }

    /// Does what the coordinator says.
    fn obey(&mut self, line: &[u8], buffer: &mut [u8]) -> Result<(), FloodError> {
        let command = serde_json::from_slice(line)
            .map_err(std::io::Error::from)
            .map_err(FloodError::system("understand a command"))?;
        let now_ns = monotonic_ns();
        match command {
            Command::Publishing {
                pause_from_ns,
                pause_to_ns,
            } => {
                self.tally.publishing = true;
                self.tally.pause_ns = pause_from_ns..pause_to_ns;
            }
            Command::Finish { expected, quiet_ns } => {
                let mut by_stream: HashMap<u32, Vec<Expected>> = HashMap::new();
                for one in expected {
                    by_stream.entry(one.stream).or_default().push(one);
                }
                self.finish = Some(Finish {
                    expected: by_stream,
                    quiet_ns,
                    since_ns: now_ns,
                });
                self.tally.pause_ns.end = self.tally.pause_ns.end.min(now_ns);
                self.pause_due(now_ns, buffer);
            }
        }
        Ok(())
    }

    /// Opens the connections that are due. Returns when the next one is.
    fn open_due(&mut self, now_ns: u64) -> u64 {
        while self.begun < self.subscribers.len() {
            if self.work.rate > 0.0 {
                let after_ns = self.begun as f64 / self.work.rate * SECOND_NS as f64;
                let due_ns = self.started_ns + after_ns as u64;
                if due_ns > now_ns {
                    return due_ns;
                }
            }
            self.connect(self.begun, now_ns);
            self.begun += 1;
        }
        u64::MAX
    }

    /// Brings back those who have waited long enough. Returns when the next one has.
    fn return_due(&mut self, now_ns: u64) -> u64 {
        while let Some(&Reverse((due_ns, index))) = self.returns.peek() {
            if due_ns > now_ns {
                return due_ns;
            }
            self.returns.pop();
            if matches!(self.subscribers[index].stage, Stage::Away) {
                self.connect(index, now_ns);
            }
        }
        u64::MAX
    }

    /// Makes some hang up, at the churn's rate. Returns when the next one is due.
    fn churn_due(&mut self, now_ns: u64) -> u64 {
        if self.work.churn <= 0.0 || self.finish.is_some() || self.counters.settled_ns == 0 {
            return u64::MAX;
        }
        if self.churn_from_ns == 0 {
            self.churn_from_ns = now_ns;
        }
        loop {
            let after_ns = self.churned as f64 / self.work.churn * SECOND_NS as f64;
            let due_ns = self.churn_from_ns + after_ns as u64;
            if due_ns > now_ns {
                return due_ns;
            }
            self.churned += 1;
            let index = self.random.below(self.subscribers.len() as u64) as usize;
            let traits = &mut self.subscribers[index].traits;
            if traits.active && !traits.slow {
                traits.hang_up = true;
                self.hang_up_if_settled(index, now_ns);
            }
        }
    }

    /// Begins or ends the pause of the slow. Returns when that is due next.
    fn pause_due(&mut self, now_ns: u64, buffer: &mut [u8]) -> u64 {
        let pause = self.tally.pause_ns.clone();
        let pausing = pause.contains(&now_ns);
        if self.paused && !pausing {
            self.paused = false;
            for index in 0..self.subscribers.len() {
                if std::mem::take(&mut self.subscribers[index].traits.unread) {
                    // The event that told of these bytes has been spent, so an end may be among them.
                    self.read(index, buffer, true);
                }
            }
        }
        self.paused = pausing;
        if now_ns < pause.start {
            pause.start
        } else if pausing {
            pause.end
        } else {
            u64::MAX
        }
    }

    fn connect(&mut self, index: usize, now_ns: u64) {
        let opened = self
            .sources
            .connect(self.target.address)
            .and_then(|socket| {
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

    fn serve(&mut self, event: Ready, buffer: &mut [u8]) {
        let index = event.token as usize;
        let Some(subscriber) = self.subscribers.get_mut(index) else {
            return;
        };
        let Some(socket) = &subscriber.socket else {
            return;
        };
        if matches!(subscriber.stage, Stage::Connecting) {
            if !event.writable {
                return;
            }
            if let Err(error) = connected(socket) {
                return self.fail(index, monotonic_ns(), error_text(error));
            }
            self.ask(index);
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
        let Some(socket) = &subscriber.socket else {
            return;
        };
        self.request.clear();
        subscriber.ask(self.tally.mode, &self.requests, &mut self.request);
        // A request of a few hundred bytes always fits into a socket that has nothing else to send.
        match rustix::net::send(socket, &self.request, rustix::net::SendFlags::NOSIGNAL) {
            Ok(sent) if sent == self.request.len() => subscriber.stage = Stage::Head(Vec::new()),
            Ok(_) => self.fail(index, monotonic_ns(), "request cut short".into()),
            Err(error) => self.fail(index, monotonic_ns(), error_text(error)),
        }
    }

    /// Reads until the socket is empty; `to_the_end` when its end may already be there.
    fn read(&mut self, index: usize, buffer: &mut [u8], to_the_end: bool) {
        loop {
            let subscriber = &mut self.subscribers[index];
            let Some(socket) = &subscriber.socket else {
                return;
            };
            let length = match rustix::io::read(socket, &mut *buffer) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(error) => return self.fail(index, monotonic_ns(), error_text(error)),
            };
            let now_ns = monotonic_ns();
            self.tally.now_ns = now_ns;
            let number = self.work.first + index as u32 * self.work.step;
            let result = match length {
                0 => subscriber.ended(number, &mut self.tally),
                _ => subscriber.receive(number, &buffer[..length], &mut self.tally),
            };
            self.note_active(index, now_ns);
            match result {
                Ok(Step::Wait) => {}
                Ok(Step::AskAgain) => self.ask(index),
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
            if self.subscribers[index].traits.hang_up && self.hang_up_if_settled(index, now_ns) {
                return;
            }
            if length < buffer.len() && !to_the_end {
                return;
            }
        }
    }

    /// Counts a subscriber that has just begun to listen.
    fn note_active(&mut self, index: usize, now_ns: u64) {
        let Subscriber {
            stage,
            traits,
            tries,
            ..
        } = &mut self.subscribers[index];
        let listens = match self.tally.mode {
            Mode::Sse => matches!(stage, Stage::Events(..)),
            Mode::LongPoll => matches!(stage, Stage::Head(_) | Stage::Body(..)),
        };
        if traits.active || !listens || !traits.ready {
            return;
        }
        traits.active = true;
        *tries = 0;
        self.counters.active += 1;
        if std::mem::replace(&mut traits.known, true) {
            self.counters.returned += 1;
        } else {
            self.note_settled(now_ns);
        }
    }

    fn hang_up_if_settled(&mut self, index: usize, now_ns: u64) -> bool {
        let settled = self.subscribers[index].is_settled();
        if settled {
            self.counters.hung_up += 1;
            self.disconnect(index, Stage::Away);
            self.returns
                .push(Reverse((now_ns + self.work.away_ns, index)));
        }
        settled
    }

    /// The server has closed the connection in good order: the subscriber comes back.
    fn leave(&mut self, index: usize, now_ns: u64) {
        self.disconnect(index, Stage::Away);
        self.returns.push(Reverse((now_ns, index)));
    }

    /// A connection did not come about, or broke.
    fn fail(&mut self, index: usize, now_ns: u64, reason: String) {
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
            self.stillborn += 1;
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
        let subscriber = &mut self.subscribers[index];
        subscriber.disconnected();
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

    fn pending(&self) -> u64 {
        (self.subscribers.len() as u64).saturating_sub(self.tally.ready + self.stillborn)
    }

    fn sweep(&mut self, now_ns: u64) {
        for index in 0..self.subscribers.len() {
            let Subscriber {
                stage,
                traits,
                since_ns,
                ..
            } = &self.subscribers[index];
            let waits = match stage {
                Stage::Connecting => true,
                Stage::Head(_) => !traits.active,
                Stage::Events(..) => !traits.ready,
                _ => false,
            };
            if waits && now_ns >= since_ns + ANSWER_NS_MAX {
                self.fail(index, now_ns, "no answer in time".into());
            }
        }
    }

    /// Whether all that can be expected has arrived, or nothing has come for long enough.
    fn is_finished(&self, now_ns: u64) -> bool {
        let Some(finish) = &self.finish else {
            return false;
        };
        let quiet_since_ns = finish.since_ns.max(self.tally.last_event_ns);
        let complete = |subscriber: &Subscriber| {
            matches!(subscriber.stage, Stage::Over)
                || finish.expected.get(&subscriber.stream).is_none_or(|all| {
                    all.iter().all(|expected| {
                        let next = subscriber.seen.next_of(expected.producer);
                        next.map_or(!subscriber.traits.from_start, |next| next >= expected.count)
                    })
                })
        };
        now_ns >= quiet_since_ns.saturating_add(finish.quiet_ns)
            || self.subscribers.iter().all(complete)
    }

    fn update_counters(&mut self) {
        self.counters.pending = self.pending();
        self.counters.opened = self.tally.ready;
        self.counters.events = self.tally.events;
        self.counters.bytes = self.tally.bytes;
        self.counters.last_event_ns = self.tally.last_event_ns;
    }

    fn report(&mut self, output: &mut impl Write) -> Result<(), FloodError> {
        self.update_counters();
        if let Some(finish) = &self.finish {
            for (index, subscriber) in self.subscribers.iter_mut().enumerate() {
                let number = self.work.first + index as u32 * self.work.step;
                let gone = matches!(subscriber.stage, Stage::Over);
                if gone || !subscriber.traits.ready {
                    continue;
                }
                for Expected {
                    producer,
                    count,
                    excused,
                    ..
                } in finish
                    .expected
                    .get(&subscriber.stream)
                    .into_iter()
                    .flatten()
                {
                    // Who came late can't tell what was missed before the first message seen.
                    if subscriber.traits.from_start || subscriber.seen.next_of(*producer).is_some()
                    {
                        let seen = &mut subscriber.seen;
                        self.tally
                            .ledger
                            .settle(seen, number, *producer, *count, excused);
                    }
                }
            }
        }
        let empty = Tally::new(self.tally.mode, self.tally.format, self.work.run);
        let tally = std::mem::replace(&mut self.tally, empty);
        say(
            output,
            &Report::Final(Box::new(tally.close(self.counters.clone()))),
        )
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
    }
}
