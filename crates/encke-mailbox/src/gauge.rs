//! Figures that anyone may read at any time: atomics beside the queue, never its lock.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::options::{Lane, Mode};
use crate::stock::Amount;

/// The state of a mailbox at one moment. The lanes are read one after another, each again until nothing leaves it during
/// the reading. Where items leave faster than they can be read, what left during the last of some attempts is counted as if
/// it were here still; what waits is never missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// The name that the mailbox was made with.
    pub name: &'static str,
    /// The control lane.
    pub control: LaneGauge,
    /// The data lane.
    pub data: LaneGauge,
}

/// The state of one lane at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneGauge {
    /// Items that gather and that nobody has taken yet.
    pub queued: usize,
    /// Bytes of those.
    pub queued_bytes: usize,
    /// Items that the receiver has taken and not yet handled.
    pub in_hand: usize,
    /// Bytes of those.
    pub in_hand_bytes: usize,
    /// How long the oldest item, queued or in hand, has been here, to the kernel's tick (1 to 10 ms). None: there is
    /// none. Of a batch in hand it is the age of the batch's oldest item until the whole batch is handled.
    pub oldest_age: Option<Duration>,
    /// Senders that wait for room.
    pub waiting: usize,
    /// What the lane does about its load.
    pub mode: Mode,
    /// The most items, queued and in hand, there have ever been.
    pub depth_high_water: usize,
    /// Items accepted since the start.
    pub accepted: u64,
    /// Items handed out and handled since the start.
    pub handled: u64,
    /// Items that were refused to their senders since the start; each attempt counts.
    pub refused: u64,
    /// Items that were accepted and dropped before anyone took them, to make room.
    pub shed: u64,
    /// Items that were dropped instead of handed out, because they had become too old.
    pub aged: u64,
}

impl Gauge {
    /// Items queued and in hand, in both lanes.
    pub fn depth(&self) -> usize {
        self.control.depth() + self.data.depth()
    }

    /// Bytes queued and in hand, in both lanes.
    pub fn bytes(&self) -> usize {
        self.control.bytes() + self.data.bytes()
    }

    /// Items refused, shed and dropped for their age since the start, in both lanes.
    pub fn drops(&self) -> u64 {
        self.control.drops() + self.data.drops()
    }

    /// How long the oldest item in either lane has been here. None: the mailbox is empty.
    pub fn oldest_age(&self) -> Option<Duration> {
        self.control.oldest_age.max(self.data.oldest_age)
    }

    /// One lane's figures.
    pub fn lane(&self, lane: Lane) -> &LaneGauge {
        match lane {
            Lane::Control => &self.control,
            Lane::Data => &self.data,
        }
    }
}

impl LaneGauge {
    /// Items queued and in hand.
    pub fn depth(&self) -> usize {
        self.queued + self.in_hand
    }

    /// Bytes queued and in hand.
    pub fn bytes(&self) -> usize {
        self.queued_bytes + self.in_hand_bytes
    }

    /// Items refused, shed and dropped for their age since the start.
    pub fn drops(&self) -> u64 {
        self.refused + self.shed + self.aged
    }
}

/// A lane's counters. They only grow, each is written from one place at a time (under the mailbox's lock, or by the
/// receiver), and what is written is a plain store. A depth is the difference of two counters, so it can't be seen as
/// zero while items move from the queue into the receiver's hands.
///
/// Reading order matters: first what leaves (`handled`, then `taken` and `shed`), then what enters (`accepted`).
#[derive(Default)]
pub(crate) struct Meter {
    queue: Queue,
    hand: Hand,
}

/// What is written under the lock. Apart from what the receiver writes, or each item would carry a cache line from one
/// processor to the other and back.
#[derive(Default)]
#[repr(align(128))]
struct Queue {
    accepted_items: AtomicU64,
    accepted_bytes: AtomicU64,
    shed_items: AtomicU64,
    shed_bytes: AtomicU64,
    taken_items: AtomicU64,
    taken_bytes: AtomicU64,
    refused: AtomicU64,
    high_water: AtomicU64,
    /// What had left when that was last looked at: it can only be more by now.
    gone_seen: AtomicU64,
    waiting: AtomicUsize,
    oldest_queued_ns: AtomicU64,
    mode: AtomicU8,
}

