//! States the end of the log in the superblock, in the background: the record up to which everything is durable.
//!
//! The writer requests a statement when the log becomes idle, and every second under load. A statement costs two writes and two
//! syncs, so a log that becomes idle after each of many single records has one statement per [`SPACING`]. Between two statements
//! only the segments themselves show the end of the log.

use crate::disk::{Disk, DiskFile};
use crate::ids::Sequence;
use crate::superblock::Superblock;
use encke_threads::spawn_essential;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Keeps the statement of the log's end up to date.
#[derive(Debug)]
pub(crate) struct SuperblockUpdater<D: Disk> {
    shared: Arc<Tail>,
    superblock: Arc<Superblock<D::File>>,
    thread: Option<JoinHandle<()>>,
    last_request: Instant,
}

#[derive(Debug, Default)]
struct Tail {
    request: Mutex<Request>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Request {
    /// The record up to which everything is durable, if a statement is requested.
    durable_upto: Option<Sequence>,
    stop: bool,
}

impl<D: Disk> SuperblockUpdater<D> {
    /// Starts the thread, if the disk allows threads.
    pub(crate) fn start(
        superblock: Arc<Superblock<D::File>>,
    ) -> std::io::Result<SuperblockUpdater<D>> {
        let shared = Arc::new(Tail::default());
        let mut thread = None;
        if D::BACKGROUND {
            let (shared, superblock) = (shared.clone(), superblock.clone());
            let tail = spawn_essential("encke-tail", move || shared.run(&superblock))?;
            thread = Some(tail);
        }
        Ok(SuperblockUpdater {
            shared,
            superblock,
            thread,
            last_request: Instant::now(),
        })
    }

    /// Requests a statement that everything up to this record is durable.
    pub(crate) fn state(&mut self, durable_upto: Sequence) {
        self.last_request = Instant::now();
        if self.thread.is_none() {
            state(&self.superblock, durable_upto);
            return;
        }
        self.shared.request.lock().durable_upto = Some(durable_upto);
        self.shared.changed.notify_all();
    }

    /// [`SuperblockUpdater::state`], unless a statement was requested within the last [`INTERVAL`].
    pub(crate) fn state_periodically(&mut self, durable_upto: Sequence) {
        if self.thread.is_some() && self.last_request.elapsed() >= INTERVAL {
            self.state(durable_upto);
        }
    }
}

impl Tail {
    fn run<F: DiskFile>(&self, superblock: &Superblock<F>) {
        let mut next_at = Instant::now();
        let mut request = self.request.lock();
        while !request.stop {
            if request.durable_upto.is_none() {
                self.changed.wait(&mut request);
            } else if Instant::now() < next_at {
                self.changed.wait_until(&mut request, next_at);
            } else if let Some(durable_upto) = request.durable_upto.take() {
                parking_lot::MutexGuard::unlocked(&mut request, || state(superblock, durable_upto));
                next_at = Instant::now() + SPACING;
            }
        }
    }
}

fn state<F: DiskFile>(superblock: &Superblock<F>, durable_upto: Sequence) {
    let stated = superblock.change(|statement| statement.note_durable(durable_upto));
    if let Err(error) = stated {
        // The statement is too low but correct, and the next one is written in full.
        tracing::warn!(%error, "the superblock can't be written");
    }
}

impl<D: Disk> Drop for SuperblockUpdater<D> {
    fn drop(&mut self) {
        self.shared.request.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported by its hook.
            let _ = thread.join();
        }
    }
}

/// The interval of statements under load.
const INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two statements that are requested. The last request of that time is stated after it.
const SPACING: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::files::Files;
    use crate::superblock::Superblocks;
    use crate::superblock::statement::Statement;
    use std::collections::BTreeSet;

    #[test]
    fn requests_close_to_each_other_are_stated_together() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Files::lock(directory.path()).unwrap();
        let written = || Superblocks::read(&disk, &BTreeSet::new()).unwrap();
        let superblock = Superblock::write(&disk, written(), Statement::default()).unwrap();
        let before = written().generation();
        let began = Instant::now();
        let mut updater = SuperblockUpdater::<Files>::start(Arc::new(superblock)).unwrap();
        for durable_upto in 1..=100 {
            updater.state(durable_upto);
            std::thread::sleep(Duration::from_millis(1));
        }
        while updater.superblock.statement().durable_upto < 100 {
            assert!(began.elapsed() < Duration::from_secs(60), "not stated");
            std::thread::sleep(Duration::from_millis(5));
        }
        let took = began.elapsed();
        drop(updater);
        assert_eq!(written().statement().unwrap().durable_upto, 100);
        let copies = written().generation() - before;
        let allowed = 2 * (took.div_duration_f64(SPACING) as u64 + 1);
        assert!(copies <= allowed, "{copies} copies in {took:?}");
    }
}
