//! The threads that make handshakes, so that none delays a delivery: a handshake takes a fifth of a millisecond of a core, and
//! as long as its client likes.
//!
//! A shard hands a socket over with the token of its slot, and gets it back with a session, or learns why there is none. The
//! number of handshakes under way and the time of each are bounded.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_mailbox::{Bounds, GaugeReader, Lane, Receiver, Sender, mailbox_with_waker};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::files::Certificates;
use super::handshake::{Established, FailureReason, Handshake, Progress};
use super::handshaken::Handshaken;
use super::metrics::HandshakeMetrics;
use crate::connection::slot::Token;
use crate::metrics::Metrics;
use crate::poller::{Poller, WAKE};
use crate::shard_channel::{ShardEvent, ShardSender};
use crate::transport::plain;

/// The shards' end.
#[derive(Clone)]
pub(crate) struct Handshakes {
    queues: Vec<Sender<HandshakeTask>>,
    places: Arc<Places>,
}

/// A connection whose handshake begins.
pub(crate) struct HandshakeTask {
    pub(crate) socket: OwnedFd,
    /// What the shard has received of it.
    pub(crate) received: Vec<u8>,
    /// The connection's slot, and its shard.
    pub(crate) token: Token,
    pub(crate) shard: Arc<ShardSender>,
}

/// Handshakes under way, and how many may be.
#[derive(Debug)]
struct Places {
    taken: AtomicUsize,
    max: usize,
}

/// Bounds of handshakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandshakeBounds {
    /// Threads that make them.
    pub(crate) threads: usize,
    /// Handshakes at a time.
    pub(crate) handshakes_max: usize,
    /// The time of each.
    pub(crate) timeout: Duration,
}

impl Handshakes {
    /// Starts the threads. They end when the last copy of the result is gone.
    pub(crate) fn start(
        bounds: HandshakeBounds,
        certificates: &Arc<Certificates>,
        metrics: &HandshakeMetrics,
    ) -> std::io::Result<(Handshakes, Vec<JoinHandle<()>>)> {
        let places = Arc::new(Places {
            taken: AtomicUsize::new(0),
            max: bounds.handshakes_max,
        });
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for number in 0..bounds.threads.max(1) {
            let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let waker = Arc::clone(&wake);
            // The places bound what waits here; each connection has received at most a buffer.
            let mailbox_bounds = Bounds {
                items_max: bounds.handshakes_max,
                bytes_max: usize::MAX,
            };
            let (sender, tasks) = mailbox_with_waker("handshakes", mailbox_bounds, move || {
                let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
            });
            let worker = HandshakeThread {
                poller: Poller::new(wake.as_fd())?,
                _wake: wake,
                tasks,
                open: Vec::new(),
                free: Vec::new(),
                deadlines: VecDeque::new(),
                places: Arc::clone(&places),
                timeout: bounds.timeout,
                certificates: Arc::clone(certificates),
                metrics: metrics.clone(),
                scratch: vec![0; SCRATCH_BYTES],
            };
            let thread = std::thread::Builder::new().name(format!("handshakes-{number}"));
            threads.push(thread.spawn(move || worker.run())?);
            queues.push(sender);
        }
        Ok((Handshakes { queues, places }, threads))
    }

    /// Whether another handshake may begin.
    pub(crate) fn have_room(&self) -> bool {
        self.under_way() < self.places.max
    }

    /// Handshakes under way.
    pub(crate) fn under_way(&self) -> usize {
        self.places.taken.load(Ordering::Relaxed)
    }

    /// Begins a handshake. `false`: there are too many; the socket is closed.
    pub(crate) fn begin(&self, task: HandshakeTask) -> bool {
        // Any of the threads will do, and tokens differ.
        let at = task.token as usize % self.queues.len();
        self.places.taken.fetch_add(1, Ordering::Relaxed);
        let bytes = task.received.len() + size_of::<HandshakeTask>();
        let sent = self.queues[at].try_send(Lane::Data, task, bytes).is_ok();
        if !sent {
            self.places.give_back();
        }
        sent
    }

