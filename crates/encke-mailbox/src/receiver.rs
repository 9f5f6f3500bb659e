//! The receiving end.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::bounds::Lane;
use crate::error::Closed;
use crate::gauge::Gauge;
use crate::shared::{SharedMailbox, WakeUps};
use crate::stock::{Amount, Stock};
use crate::sync::{self, Arc, Ordering, thread};

/// Takes items from a mailbox. There is one; when it is dropped, its items are dropped and senders are refused.
///
/// Two ways to use it, which may be mixed:
/// - In batches, with [`Self::drain`] and [`Self::recv_batch`]. Drained items count as in hand until the next call that takes
///   something, except those that are then still in the passed vector; [`Self::handled`] reports progress earlier.
/// - One by one, with [`Self::recv`] and [`Self::try_recv`]. The receiver still takes all waiting items at once, but keeps them,
///   counts them, and looks for control messages before each item, so that these overtake any backlog. An item counts as in
///   hand until the next call.
pub struct Receiver<T> {
    shared: Arc<SharedMailbox<T>>,
    /// Taken from the mailbox and not returned yet.
    hand: [Stock<T>; Lane::COUNT],
    /// Returned in batches and not handled yet, in order.
    lent: VecDeque<Lent>,
    /// Returned alone by the last call.
    single: Option<(Lane, u32)>,
    /// Empty lists of sizes for reuse, so that steady work allocates nothing.
    spare_sizes: Vec<VecDeque<u32>>,
    /// At the last drain a lane counted unhandled items; it must learn when they are handled.
    carries: bool,
    /// The number of items in the last drain of each lane.
    last_batch: [usize; Lane::COUNT],
    /// A single item was there when the last sleep ended.
    is_lone: bool,
    /// How often to yield before the next sleep; adapts to the success of the last yields.
    yields: usize,
}

/// Items of one lane that were returned together.
struct Lent {
    lane: Lane,
    sizes: VecDeque<u32>,
    bytes: u64,
    oldest_ns: u64,
}

/// The maximum number of yields to senders before the receiver sleeps. Models need none: their scheduler tries every order.
const YIELDS_MAX: usize = if cfg!(encke_model) { 0 } else { 8 };

/// The number of yields after unsuccessful ones: enough to notice when senders are in full flow again.
const YIELDS_MIN: usize = if cfg!(encke_model) { 0 } else { 1 };

/// Batches of this many items mean that senders are in full flow on other processors and that the receiver returns too soon:
/// each time it takes the lock and its cache lines from them. So it rests before it looks again. Larger batches gather by
/// themselves.
const FLOW_ITEMS: std::ops::Range<usize> = if cfg!(encke_model) { 0..0 } else { 8..512 };

/// The length of a rest, in pauses of the processor: a few microseconds. The rest ends after the first pauses if no item
/// arrives in them, because then senders wait for the handling of earlier items.
const REST_PAUSES: [usize; 2] = [32, 96];

/// The maximum number of empty lists of sizes that are kept.
const SPARE_SIZES_MAX: usize = 4;

impl<T> Receiver<T> {
    pub(crate) fn new(shared: Arc<SharedMailbox<T>>) -> Self {
        Self {
            shared,
            hand: Lane::ALL.map(|_| Stock::new()),
            lent: VecDeque::new(),
            single: None,
            spare_sizes: Vec::new(),
            carries: false,
            last_batch: [0; Lane::COUNT],
            is_lone: false,
            yields: YIELDS_MAX,
        }
    }

    /// Appends all waiting items to `into`, the control lane first. Returns their number; 0 if the mailbox is empty. Never
    /// blocks.
    ///
    /// Items left in `into` still count as in hand; all other items returned before count as handled.
    pub fn drain(&mut self, into: &mut Vec<T>) -> usize {
        let before = into.len();
        self.settle_single();
        let lent = self.lent_count();
        self.settle(lent.saturating_sub(before));
        self.lend_all(into);
        self.gather(&Lane::ALL);
        self.lend_all(into);
        into.len() - before
    }

    /// Sleeps until an item waits, then does the same as [`Self::drain`]. Closed when every sender is gone and every item has
    /// been returned.
    ///
    /// While `into` is not empty it does not sleep but may return `Ok(0)`: a receiver that sleeps on unhandled items could keep
    /// senders from the room that would wake it.
    pub fn recv_batch(&mut self, into: &mut Vec<T>) -> Result<usize, Closed> {
        self.recv_batch_until(into, None)
    }

    /// The same, but sleeps no longer than `timeout`; `Ok(0)` after that.
    pub fn recv_batch_timeout(
        &mut self,
        into: &mut Vec<T>,
        timeout: Duration,
    ) -> Result<usize, Closed> {
        // A timeout beyond the range of the clock is no timeout.
        self.recv_batch_until(into, Instant::now().checked_add(timeout))
    }

