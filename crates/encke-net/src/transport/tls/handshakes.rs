//! The threads that make handshakes, so that none delays a delivery: a handshake takes a fifth of a millisecond of a core, and
//! as long as its client likes.
//!
//! A shard hands a socket over with the token of its slot, and gets it back with a session, or learns why there is none. The
//! number of handshakes under way, the time of each, and the share of each client address are bounded (`shares`).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_clock::SteadyTime;
use encke_mailbox::{Bounds, GaugeReader, Lane, Receiver, Sender, mailbox_with_waker};
use encke_threads::spawn_essential;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::files::Certificates;
use super::handshake::{Established, FailureReason, Handshake, Progress};
use super::handshaken::Handshaken;
use super::metrics::HandshakeMetrics;
use super::shares::{HandshakeShares, ShareBounds};
use crate::clients::addresses::{self, Key};
use crate::clock::now;
use crate::feed::slot::Token;
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
    /// Where the client is; `None` if that is not known.
    pub(crate) client: Option<IpAddr>,
    /// The connection's slot, and its shard.
    pub(crate) token: Token,
    pub(crate) shard: Arc<ShardSender>,
}

/// Handshakes under way, and how many may be.
#[derive(Debug)]
struct Places {
    /// Those under way, and connections on their way to a thread.
    taken: AtomicUsize,
    max: usize,
    /// Connections that wait because their address has its share.
    waiting: AtomicUsize,
}

/// Bounds of handshakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandshakeBounds {
    /// Threads that make them.
    pub(crate) threads: usize,
    /// Handshakes at a time.
    pub(crate) handshakes_max: usize,
    /// Those of one client address; 0 for no limit.
    pub(crate) per_address_max: usize,
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
            waiting: AtomicUsize::new(0),
        });
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        let count = bounds.threads.max(1);
        for number in 0..count {
            let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let waker = Arc::clone(&wake);
            let mailbox_bounds = Bounds {
                items_max: bounds.handshakes_max.max(ON_THEIR_WAY_MAX),
                bytes_max: bounds.handshakes_max * FIRST_MESSAGE_BYTES_MAX,
            };
            let (sender, tasks) = mailbox_with_waker("handshakes", mailbox_bounds, move || {
                let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
            });
            let worker = HandshakeThread {
                poller: Poller::new(wake.as_fd())?,
                _wake: wake,
                tasks,
                shares: HandshakeShares::new(bounds.of_a_thread(count)),
                open: Vec::new(),
                free: Vec::new(),
                deadlines: VecDeque::new(),
                next_id: 0,
                expired_at: Instant::now(),
                places: Arc::clone(&places),
                timeout: bounds.timeout,
                certificates: Arc::clone(certificates),
                metrics: metrics.clone(),
                scratch: vec![0; SCRATCH_BYTES],
            };
            let name = format!("handshakes-{number}");
            threads.push(spawn_essential(name, move || worker.run())?);
            queues.push(sender);
        }
        Ok((Handshakes { queues, places }, threads))
    }

    /// Whether another connection may be handed over.
    pub(crate) fn have_room(&self) -> bool {
        !self.places.are_taken()
    }

    /// Hands a connection over for its handshake. `false`: too many are on their way; the socket is closed.
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
        let waiting = self.places.waiting.load(Ordering::Relaxed);
        metrics.handshakes.waiting.set(waiting as i64);
        for (number, queue) in self.queues.iter().enumerate() {
            metrics.mailbox(&format!("handshakes-{number}"), &queue.gauge());
        }
    }
}

impl HandshakeBounds {
    /// The bounds of each of that many threads. Tokens differ, so the connections of an address are spread over all of them.
    fn of_a_thread(self, threads: usize) -> ShareBounds {
        let under_way_max = self.handshakes_max.div_ceil(threads).max(1);
        let share = match self.per_address_max {
            0 => under_way_max,
            // Whatever is set, one address leaves places for the others.
            max => max.div_ceil(threads).min(under_way_max - under_way_max / 4),
        };
        ShareBounds {
            under_way_max,
            share: share.max(1),
            waiting_max: WAITING_PER_ADDRESS_MAX.div_ceil(threads),
        }
    }
}

