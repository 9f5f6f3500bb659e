//! A worker, and one time that it is connected.

use std::fmt;
use std::ops::Deref;

use crate::pool::Inner;
use crate::roster::Seat;
use crate::sync::{Arc, AtomicBool, Ordering};

/// A named place in a pool. It stays while its worker comes and goes.
pub(crate) struct Worker {
    pub(crate) name: std::sync::Arc<str>,
    pub(crate) slot: usize,
    /// What the name makes of keys; see [`crate::choice::rendezvous`].
    pub(crate) seed: u64,
    pub(crate) picks: Counter,
}

/// A counter that many threads add to and few read. It has several parts, and threads add to different ones as far as
/// there are enough: otherwise each pick would wait for the cache line that the last one wrote on another processor.
pub(crate) struct Counter([Part; PARTS]);

#[derive(Default)]
#[repr(align(64))]
struct Part(std::sync::atomic::AtomicU64);

const PARTS: usize = 8;

thread_local! {
    /// The part of every counter that this thread adds to.
    static PART: usize = {
        static THREADS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        THREADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % PARTS
    };
}

/// A worker from when it connects until it has gone, and whatever it connected with.
pub(crate) struct Connection<W> {
    pub(crate) worker: Arc<Worker>,
    pub(crate) value: W,
    pub(crate) pool: Arc<Inner<W>>,
    /// Where it can be claimed. Of pools that claim, else meaningless.
    pub(crate) seat: Seat,
    gone: AtomicBool,
}

/// A worker that has been picked; it dereferences to what it connected with.
///
/// It may go at any time after it was picked. The value lives on as long as this does.
pub struct Picked<W> {
    connection: Arc<Connection<W>>,
}

/// What a worker holds to be in the pool: dropping it takes the worker out, whatever it dies of.
pub struct Connected<W> {
    connection: Arc<Connection<W>>,
}

impl Worker {
    pub(crate) fn new(name: std::sync::Arc<str>, slot: usize, seed: u64) -> Self {
        Self {
            name,
            slot,
            seed,
            picks: Counter(Default::default()),
        }
    }
}

impl Counter {
    pub(crate) fn add_one(&self) {
        // A thread that is being torn down may pick, too.
        let part = PART.try_with(|part| *part).unwrap_or(0);
        self.0[part]
            .0
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        let parts = self.0.iter();
        parts
            .map(|part| part.0.load(std::sync::atomic::Ordering::Relaxed))
            .sum()
    }
}

impl<W> Connection<W> {
    pub(crate) fn new(worker: Arc<Worker>, value: W, pool: Arc<Inner<W>>, seat: Seat) -> Self {
        Self {
            worker,
            value,
            pool,
            seat,
            gone: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn go(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

impl<W> Picked<W> {
    pub(crate) fn new(connection: Arc<Connection<W>>) -> Self {
        connection.worker.picks.add_one();
        Self { connection }
    }

    /// The worker's name.
    pub fn name(&self) -> &str {
        &self.connection.worker.name
    }

    /// The worker's slot; the first is 0.
    pub fn slot(&self) -> usize {
        self.connection.worker.slot
    }

    /// False once the worker has gone.
    pub fn is_connected(&self) -> bool {
        !self.connection.is_gone()
    }
}

impl<W> Deref for Picked<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.connection.value
    }
}

impl<W> Connected<W> {
    pub(crate) fn new(connection: Arc<Connection<W>>) -> Self {
        Self { connection }
    }

    /// The worker's name.
    pub fn name(&self) -> &str {
        &self.connection.worker.name
    }

    /// The worker's slot; the first is 0.
    pub fn slot(&self) -> usize {
        self.connection.worker.slot
    }

    /// False once somebody else has disconnected the worker.
    pub fn is_connected(&self) -> bool {
        !self.connection.is_gone()
    }
}

impl<W> Drop for Connected<W> {
    fn drop(&mut self) {
        Inner::disconnect(&self.connection);
    }
}

impl<W> fmt::Debug for Picked<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picked")
            .field("name", &self.name())
            .field("slot", &self.slot())
            .finish()
    }
}

impl<W> fmt::Debug for Connected<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("name", &self.name())
            .field("slot", &self.slot())
            .finish()
    }
}
