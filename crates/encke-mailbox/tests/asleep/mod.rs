//! Waits until another thread sleeps.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// The state of a thread, from /proc.
pub(crate) struct Task(PathBuf);

impl Task {
    /// The calling thread.
    pub(crate) fn current() -> Task {
        let task = std::fs::read_link("/proc/thread-self").expect("Linux has it");
        Task(PathBuf::from("/proc").join(task).join("stat"))
    }

    /// Waits until the thread sleeps.
    pub(crate) fn wait_until_asleep(&self) {
        let begun = Instant::now();
        while !self.state().contains(") S ") {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never sleeps");
            thread::yield_now();
        }
    }

    fn state(&self) -> String {
        std::fs::read_to_string(&self.0).expect("the thread runs")
    }
}
