//! The end that work is taken from.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Closed;
use crate::gauge::Gauge;
use crate::options::Lane;
use crate::shared::{SharedMailbox, WakeUps};
use crate::stock::{Amount, Stock};
use crate::sync::{self, Arc, Ordering, thread};

/// Takes what waits in a mailbox. There is one; when it is dropped, senders are refused and what waits is dropped.
///
/// Two ways to use it, which may be mixed:
/// - in batches, with [`Self::drain`] and [`Self::recv_batch`]. What was drained counts as in hand until the next call
///   that takes something, except for what is then still in the vector that is passed in; [`Self::handled`] reports
///   progress earlier.
/// - one by one, with [`Self::recv`] and [`Self::try_recv`]. Everything that waits is still taken in one go, but the
///   receiver keeps it, counts it, and looks for control messages before each item, so that they overtake any backlog.
///   What was handed out counts as in hand until the next call.
pub struct Receiver<T> {
    shared: Arc<SharedMailbox<T>>,
    /// Taken from the mailbox and not yet handed out.
    hand: [Stock<T>; Lane::COUNT],
    /// Handed out in batches and not yet handled, in the order of handing out.
    lent: VecDeque<Lent>,
    /// Handed out alone, by the last call.
    single: Option<(Lane, u32)>,
    /// Emptied lists of sizes, so that steady work allocates nothing.
    spare_sizes: Vec<VecDeque<u32>>,
    /// A lane was told at the last drain that something is carried over; it should hear when that is handled.
    carries: bool,
    /// How many items the last drain of each lane found.
    last_batch: [usize; Lane::COUNT],
    /// How often to yield before the next sleep: what pays is found out by trying.
    yields: usize,
}

/// Some items of one lane that were handed out together.
struct Lent {
    lane: Lane,
    sizes: VecDeque<u32>,
    bytes: u64,
    oldest_ns: u64,
}

/// How often the receiver yields to senders at most before it goes to sleep. Models need none: their scheduler tries
/// every order.
const YIELDS_MAX: usize = if cfg!(encke_model) { 0 } else { 8 };

/// How often it yields where that brought nothing lately: enough to notice when senders are in full flow again.
const YIELDS_MIN: usize = if cfg!(encke_model) { 0 } else { 1 };

/// Batches of so many items mean that senders are in full flow on other processors, and that this end comes back for
/// more sooner than is good for either: each time it takes the lock and its cache lines away from them. So it rests a
/// little before it looks again. Larger batches gather by themselves.
const FLOW_ITEMS: std::ops::Range<usize> = if cfg!(encke_model) { 0..0 } else { 8..512 };

/// How long such a rest is, in pauses of the processor: a few microseconds. It ends after the first ones if nothing came
/// in them: then senders wait for what was sent before, and time brings nothing.
const REST_PAUSES: [usize; 2] = [32, 96];

