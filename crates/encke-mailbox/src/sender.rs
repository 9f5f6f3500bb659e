//! The end that work is put into.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{Refused, Why};
use crate::gauge::Gauge;
use crate::options::Lane;
use crate::shared::{Seat, Shared, State, Tidings};
use crate::sync::{self, Arc, MutexGuard, Ordering, thread};
use crate::watch::Watch;

/// How often a sender that finds the lane full, and nobody in line, yields to the receiver before it opens the line:
/// going to sleep and being woken costs both of them more. Models need none: their scheduler tries every order.
const YIELDS_BEFORE_WAITING: usize = if cfg!(encke_model) { 0 } else { 4 };

/// Puts items into a mailbox. Clone it for each thread that sends; the mailbox closes when the last clone is gone.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    pub(crate) fn first(shared: Shared<T>) -> (Self, Arc<Shared<T>>) {
        let shared = Arc::new(shared);
        (
            Self {
                shared: shared.clone(),
            },
            shared,
        )
    }

    /// Puts one item in, if there is room and no other sender waits for it. Never blocks.
    ///
    /// `bytes` is what the item counts for against [`crate::Bounds::bytes_max`].
    pub fn try_send(&self, lane: Lane, item: T, bytes: usize) -> Result<(), Refused<T>> {
        let mut state = self.shared.state.lock();
        match state.room(lane, bytes) {
            Some(size) => {
                self.put(state, lane, item, size);
                Ok(())
            }
            None => self.try_send_without_room(state, lane, item, bytes),
        }
    }

    /// Puts in as many items as fit, from the front of `items`, under one lock; the rest stay where they are. Returns
    /// how many went in: fewer than there were means that the lane is full (or the next item too large), or that the
    /// receiver is gone. Never blocks.
    pub fn try_send_many(&self, lane: Lane, items: &mut Vec<(T, usize)>) -> usize {
        if items.is_empty() {
            return 0;
        }
        let mut shed = Vec::new();
        let mut left = None;
        let mut sent = 0;
        let mut state = self.shared.state.lock();
        let mut rest = items.drain(..);
        for (item, bytes) in rest.by_ref() {
            match self.offer(&mut state, lane, item, bytes, &mut shed) {
                Ok(()) => sent += 1,
                Err(refused) => {
                    self.shared.meter(lane).refused(1);
                    left = Some((refused.item, bytes));
                    break;
                }
            }
        }
        let tell = sent > 0 && state.disarm();
        drop(state);
        if tell {
            self.shared.tell_receiver();
        }
        if let Some(left) = left {
            let unsent: Vec<_> = std::iter::once(left).chain(rest).collect();
            *items = unsent;
        }
        sent
    }

    /// Puts one item in and waits for room if there is none, behind those who waited before. Blocks the thread; for
    /// lanes that are not [`crate::Overload::Wait`] it does what [`Self::try_send`] does.
    pub fn send(&self, lane: Lane, item: T, bytes: usize) -> Result<(), Refused<T>> {
        self.send_until(lane, item, bytes, None)
    }

    /// The same, but waits no longer than `timeout`; then the item comes back with [`Why::TimedOut`].
    pub fn send_timeout(
        &self,
        lane: Lane,
        item: T,
        bytes: usize,
        timeout: Duration,
    ) -> Result<(), Refused<T>> {
        // A timeout beyond what the clock can say is no timeout.
        self.send_until(lane, item, bytes, Instant::now().checked_add(timeout))
    }

    /// What is in the mailbox right now. Costs the senders nothing.
    pub fn gauge(&self) -> Gauge {
        self.shared.gauge()
    }

    /// A look at the mailbox that keeps it open for nobody.
    pub fn watch(&self) -> Watch<T> {
        Watch::new(self.shared.clone())
    }

    /// True once the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.state.lock().receiver_gone
    }

    fn send_until(
        &self,
        lane: Lane,
        item: T,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Refused<T>> {
        let mut yields_left = YIELDS_BEFORE_WAITING;
        loop {
            let mut state = self.shared.state.lock();
            if state.receiver_gone || !state.lane(lane).queues(bytes) {
                return match state.room(lane, bytes) {
                    Some(size) => {
                        self.put(state, lane, item, size);
                        Ok(())
                    }
                    None => self.try_send_without_room(state, lane, item, bytes),
                };
            }
            if yields_left == 0 || state.lane(lane).has_line() {
                return self.wait_in_line(state, lane, item, bytes, deadline);
            }
            drop(state);
            yields_left -= 1;
            thread::yield_now();
        }
    }

    /// Puts in an item that there is room for.
    #[inline]
    fn put(&self, mut state: MutexGuard<'_, State<T>>, lane: Lane, item: T, size: u32) {
        let now_ns = || self.shared.clock.now_ns();
        state
            .lane(lane)
            .put(item, size, now_ns, self.shared.meter(lane));
        let tell = state.disarm();
        drop(state);
        if tell {
            self.shared.tell_receiver();
        }
    }

    /// What becomes of an item that there is no simple room for.
    #[cold]
    fn try_send_without_room(
        &self,
        mut state: MutexGuard<'_, State<T>>,
        lane: Lane,
        item: T,
        bytes: usize,
    ) -> Result<(), Refused<T>> {
        // Dropped after the lock: what is shed may send when it is dropped.
        let mut shed = Vec::new();
        let sent = self.offer(&mut state, lane, item, bytes, &mut shed);
        if sent.is_err() {
            self.shared.meter(lane).refused(1);
        }
        let tell = sent.is_ok() && state.disarm();
        drop(state);
        if tell {
            self.shared.tell_receiver();
        }
        sent
    }

    #[cold]
    fn wait_in_line(
        &self,
        mut state: MutexGuard<'_, State<T>>,
        lane: Lane,
        item: T,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Refused<T>> {
        let seat = Seat::new();
        let ticket = state
            .lane(lane)
            .wait(item, bytes, seat.clone(), self.shared.meter(lane));
        drop(state);
        self.wait(lane, ticket, &seat, deadline)
    }

    /// Waits until the item that was queued under `ticket` is in the lane, or gives it up.
    fn wait(
        &self,
        lane: Lane,
        ticket: u64,
        seat: &Seat,
        deadline: Option<Instant>,
    ) -> Result<(), Refused<T>> {
        loop {
            let in_time = sync::park(deadline);
            if seat.is_admitted() {
                return Ok(());
            }
            let mut state = self.shared.state.lock();
            let why = if state.receiver_gone {
                Why::Closed
            } else if !in_time {
                Why::TimedOut
            } else {
                // Threads may be unparked for no reason, or for somebody else's.
                continue;
            };
            let Some(item) = state.lane(lane).give_up(ticket, self.shared.meter(lane)) else {
                // It was let in after the look above; the word of it is on its way.
                return Ok(());
            };
            self.shared.meter(lane).refused(1);
            // Who stood behind may be smaller, and fit.
            let mut tidings = Tidings::default();
            self.shared.admit(&mut state, lane, &mut tidings);
            drop(state);
            self.shared.tell(tidings);
            return Err(Refused { item, why });
        }
    }

    fn offer(
        &self,
        state: &mut State<T>,
        lane: Lane,
        item: T,
        bytes: usize,
        shed: &mut Vec<T>,
    ) -> Result<(), Refused<T>> {
        if state.receiver_gone {
            return Err(Refused {
                item,
                why: Why::Closed,
            });
        }
        let now_ns = || self.shared.clock.now_ns();
        state
            .lane(lane)
            .offer(item, bytes, now_ns, self.shared.meter(lane), shed)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            let tidings = Tidings::of_closing(&mut self.shared.state.lock());
            self.shared.tell(tidings);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("gauge", &self.shared.gauge())
            .finish()
    }
}