impl Places {
    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    fn are_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.max
    }
}

/// A thread that makes handshakes.
struct HandshakeThread {
    poller: Poller,
    /// The mailbox writes to it; epoll watches it.
    _wake: Arc<OwnedFd>,
    tasks: Receiver<HandshakeTask>,
    /// Which connections make their handshakes, and which wait.
    shares: HandshakeShares<HandshakeTask>,
    /// Handshakes under way, by their numbers in epoll.
    open: Vec<Option<OpenHandshake>>,
    free: Vec<usize>,
    /// When each began, the longest ago first. Those that are over are skipped.
    deadlines: VecDeque<(SteadyTime, u64, usize)>,
    next_id: u64,
    /// When deadlines were last looked at.
    expired_at: Instant,
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
    /// The address whose share it counts for.
    key: Key,
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
        loop {
            if let Err(error) = self.poller.wait(&mut events, self.wait_max()) {
                tracing::error!(%error, "epoll failed; handshakes stop");
                encke_threads::report_failure("handshakes");
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
                self.enter(task);
            }
            for event in &events {
                let token = event.data.u64();
                if token != WAKE {
                    self.step(token as usize);
                }
            }
            if self.expired_at.elapsed() >= EXPIRY_STEP {
                self.expire();
            }
            self.begin_waiting();
        }
    }

    fn wait_max(&self) -> Duration {
        match self.deadlines.is_empty() && self.shares.waiting() == 0 {
            true => IDLE_WAIT,
            false => EXPIRY_STEP,
        }
    }

    /// Takes a connection. It waits until its address and the thread have a place for its handshake.
    fn enter(&mut self, task: HandshakeTask) {
        self.places.give_back();
        if task.received.len() > FIRST_MESSAGE_BYTES_MAX {
            return self.refuse(task, FailureReason::Malformed);
        }
        let key = task.client.map_or(UNKNOWN_ADDRESS, addresses::key);
        self.places.waiting.fetch_add(1, Ordering::Relaxed);
        if let Some(displaced) = self.shares.enter(key, task, now().steady) {
            self.places.waiting.fetch_sub(1, Ordering::Relaxed);
            self.refuse(displaced, FailureReason::Displaced);
        }
        self.begin_waiting();
    }

    /// Begins handshakes for which there are places.
    fn begin_waiting(&mut self) {
        while let Some((key, task)) = self.shares.next() {
            self.places.waiting.fetch_sub(1, Ordering::Relaxed);
            self.places.taken.fetch_add(1, Ordering::Relaxed);
            self.begin(task, key);
        }
    }

    fn begin(&mut self, task: HandshakeTask, key: Key) {
        let began = Instant::now();
        self.next_id += 1;
        let id = self.next_id;
        let handshake = match Handshake::new(self.certificates.config()) {
            Ok(handshake) => handshake,
            Err(error) => {
                tracing::error!(%error, "a handshake can't begin");
                self.leave(key);
                return self.refuse(task, FailureReason::Internal);
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
            key,
            handshake,
            began,
            output_watched: false,
        };
        open.handshake.receive(&task.received);
        // What has arrived already is reported at once.
        let added = self.poller.add(&open.socket, number as u64, false);
        self.deadlines.push_back((now().steady, id, number));
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
        let established = open.handshake.establish();
        let outcome = established.map_err(|refused| refused.tell(open.socket.as_fd()));
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

    /// Takes a handshake out of the table and its socket out of epoll. Its place is free.
    fn take(&mut self, number: usize) -> Option<OpenHandshake> {
        let open = self.open.get_mut(number)?.take()?;
        self.free.push(number);
        self.leave(open.key);
        // Where it fails the socket is closed by the shard.
        let _ = self.poller.remove(&open.socket);
        Some(open)
    }

    /// A handshake of an address is over.
    fn leave(&mut self, key: Key) {
        self.shares.leave(key);
        self.places.give_back();
    }

    /// Gives back a connection whose handshake has not begun.
    fn refuse(&self, task: HandshakeTask, reason: FailureReason) {
        self.deliver(task.socket, task.token, &task.shard, Err(reason));
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
        let ended = Box::new(Handshaken { socket, outcome });
        shard.put(ShardEvent::Handshaken { token, ended });
    }

    /// Ends handshakes that take too long. They have a part of the time only while all places are taken, and while others of the
    /// same address wait. The first is decided once for all of them: the first one to end would let the others stay.
    fn expire(&mut self) {
        self.expired_at = Instant::now();
        let now = now().steady;
        let full = self.places.are_taken() || self.shares.is_full();
        let mut kept = Vec::new();
        while let Some(&(began_at, id, number)) = self.deadlines.front() {
            let elapsed = now.since(began_at);
            if elapsed < self.timeout / CROWDED_PART {
                break;
            }
            self.deadlines.pop_front();
            let open = self.open[number].as_ref().filter(|open| open.id == id);
            let Some(key) = open.map(|open| open.key) else {
                continue;
            };
            if elapsed >= self.timeout {
                self.end(number, FailureReason::Timeout);
            } else if full {
                self.end(number, FailureReason::Crowded);
            } else if self.shares.is_exceeded(key) {
                self.end(number, FailureReason::AddressCrowded);
            } else {
                kept.push((began_at, id, number));
            }
        }
        for deadline in kept.into_iter().rev() {
            self.deadlines.push_front(deadline);
        }
        let then = now.before(self.timeout);
        for task in self.shares.take_waiting_since(then) {
            self.places.waiting.fetch_sub(1, Ordering::Relaxed);
            self.refuse(task, FailureReason::Timeout);
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

/// The part of the time of a handshake that it has while others wait for its place.
const CROWDED_PART: u32 = 10;

/// Connections of one address that wait for their handshakes; the oldest makes room for a further one. As many come back at once when
/// a server restarts behind a proxy that names no clients.
const WAITING_PER_ADDRESS_MAX: usize = 16_384;

/// Connections on their way to one thread; a further one is refused. Accepting stops long before, at the number of handshakes, but
/// shards that accept at the same time may each exceed that by one, and behind a proxy many headers can arrive at once.
const ON_THEIR_WAY_MAX: usize = 16_384;

/// The address of connections whose address is not known.
const UNKNOWN_ADDRESS: Key = 0;

/// Bytes that may have arrived before a handshake begins, behind the header of a proxy: a first message, in one record.
const FIRST_MESSAGE_BYTES_MAX: usize = 18 << 10;

/// How often deadlines are looked at.
const EXPIRY_STEP: Duration = Duration::from_millis(100);

/// How long a thread without handshakes waits.
const IDLE_WAIT: Duration = Duration::from_secs(1);

const EVENTS_PER_TURN: usize = 64;

/// Bytes of one read. The longest messages come in several.
const SCRATCH_BYTES: usize = 16 << 10;

const NICE: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_never_has_all_places() {
        let of = |threads, handshakes_max, per_address_max| {
            let bounds = HandshakeBounds {
                threads,
                handshakes_max,
                per_address_max,
                timeout: Duration::from_secs(1),
            };
            let bounds = bounds.of_a_thread(threads);
            (bounds.under_way_max, bounds.share)
        };
        assert_eq!(of(1, 1024, 256), (1024, 256));
        assert_eq!(of(3, 1024, 256), (342, 86));
        assert_eq!(of(1, 4, 256), (4, 3));
        assert_eq!(of(1, 1, 256), (1, 1));
        assert_eq!(of(2, 1024, 0), (512, 512), "no limit is set");
    }
}
