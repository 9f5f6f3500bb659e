//! Makes the file of the next segment in a thread, so that beginning a segment does not stall the writer.
//!
//! The two threads share a slot for one file, not a queue: the thread fills the slot when it is empty, the writer
//! empties it. A batch that needs several files takes them one by one.

use crate::disk::file_name::{self, PREPARED};
use crate::disk::{Disk, DiskFile};
use crate::ids::Sequence;
use crate::segments::segment::{self, NUMBER_END, Segment};
use encke_threads::spawn_essential;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A file that is ready to become a segment: its space is reserved and durable, it has no head yet.
#[derive(Debug)]
pub(crate) struct PreparedFile<F> {
    pub(crate) name: String,
    pub(crate) file: F,
    pub(crate) bytes: u64,
    pub(crate) salt: u64,
}

/// Makes a prepared file a segment. On return its head and its name are durable, and all earlier names.
pub(crate) fn begin<D: Disk>(
    disk: &D,
    prepared: PreparedFile<D::File>,
    number: (u64, u64),
    first: Sequence,
) -> io::Result<Arc<Segment<D::File>>> {
    begin_as(disk, prepared, number, first, file_name::segment(first))
}

/// [`begin`] with another name.
pub(crate) fn begin_as<D: Disk>(
    disk: &D,
    prepared: PreparedFile<D::File>,
    (log_id, number): (u64, u64),
    first: Sequence,
    name: String,
) -> io::Result<Arc<Segment<D::File>>> {
    if number >= NUMBER_END {
        return Err(io::Error::other(
            "the log has used up all numbers of segments",
        ));
    }
    prepared
        .file
        .write_at(&segment::head(number, first, prepared.salt, log_id), 0)?;
    prepared.file.sync()?;
    disk.rename(&prepared.name, &name)?;
    disk.sync_names()?;
    Ok(Arc::new(Segment {
        number,
        first,
        log_id,
        seed: segment::seed(prepared.salt),
        bytes: prepared.bytes,
        name,
        file: prepared.file,
    }))
}

/// Makes files and keeps one ready.
#[derive(Debug)]
pub(crate) struct Preparer<D: Disk> {
    shared: Arc<Shared<D>>,
    /// Files that the writer took for a batch that did not get enough of them.
    kept: Mutex<Vec<PreparedFile<D::File>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<D: Disk> {
    disk: D,
    segment_bytes: u64,
    slot: Mutex<Slot<D::File>>,
    changed: Condvar,
}

/// The place of the file that is ready.
#[derive(Debug)]
struct Slot<F> {
    ready: Option<PreparedFile<F>>,
    /// Whether to fill the slot when it is empty: not after a failure, until the next request.
    wanted: bool,
    /// Why the last file could not be made, for a writer that waits for it.
    failed: Option<io::Error>,
    made: u64,
    stop: bool,
}

impl<D: Disk> Preparer<D> {
    /// Removes prepared files of an earlier run, and begins to make the first file.
    pub(crate) fn start(disk: D, segment_bytes: u64, names: &[String]) -> io::Result<Self> {
        let is_left = |name: &&String| {
            name.ends_with(PREPARED) || name.ends_with(".new") || file_name::is_rewritten(name)
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
            Some(spawn_essential("encke-prepare", move || shared.run())?)
        } else {
            None
        };
        Ok(Preparer {
            shared,
            kept: Mutex::default(),
            thread,
        })
    }

    /// The size of the files.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.shared.segment_bytes
    }

    /// Takes `count` files, and waits until they are made. After an error, files that were made stay ready.
    pub(crate) fn take(&self, count: usize) -> io::Result<Vec<PreparedFile<D::File>>> {
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
        let name = format!("{}{PREPARED}", slot.made);
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

    fn make(&self, name: String) -> io::Result<PreparedFile<D::File>> {
        let salt = self.disk.salt()?;
        let file = self.disk.create(&name, self.segment_bytes)?;
        if let Err(error) = file.sync() {
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        Ok(PreparedFile {
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
        // A file that stays would only take space until the next open removes it.
        let kept = std::mem::take(self.kept.get_mut());
        let ready = self.shared.slot.lock().ready.take();
        for prepared in kept.into_iter().chain(ready) {
            let _ = self.shared.disk.remove(&prepared.name);
        }
    }
}