    /// What metrics show, without keeping the threads alive.
    pub(crate) fn watch(&self) -> HandshakeGauges {
        HandshakeGauges {
            queues: self.queues.iter().map(Sender::watch).collect(),
            places: Arc::clone(&self.places),
        }
    }
}

/// Looks at the handshakes under way.
pub(crate) struct HandshakeGauges {
    queues: Vec<GaugeReader<HandshakeTask>>,
    places: Arc<Places>,
}

impl HandshakeGauges {
    /// Sets the gauges.
    pub(crate) fn show(&self, metrics: &Metrics) {
        let under_way = self.places.taken.load(Ordering::Relaxed);
        metrics.handshakes.under_way.set(under_way as i64);
        for (number, queue) in self.queues.iter().enumerate() {
            metrics.mailbox(&format!("handshakes-{number}"), &queue.gauge());
        }
    }
}

impl Places {
    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that makes handshakes.
struct HandshakeThread {
    poller: Poller,
    /// The mailbox writes to it; epoll watches it.
    _wake: Arc<OwnedFd>,
    tasks: Receiver<HandshakeTask>,
    /// Handshakes under way, by their numbers in epoll.
    open: Vec<Option<OpenHandshake>>,
    free: Vec<usize>,
    /// When each began, the longest ago first. Those that are over are skipped.
    deadlines: VecDeque<(Instant, u64, usize)>,
    places: Arc<Places>,
    timeout: Duration,
    certificates: Arc<Certificates>,
    metrics: HandshakeMetrics,
    scratch: Vec<u8>,
}

struct OpenHandshake {
    /// Distinguishes it from others with the same number.
    id: u64,
    socket: OwnedFd,
    token: Token,
    shard: Arc<ShardSender>,
    handshake: Handshake,
    began: Instant,
    /// Whether epoll also reports when the socket is writable.
    output_watched: bool,
}

impl HandshakeThread {
    fn run(mut self) {
        lower_priority();
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let mut tasks = Vec::new();
        let mut id = 0;
        loop {
            if let Err(error) = self.poller.wait(&mut events, self.patience()) {
                tracing::error!(%error, "epoll failed; handshakes stop");
                return;
            }
            self.tasks.attend();
            let closed = self.tasks.is_closed();
            self.tasks.drain(&mut tasks);
            if closed && tasks.is_empty() {
                // The server stops: whoever still makes a handshake has no request under way.
                return;
            }
            for task in tasks.drain(..) {
                id += 1;
                self.begin(task, id);
            }
            for event in &events {
                let token = event.data.u64();
                if token != WAKE {
                    self.step(token as usize);
                }
            }
            self.expire();
        }
    }

    fn patience(&self) -> Duration {
        match self.deadlines.front() {
            Some(_) => EXPIRY_STEP,
            None => IDLE_WAIT,
        }
    }

    fn begin(&mut self, task: HandshakeTask, id: u64) {
        let began = Instant::now();
        let handshake = match Handshake::new(self.certificates.config()) {
            Ok(handshake) => handshake,
            Err(error) => {
                tracing::error!(%error, "a handshake can't begin");
                let outcome = Err(FailureReason::Internal);
                return self.deliver(task.socket, task.token, &task.shard, outcome);
            }
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        });
        let mut open = OpenHandshake {
            id,
            socket: task.socket,
            token: task.token,
            shard: task.shard,
            handshake,
            began,
            output_watched: false,
        };
        open.handshake.receive(&task.received);
        // What has arrived already is reported at once.
        let added = self.poller.add(&open.socket, number as u64, false);
        self.deadlines.push_back((began, id, number));
        self.open[number] = Some(open);
        match added {
            // The header of a proxy may have had the whole first message behind it.
            Ok(()) if !task.received.is_empty() => self.step(number),
            Ok(()) => {}
            Err(_) => self.end(number, FailureReason::Internal),
        }
    }

