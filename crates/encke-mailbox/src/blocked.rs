//! A sender that sleeps until there is room.

use crate::sync::{Arc, AtomicBool, Ordering, thread};

/// A blocked sender's thread, as the lane holds it while the sender waits for room.
#[derive(Clone)]
pub(crate) struct BlockedSender(Arc<Blocked>);

struct Blocked {
    thread: thread::Thread,
    admitted: AtomicBool,
}

impl BlockedSender {
    /// The current thread.
    pub(crate) fn current() -> Self {
        Self(Arc::new(Blocked {
            thread: thread::current(),
            admitted: AtomicBool::new(false),
        }))
    }

    /// Wakes the sender: its item is in the lane.
    pub(crate) fn admit(&self) {
        self.0.admitted.store(true, Ordering::Release);
        self.0.thread.unpark();
    }

    /// Wakes the sender to check again.
    pub(crate) fn wake(&self) {
        self.0.thread.unpark();
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.0.admitted.load(Ordering::Acquire)
    }
}
