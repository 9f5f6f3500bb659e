//! Waits until another thread sleeps.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The state of a thread, from /proc.
pub(crate) struct Task(PathBuf);

impl Task {
    /// The calling thread.
    pub(crate) fn current() -> Task {
        let task = std::fs::read_link("/proc/thread-self").unwrap();
        Task(PathBuf::from("/proc").join(task).join("stat"))
    }

    /// Waits until the thread sleeps.
    pub(crate) fn wait_until_asleep(&self) {
        let begun = Instant::now();
        while !std::fs::read_to_string(&self.0).unwrap().contains(") S ") {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never sleeps");
            thread::yield_now();
        }
    }
}

/// Starts a thread that calls `wait`, and returns when it sleeps there.
pub(crate) fn asleep<T: Send + 'static>(
    wait: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let (tasks, started): (_, Receiver<Task>) = channel();
    let thread = thread::spawn(move || {
        tasks.send(Task::current()).unwrap();
        wait()
    });
    started.recv().unwrap().wait_until_asleep();
    thread
}
