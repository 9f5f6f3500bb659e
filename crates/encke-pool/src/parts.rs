//! Parts of what every pick writes, so that threads at once write different ones: otherwise each pick would wait for the cache
//! line that the last one wrote on another processor.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many parts there are that threads share, and how many that one thread has to itself. Models have one of a kind: their
/// threads meet wherever they can.
pub(crate) const PARTS: usize = if cfg!(encke_model) { 1 } else { 8 };

/// A counter that many threads add to and few read.
#[derive(Default)]
pub(crate) struct Counter {
    shared: [Part; PARTS],
    /// What the thread that has the part writes with a load and a store, and no locked instruction.
    own: [Part; PARTS],
}

#[derive(Default)]
#[repr(align(128))]
struct Part(AtomicU64);

/// Which parts a thread writes.
struct Mine {
    shared: usize,
    /// As long as it runs, none other has this one. Nothing if all were taken when it began.
    own: Option<usize>,
}

/// A bit for each part that some thread has to itself.
static OWNED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Mine = Mine::new();
}

/// The shared part of this thread: different ones as far as there are enough.
pub(crate) fn shared() -> usize {
    // A thread that is being torn down may pick, too.
    MINE.try_with(|mine| mine.shared).unwrap_or(0)
}

impl Counter {
    pub(crate) fn add_one(&self) {
        let added = MINE.try_with(|mine| match mine.own {
            Some(own) => {
                let part = &self.own[own].0;
                part.store(part.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => self.add_shared(mine.shared),
        });
        if added.is_err() {
            self.add_shared(0);
        }
    }

    fn add_shared(&self, part: usize) {
        self.shared[part].0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        let parts = self.shared.iter().chain(&self.own);
        parts.map(|part| part.0.load(Ordering::Relaxed)).sum()
    }
}

impl Mine {
    fn new() -> Self {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        let shared = THREADS.fetch_add(1, Ordering::Relaxed) % PARTS;
        // Acquire, because what the last thread wrote is added to.
        let free = |owned: usize| (owned.trailing_ones() as usize) < PARTS;
        let taken = OWNED.fetch_update(Ordering::Acquire, Ordering::Relaxed, |owned| {
            free(owned).then_some(owned | (owned + 1))
        });
        Self {
            shared,
            own: taken.ok().map(|owned| owned.trailing_ones() as usize),
        }
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(own) = self.own {
            OWNED.fetch_and(!(1 << own), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(encke_model)))]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn nothing_is_lost_whoever_counts() {
        const THREADS: usize = 3 * PARTS;
        const EACH: u64 = 10_000;
        let counter = Counter::default();
        for _ in 0..3 {
            let begin = Barrier::new(THREADS);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        // Nobody counts before all have looked for a part, so there are not enough for all.
                        shared();
                        begin.wait();
                        (0..EACH).for_each(|_| counter.add_one());
                    });
                }
            });
        }
        assert_eq!(counter.read(), 3 * THREADS as u64 * EACH);
        let some = |parts: &[Part]| parts.iter().any(|part| part.0.load(Ordering::Relaxed) > 0);
        assert!(some(&counter.shared) && some(&counter.own));
    }

    #[test]
    fn two_threads_never_have_the_same_part_to_themselves() {
        for _ in 0..50 {
            let begin = Barrier::new(2 * PARTS);
            let own = || {
                let own = MINE.with(|mine| mine.own);
                // Nobody goes before all have looked.
                begin.wait();
                own
            };
            let had: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..2 * PARTS).map(|_| scope.spawn(own)).collect();
                let had = threads.into_iter().filter_map(|had| had.join().unwrap());
                had.collect()
            });
            let mut each = had.clone();
            each.sort_unstable();
            each.dedup();
            assert_eq!(each.len(), had.len(), "{had:?}");
            assert!(had.iter().all(|own| *own < PARTS));
        }
    }
}