/// How many emptied lists of sizes are kept.
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
            yields: YIELDS_MAX,
        }
    }

    /// Appends everything that waits to `into`, the control lane first. Returns how many items that were; 0 when the
    /// mailbox is empty, whether or not anyone can still send. Never blocks.
    ///
    /// What is left in `into` from before still counts as in hand; everything else that was handed out before counts as
    /// handled.
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

    /// Sleeps until something waits, then does what [`Self::drain`] does. Closed when every sender is gone and all has
    /// been handed out.
    ///
    /// While something is left in `into` it doesn't sleep but returns what there is, if only `Ok(0)`: whoever sleeps on
    /// unhandled work could keep senders from the room that would wake it.
    pub fn recv_batch(&mut self, into: &mut Vec<T>) -> Result<usize, Closed> {
        self.recv_batch_until(into, None)
    }

    /// The same, but sleeps no longer than `timeout`; `Ok(0)` when nothing came.
    pub fn recv_batch_timeout(
        &mut self,
        into: &mut Vec<T>,
        timeout: Duration,
    ) -> Result<usize, Closed> {
        // A timeout beyond what the clock can say is no timeout.
        self.recv_batch_until(into, Instant::now().checked_add(timeout))
    }

    /// Sleeps until something waits and hands out the first item: control before data, else in the order of sending.
    /// Closed when every sender is gone and all has been handed out.
    pub fn recv(&mut self) -> Result<T, Closed> {
        self.rest();
        loop {
            if let Some(item) = self.try_recv() {
                return Ok(item);
            }
            self.sleep(None)?;
        }
    }

    /// The same, but sleeps no longer than `timeout`; `Ok(None)` when nothing came.
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

    /// Hands out the first item if there is one: control before data, else in the order of sending. Never blocks.
    ///
    /// A receiver with a waker must go on until this says `None`, or come back by itself: only a mailbox that it has
    /// seen empty wakes it.
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

    /// Reports that the `count` items that were handed out first are handled. Never needed for correctness: it makes the
    /// gauges exact while a long batch is worked off.
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

    /// True when something waits in the control lane that has not been drained. Cheap (three loads), for receivers
    /// that look between the items of a batch.
    pub fn control_pending(&self) -> bool {
        self.shared.meter(Lane::Control).pending()
    }

    /// True when something waits in any lane that has not been drained. Cheap.
    pub fn pending(&self) -> bool {
        let mut lanes = Lane::ALL.into_iter();
        lanes.any(|lane| self.shared.meter(lane).pending())
    }

    /// For a receiver with a waker: it is at work and will [`Self::drain`] before it sleeps, so nobody needs to wake it
    /// until then. Senders are spared the call, and the receiver the return from a sleep with nothing to do.
    pub fn attend(&self) {
        self.shared.state.lock().disarm();
    }

    /// What is in the mailbox and in hand right now.
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

    /// Lets senders in full flow put in some more before the next look.
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

    /// Sleeps until there is something in the mailbox. False: the deadline has passed.
    fn sleep(&mut self, deadline: Option<Instant>) -> Result<bool, Closed> {
        // A sender in full flow has the next item ready sooner than it could wake us, and pays for waking. So it gets
        // the processor a few times first; nothing spins.
        for _ in 0..self.yields {
            if self.pending() {
                self.yields = YIELDS_MAX;
                return Ok(true);
            }
            thread::yield_now();
        }
        self.yields = (self.yields / 2).max(YIELDS_MIN);
        let mut state = self.shared.state.lock();
        loop {
            if !state.is_empty() {
                return Ok(true);
            }
            // The last sender leaves before it takes the lock to say so: it is seen here, or it will wake us.
            if self.is_closed() {
                return Err(Closed);
            }
            state.armed = true;
            if !sync::wait(self.shared.arrival(), &mut state, deadline) {
                let came = !state.is_empty();
                state.armed = !came && self.shared.sleeps_elsewhere();
                return Ok(came);
            }
        }
    }

    /// Takes what waits in these lanes, of which nothing may be in `hand`, and lets senders in for it.
    fn gather(&mut self, lanes: &[Lane]) {
        let shared = &*self.shared;
        let mut wake_ups = WakeUps::default();
        let mut carries = false;
        for &lane in lanes {
            // What goes to the mailbox now gathers the next batch, likely about as large as the last.
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
        let empty = state.is_empty();
        state.armed = empty && shared.sleeps_elsewhere();
        drop(state);
        // Whoever sleeps elsewhere comes back for those who were let in just now.
        wake_ups.receiver = !empty && shared.sleeps_elsewhere();
        shared.wake(wake_ups);
        self.carries = carries;
        for &lane in lanes {
            self.last_batch[lane as usize] = self.hand[lane as usize].items.len();
            self.show_oldest(lane);
        }
    }

    /// Gives senders the room back that was carried over and has been handled since.
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

    /// Hands out all that is in hand.
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

    /// Counts the first `count` of the items lent in batches as handled.
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

    /// Counts the item that was handed out alone as handled.
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

    /// Shows in the gauge how long the oldest item of this lane that is in hand has been here.
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
