//! How long threads ran and how long they waited for a processor, from `/proc/PID/task/TID/schedstat`.
//!
//! The kernel adds a wait when the thread gets its processor, so the difference between two moments includes the whole of a
//! wait that ended between them. The time that a halted virtual processor takes to resume is part of a wait.

use std::fs::File;
use std::ops::{AddAssign, Sub};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::BenchError;

/// The times of some threads together, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// On a processor.
    pub(super) run_ns: u64,
    /// Able to run, without a processor.
    pub(super) wait_ns: u64,
}

/// Threads whose times are read. The files stay open, because they are read with each ping.
#[derive(Debug)]
pub(super) struct Threads {
    files: Vec<File>,
}

impl Threads {
    /// The thread that calls this.
    pub(super) fn this_one() -> Result<Self, BenchError> {
        let files = vec![open(Path::new("/proc/thread-self"))?];
        Ok(Self { files })
    }

    /// The threads of a process whose names begin so.
    pub(super) fn named(pid: u32, prefix: &str) -> Result<Self, BenchError> {
        let tasks = Path::new("/proc").join(pid.to_string()).join("task");
        let mut files = Vec::new();
        for task in std::fs::read_dir(&tasks).map_err(BenchError::file("read", &tasks))? {
            let task = task.map_err(BenchError::file("read", &tasks))?.path();
            // A thread that has ended meanwhile has no name.
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            if name.starts_with(prefix) {
                files.push(open(&task)?);
            }
        }
        Ok(Self { files })
    }

    /// The times of all of them since they began, added up.
    pub(super) fn times(&self) -> Times {
        let mut times = Times::default();
        for thread in 0..self.files.len() {
            times += self.times_of(thread);
        }
        times
    }

    /// The times of one of them; none once it has ended.
    pub(super) fn times_of(&self, thread: usize) -> Times {
        self.files.get(thread).and_then(read).unwrap_or_default()
    }

    /// The thread that runs most in `work`.
    pub(super) fn busiest<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<usize, E> {
        let all = 0..self.files.len();
        let before: Vec<_> = all.clone().map(|thread| self.times_of(thread)).collect();
        work()?;
        let ran_ns = |&thread: &usize| (self.times_of(thread) - before[thread]).run_ns;
        Ok(all.max_by_key(ran_ns).unwrap_or(0))
    }
}

fn open(task: &Path) -> Result<File, BenchError> {
    let path = task.join("schedstat");
    File::open(&path).map_err(BenchError::file("open", &path))
}

/// `None` once the thread has ended.
fn read(file: &File) -> Option<Times> {
    let mut block = [0; 64];
    let length = file.read_at(&mut block, 0).ok()?;
    let text = std::str::from_utf8(&block[..length]).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    Some(Times {
        run_ns: numbers.next()?.ok()?,
        wait_ns: numbers.next()?.ok()?,
    })
}

impl Times {
    /// Each time minus this many nanoseconds, and at least zero.
    pub(super) fn above(self, ns: u64) -> Self {
        self - Self {
            run_ns: ns,
            wait_ns: ns,
        }
    }
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.run_ns += other.run_ns;
        self.wait_ns += other.wait_ns;
    }
}

impl Sub for Times {
    type Output = Self;

    /// From an earlier moment to this one.
    fn sub(self, earlier: Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() -> Result<(), BenchError> {
        let this = Threads::this_one()?;
        let begun = this.times().run_ns;
        while this.times().run_ns == begun {}
        Ok(())
    }

    #[test]
    fn the_thread_that_works_is_found_among_all() {
        let all = Threads::named(std::process::id(), "").unwrap();
        assert!(!all.files.is_empty());
        let before = all.times();
        spin().unwrap();
        assert!((all.times() - before).run_ns > 0);
        let busiest = all.busiest(spin).unwrap();
        let this = Threads::this_one().unwrap();
        let runs = [this.times(), all.times_of(busiest), this.times()].map(|times| times.run_ns);
        assert!(runs.is_sorted(), "{runs:?}: this thread spun");
        let none = Threads::named(std::process::id(), "no such thread").unwrap();
        assert_eq!(none.times_of(none.busiest(spin).unwrap()), Times::default());
    }
}
