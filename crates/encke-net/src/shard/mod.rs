//! A shard: one thread, its own listener, its own connections.
//!
//! A turn of [`Shard::run`] waits for sockets and events, reads what came ([`input`]), asks the
//! router and answers ([`answer`]), hands what is to be committed to the sequencer, takes commits
//! and sends their records to subscribers ([`deliver`]). What is left of its time goes to whoever
//! comes or catches up, and to deadlines ([`errands`]).

mod accept;
mod answer;
mod ask;
mod busy;
mod clients;
mod clock;
mod crowd;
mod deliver;
mod encoded;
mod errands;
mod input;
mod jam;
mod look;
mod output;
mod rounds;
mod several;
pub(crate) mod slow;
mod stream;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use encke_protocol::{Encoders, Router};
use encke_stream::{Intake, Request, Views};
use rustix::event::epoll;

use crate::addresses::Addresses;
use crate::buffers::Buffers;
use crate::close::CloseReason;
use crate::congested_streams::CongestedStreams;
use crate::metrics::{Counts, Metrics};
use crate::owners::ConnectionOwners;
use crate::rate_limit::RateLimit;
use crate::readers::Readers;
use crate::settings::NetSettings;
use crate::shard_channel::{ShardEvent, ShardReceiver, ShardSender};
use crate::slot::{Flags, Slots, State, Token};
use crate::timer::{TICK_MS, TimerWheel};
use crate::topics::Topics;

use busy::{Busy, BusyOnes};
use clock::Clock;
use crowd::Crowd;
use encoded::Encoded;
use errands::Errands;
use jam::{JamWatch, LOOK_EVERY_MS};
use rounds::Rounds;

/// What a shard needs of the rest.
pub(crate) struct Parts {
    pub(crate) number: u16,
    pub(crate) settings: Arc<NetSettings>,
    pub(crate) router: Router,
    pub(crate) listener: OwnedFd,
    pub(crate) receiver: ShardReceiver,
    pub(crate) sender: Arc<ShardSender>,
    /// Where commands go, and are decided at once where they don't wait for the disk.
    pub(crate) intake: Intake,
    pub(crate) dispatcher: encke_jobs::Door,
    pub(crate) readers: Readers,
    pub(crate) metrics: Metrics,
    /// Connections of all shards.
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) buffers: Arc<Buffers>,
    /// The jammed streams of all shards.
    pub(crate) jams: Arc<CongestedStreams>,
    pub(crate) views: Arc<Views>,
}

/// One reactor thread's state.
pub(crate) struct Shard {
    parts: Parts,
    encoders: Arc<Encoders>,
    epoll: OwnedFd,
    slots: Slots,
    owners: ConnectionOwners,
    /// What only busy or blocked connections need.
    busy: BusyOnes,
    topics: Topics,
    rounds: Rounds,
    /// Subscribers that have more due than one turn sends.
    lagging: VecDeque<u32>,
    errands: Errands,
    jam: JamWatch,
    /// Sends to subscribers that are left to this turn.
    sends_left: usize,
    /// Slots to be freed at the end of the turn.
    closed: Vec<u32>,
    /// Commands for the sequencer, gathered over a turn.
    outbox: Vec<(Request, usize)>,
    /// Words for the dispatcher, gathered over a turn, and how many questions there were.
    words: Vec<(encke_jobs::Word, usize)>,
    question: u32,
    wheel: TimerWheel,
    clock: Clock,
    /// Bytes of all records taken so far.
    taken_bytes: u64,
    counts: Counts,
    /// The last encoding, shared by all subscribers at the same place.
    encoded: Encoded,
    scratch: Vec<u8>,
    out: Vec<u8>,
    /// How fast this shard accepts, and what of it is used up; see [`RateLimit::take`].
    accept_pace: Option<RateLimit>,
    accepted_upto_ns: u64,
    /// How many the next turn accepts in which somebody waits; see [`Shard::accept`].
    accepts_next: usize,
    crowd: Crowd,
    /// When those who were gathered are accepted; nothing while epoll tells of each.
    gather_at_us: Option<u64>,
    /// Who was just accepted, and is not in epoll yet.
    newcomer: Option<u32>,
    listening: bool,
    /// When the listener is looked at again after descriptors ran out, or too many came.
    listen_again_ms: u64,
    stopping: Option<Instant>,
}

