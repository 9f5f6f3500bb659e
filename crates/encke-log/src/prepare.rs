//! The next segment's file is made beside the writer, so that rolling over stalls nobody.

use crate::disk::{Disk, DiskFile};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
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
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<D: Disk> {
    disk: D,
    segment_bytes: u64,
    state: Mutex<State<D::File>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<F> {
    ready: VecDeque<Prepared<F>>,
    /// How many should be ready.
    wanted: usize,
    /// Why the last one could not be made. No other is tried until one is asked for again.
    failed: Option<io::Error>,
    made: u64,
    stop: bool,
}

impl<D: Disk> Preparer<D> {
    /// Removes what an earlier run left prepared, and begins to make the first file.
    pub(crate) fn start(disk: D, segment_bytes: u64, names: &[String]) -> io::Result<Self> {
        for name in names.iter().filter(|name| name.ends_with(SUFFIX)) {
            disk.remove(name)?;
        }
        let shared = Arc::new(Shared {
            disk,
            segment_bytes,
            state: Mutex::new(State {
                ready: VecDeque::new(),
                wanted: 1,
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
        Ok(Preparer { shared, thread })
    }

    /// How large the files are.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.shared.segment_bytes
    }

    /// Takes `count` files, waiting until they are made, or says why there can't be so many; those that were made stay
    /// ready then.
    pub(crate) fn take(&self, count: usize) -> io::Result<Vec<Prepared<D::File>>> {
        let mut state = self.shared.state.lock();
        state.failed = None;
        state.wanted = count;
        while state.ready.len() < count {
            if self.thread.is_some() {
                self.shared.changed.notify_all();
                self.shared.changed.wait(&mut state);
            } else {
                self.shared.make_one(&mut state);
            }
            if let (true, Some(error)) = (state.ready.len() < count, state.failed.take()) {
                state.wanted = 0;
                return Err(error);
            }
        }
        let taken = state.ready.drain(..count).collect();
        state.wanted = 1;
        self.shared.changed.notify_all();
        Ok(taken)
    }
}

impl<D: Disk> Shared<D> {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stop {
            if state.failed.is_some() || state.ready.len() >= state.wanted {
                self.changed.wait(&mut state);
            } else {
                self.make_one(&mut state);
            }
        }
    }

    fn make_one(&self, state: &mut parking_lot::MutexGuard<'_, State<D::File>>) {
        state.made += 1;
        let name = format!("{}{SUFFIX}", state.made);
        let made = parking_lot::MutexGuard::unlocked(state, || self.make(name));
        match made {
            Ok(prepared) => state.ready.push_back(prepared),
            Err(error) => state.failed = Some(error),
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
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported by its hook.
            let _ = thread.join();
        }
        // What is ready would only take space until the next open removes it.
        for prepared in self.shared.state.lock().ready.drain(..) {
            let _ = self.shared.disk.remove(&prepared.name);
        }
    }
}

/// What the name of a file that is no segment yet ends in.
pub(crate) const SUFFIX: &str = ".prepared";