    /// Sleeps until an item waits and returns the first one: control before data, then in the order of sending. Closed when every
    /// sender is gone and every item has been returned.
    pub fn recv(&mut self) -> Result<T, Closed> {
        self.rest();
        loop {
            if let Some(item) = self.try_recv() {
                return Ok(item);
            }
            self.sleep(None)?;
        }
    }

    /// The same, but sleeps no longer than `timeout`; `Ok(None)` after that.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<T>, Closed> {
        let deadline = Instant::now().checked_add(timeout);
        self.rest();
        loop {
            if let Some(item) = self.try_recv() {
                return Ok(Some(item));
            }
            if !self.sleep(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Returns the first item if there is one: control before data, then in the order of sending. Never blocks.
    ///
    /// A receiver with a waker must call this until it returns `None`, or come back by itself: only a mailbox that it has seen
    /// empty wakes it.
    pub fn try_recv(&mut self) -> Option<T> {
        self.settle_single();
        self.settle(self.lent_count());
        loop {
            let control_held = self.holds(Lane::Control);
            if !control_held && !self.holds(Lane::Data) {
                self.gather(&Lane::ALL);
                if !self.holds(Lane::Control) && !self.holds(Lane::Data) {
                    return None;
                }
            } else if !control_held && self.control_pending() {
                self.gather(&[Lane::Control]);
            }
            for lane in Lane::ALL {
                if let Some((item, size)) = self.hand[lane as usize].pop() {
                    self.single = Some((lane, size));
                    return Some(item);
                }
            }
        }
    }

    /// Reports that the first `count` returned items are handled. Not needed for correctness: it makes the gauges exact while a
    /// long batch is handled.
    pub fn handled(&mut self, count: usize) {
        let from_batches = count.min(self.lent_count());
        self.settle(from_batches);
        if count > from_batches {
            self.settle_single();
        }
        if self.carries {
            self.release();
        }
    }

    /// Whether an item waits in the control lane. Cheap (two loads), for checks between the items of a batch.
    pub fn control_pending(&self) -> bool {
        self.shared.meter(Lane::Control).pending()
    }

    /// Whether an item waits in any lane. Cheap.
    pub fn pending(&self) -> bool {
        let mut lanes = Lane::ALL.into_iter();
        lanes.any(|lane| self.shared.meter(lane).pending())
    }

    /// For a receiver with a waker: it is awake and will [`Self::drain`] before it sleeps, so no sender needs to wake it until
    /// then.
    pub fn attend(&self) {
        self.shared.state.lock().disarm();
    }

    /// The current state of the mailbox.
    pub fn gauge(&self) -> Gauge {
        self.shared.gauge()
    }

    /// True when every sender is gone; items may still wait.
    pub fn is_closed(&self) -> bool {
        self.shared.senders.load(Ordering::Acquire) == 0
    }

    fn recv_batch_until(
        &mut self,
        into: &mut Vec<T>,
        deadline: Option<Instant>,
    ) -> Result<usize, Closed> {
        if into.is_empty() {
            self.rest();
        }
        loop {
            let count = self.drain(into);
            if count > 0 || !into.is_empty() || !self.sleep(deadline)? {
                return Ok(count);
            }
        }
    }

    /// Lets senders in full flow add more items before the next look.
    fn rest(&self) {
        let holds = Lane::ALL.into_iter().any(|lane| self.holds(lane));
        if holds || !FLOW_ITEMS.contains(&self.last_batch.iter().sum()) {
            return;
        }
        for pauses in REST_PAUSES {
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            if !self.pending() {
                return;
            }
        }
    }

    /// Sleeps until the mailbox has an item. False: the deadline has passed. An error: it is empty, and all senders are gone.
    fn sleep(&mut self, deadline: Option<Instant>) -> Result<bool, Closed> {
        // A sender in full flow has the next item ready sooner than it could wake this thread, and the wake-up costs the sender time.
        // So this thread yields a few times first. The sender of a lone item most likely waits for its reply, and a yield then only
        // delays the threads that carry this reply.
        if !self.is_lone {
            for _ in 0..self.yields {
                if self.pending() {
                    self.yields = YIELDS_MAX;
                    return Ok(true);
                }
                thread::yield_now();
            }
            self.yields = (self.yields / 2).max(YIELDS_MIN);
        }
        let mut state = self.shared.state.lock();
        loop {
            let items = state.items();
            if items > 0 {
                self.is_lone = items == 1;
                return Ok(true);
            }
            // The last sender counts down before it takes the lock: it is seen here, or it wakes this thread.
            if self.is_closed() {
                return Err(Closed);
            }
            state.armed = true;
            if !sync::wait(self.shared.arrival(), &mut state, deadline) {
                let came = state.items() > 0;
                state.armed = !came && self.shared.sleeps_elsewhere();
                return Ok(came);
            }
        }
    }

    /// Takes the items of these lanes, of which `hand` must be empty, and admits waiting senders.
    fn gather(&mut self, lanes: &[Lane]) {
        let shared = &*self.shared;
        let mut wake_ups = WakeUps::default();
        let mut carries = false;
        for &lane in lanes {
            // The memory given to the mailbox now gathers the next batch, likely of about the size of the last one.
            self.hand[lane as usize].trim(self.last_batch[lane as usize]);
        }
        let mut state = shared.state.lock();
        for &lane in lanes {
            let meter = shared.meter(lane);
            let carried = meter.in_hand();
            carries |= carried != Amount::default();
            state
                .lane(lane)
                .take(&mut self.hand[lane as usize], carried, meter);
            shared.admit(&mut state, lane, &mut wake_ups);
        }
        let empty = state.items() == 0;
        state.armed = empty && shared.sleeps_elsewhere();
        drop(state);
        // A receiver that sleeps elsewhere must come back for the items admitted just now.
        wake_ups.receiver = !empty && shared.sleeps_elsewhere();
        shared.wake(wake_ups);
        self.carries = carries;
        for &lane in lanes {
            self.last_batch[lane as usize] = self.hand[lane as usize].items.len();
            self.show_oldest(lane);
        }
    }

    /// Gives senders the room of items that were handled since the last drain.
    fn release(&mut self) {
        let shared = &*self.shared;
        let mut wake_ups = WakeUps::default();
        let mut state = shared.state.lock();
        self.carries = false;
        for lane in Lane::ALL {
            self.carries |= state.lane(lane).carry_at_most(shared.meter(lane).in_hand());
            shared.admit(&mut state, lane, &mut wake_ups);
        }
        drop(state);
        shared.wake(wake_ups);
    }

    /// Returns all items in hand.
    fn lend_all(&mut self, into: &mut Vec<T>) {
        for lane in Lane::ALL {
            let stock = &mut self.hand[lane as usize];
            if stock.items.is_empty() {
                continue;
            }
            let sizes =
                std::mem::replace(&mut stock.sizes, self.spare_sizes.pop().unwrap_or_default());
            self.lent.push_back(Lent {
                lane,
                sizes,
                bytes: stock.bytes,
                oldest_ns: stock.oldest_ns,
            });
            let mut items = Vec::from(std::mem::take(&mut stock.items));
            if into.is_empty() {
                std::mem::swap(into, &mut items);
            } else {
                into.append(&mut items);
            }
            stock.items = VecDeque::from(items);
            stock.clear();
        }
    }

    /// Counts the first `count` items returned in batches as handled.
    fn settle(&mut self, mut count: usize) {
        while count > 0
            && let Some(mut lent) = self.lent.pop_front()
        {
            let lane = lent.lane;
            let items = count.min(lent.sizes.len());
            count -= items;
            let bytes = if items == lent.sizes.len() {
                lent.sizes.clear();
                lent.bytes
            } else {
                lent.sizes.drain(..items).map(u64::from).sum()
            };
            self.shared.meter(lane).handled(Amount {
                items: items as u64,
                bytes,
            });
            if !lent.sizes.is_empty() {
                lent.bytes -= bytes;
                self.lent.push_front(lent);
            } else if self.spare_sizes.len() < SPARE_SIZES_MAX {
                self.spare_sizes.push(lent.sizes);
            }
            self.show_oldest(lane);
        }
    }

    /// Counts the item returned alone as handled.
    fn settle_single(&mut self) {
        if let Some((lane, size)) = self.single.take() {
            self.shared.meter(lane).handled(Amount {
                items: 1,
                bytes: u64::from(size),
            });
            self.show_oldest(lane);
        }
    }

    fn lent_count(&self) -> usize {
        self.lent.iter().map(|lent| lent.sizes.len()).sum()
    }

    fn holds(&self, lane: Lane) -> bool {
        !self.hand[lane as usize].items.is_empty()
    }

    /// Updates the gauge with the age of the lane's oldest item in hand.
    fn show_oldest(&self, lane: Lane) {
        let lent = self.lent.iter().find(|lent| lent.lane == lane);
        let oldest_ns =
            lent.map_or_else(|| self.hand[lane as usize].oldest_ns, |lent| lent.oldest_ns);
        self.shared.meter(lane).oldest_in_hand(oldest_ns);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.receiver_gone = true;
        let blocked: Vec<_> = state.lanes.iter().flat_map(|lane| lane.blocked()).collect();
        let left = Lane::ALL.map(|lane| {
            let mut stock = Stock::new();
            let meter = self.shared.meter(lane);
            state.lane(lane).take(&mut stock, Amount::default(), meter);
            meter.handled(meter.in_hand());
            stock
        });
        drop(state);
        // Blocked senders take their items back. Items are dropped without the lock, because their drop may send.
        for sender in blocked {
            sender.wake();
        }
        drop(left);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("gauge", &self.shared.gauge())
            .finish()
    }
}
