//! Which copy of a shared value a thread uses, so that threads at once write to different cache lines.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of copies. Models have one, so that their threads meet.
pub(crate) const PARTS: usize = if cfg!(encke_model) { 1 } else { 8 };

thread_local! {
    static PART: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % PARTS
    };
}

/// The copy that this thread uses: threads get different ones as far as there are enough.
#[inline]
pub(crate) fn part() -> usize {
    // A thread may pick while its locals are being destroyed.
    PART.try_with(|part| *part).unwrap_or(0)
}
