//! A worker: one epoll loop that holds its share of the run's subscribers.
//!
//! It opens connections at its rate, brings back whom the server cuts off, makes some hang up and
//! some pause as it is told, and closes the books when the coordinator says so.

use super::books::Finish;
use super::leaving::Leaving;
use super::lines::LineReader;
use super::pipe::{Command, Counters, Report, Work};
use super::subscriber::{Mode, Stage, Subscriber};
use super::tally::Tally;
use crate::BenchError;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::poller::Poller;
use crate::load::produce::Expected;
use crate::load::random::Random;
use crate::load::socket::{Sources, raise_descriptor_limit};
use crate::load::wire::target::{Requests, Streams, Target};
use rustix::fd::{AsFd, OwnedFd};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::Write;

/// How often a worker says how it stands.
const PROGRESS_NS: u64 = 200 * MILLISECOND_NS;

/// How often a worker looks whether all is there, once it has been told to finish.
const FINISH_LOOK_NS: u64 = 20 * MILLISECOND_NS;

/// How many connections are opened before the others are looked at again.
const OPENED_PER_TURN: u32 = 64;

/// How long a connection may take to be made and answered.
const ANSWER_NS_MAX: u64 = 10 * SECOND_NS;

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

fn work(input: OwnedFd, output: &mut impl Write) -> Result<(), BenchError> {
    let mut commands = LineReader::new(input);
    let Some(line) = commands
        .wait_line()
        .map_err(BenchError::system("read commands"))?
    else {
        return Ok(());
    };
    let work: Work = serde_json::from_slice(&line)
        .map_err(|error| BenchError::system("understand the work")(std::io::Error::from(error)))?;
    Worker::new(work)?.run(&mut commands, output)
}

/// Writes one line to the coordinator.
pub(super) fn say(output: &mut impl Write, report: &Report) -> Result<(), BenchError> {
    let mut line = serde_json::to_vec(report)
        .map_err(std::io::Error::from)
        .map_err(BenchError::system("report"))?;
    line.push(b'\n');
    output
        .write_all(&line)
        .and_then(|()| output.flush())
        .map_err(BenchError::system("report"))
}

/// A worker at work.
pub(super) struct Worker {
    pub(super) work: Work,
    pub(super) target: Target,
    pub(super) requests: Requests,
    pub(super) sources: Sources,
    pub(super) poller: Poller,
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) tally: Tally,
    pub(super) counters: Counters,
    /// How many subscribers have failed before they were ready.
    pub(super) stillborn: u64,
    /// How many have made their first attempt.
    pub(super) begun: usize,
    /// Who comes back, and when.
    pub(super) returns: BinaryHeap<Reverse<(u64, usize)>>,
    /// Who has hung up, until the server notices.
    pub(super) leaving: Leaving,
    pub(super) random: Random,
    pub(super) started_ns: u64,
    /// Hang-ups that churn has made so far.
    pub(super) churned: u64,
    pub(super) churn_from_ns: u64,
    pub(super) paused: bool,
    pub(super) finish: Option<Finish>,
    pub(super) request: Vec<u8>,
}

impl Worker {
    fn new(work: Work) -> Result<Self, BenchError> {
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
            sources: Sources::new(target.address, subscribers.len() as u32, work.sources)
                .receiving(work.receive_buffer),
            poller: Poller::new()?,
            tally: Tally::new(mode, work.format, work.run),
            counters: Counters {
                pending: subscribers.len() as u64,
                ..Counters::default()
            },
            stillborn: 0,
            begun: 0,
            returns: BinaryHeap::new(),
            leaving: Leaving::new(),
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

    fn run(mut self, commands: &mut LineReader, output: &mut impl Write) -> Result<(), BenchError> {
        self.poller
            .add_pipe(commands.as_fd(), COMMANDS)
            .map_err(BenchError::system("watch the commands"))?;
        let mut buffer = vec![0; READ_BYTES];
        let mut ready = Vec::new();
        let (mut said_ns, mut swept_ns, mut looked_ns) = (0, self.started_ns, 0);
        loop {
            let now_ns = monotonic_ns();
            let mut wake_ns = self.open_due(now_ns);
            wake_ns = wake_ns.min(self.return_due(now_ns));
            wake_ns = wake_ns.min(self.churn_due(now_ns));
            wake_ns = wake_ns.min(self.leaving.due(now_ns));
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
                if Leaving::owns(event.token) {
                    self.leaving.serve(event.token, &mut buffer, monotonic_ns);
                    continue;
                }
                if event.token != COMMANDS {
                    self.serve(event, &mut buffer);
                    continue;
                }
                let open = commands
                    .fill()
                    .map_err(BenchError::system("read commands"))?;
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
            .map_err(BenchError::system("read commands"))?
        {}
        Ok(())
    }

    /// Does what the coordinator says.
    fn obey(&mut self, line: &[u8], buffer: &mut [u8]) -> Result<(), BenchError> {
        let command = serde_json::from_slice(line)
            .map_err(std::io::Error::from)
            .map_err(BenchError::system("understand a command"))?;
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
}
