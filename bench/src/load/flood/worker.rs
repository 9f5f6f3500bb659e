//! The thread of the subscribers: one epoll loop that holds all of them.
//!
//! It opens connections at a rate, reopens those that the server closes, hangs up and pauses as configured, and
//! completes the counts when publishing is over.

use super::counters::Counters;
use super::leaving::Leaving;
use super::plan::Plan;
use super::subscriber::{Stage, Subscriber};
use super::tally::Tally;
use crate::BenchError;
use crate::load::args::FloodArgs;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, duration_ns, monotonic_ns, thread_cpu_ns};
use crate::load::poller::Poller;
use crate::load::produce::Expected;
use crate::load::random::Random;
use crate::load::sequence::OrderFaults;
use crate::load::socket::Sources;
use crate::load::wire::target::{Requests, Streams};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

/// How often the thread publishes its counters, takes commands and checks whether all messages are there.
const LOOK_NS: u64 = 20 * MILLISECOND_NS;

/// How many connections are opened before the others are looked at again.
const OPENED_PER_TURN: u32 = 64;

/// How long a connection may take to be made and answered.
const ANSWER_NS_MAX: u64 = 10 * SECOND_NS;

/// The size of the buffer that all subscribers read into.
const READ_BYTES: usize = 256 * 1024;

/// A command from the coordinator to the thread.
pub(super) enum Command {
    /// The run's producers begin; slow subscribers pause within this range of the monotonic clock, in nanoseconds.
    Publishing(std::ops::Range<u64>),
    /// Publishing is over: end when all of `expected` has arrived, or nothing has for `quiet_ns`.
    Finish {
        /// The expected messages.
        expected: Vec<Expected>,
        /// How long to wait for more, in nanoseconds.
        quiet_ns: u64,
    },
}

/// The running thread.
pub(super) struct Handle {
    commands: mpsc::Sender<Command>,
    counters: Arc<Mutex<Counters>>,
    thread: JoinHandle<Result<Worker, BenchError>>,
}

impl Handle {
    pub(super) fn start(worker: Worker) -> Self {
        let (commands, receiver) = mpsc::channel();
        let counters = Arc::new(Mutex::new(worker.counters.clone()));
        let shared = Arc::clone(&counters);
        let thread = std::thread::spawn(move || worker.run(&receiver, &shared));
        Self {
            commands,
            counters,
            thread,
        }
    }