/// What the receiver alone writes, outside the lock.
#[derive(Default)]
#[repr(align(128))]
struct Hand {
    handled_items: AtomicU64,
    handled_bytes: AtomicU64,
    oldest_in_hand_ns: AtomicU64,
    /// Those of `handled_items` that were dropped for their age.
    aged_items: AtomicU64,
}

impl Meter {
    pub(crate) fn accepted(&self, items: u64, bytes: u64) {
        let queue = &self.queue;
        add(&queue.accepted_bytes, bytes);
        let accepted = add(&queue.accepted_items, items);
        let high_water = queue.high_water.load(Ordering::Relaxed);
        // Looking at what the receiver writes costs more than all the rest here, so it is done only when, for all that
        // is known, there may never have been as many.
        if accepted - queue.gone_seen.load(Ordering::Relaxed) > high_water {
            let gone = self.hand.handled_items.load(Ordering::Relaxed)
                + queue.shed_items.load(Ordering::Relaxed);
            queue.gone_seen.store(gone, Ordering::Relaxed);
            queue
                .high_water
                .store(high_water.max(accepted - gone), Ordering::Relaxed);
        }
    }

    pub(crate) fn shed(&self, items: u64, bytes: u64) {
        add(&self.queue.shed_bytes, bytes);
        add(&self.queue.shed_items, items);
    }

    pub(crate) fn taken(&self, items: u64, bytes: u64) {
        add(&self.queue.taken_bytes, bytes);
        add(&self.queue.taken_items, items);
        self.queue.oldest_queued_ns.store(0, Ordering::Relaxed);
    }

    pub(crate) fn handled(&self, amount: Amount) {
        add(&self.hand.handled_bytes, amount.bytes);
        add(&self.hand.handled_items, amount.items);
    }

    pub(crate) fn aged(&self, items: u64) {
        add(&self.hand.aged_items, items);
    }

    pub(crate) fn refused(&self, items: u64) {
        add(&self.queue.refused, items);
    }

    pub(crate) fn waiting(&self, senders: usize) {
        self.queue.waiting.store(senders, Ordering::Relaxed);
    }

    pub(crate) fn mode(&self, mode: Mode) {
        self.queue.mode.store(mode as u8, Ordering::Relaxed);
    }

    pub(crate) fn oldest_queued(&self, at_ns: u64) {
        self.queue.oldest_queued_ns.store(at_ns, Ordering::Relaxed);
    }

    pub(crate) fn oldest_in_hand(&self, at_ns: u64) {
        self.hand.oldest_in_hand_ns.store(at_ns, Ordering::Relaxed);
    }

    /// Items and bytes queued and in hand.
    pub(crate) fn depth(&self) -> Amount {
        let gone_items = self.hand.handled_items.load(Ordering::Acquire)
            + self.queue.shed_items.load(Ordering::Acquire);
        let gone_bytes = self.hand.handled_bytes.load(Ordering::Acquire)
            + self.queue.shed_bytes.load(Ordering::Acquire);
        Amount {
            items: self
                .queue
                .accepted_items
                .load(Ordering::Acquire)
                .saturating_sub(gone_items),
            bytes: self
                .queue
                .accepted_bytes
                .load(Ordering::Acquire)
                .saturating_sub(gone_bytes),
        }
    }

    /// What the receiver has taken and not handled. Exact when the receiver itself asks.
    pub(crate) fn in_hand(&self) -> Amount {
        let handled_items = self.hand.handled_items.load(Ordering::Acquire);
        let handled_bytes = self.hand.handled_bytes.load(Ordering::Acquire);
        Amount {
            items: self
                .queue
                .taken_items
                .load(Ordering::Acquire)
                .saturating_sub(handled_items),
            bytes: self
                .queue
                .taken_bytes
                .load(Ordering::Acquire)
                .saturating_sub(handled_bytes),
        }
    }

