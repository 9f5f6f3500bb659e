//! A shard: one thread, its own listener, its own connections.
//!
//! A turn of [`Shard::run`] waits for sockets and notes, reads what came ([`input`]), asks the
//! faces and answers ([`answer`]), hands what is to be committed to the sequencer, takes commits
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

use encke_face::Faces;
use encke_stream::{Intake, Request, Views};
use rustix::event::epoll;

use crate::Settings;
use crate::addresses::Addresses;
use crate::buffers::Buffers;
use crate::inbox::{Door, Inbox, Note};
use crate::jams::Jams;
use crate::metrics::{Counts, Metrics};
use crate::owners::Owners;
use crate::pace::Pace;
use crate::readers::Readers;
use crate::slot::{Flags, Slots, State, Token};
use crate::timer::{TICK_MS, Wheel};
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
    pub(crate) settings: Arc<Settings>,
    pub(crate) faces: Faces,
    pub(crate) listener: OwnedFd,
    pub(crate) inbox: Inbox,
    pub(crate) door: Arc<Door>,
    /// Where commands go, and are decided at once where they don't wait for the disk.
    pub(crate) intake: Intake,
    pub(crate) foreman: encke_jobs::DispatcherSender,
    pub(crate) readers: Readers,
    pub(crate) metrics: Metrics,
    /// Connections of all shards.
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) buffers: Arc<Buffers>,
    /// The jammed streams of all shards.
    pub(crate) jams: Arc<Jams>,
    pub(crate) views: Arc<Views>,
}

/// One reactor thread's state.
pub(crate) struct Shard {
    parts: Parts,
    epoll: OwnedFd,
    slots: Slots,
    owners: Owners,
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
    /// Commands for the sequencer, gathered over a turn.
    outbox: Vec<(Request, usize)>,
    /// Words for the foreman, gathered over a turn, and how many questions there were.
    words: Vec<(encke_jobs::DispatcherMessage, usize)>,
    question: u32,
    wheel: Wheel,
    clock: Clock,
    /// Bytes of all records taken so far.
    taken_bytes: u64,
    counts: Counts,
    /// The last encoding, shared by all subscribers at the same place.
    encoded: Encoded,
    scratch: Vec<u8>,
    out: Vec<u8>,
    /// How fast this shard accepts, and what of it is used up; see [`Pace::take`].
    accept_pace: Option<Pace>,
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
            parts.inbox.wake_fd(),
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
            owners: Owners::default(),
            accept_pace: Pace::new(accepts_per_s, accepts_per_s),
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
            outbox: Vec::new(),
            words: Vec::new(),
            question: 0,
            wheel: Wheel::new(clock.now_ms()),
            clock,
            taken_bytes: 0,
            counts: Counts::default(),
            encoded: Encoded::default(),
            scratch: vec![0; SCRATCH_BYTES],
            out: Vec::new(),
            listening: false,
            listen_again_ms: 0,
            stopping: None,
            epoll,
            parts,
        };
        shard.listen(true)?;
        Ok(shard)
    }

    /// Works until it is told to stop and what was under way is done.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let mut notes = Vec::new();
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
            // Notes that come from now on are found when the inbox is drained, without a wake-up.
            self.parts.inbox.notes.attend();
            self.clock.tick();
            self.errands.arrivals = 0;
            self.sends_left = self.parts.settings.sends_per_turn;
            let mut looked = self.clock.now();
            for some in events.chunks(EVENTS_AT_ONCE) {
                if looked.elapsed() >= EVENTS_TIME {
                    self.commits(&mut notes);
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
            self.commits(&mut notes);
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
            self.counts.add_up(&self.parts.metrics);
        }
        self.cut_short();
    }

    /// Hands over what is to be committed, takes what was, and sends it to those who subscribe to it.
    fn commits(&mut self, notes: &mut Vec<Note>) {
        self.submit();
        self.parts.inbox.notes.drain(notes);
        let taken = notes.len();
        for note in notes.drain(..) {
            self.note(note);
        }
        self.parts.inbox.notes.handled(taken);
        self.deliver();
    }

    fn event(&mut self, token: Token, flags: epoll::EventFlags) {
        let Some(index) = self.slots.find(token) else {
            return;
        };
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            self.hang_up(index);
            return;
        }
        if flags.contains(epoll::EventFlags::OUT) && self.slots[index].flags.has(Flags::BLOCKED) {
            self.writable(index);
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP)
            && self.slots.find(token).is_some()
        {
            self.readable(index, flags.contains(epoll::EventFlags::RDHUP));
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Committed { batch, replies } => {
                if let Some(batch) = batch {
                    self.commit(&batch);
                }
                for reply in replies {
                    self.replied(reply);
                }
            }
            Note::Fetched { token, piece } => self.errands.pieces.push_back((token, piece)),
            Note::Looked { token, known } => self.looked(token, known),
            Note::Loaded { token, stream } => self.loaded(token, stream),
            Note::Told { client, told } => self.told(client, told),
            Note::Stop => self.stop(),
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
                self.cut(index, "stopping");
            }
        }
        self.counts.add_up(&self.parts.metrics);
    }

    /// Closes a connection that the client gave up.
    fn hang_up(&mut self, index: u32) {
        self.counts.hangups += 1;
        self.remove(index);
    }

    /// Closes a connection for a reason that is counted.
    fn close(&mut self, index: u32, reason: &str) {
        self.parts.metrics.closed.with_label_values(&[reason]).inc();
        self.remove(index);
    }

    fn remove(&mut self, index: u32) {
        self.unask(index);
        self.unsubscribe(index);
        if self.slots[index].flags.has(Flags::BEHIND) {
            self.counts.behind -= 1;
            self.leaves_jam(index);
        }
        self.busy.remove(index);
        self.disown(index);
        self.slots.remove(index);
        self.counts.connections -= 1;
        self.parts.connections.fetch_sub(1, Ordering::Relaxed);
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