    /// Sends a command. A thread that has ended ignores it; [`Handle::join`] returns its error.
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(super) fn counters(&self) -> Counters {
        let counters = self.counters.lock();
        counters.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// The worker when its loop has ended, with its connections still open.
    pub(super) fn join(self) -> Result<Worker, BenchError> {
        let ended = self.thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// All subscribers of a run.
pub(super) struct Worker {
    pub(super) server: SocketAddr,
    pub(super) requests: Requests,
    streams: Streams,
    pub(super) sources: Sources,
    pub(super) poller: Poller,
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) tally: Tally,
    pub(super) counters: Counters,
    /// Connections to open each second; 0 for all at once.
    rate: f64,
    /// Hang-ups each second, and the time until the return.
    churn: f64,
    pub(super) away_ns: u64,
    /// Subscribers that failed before they were ready.
    pub(super) never_ready: u64,
    /// Subscribers that have made their first attempt.
    begun: usize,
    /// Subscribers that come back, with the time.
    pub(super) returns: BinaryHeap<Reverse<(u64, usize)>>,
    /// Connections that hung up, until the server notices.
    pub(super) leaving: Leaving,
    random: Random,
    started_ns: u64,
    /// Hang-ups that churn has made so far.
    churned: u64,
    churn_from_ns: u64,
    pub(super) paused: bool,
    finish: Option<Finish>,
    pub(super) request: Vec<u8>,
}

/// The messages that must arrive before the loop ends.
struct Finish {
    expected: HashMap<u32, Vec<Expected>>,
    quiet_ns: u64,
    since_ns: u64,
}

impl Worker {
    pub(super) fn new(plan: &Plan, args: &FloodArgs) -> Result<Self, BenchError> {
        let slow_from = args.subscribers - args.slow;
        let subscribers: Vec<_> = (0..args.subscribers)
            .map(|number| {
                let kind = plan.kind_of(number);
                Subscriber::new(number % plan.streams.count(), kind, number >= slow_from)
            })
            .collect();
        Ok(Self {
            server: plan.target.address,
            requests: plan.requests.clone(),
            streams: plan.streams.clone(),
            sources: Sources::new(plan.target.address, args.subscribers)
                .encrypting(plan.target.tls.as_ref())
                .receiving(args.receive_buffer),
            poller: Poller::new()?,
            tally: Tally::new(plan.run, plan.is_mixed()),
            counters: Counters {
                pending: subscribers.len() as u64,
                ..Counters::default()
            },
            rate: args.rate,
            churn: args.churn,
            away_ns: duration_ns(args.away),
            never_ready: 0,
            begun: 0,
            returns: BinaryHeap::new(),
            leaving: Leaving::new(),
            random: Random::new(u64::from(plan.run) << 32),
            started_ns: monotonic_ns(),
            churned: 0,
            churn_from_ns: 0,
            paused: false,
            finish: None,
            request: Vec::new(),
            subscribers,
        })
    }

    /// Runs until everything has arrived or the coordinator is gone.
    fn run(
        mut self,
        commands: &mpsc::Receiver<Command>,
        counters: &Mutex<Counters>,
    ) -> Result<Self, BenchError> {
        let mut buffer = vec![0; READ_BYTES];
        let mut ready = Vec::new();
        let (mut looked_ns, mut swept_ns) = (0, self.started_ns);
        loop {
            let now_ns = monotonic_ns();
            let mut wake_ns = self.open_due(now_ns);
            wake_ns = wake_ns.min(self.return_due(now_ns));
            wake_ns = wake_ns.min(self.churn_due(now_ns));
            wake_ns = wake_ns.min(self.leaving.due(now_ns));
            wake_ns = wake_ns.min(self.pause_due(now_ns, &mut buffer));
            if now_ns >= swept_ns + SECOND_NS {
                swept_ns = now_ns;
                self.sweep(now_ns);
            }
            if now_ns >= looked_ns + LOOK_NS {
                looked_ns = now_ns;
                self.update_counters();
                *counters.lock().unwrap_or_else(PoisonError::into_inner) = self.counters.clone();
                match commands.try_recv() {
                    Ok(command) => self.obey(command, &mut buffer),
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => return Ok(self),
                }
                if self.is_finished(now_ns) {
                    return Ok(self);
                }
            }
            self.poller
                .wait(wake_ns.min(looked_ns + LOOK_NS), |event| ready.push(event))?;
            for event in ready.drain(..) {
                match Leaving::owns(event.token) {
                    true => self.leaving.serve(event.token, &mut buffer, monotonic_ns),
                    false => self.serve(event, &mut buffer),
                }
            }
        }
    }

    fn obey(&mut self, command: Command, buffer: &mut [u8]) {
        match command {
            Command::Publishing(pause_ns) => {
                self.tally.publishing = true;
                self.tally.pause_ns = pause_ns;
            }
            Command::Finish { expected, quiet_ns } => {
                let now_ns = monotonic_ns();
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
    }

    /// Whether everything that is expected has arrived, or nothing has for long enough.
    fn is_finished(&self, now_ns: u64) -> bool {
        let Some(finish) = &self.finish else {
            return false;
        };
        if !self.leaving.is_empty() {
            return false;
        }
        let quiet_since_ns = finish.since_ns.max(self.tally.last_event_ns);
        let has_all = |subscriber: &Subscriber| {
            let expected = finish.expected.get(&subscriber.stream);
            expected.into_iter().flatten().all(|expected| {
                let next = subscriber.seen.next_of(expected.producer);
                // A late subscriber can have come after the last message.
                next.map_or(
                    !subscriber.traits.from_start || expected.count == 0,
                    |next| next >= expected.count,
                )
            })
        };
        let is_done = |subscriber: &Subscriber| {
            let over = matches!(subscriber.stage, Stage::Over);
            over || subscriber.traits.active && has_all(subscriber)
        };
        now_ns >= quiet_since_ns.saturating_add(finish.quiet_ns)
            || self.subscribers.iter().all(is_done)
    }

    fn update_counters(&mut self) {
        self.counters.pending = self.pending();
        self.counters.opened = self.tally.ready;
        self.counters.noticed = self.leaving.noticed();
        self.counters.unnoticed = self.leaving.unnoticed;
        self.counters.unmeasured = self.leaving.unmeasured;
        self.counters.events = self.tally.events;
        self.counters.bytes = self.tally.bytes;
        self.counters.cpu_ns = thread_cpu_ns();
        self.counters.last_event_ns = self.tally.last_event_ns;
    }

    /// Counts what never arrived and returns all faults.
    pub(super) fn settle(&mut self) -> OrderFaults {
        let mut ledger = std::mem::take(&mut self.tally.ledger);
        if let Some(finish) = &self.finish {
            for (number, subscriber) in (0..).zip(&mut self.subscribers) {
                if matches!(subscriber.stage, Stage::Over) || !subscriber.traits.ready {
                    continue;
                }
                let expected = finish.expected.get(&subscriber.stream);
                for expected in expected.into_iter().flatten() {
                    // A late subscriber can't know what it missed before the first message that it saw.
                    let seen = &mut subscriber.seen;
                    if subscriber.traits.from_start || seen.next_of(expected.producer).is_some() {
                        ledger.settle(
                            seen,
                            number,
                            expected.producer,
                            expected.count,
                            &expected.excused,
                        );
                    }
                }
            }
        }
        let streams = &self.streams;
        ledger.close(|subscriber| streams.name(subscriber % streams.count()))
    }

    /// Opens the connections that are due, a few at a time: where a port is hard to find, the system takes long for each,
    /// and those that are open wait to be read. Returns when the next one is due.
    fn open_due(&mut self, now_ns: u64) -> u64 {
        for turn in 0.. {
            if self.begun == self.subscribers.len() {
                break;
            }
            if turn == OPENED_PER_TURN {
                return now_ns;
            }
            if self.rate > 0.0 {
                let after_ns = self.begun as f64 / self.rate * SECOND_NS as f64;
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

    /// Reconnects subscribers whose wait is over. Returns when the next wait ends.
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
        if self.churn <= 0.0 || self.finish.is_some() || self.counters.settled_ns == 0 {
            return u64::MAX;
        }
        if self.churn_from_ns == 0 {
            self.churn_from_ns = now_ns;
        }
        loop {
            let after_ns = self.churned as f64 / self.churn * SECOND_NS as f64;
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
                    // The epoll event of these bytes is consumed, and the end may be behind them.
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

    fn sweep(&mut self, now_ns: u64) {
        for index in 0..self.subscribers.len() {
            let subscriber = &self.subscribers[index];
            let waits = match subscriber.stage {
                Stage::Away | Stage::Over => false,
                _ => !subscriber.is_listening() || !subscriber.traits.ready,
            };
            if waits && now_ns >= subscriber.since_ns + ANSWER_NS_MAX {
                self.fail(index, now_ns, "no answer in time".into());
            }
        }
    }
}
