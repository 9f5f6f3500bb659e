//! States the end of the log in the background: up to which record everything is durable.
//!
//! The writer asks for a statement when the log falls idle, and every second while it does not. Between two statements nothing but the log
//! itself tells how far it reaches.

use crate::Sequence;
use crate::disk::{Disk, DiskFile};
use crate::superblock::Superblock;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Keeps the statement of the log's end up to date.
#[derive(Debug)]
pub(crate) struct TailKeeper<D: Disk> {
    shared: Arc<Tail>,
    superblock: Arc<Superblock<D::File>>,
    thread: Option<JoinHandle<()>>,
    asked: Instant,
}

#[derive(Debug, Default)]
struct Tail {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    /// The record up to which everything is durable, if that is to be stated.
    durable_upto: Option<Sequence>,
    stop: bool,
}

impl<D: Disk> TailKeeper<D> {
    /// Starts the thread, if the disk may have any.
    pub(crate) fn start(superblock: Arc<Superblock<D::File>>) -> std::io::Result<TailKeeper<D>> {
        let shared = Arc::new(Tail::default());
        let mut thread = None;
        if D::BACKGROUND {
            let (shared, superblock) = (shared.clone(), superblock.clone());
            let tail = std::thread::Builder::new().name("encke-tail".to_owned());
            thread = Some(tail.spawn(move || shared.run(&superblock))?);
        }
        Ok(TailKeeper {
            shared,
            superblock,
            thread,
            asked: Instant::now(),
        })
    }

    /// Has it stated that everything up to this record is durable.
    pub(crate) fn state(&mut self, durable_upto: Sequence) {
        self.asked = Instant::now();
        if self.thread.is_none() {
            state(&self.superblock, durable_upto);
            return;
        }
        self.shared.wanted.lock().durable_upto = Some(durable_upto);
        self.shared.changed.notify_all();
    }

    /// The same, if it was not asked for in the last [`EVERY`].
    pub(crate) fn state_from_time_to_time(&mut self, durable_upto: Sequence) {
        if self.thread.is_some() && self.asked.elapsed() >= EVERY {
            self.state(durable_upto);
        }
    }
}

impl Tail {
    fn run<F: DiskFile>(&self, superblock: &Superblock<F>) {
        let mut wanted = self.wanted.lock();
        while !wanted.stop {
            match wanted.durable_upto.take() {
                Some(durable_upto) => {
                    parking_lot::MutexGuard::unlocked(&mut wanted, || {
                        state(superblock, durable_upto);
                    });
                }
                None => self.changed.wait(&mut wanted),
            }
        }
    }
}

fn state<F: DiskFile>(superblock: &Superblock<F>, durable_upto: Sequence) {
    let stated = superblock.change(|statement| statement.reaches(durable_upto));
    if let Err(error) = stated {
        // Less is stated than is there, and the next statement writes it again.
        tracing::warn!(%error, "the superblock can't be written");
    }
}

impl<D: Disk> Drop for TailKeeper<D> {
    fn drop(&mut self) {
        self.shared.wanted.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported by its hook.
            let _ = thread.join();
        }
    }
}

/// How often the end is stated while the log is never idle.
const EVERY: Duration = Duration::from_secs(1);
