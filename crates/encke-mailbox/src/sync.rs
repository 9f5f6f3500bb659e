//! The locks, atomics and threads that the crate is built on: the real ones, or loom's in the model tests.

#[cfg(not(loom))]
mod real {
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::thread;
    use std::time::Instant;

    /// Sleeps until told, or until `deadline`. Returns false when the deadline has passed.
    pub(crate) fn wait<T>(
        condvar: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        deadline: Option<Instant>,
    ) -> bool {
        match deadline {
            None => {
                condvar.wait(guard);
                true
            }
            Some(deadline) => !condvar.wait_until(guard, deadline).timed_out(),
        }
    }

    /// Parks this thread until it is unparked, or until `deadline`. Returns false when the deadline has passed.
    pub(crate) fn park(deadline: Option<Instant>) -> bool {
        match deadline {
            None => thread::park(),
            Some(deadline) => {
                let now = Instant::now();
                if now >= deadline {
                    return false;
                }
                thread::park_timeout(deadline - now);
            }
        }
        true
    }
}
#[cfg(not(loom))]
pub(crate) use real::*;
