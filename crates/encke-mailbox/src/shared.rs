//! What lies between the two ends: the lanes behind their lock, the figures beside it, and who must be told of what.

use crate::clock::Clock;
use crate::gauge::{Gauge, Meter};
use crate::lane::LaneQueue;
use crate::options::{Lane, Options};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, Ordering, thread};

pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

pub(crate) struct Shared<T> {
    pub(crate) name: &'static str,
    pub(crate) state: Mutex<State<T>>,
    arrival: Condvar,
    wake: Option<Wake>,
    meters: [Meter; Lane::COUNT],
    pub(crate) senders: AtomicUsize,
    pub(crate) clock: Clock,
}

pub(crate) struct State<T> {
    pub(crate) lanes: [LaneQueue<T>; Lane::COUNT],
    /// The receiver must be told of the next item: it sleeps, or it left the mailbox empty and sleeps elsewhere.
    pub(crate) armed: bool,
    pub(crate) receiver_gone: bool,
}

/// Who must be told of something once the lock is open again.
#[must_use = "whoever is not told sleeps on"]
#[derive(Default)]
pub(crate) struct Tidings {
    pub(crate) receiver: bool,
    senders: Vec<Seat>,
}

/// Where a sender waits for room.
#[derive(Clone)]
pub(crate) struct Seat(Arc<Place>);

struct Place {
    thread: thread::Thread,
    admitted: AtomicBool,
}

impl<T> Shared<T> {
    pub(crate) fn new(name: &'static str, options: Options, wake: Option<Wake>) -> Self {
        Self::with_clock(name, options, wake, Clock::real())
    }

    pub(crate) fn with_clock(
        name: &'static str,
        options: Options,
        wake: Option<Wake>,
        clock: Clock,
    ) -> Self {
        Self {
            name,
            state: Mutex::new(State {
                lanes: Lane::ALL.map(|lane| LaneQueue::new(options.lane(lane))),
                // A receiver that sleeps elsewhere sleeps from the start.
                armed: wake.is_some(),
                receiver_gone: false,
            }),
            arrival: Condvar::new(),
            wake,
            meters: Lane::ALL.map(|_| Meter::default()),
            senders: AtomicUsize::new(1),
            clock,
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

    /// Wakes whoever must be woken. Call it without the lock.
    pub(crate) fn tell(&self, tidings: Tidings) {
        for seat in tidings.senders {
            seat.admit();
        }
        if tidings.receiver {
            self.tell_receiver();
        }
    }

    /// Wakes the receiver. Call it without the lock.
    pub(crate) fn tell_receiver(&self) {
        if let Some(wake) = &self.wake {
            wake();
        }
        // Whoever has a waker may still choose to sleep here; nobody there costs one load.
        self.arrival.notify_one();
    }

    /// Lets senders in that wait for room in this lane, as far as there is room.
    pub(crate) fn admit(&self, state: &mut State<T>, lane: Lane, tidings: &mut Tidings) {
        if state.receiver_gone {
            // Nobody is let in where nobody takes out: those who wait get their items back.
            return;
        }
        let before = tidings.senders.len();
        let now_ns = || self.clock.now_ns();
        state
            .lane(lane)
            .admit(now_ns, self.meter(lane), &mut tidings.senders);
        if tidings.senders.len() > before {
            tidings.receiver |= state.disarm();
        }
    }

    pub(crate) fn arrival(&self) -> &Condvar {
        &self.arrival
    }

    pub(crate) fn sleeps_elsewhere(&self) -> bool {
        self.wake.is_some()
    }
}

impl Tidings {
    /// The receiver is to be told that nothing more will come, whether it asked or not: it may be about to sleep elsewhere.
    pub(crate) fn of_closing<T>(state: &mut State<T>) -> Self {
        state.armed = false;
        Self {
            receiver: true,
            senders: Vec::new(),
        }
    }
}

impl<T> State<T> {
    pub(crate) fn lane(&mut self, lane: Lane) -> &mut LaneQueue<T> {
        &mut self.lanes[lane as usize]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.stock.items.is_empty())
    }

    /// The size to count for an item, if it can go in without further ado.
    #[inline]
    pub(crate) fn room(&mut self, lane: Lane, bytes: usize) -> Option<u32> {
        if self.receiver_gone {
            return None;
        }
        self.lane(lane).room(bytes)
    }

    /// True once after the receiver asked to be told.
    #[inline]
    pub(crate) fn disarm(&mut self) -> bool {
        std::mem::take(&mut self.armed)
    }
}

impl Seat {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Place {
            thread: thread::current(),
            admitted: AtomicBool::new(false),
        }))
    }

    /// Lets the sender go: its item is in the lane.
    fn admit(&self) {
        self.0.admitted.store(true, Ordering::Release);
        self.0.thread.unpark();
    }

    /// Makes the sender look again.
    pub(crate) fn nudge(&self) {
        self.0.thread.unpark();
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.0.admitted.load(Ordering::Acquire)
    }
}
