//! Locks, atomics and threads: those of the standard library and parking_lot, or those of the model checker.

#[cfg(not(encke_model))]
mod real {
    use std::time::Instant;

    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use std::thread;

    /// Sleeps until a notification or until `deadline`. Returns false when the deadline has passed.
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
}
#[cfg(not(encke_model))]
pub(crate) use real::*;

#[cfg(encke_model)]
mod model {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Arc, Condvar};
    pub(crate) use loom::thread;

    /// Loom's mutex with the interface of parking_lot's.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("no model panics under a lock")))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("taken only while waiting")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("taken only while waiting")
        }
    }

    /// Models have no time: with a deadline this does not wait, and the scheduler decides what happens before.
    pub(crate) fn wait<T>(
        condvar: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        deadline: Option<Instant>,
    ) -> bool {
        if deadline.is_none() {
            let held = guard.0.take().expect("taken only while waiting");
            guard.0 = Some(condvar.wait(held).expect("no model panics under a lock"));
        }
        deadline.is_none()
    }
}
#[cfg(encke_model)]
pub(crate) use model::*;
