//! Locks, atomics and the snapshot cell: the real ones, or those of the model checker.

#[cfg(not(encke_model))]
mod real {
    use std::ops::Deref;

    use arc_swap::ArcSwap;
    pub(crate) use parking_lot::Mutex;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::thread;

    /// A value that readers load without waiting and writers replace as a whole.
    pub(crate) struct SnapshotCell<T>(ArcSwap<T>);

    impl<T> SnapshotCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(ArcSwap::from_pointee(value))
        }

        pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> + '_ {
            self.0.load()
        }

        pub(crate) fn store(&self, value: T) {
            self.0.store(Arc::new(value));
        }
    }
}
#[cfg(not(encke_model))]
pub(crate) use real::*;

#[cfg(encke_model)]
mod model {
    use std::ops::Deref;

    pub(crate) use loom::sync::Arc;
    use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::thread;

    /// Loom's mutex with the interface of parking_lot's.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no model panics under a lock")
        }
    }

    /// A mutex stands for the atomic pointer.
    pub(crate) struct SnapshotCell<T>(Mutex<Arc<T>>);

    impl<T> SnapshotCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(Arc::new(value)))
        }

        pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> + '_ {
            Box::new(self.0.lock().clone())
        }

        pub(crate) fn store(&self, value: T) {
            let value = Arc::new(value);
            let _old = std::mem::replace(&mut *self.0.lock(), value);
        }
    }
}
#[cfg(encke_model)]
pub(crate) use model::*;
