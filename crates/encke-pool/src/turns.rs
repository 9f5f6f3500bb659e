//! Whose turn it is in a `round_robin` pool.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::parts::{self, PARTS};

/// A cursor over the slots for each part; see [`parts`]. Each cursor visits all workers in turn. While all have
/// room, threads that share a cursor spread their picks exactly, and all threads together to within [`PARTS`] picks of each worker.
pub(crate) struct Turns {
    cursors: [Cursor; PARTS],
    /// The slot at which the next cursor starts, modulo the number of slots, so that cursors start at different slots.
    next_start: AtomicUsize,
}

/// The slot after the one that was picked last, or [`UNSTARTED`]. Alone in its pair of cache lines, which processors fetch
/// together, because every pick writes it.
#[repr(align(128))]
struct Cursor(AtomicUsize);

/// The turn that a pick has found.
pub(crate) struct Turn<'a> {
    cursor: &'a AtomicUsize,
    found: usize,
    slot: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            cursors: std::array::from_fn(|_| Cursor(AtomicUsize::new(UNSTARTED))),
            next_start: AtomicUsize::new(0),
        }
    }
}

impl Turns {
    /// The turn of this thread's part, in a pool with this number of slots, which is not 0.
    #[inline]
    pub(crate) fn current(&self, slot_count: usize) -> Turn<'_> {
        let cursor = &self.cursors[parts::part()].0;
        let found = cursor.load(Ordering::Relaxed);
        let slot = match found {
            UNSTARTED => self.next_start.fetch_add(1, Ordering::Relaxed) % slot_count,
            slot => slot,
        };
        Turn {
            cursor,
            found,
            slot,
        }
    }
}

impl Turn<'_> {
    /// The slot whose turn it is. It may be greater than that of the last worker.
    #[inline]
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Gives the turn to this slot. False: another thread has changed it.
    #[inline]
    pub(crate) fn advance(self, next: usize) -> bool {
        let order = Ordering::Relaxed;
        let advanced = self.cursor.compare_exchange(self.found, next, order, order);
        advanced.is_ok()
    }
}

/// Beyond all slots.
const UNSTARTED: usize = usize::MAX;
