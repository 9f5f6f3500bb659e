//! What both ends share: the lanes behind their lock, the meters beside it, and the wake-ups.

use crate::blocked::BlockedSender;
use crate::bounds::{Bounds, CONTROL_BOUNDS, Lane};
use crate::clock::CoarseClock;
use crate::gauge::{Gauge, Meter};
use crate::lane::LaneQueue;
use crate::sync::{AtomicUsize, Condvar, Mutex};

pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

pub(crate) struct SharedMailbox<T> {
    pub(crate) name: &'static str,
    pub(crate) state: Mutex<LockedState<T>>,
    arrival: Condvar,
    wake: Option<Wake>,
    meters: [Meter; Lane::COUNT],
    pub(crate) senders: AtomicUsize,
    pub(crate) clock: CoarseClock,
}

/// What the mutex guards.
pub(crate) struct LockedState<T> {
    pub(crate) lanes: [LaneQueue<T>; Lane::COUNT],
    /// The next item must wake the receiver: it sleeps, or it left the mailbox empty and sleeps elsewhere.
    pub(crate) armed: bool,
    pub(crate) receiver_gone: bool,
}

/// Wake-ups to perform after the lock is released.
#[must_use = "a missed wake-up leaves a thread asleep"]
#[derive(Default)]
pub(crate) struct WakeUps {
    pub(crate) receiver: bool,
    senders: Vec<BlockedSender>,
}

impl<T> SharedMailbox<T> {
    pub(crate) fn new(name: &'static str, bounds: Bounds, wake: Option<Wake>) -> Self {
        Self {
            name,
            state: Mutex::new(LockedState {
                lanes: [CONTROL_BOUNDS, bounds].map(LaneQueue::new),
                // A receiver that sleeps elsewhere sleeps from the start.
                armed: wake.is_some(),
                receiver_gone: false,
            }),
            arrival: Condvar::new(),
            wake,
            meters: Lane::ALL.map(|_| Meter::default()),
            senders: AtomicUsize::new(1),
            clock: CoarseClock::real(),
        }
    }

    pub(crate) fn meter(&self, lane: Lane) -> &Meter {
        &self.meters[lane as usize]
    }

    pub(crate) fn gauge(&self) -> Gauge {
        let read = |lane| self.meter(lane).read(|stamp_ns| self.clock.age(stamp_ns));
        Gauge {
            name: self.name,
            control: read(Lane::Control),
            data: read(Lane::Data),
        }
    }

    /// Performs wake-ups. Call it without the lock.
    pub(crate) fn wake(&self, wake_ups: WakeUps) {
        for sender in wake_ups.senders {
            sender.admit();
        }
        if wake_ups.receiver {
            self.wake_receiver();
        }
    }

    /// Wakes the receiver. Call it without the lock.
    pub(crate) fn wake_receiver(&self) {
        if let Some(wake) = &self.wake {
            wake();
        }
        // A receiver with a waker may sleep here, too; without a sleeper this costs one load.
        self.arrival.notify_one();
    }

    /// Accepts items of waiting senders as far as this lane has room.
    pub(crate) fn admit(&self, state: &mut LockedState<T>, lane: Lane, wake_ups: &mut WakeUps) {
        if state.receiver_gone {
            // Waiting senders get their items back.
            return;
        }
        let before = wake_ups.senders.len();
        let now_ns = || self.clock.now_ns();
        state
            .lane(lane)
            .admit(now_ns, self.meter(lane), &mut wake_ups.senders);
        if wake_ups.senders.len() > before {
            wake_ups.receiver |= state.disarm();
        }
    }

    pub(crate) fn arrival(&self) -> &Condvar {
        &self.arrival
    }

    pub(crate) fn sleeps_elsewhere(&self) -> bool {
        self.wake.is_some()
    }
}

impl WakeUps {
    /// The last sender is gone. The receiver is woken whether it is armed or not, because it may be about to sleep
    /// elsewhere.
    pub(crate) fn of_closing<T>(state: &mut LockedState<T>) -> Self {
        state.armed = false;
        Self {
            receiver: true,
            senders: Vec::new(),
        }
    }
}

impl<T> LockedState<T> {
    pub(crate) fn lane(&mut self, lane: Lane) -> &mut LaneQueue<T> {
        &mut self.lanes[lane as usize]
    }

    pub(crate) fn items(&self) -> usize {
        self.lanes.iter().map(|lane| lane.stock.items.len()).sum()
    }

    /// True once after the receiver armed the mailbox.
    #[inline]
    pub(crate) fn disarm(&mut self) -> bool {
        std::mem::take(&mut self.armed)
    }
}
