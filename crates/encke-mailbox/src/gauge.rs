//! The state of a mailbox, readable at any time: atomics beside the queue, never its lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::bounds::Lane;
use crate::stock::Amount;

/// The state of a mailbox at one moment. The lanes are read one after another, each again until nothing leaves it
/// during the reading. If items leave faster than that, items that left during the last reading count as still here;
/// waiting items are never missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// The mailbox's name.
    pub name: &'static str,
    /// The control lane.
    pub control: LaneGauge,
    /// The data lane.
    pub data: LaneGauge,
}

/// The state of one lane at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneGauge {
    /// Items that the receiver has not taken.
    pub queued: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Items that the receiver has taken and not handled.
    pub in_hand: usize,
    /// Their bytes.
    pub in_hand_bytes: usize,
    /// The age of the oldest item, queued or in hand, to the kernel's tick (1 to 10 ms). None: the lane is empty. A
    /// batch in hand has the age of its oldest item until all of it is handled.
    pub oldest_age: Option<Duration>,
    /// Senders that wait for room.
    pub waiting: usize,
    /// The maximum of items, queued and in hand, since the start.
    pub depth_high_water: usize,
    /// Items accepted since the start.
    pub accepted: u64,
    /// Items handled since the start.
    pub handled: u64,
    /// Refused attempts to send since the start.
    pub refused: u64,
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

    /// Refused attempts to send since the start, in both lanes.
    pub fn refused(&self) -> u64 {
        self.control.refused + self.data.refused
    }

    /// Senders that wait for room in either lane.
    pub fn waiting(&self) -> usize {
        self.control.waiting + self.data.waiting
    }

    /// The age of the oldest item in either lane. None: the mailbox is empty.
    pub fn oldest_age(&self) -> Option<Duration> {
        self.control.oldest_age.max(self.data.oldest_age)
    }

    /// The state of one lane.
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
}

/// A lane's counters. They only grow, each has one writer at a time (the holder of the mailbox's lock, or the receiver),
/// and each write is a plain store. A depth is the difference of two counters, so a reader never sees zero while items
/// move from the queue to the receiver.
///
/// Readers load the counters in the reverse order of an item's way: `handled`, then `taken`, then `accepted`.
#[derive(Default)]
pub(crate) struct Meter {
    queue: QueueCounters,
    hand: HandCounters,
}

/// Written under the lock. Apart from the receiver's counters, because otherwise each item would move a cache line
/// between two processors twice.
#[derive(Default)]
#[repr(align(128))]
struct QueueCounters {
    accepted_items: AtomicU64,
    accepted_bytes: AtomicU64,
    taken_items: AtomicU64,
    taken_bytes: AtomicU64,
    refused: AtomicU64,
    high_water: AtomicU64,
    /// A past value of `handled_items`, which can only be higher by now.
    handled_seen: AtomicU64,
    waiting: AtomicUsize,
    oldest_queued_ns: AtomicU64,
}

/// Written by the receiver outside the lock.
#[derive(Default)]
#[repr(align(128))]
struct HandCounters {
    handled_items: AtomicU64,
    handled_bytes: AtomicU64,
    oldest_in_hand_ns: AtomicU64,
}

impl Meter {
    pub(crate) fn accepted(&self, bytes: u64) {
        let queue = &self.queue;
        add(&queue.accepted_bytes, bytes);
        let accepted = add(&queue.accepted_items, 1);
        let high_water = queue.high_water.load(Ordering::Relaxed);
        // A load of the receiver's counter costs more than all else here, so it happens only when the depth may exceed
        // the high-water mark.
        if accepted - queue.handled_seen.load(Ordering::Relaxed) > high_water {
            let handled = self.hand.handled_items.load(Ordering::Relaxed);
            queue.handled_seen.store(handled, Ordering::Relaxed);
            queue
                .high_water
                .store(high_water.max(accepted - handled), Ordering::Relaxed);
        }
    }

    pub(crate) fn taken(&self, amount: Amount) {
        add(&self.queue.taken_bytes, amount.bytes);
        add(&self.queue.taken_items, amount.items);
        self.queue.oldest_queued_ns.store(0, Ordering::Relaxed);
    }

