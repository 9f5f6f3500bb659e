//! The sending end.

use std::fmt;

use crate::blocked::BlockedSender;
use crate::bounds::Lane;
use crate::error::{SendError, SendErrorKind};
use crate::gauge::Gauge;
use crate::shared::{LockedState, SharedMailbox, WakeUps};
use crate::sync::{Arc, Ordering, thread};
use crate::watch::GaugeReader;

/// Puts items into a mailbox. Clone it for each thread that sends; the mailbox closes when the last clone is dropped.
pub struct Sender<T> {
    shared: Arc<SharedMailbox<T>>,
}

impl<T> Sender<T> {
    pub(crate) fn first(shared: SharedMailbox<T>) -> (Self, Arc<SharedMailbox<T>>) {
        let shared = Arc::new(shared);
        (
            Self {
                shared: shared.clone(),
            },
            shared,
        )
    }

    /// Puts one item in if there is room and no other sender waits for it. Never blocks.
    ///
    /// `bytes` is the item's weight against [`crate::Bounds::bytes_max`].
    pub fn try_send(&self, lane: Lane, item: T, bytes: usize) -> Result<(), SendError<T>> {
        let mut state = self.shared.state.lock();
        let sent = self.offer(&mut state, lane, item, bytes);
        let wake = sent.is_ok() && state.disarm();
        drop(state);
        if wake {
            self.shared.wake_receiver();
        }
        sent
    }

    /// Puts in as many items as fit, from the front of `items`, under one lock; the rest stay in `items`. Returns how
    /// many were accepted: fewer than all means that the lane is full, that the next item is too large, or that the
    /// receiver was dropped. Never blocks.
    pub fn try_send_many(&self, lane: Lane, items: &mut Vec<(T, usize)>) -> usize {
        if items.is_empty() {
            return 0;
        }
        let mut refused = None;
        let mut sent = 0;
        let mut state = self.shared.state.lock();
        let mut rest = items.drain(..);
        for (item, bytes) in rest.by_ref() {
            match self.offer(&mut state, lane, item, bytes) {
                Ok(()) => sent += 1,
                Err(error) => {
                    refused = Some((error.item, bytes));
                    break;
                }
            }
        }
        let wake = sent > 0 && state.disarm();
        drop(state);
        if wake {
            self.shared.wake_receiver();
        }
        if let Some(refused) = refused {
            let unsent: Vec<_> = std::iter::once(refused).chain(rest).collect();
            *items = unsent;
        }
        sent
    }

    /// Puts one item in. Blocks the thread while the lane is full; blocked senders are served in order.
    pub fn send(&self, lane: Lane, item: T, bytes: usize) -> Result<(), SendError<T>> {
        let mut yields_left = YIELDS_BEFORE_WAITING;
        loop {
            let mut state = self.shared.state.lock();
            if state.receiver_gone || !state.lane(lane).must_wait(bytes) {
                let sent = self.offer(&mut state, lane, item, bytes);
                let wake = sent.is_ok() && state.disarm();
                drop(state);
                if wake {
                    self.shared.wake_receiver();
                }
                return sent;
            }
            if yields_left == 0 || state.lane(lane).has_waiting() {
                let sender = BlockedSender::current();
                let meter = self.shared.meter(lane);
                let ticket = state.lane(lane).wait(item, bytes, sender.clone(), meter);
                drop(state);
                return self.wait(lane, ticket, &sender);
            }
            drop(state);
            yields_left -= 1;
            thread::yield_now();
        }
    }

    /// The current state of the mailbox. Costs the senders nothing.
    pub fn gauge(&self) -> Gauge {
        self.shared.gauge()
    }

    /// A reader of the gauge that does not keep the mailbox open.
    pub fn watch(&self) -> GaugeReader<T> {
        GaugeReader::new(self.shared.clone())
    }

    /// True once the receiver was dropped.
    pub fn is_closed(&self) -> bool {
        self.shared.state.lock().receiver_gone
    }

    /// Sleeps until the item with this ticket is accepted or the receiver is gone.
    #[cold]
    fn wait(&self, lane: Lane, ticket: u64, sender: &BlockedSender) -> Result<(), SendError<T>> {
        loop {
            thread::park();
            if sender.is_admitted() {
                return Ok(());
            }
            let mut state = self.shared.state.lock();
            if !state.receiver_gone {
                // A thread may be unparked without a reason.
                continue;
            }
            let meter = self.shared.meter(lane);
            let Some(item) = state.lane(lane).withdraw(ticket, meter) else {
                // The item was accepted after the check above.
                return Ok(());
            };
            meter.refused();
            let kind = SendErrorKind::Closed;
            return Err(SendError { item, kind });
        }
    }

    #[inline]
    fn offer(
        &self,
        state: &mut LockedState<T>,
        lane: Lane,
        item: T,
        bytes: usize,
    ) -> Result<(), SendError<T>> {
        let meter = self.shared.meter(lane);
        let offered = if state.receiver_gone {
            let kind = SendErrorKind::Closed;
            Err(SendError { item, kind })
        } else {
            let now_ns = || self.shared.clock.now_ns();
            state.lane(lane).offer(item, bytes, now_ns, meter)
        };
        if offered.is_err() {
            meter.refused();
        }
        offered
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
            let wake_ups = WakeUps::of_closing(&mut self.shared.state.lock());
            self.shared.wake(wake_ups);
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

/// How often a sender yields to the receiver when the lane is full and no sender waits: sleeping and waking cost both
/// ends more. Models need no yields: their scheduler tries every order.
const YIELDS_BEFORE_WAITING: usize = if cfg!(encke_model) { 0 } else { 4 };
