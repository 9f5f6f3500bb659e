//! A worker, and one time that it is connected.

use std::ops::Deref;

use crate::parts::{self, Counter, PARTS};
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

/// A worker from when it connects until it has gone, and whatever it connected with.
pub(crate) struct Connection<W> {
    pub(crate) worker: Arc<Worker>,
    pub(crate) value: W,
    pub(crate) pool: Arc<Inner<W>>,
    /// Where it can be claimed. Of pools that claim, else meaningless.
    pub(crate) seat: Seat,
    gone: AtomicBool,
}

/// A connection as the pool and its worker hold it: with as many shares as there are parts.
pub(crate) struct Shares<W>([Arc<Share<W>>; PARTS]);

/// What those who picked a worker hold of its connection; see [`parts`]. Alone in its cache lines, for its reference count
/// is written with every pick.
#[repr(align(128))]
pub(crate) struct Share<W> {
    pub(crate) connection: Arc<Connection<W>>,
}

/// A worker that has been picked; it dereferences to what it connected with.
///
/// It may go at any time after it was picked. The value lives on as long as this does.
pub struct Picked<W> {
    share: Arc<Share<W>>,
}

/// What a worker holds to be in the pool: dropping it takes the worker out, whatever it dies of.
pub struct Connected<W> {
    shares: Arc<Shares<W>>,
}

impl Worker {
    pub(crate) fn new(name: std::sync::Arc<str>, slot: usize, seed: u64) -> Self {
        Self {
            name,
            slot,
            seed,
            picks: Counter::default(),
        }
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

impl<W> Shares<W> {
    pub(crate) fn new(connection: Connection<W>) -> Self {
        let connection = Arc::new(connection);
        Self(std::array::from_fn(|_| {
            Arc::new(Share {
                connection: connection.clone(),
            })
        }))
    }

    /// This thread's share.
    pub(crate) fn share(&self) -> Arc<Share<W>> {
        self.0[parts::shared()].clone()
    }
}

impl<W> Deref for Shares<W> {
    type Target = Connection<W>;

    fn deref(&self) -> &Connection<W> {
        &self.0[0].connection
    }
}

impl<W> Picked<W> {
    pub(crate) fn new(shares: &Shares<W>) -> Self {
        let share = shares.share();
        share.connection.worker.picks.add_one();
        Self { share }
    }

    fn connection(&self) -> &Connection<W> {
        &self.share.connection
    }
}

impl<W> Deref for Picked<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.connection().value
    }
}

impl<W> Connected<W> {
    pub(crate) fn new(shares: Arc<Shares<W>>) -> Self {
        Self { shares }
    }

    fn connection(&self) -> &Connection<W> {
        &self.shares
    }
}

impl<W> Drop for Connected<W> {
    fn drop(&mut self) {
        Inner::disconnect(&self.shares);
    }
}

/// What everything that holds a connection tells of its worker.
macro_rules! tells_of_its_worker {
    ($holder:ident) => {
        impl<W> $holder<W> {
            /// The worker's name.
            pub fn name(&self) -> &str {
                &self.connection().worker.name
            }

            /// The worker's slot; the first is 0.
            pub fn slot(&self) -> usize {
                self.connection().worker.slot
            }

            /// False once the worker has gone, or somebody has disconnected it.
            pub fn is_connected(&self) -> bool {
                !self.connection().is_gone()
            }
        }

        impl<W> std::fmt::Debug for $holder<W> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($holder))
                    .field("name", &self.name())
                    .field("slot", &self.slot())
                    .finish()
            }
        }
    };
}
pub(crate) use tells_of_its_worker;

tells_of_its_worker!(Picked);
tells_of_its_worker!(Connected);