    pub(crate) fn handled(&self, amount: Amount) {
        add(&self.hand.handled_bytes, amount.bytes);
        add(&self.hand.handled_items, amount.items);
    }

    pub(crate) fn refused(&self) {
        add(&self.queue.refused, 1);
    }

    pub(crate) fn waiting(&self, senders: usize) {
        self.queue.waiting.store(senders, Ordering::Relaxed);
    }

    pub(crate) fn oldest_queued(&self, at_ns: u64) {
        self.queue.oldest_queued_ns.store(at_ns, Ordering::Relaxed);
    }

    pub(crate) fn oldest_in_hand(&self, at_ns: u64) {
        self.hand.oldest_in_hand_ns.store(at_ns, Ordering::Relaxed);
    }

    /// What the receiver has taken and not handled. Exact for the receiver itself.
    pub(crate) fn in_hand(&self) -> Amount {
        let handled = self.handled_so_far();
        self.taken_so_far().less(handled)
    }

    /// Whether anything waits that the receiver has not taken.
    pub(crate) fn pending(&self) -> bool {
        let taken = self.queue.taken_items.load(Ordering::Acquire);
        self.queue.accepted_items.load(Ordering::Acquire) != taken
    }

    pub(crate) fn read(&self, age_of: impl Fn(u64) -> Duration) -> LaneGauge {
        let Moved {
            handled,
            taken,
            accepted,
        } = self.moved();
        let stamps = [&self.hand.oldest_in_hand_ns, &self.queue.oldest_queued_ns]
            .map(|stamp| stamp.load(Ordering::Relaxed));
        let oldest_ns = stamps.into_iter().filter(|&ns| ns != 0).min();
        let (queued, in_hand) = (accepted.less(taken), taken.less(handled));
        LaneGauge {
            queued: queued.items as usize,
            queued_bytes: queued.bytes as usize,
            in_hand: in_hand.items as usize,
            in_hand_bytes: in_hand.bytes as usize,
            oldest_age: oldest_ns.map(age_of),
            waiting: self.queue.waiting.load(Ordering::Relaxed),
            depth_high_water: self.queue.high_water.load(Ordering::Relaxed) as usize,
            accepted: accepted.items,
            handled: handled.items,
            refused: self.queue.refused.load(Ordering::Relaxed),
        }
    }

    /// Reads all counters as of one moment, as far as that is possible without a lock: an interrupted reader would count
    /// items as accepted that left before, so it reads until nothing leaves meanwhile. After some attempts it accepts a
    /// depth that is too high rather than too low.
    fn moved(&self) -> Moved {
        let mut left = (self.handled_so_far(), self.taken_so_far());
        let mut attempts = 1;
        loop {
            let accepted = amount(&self.queue.accepted_items, &self.queue.accepted_bytes);
            let now = (self.handled_so_far(), self.taken_so_far());
            if now == left || attempts == READ_ATTEMPTS_MAX {
                let (handled, taken) = left;
                return Moved {
                    handled,
                    taken,
                    accepted,
                };
            }
            left = now;
            attempts += 1;
        }
    }

    fn handled_so_far(&self) -> Amount {
        amount(&self.hand.handled_items, &self.hand.handled_bytes)
    }

    fn taken_so_far(&self) -> Amount {
        amount(&self.queue.taken_items, &self.queue.taken_bytes)
    }
}

/// Totals since the start.
struct Moved {
    handled: Amount,
    taken: Amount,
    accepted: Amount,
}

fn amount(items: &AtomicU64, bytes: &AtomicU64) -> Amount {
    Amount {
        items: items.load(Ordering::Acquire),
        bytes: bytes.load(Ordering::Acquire),
    }
}

/// Adds to a counter that has no other writer at the same time, so a locked instruction is not needed. Returns the sum.
fn add(counter: &AtomicU64, n: u64) -> u64 {
    let sum = counter.load(Ordering::Relaxed) + n;
    counter.store(sum, Ordering::Release);
    sum
}

/// How often a reader tries to read all counters at one moment. A reading takes some nanoseconds, a batch longer.
const READ_ATTEMPTS_MAX: u32 = 16;