    /// True when anything waits that the receiver has not taken.
    pub(crate) fn pending(&self) -> bool {
        let left = self.queue.taken_items.load(Ordering::Acquire)
            + self.queue.shed_items.load(Ordering::Acquire);
        self.queue.accepted_items.load(Ordering::Acquire) != left
    }

    pub(crate) fn read(&self, age_of: impl Fn(u64) -> Duration) -> LaneGauge {
        let moved = self.moved();
        let stamps = [&self.hand.oldest_in_hand_ns, &self.queue.oldest_queued_ns]
            .map(|stamp| stamp.load(Ordering::Relaxed));
        let oldest_ns = stamps.into_iter().filter(|&ns| ns != 0).min();
        let (left, entered) = (&moved.left, &moved.entered);
        let difference = |of: u64, less: u64| of.saturating_sub(less) as usize;
        LaneGauge {
            queued: difference(entered.items, left.taken.items + left.shed.items),
            queued_bytes: difference(entered.bytes, left.taken.bytes + left.shed.bytes),
            in_hand: difference(left.taken.items, left.handled.items),
            in_hand_bytes: difference(left.taken.bytes, left.handled.bytes),
            oldest_age: oldest_ns.map(age_of),
            waiting: self.queue.waiting.load(Ordering::Relaxed),
            mode: mode_from(self.queue.mode.load(Ordering::Relaxed)),
            depth_high_water: self.queue.high_water.load(Ordering::Relaxed) as usize,
            accepted: entered.items,
            handled: left.handled.items.saturating_sub(left.aged),
            refused: self.queue.refused.load(Ordering::Relaxed),
            shed: left.shed.items,
            aged: left.aged,
        }
    }

    /// What has moved, all of it at one moment as far as that can be had without a lock: a reader that is interrupted
    /// between two counters would see what entered since as if nothing had left, so it reads until nothing has left
    /// meanwhile. It gives up after some attempts and counts too much rather than too little.
    fn moved(&self) -> Moved {
        let mut left = self.left();
        let mut attempts = 1;
        loop {
            let entered = Amount {
                items: self.queue.accepted_items.load(Ordering::Acquire),
                bytes: self.queue.accepted_bytes.load(Ordering::Acquire),
            };
            let now = self.left();
            if now == left || attempts == READ_ATTEMPTS_MAX {
                return Moved { left, entered };
            }
            left = now;
            attempts += 1;
        }
    }

    /// In the order in which items leave, the last step first.
    fn left(&self) -> Left {
        let amount = |items: &AtomicU64, bytes: &AtomicU64| Amount {
            items: items.load(Ordering::Acquire),
            bytes: bytes.load(Ordering::Acquire),
        };
        let (hand, queue) = (&self.hand, &self.queue);
        Left {
            handled: amount(&hand.handled_items, &hand.handled_bytes),
            aged: hand.aged_items.load(Ordering::Acquire),
            taken: amount(&queue.taken_items, &queue.taken_bytes),
            shed: amount(&queue.shed_items, &queue.shed_bytes),
        }
    }
}

/// What has moved since the start.
struct Moved {
    left: Left,
    entered: Amount,
}

/// What has left the queue or the receiver's hands since the start.
#[derive(PartialEq, Eq)]
struct Left {
    handled: Amount,
    /// Items among those handled that were dropped for their age.
    aged: u64,
    taken: Amount,
    shed: Amount,
}

/// How often a reader tries to see all counters at one moment. A reading takes some nanoseconds, a batch longer.
const READ_ATTEMPTS_MAX: u32 = 16;

/// Adds to a counter that nobody else writes at the same time, so no locked instruction is needed. Returns the sum.
fn add(counter: &AtomicU64, n: u64) -> u64 {
    let sum = counter.load(Ordering::Relaxed) + n;
    counter.store(sum, Ordering::Release);
    sum
}

fn mode_from(mode: u8) -> Mode {
    [Mode::Waiting, Mode::Refusing, Mode::Shedding]
        .into_iter()
        .find(|&m| m as u8 == mode)
        .unwrap_or(Mode::Open)
}