    /// Does what the socket allows for a handshake.
    fn step(&mut self, number: usize) {
        let Some(Some(open)) = self.open.get_mut(number) else {
            return;
        };
        loop {
            while !open.handshake.unsent().is_empty() {
                match plain::send(open.socket.as_fd(), open.handshake.unsent()) {
                    Ok(0) => break,
                    Ok(sent) => open.handshake.sent(sent),
                    Err(_) => return self.end(number, FailureReason::HangUp),
                }
            }
            match open.handshake.progress() {
                Progress::Reads => {}
                Progress::Writes => {
                    if !open.output_watched {
                        open.output_watched = true;
                        let watched = self.poller.watch_output(&open.socket, number as u64);
                        if watched.is_err() {
                            return self.end(number, FailureReason::Internal);
                        }
                    }
                    return;
                }
                Progress::Complete => return self.complete(number),
                Progress::Failed(reason) => return self.end(number, reason),
            }
            match plain::receive(open.socket.as_fd(), &mut self.scratch) {
                Ok(0) => return self.end(number, FailureReason::HangUp),
                Ok(received) => open.handshake.receive(&self.scratch[..received]),
                Err(Errno::AGAIN) => return,
                Err(_) => return self.end(number, FailureReason::HangUp),
            }
        }
    }

    fn complete(&mut self, number: usize) {
        let Some(open) = self.take(number) else {
            return;
        };
        let outcome = open.handshake.establish().map_err(|error| {
            tracing::error!(%error, "a handshake has no session");
            FailureReason::Internal
        });
        if let Ok(established) = &outcome {
            self.metrics.done(established.resumed, open.began.elapsed());
        }
        self.deliver(open.socket, open.token, &open.shard, outcome);
    }

    fn end(&mut self, number: usize, reason: FailureReason) {
        if let Some(open) = self.take(number) {
            self.deliver(open.socket, open.token, &open.shard, Err(reason));
        }
    }

    /// Takes a handshake out of the table and its socket out of epoll.
    fn take(&mut self, number: usize) -> Option<OpenHandshake> {
        let open = self.open.get_mut(number)?.take()?;
        self.free.push(number);
        // Where it fails the socket is closed by the shard.
        let _ = self.poller.remove(&open.socket);
        Some(open)
    }

    fn deliver(
        &self,
        socket: OwnedFd,
        token: Token,
        shard: &ShardSender,
        outcome: Result<Established, FailureReason>,
    ) {
        if let Err(reason) = &outcome {
            self.metrics.failed(reason.label());
        }
        self.places.give_back();
        let ended = Box::new(Handshaken { socket, outcome });
        shard.put(ShardEvent::Handshaken { token, ended });
    }

    /// Ends handshakes that take too long. While all places are taken they have less time, so that clients that say nothing keep
    /// others out for that time only.
    fn expire(&mut self) {
        while let Some(&(began, id, number)) = self.deadlines.front() {
            let is_open = self.open[number].as_ref().is_some_and(|open| open.id == id);
            if is_open {
                let crowded = self.places.taken.load(Ordering::Relaxed) >= self.places.max;
                let elapsed = began.elapsed();
                let reason = if elapsed >= self.timeout {
                    FailureReason::Timeout
                } else if crowded && elapsed >= self.timeout / CROWDED_PART {
                    FailureReason::Crowded
                } else {
                    return;
                };
                self.end(number, reason);
            }
            self.deadlines.pop_front();
        }
    }
}

/// Deliveries go first when they and handshakes want the same core. Without permission nothing changes.
fn lower_priority() {
    let nice = rustix::process::getpriority_process(None);
    if nice.is_ok_and(|nice| nice < NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

/// The part of the time of a handshake that it has while all places are taken.
const CROWDED_PART: u32 = 10;

/// How often deadlines are looked at.
const EXPIRY_STEP: Duration = Duration::from_millis(100);

/// How long a thread without handshakes waits.
const IDLE_WAIT: Duration = Duration::from_secs(1);

const EVENTS_PER_TURN: usize = 64;

/// Bytes of one read. The longest messages come in several.
const SCRATCH_BYTES: usize = 16 << 10;

const NICE: i32 = 5;
