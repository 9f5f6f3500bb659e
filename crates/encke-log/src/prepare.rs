//! The next segment's file is made beside the writer, so that rolling over stalls nobody.
//!
//! What lies between the two threads is a slot for one file and no queue: the thread fills it when it is empty, the writer
//! empties it, and nothing else ever waits there. A batch that needs several files takes them out one by one.

use crate::disk::{Disk, DiskFile};
use crate::remake;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A file that is ready to become a segment: its space is reserved and durable, it has no head yet.
#[derive(Debug)]
pub(crate) struct Prepared<F> {
    pub(crate) name: String,
    pub(crate) file: F,
    pub(crate) bytes: u64,
    pub(crate) salt: u64,
}

/// Makes files and keeps one ready.
#[derive(Debug)]
pub(crate) struct Preparer<D: Disk> {
    shared: Arc<Shared<D>>,
    /// What the writer took out of the slot for a batch for which there were not enough in the end; its own.
    kept: Mutex<Vec<Prepared<D::File>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<D: Disk> {
    disk: D,
    segment_bytes: u64,
    slot: Mutex<Slot<D::File>>,
    changed: Condvar,
}

/// Where the one file that is ready lies.
#[derive(Debug)]
struct Slot<F> {
    ready: Option<Prepared<F>>,
    /// Whether it should be filled when it is empty: not after a failure, until a file is asked for again.
    wanted: bool,
    /// Why the last file could not be made, for the writer that waits for it.
    failed: Option<io::Error>,
    made: u64,
    stop: bool,
}

impl<D: Disk> Preparer<D> {
    /// Removes what an earlier run left prepared, and begins to make the first file.
    pub(crate) fn start(disk: D, segment_bytes: u64, names: &[String]) -> io::Result<Self> {
        let is_left = |name: &&String| {
            name.ends_with(SUFFIX) || name.ends_with(".new") || remake::is_remade(name)
        };
        for name in names.iter().filter(is_left) {
            disk.remove(name)?;
        }
        let shared = Arc::new(Shared {
            disk,
            segment_bytes,
            slot: Mutex::new(Slot {
                ready: None,
                wanted: true,
                failed: None,
                made: 0,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let thread = if D::BACKGROUND {
            let shared = shared.clone();
            let prepare = std::thread::Builder::new().name("encke-prepare".to_owned());
            Some(prepare.spawn(move || shared.run())?)
        } else {
            None
        };
        Ok(Preparer {
            shared,
            kept: Mutex::default(),
            thread,
        })
    }

    /// How large the files are.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.shared.segment_bytes
    }

    /// Takes `count` files, waiting until they are made, or says why there can't be so many; those that were made stay
    /// ready then.
    pub(crate) fn take(&self, count: usize) -> io::Result<Vec<Prepared<D::File>>> {
        let mut kept = self.kept.lock();
        let mut slot = self.shared.slot.lock();
        slot.failed = None;
        while kept.len() < count {
            if let Some(prepared) = slot.ready.take() {
                kept.push(prepared);
            } else if let Some(error) = slot.failed.take() {
                return Err(error);
            } else if self.thread.is_some() {
                slot.wanted = true;
                self.shared.changed.notify_all();
                self.shared.changed.wait(&mut slot);
            } else {
                self.shared.fill(&mut slot);
            }
        }
        slot.wanted = true;
        self.shared.changed.notify_all();
        Ok(kept.drain(..count).collect())
    }
}

impl<D: Disk> Shared<D> {
    fn run(&self) {
        let mut slot = self.slot.lock();
        while !slot.stop {
            if slot.wanted && slot.ready.is_none() {
                self.fill(&mut slot);
            } else {
                self.changed.wait(&mut slot);
            }
        }
    }

    fn fill(&self, slot: &mut MutexGuard<'_, Slot<D::File>>) {
        slot.made += 1;
        let name = format!("{}{SUFFIX}", slot.made);
        let made = MutexGuard::unlocked(slot, || self.make(name));
        match made {
            Ok(prepared) => slot.ready = Some(prepared),
            Err(error) => {
                slot.failed = Some(error);
                slot.wanted = false;
            }
        }
        self.changed.notify_all();
    }

    fn make(&self, name: String) -> io::Result<Prepared<D::File>> {
        let salt = self.disk.salt()?;
        let file = self.disk.create(&name, self.segment_bytes)?;
        if let Err(error) = file.sync() {
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        Ok(Prepared {
            name,
            file,
            bytes: self.segment_bytes,
            salt,
        })
    }
}

impl<D: Disk> Drop for Preparer<D> {
    fn drop(&mut self) {
        self.shared.slot.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported by its hook.
            let _ = thread.join();
        }
        // What is ready would only take space until the next open removes it.
        let kept = std::mem::take(self.kept.get_mut());
        let ready = self.shared.slot.lock().ready.take();
        for prepared in kept.into_iter().chain(ready) {
            let _ = self.shared.disk.remove(&prepared.name);
        }
    }
}

/// What the name of a file that is no segment yet ends in.
pub(crate) const SUFFIX: &str = ".prepared";