impl Shard {
    /// A shard that is ready to run.
    pub(crate) fn new(parts: Parts) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            parts.receiver.wake_fd(),
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let clock = Clock::start();
        let shards = parts.settings.shards.max(1) as u64;
        // The connections of a second may come at once. All who were connected come back together when a server starts
        // again, and those whom the kernel's queue can't hold try again only after a second.
        let accepts_per_s = parts.settings.accept_rate.div_ceil(shards);
        let mut shard = Shard {
            slots: Slots::default(),
            owners: ConnectionOwners::default(),
            accept_pace: RateLimit::new(accepts_per_s, accepts_per_s),
            accepted_upto_ns: 0,
            accepts_next: 1,
            crowd: Crowd::default(),
            gather_at_us: None,
            newcomer: None,
            busy: BusyOnes::default(),
            topics: Topics::new(
                parts.settings.ring_bytes,
                parts.number,
                Arc::clone(&parts.views),
            ),
            rounds: Rounds::new(parts.settings.rest_max),
            lagging: VecDeque::new(),
            errands: Errands::default(),
            jam: JamWatch::default(),
            sends_left: 0,
            closed: Vec::new(),
            outbox: Vec::new(),
            words: Vec::new(),
            question: 0,
            wheel: TimerWheel::new(clock.now_ms()),
            clock,
            taken_bytes: 0,
            counts: Counts::default(),
            encoded: Encoded::default(),
            scratch: vec![0; SCRATCH_BYTES],
            out: Vec::new(),
            listening: false,
            listen_again_ms: 0,
            stopping: None,
            encoders: Arc::clone(parts.router.encoders()),
            epoll,
            parts,
        };
        shard.listen(true)?;
        Ok(shard)
    }

    /// Works until it is told to stop and what was under way is done.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let mut received = Vec::new();
        while !self.stopped() {
            events.clear();
            let timeout = self.patience();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&timeout),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "epoll failed; the shard can't go on");
                    return;
                }
            }
            // Events that come from now on are found when the receiver is drained, without a wake-up.
            self.parts.receiver.events.attend();
            self.clock.tick();
            self.errands.arrivals = 0;
            self.sends_left = self.parts.settings.sends_per_turn;
            let mut looked = self.clock.now();
            for some in events.chunks(EVENTS_AT_ONCE) {
                if looked.elapsed() >= EVENTS_TIME {
                    self.commits(&mut received);
                    looked = Instant::now();
                }
                for event in some {
                    let (token, flags) = (event.data.u64(), event.flags);
                    match token {
                        WAKE => {}
                        LISTENER => self.errands.arrivals = self.accepts_next,
                        token => self.event(token, flags),
                    }
                }
            }
            self.commits(&mut received);
            self.let_go();
            if self.errands.arrivals == 0 {
                // Nobody was waiting: of those who come next, one is accepted at first.
                self.accepts_next = 1;
            }
            let gathered = self.gathered();
            let arrivals = self.errands.arrivals > 0;
            self.run_errands();
            if arrivals {
                self.weigh_crowd(gathered);
            }
            self.submit();
            self.free_closed();
            self.counts.add_up(&self.parts.metrics);
        }
        self.cut_short();
    }

    /// Hands over what is to be committed, takes what was, and sends it to those who subscribe to it.
    fn commits(&mut self, received: &mut Vec<ShardEvent>) {
        self.submit();
        self.parts.receiver.events.drain(received);
        let taken = received.len();
        for event in received.drain(..) {
            self.note(event);
        }
        self.parts.receiver.events.handled(taken);
        self.deliver();
    }

    fn event(&mut self, token: Token, flags: epoll::EventFlags) {
        let Some(index) = self.slots.find(token) else {
            return;
        };
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            self.close(index, CloseReason::HangUp);
            return;
        }
        if flags.contains(epoll::EventFlags::OUT) && self.slots[index].flags.has(Flags::BLOCKED) {
            self.writable(index);
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP) && self.is_open(index)
        {
            self.readable(index, flags.contains(epoll::EventFlags::RDHUP));
        }
    }

    fn note(&mut self, note: ShardEvent) {
        match note {
            ShardEvent::Committed { batch, replies } => {
                if let Some(batch) = batch {
                    self.commit(&batch);
                }
                for reply in replies {
                    self.replied(reply);
                }
            }
            ShardEvent::PieceRead { token, piece } => self.errands.pieces.push_back((token, piece)),
            ShardEvent::NameLoaded { token, known } => self.looked(token, known),
            ShardEvent::StreamLoaded { token, stream } => self.loaded(token, stream),
            ShardEvent::Dispatched { client, told } => self.told(client, told),
            ShardEvent::Stop => self.stop(),
        }
    }

    /// Hands the turn's commands to the sequencer. What it has no room for is answered with that.
    fn submit(&mut self) {
        self.hand_words();
        if self.outbox.is_empty() {
            return;
        }
        let mut outbox = std::mem::take(&mut self.outbox);
        self.parts.intake.submit(&mut outbox, self.clock.now_ms());
        for (request, _) in outbox.drain(..) {
            self.overloaded(request.from.token);
        }
        // Answering may have brought the next requests of pipelining clients.
        if self.outbox.is_empty() {
            outbox.shrink_to(OUTBOX_KEPT);
            self.outbox = outbox;
        }
    }

    /// How long the sockets may be waited for.
    fn patience(&self) -> rustix::event::Timespec {
        let wait_ms = if !self.rounds.is_empty()
            || !self.lagging.is_empty()
            || !self.outbox.is_empty()
            || self.errands.wait()
        {
            0
        } else if !self.listening && self.stopping.is_none() {
            let pause_ms = self.listen_again_ms.saturating_sub(self.clock.now_ms());
            pause_ms.clamp(1, TICK_MS)
        } else if self.stopping.is_some() || !self.words.is_empty() {
            TICK_MS
        } else if self.slots.used() > 0 {
            TICK_MS * 2
        } else {
            IDLE_WAIT_MS
        };
        let wait_ms = match self.jam.holds() {
            true => wait_ms.min(LOOK_EVERY_MS),
            false => wait_ms,
        };
        let wake_us = [self.gather_at_us, self.rounds.wake_us()];
        let wait_ms = wake_us.into_iter().flatten().fold(wait_ms, |ms, at_us| {
            let left_us = at_us.saturating_sub(self.clock.now_us());
            ms.min(left_us.div_ceil(1000))
        });
        rustix::event::Timespec {
            tv_sec: (wait_ms / 1000) as i64,
            tv_nsec: (wait_ms % 1000 * 1_000_000) as i64,
        }
    }

    fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(Instant::now());
        self.errands.arrivals = 0;
        if let Err(error) = self.listen(false) {
            tracing::warn!(%error, "the listener could not be taken out of epoll");
        }
        for index in 0..self.slots.len() as u32 {
            self.say_goodbye(index);
        }
    }

    /// Whether a stop is over: nothing is under way, or it took too long.
    fn stopped(&self) -> bool {
        let Some(since) = self.stopping else {
            return false;
        };
        self.slots.used() == 0 || since.elapsed() > self.parts.settings.stop_timeout
    }

    /// The stop took too long: what has begun and is not out is cut, so that nobody takes it for the whole.
    fn cut_short(&mut self) {
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index];
            if slot.state == State::Streaming || slot.flags.has(Flags::BLOCKED) {
                self.cut(index, CloseReason::Stopping);
            }
        }
        self.counts.add_up(&self.parts.metrics);
    }

    /// Closes a connection. What it does ends at once; its slot is freed at the end of the turn, so that until then its index
    /// names no other connection.
    fn close(&mut self, index: u32, reason: CloseReason) {
        if self.slots[index].state == State::Closed {
            return;
        }
        match reason.label() {
            Some(label) => self.parts.metrics.closed.with_label_values(&[label]).inc(),
            None => self.counts.hangups += u64::from(reason == CloseReason::HangUp),
        }
        self.unask(index);
        self.unsubscribe(index);
        if self.slots[index].flags.has(Flags::BEHIND) {
            self.counts.behind -= 1;
            self.leaves_jam(index);
        }
        self.busy.remove(index);
        self.disown(index);
        self.slots[index].state = State::Closed;
        self.slots[index].flags = Flags::default();
        self.closed.push(index);
        self.counts.connections -= 1;
        self.parts.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes the sockets of the connections that were closed in this turn, and frees their slots.
    fn free_closed(&mut self) {
        for index in self.closed.drain(..) {
            // A closed connection may have entered again.
            self.busy.remove(index);
            self.slots.remove(index);
        }
    }

    fn unsubscribe(&mut self, index: u32) {
        match self.slots[index].state {
            State::Following | State::Polling => self.counts.subscribers -= 1,
            State::Several => {
                self.counts.subscribers -= 1;
                self.leave_all(index);
            }
            _ => {}
        }
        self.topics.unlink(&mut self.slots, index);
    }

    /// Whether a connection has not been closed in this turn.
    fn is_open(&self, index: u32) -> bool {
        self.slots[index].state != State::Closed
    }

    fn busy(&mut self, index: u32) -> &mut Busy {
        self.busy.enter(index)
    }
}

/// Tokens that are no connection's: their generation is never given to a slot.
const WAKE: Token = u64::MAX;
const LISTENER: Token = u64::MAX - 1;

const EVENTS_PER_TURN: usize = 512;

/// After so long a shard looks at its commits between two events: what a crowd asks for is no reason to have them wait.
/// Less would make batches small.
const EVENTS_TIME: Duration = Duration::from_micros(400);

/// So many events are dealt with between two looks at the clock.
const EVENTS_AT_ONCE: usize = 8;

/// One read takes up to this much; it belongs to the shard, not to a connection.
const SCRATCH_BYTES: usize = 64 << 10;

/// A shard without connections looks at its clock this often.
const IDLE_WAIT_MS: u64 = 1000;

/// For how many commands a shard keeps room after a turn, so that a turn with many does not keep its memory.
const OUTBOX_KEPT: usize = 64;
