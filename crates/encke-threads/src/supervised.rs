//! The two kinds of threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

type FailureListener = Arc<dyn Fn(&str) + Send + Sync>;

/// Learns which threads fail.
static LISTENER: Mutex<Option<FailureListener>> = Mutex::new(None);

static RESTARTS: AtomicU64 = AtomicU64::new(0);

/// Calls `listener` with the name of each thread or task that fails from now on. It replaces the one before.
pub fn on_failure(listener: impl Fn(&str) + Send + Sync + 'static) {
    *LISTENER.lock() = Some(Arc::new(listener));
}

/// Reports that a thread or a task has ended, or is about to, that others still need.
pub fn report_failure(name: &str) {
    tracing::error!(
        thread = name,
        "a thread has failed, without which the server can't continue"
    );
    // Not within the lock: the listener may start or end threads.
    let listener = LISTENER.lock().clone();
    if let Some(listener) = listener {
        listener(name);
    }
}

/// How often threads of this process have begun anew.
pub fn restarts() -> u64 {
    RESTARTS.load(Ordering::Relaxed)
}

/// Starts a thread without which the process can't continue: if it panics, [`on_failure`] learns that.
///
/// # Errors
/// The system refuses a thread.
pub fn spawn_essential<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.into();
    Builder::new().name(name.clone()).spawn(move || {
        let _guard = FailureGuard::new(name);
        run()
    })
}

/// Starts a thread that calls `run` again after each panic, until it returns.
///
/// # Errors
/// The system refuses a thread.
pub fn spawn_restarting(
    name: impl Into<String>,
    mut run: impl FnMut() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let name = name.into();
    Builder::new().name(name.clone()).spawn(move || {
        // What `run` uses is its own, or stays usable after a panic: the caller has chosen this kind.
        while catch_unwind(AssertUnwindSafe(&mut run)).is_err() {
            RESTARTS.fetch_add(1, Ordering::Relaxed);
            tracing::error!(thread = name, "a thread has panicked, and starts again");
            std::thread::sleep(RESTART_PAUSE);
        }
    })
}

/// Reports a failure if the thread or the task that holds it panics.
#[derive(Debug)]
pub struct FailureGuard {
    name: String,
}

impl FailureGuard {
    /// A guard of the thread or the task with that name.
    pub fn new(name: impl Into<String>) -> FailureGuard {
        FailureGuard { name: name.into() }
    }
}

impl Drop for FailureGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            report_failure(&self.name);
        }
    }
}

/// Waits for the end of a thread, but no longer than this. `None`: it still runs; otherwise whether it ended without a panic.
pub fn wait_for_end<T>(thread: JoinHandle<T>, timeout: Duration) -> Option<bool> {
    let begin = Instant::now();
    while !thread.is_finished() {
        if begin.elapsed() >= timeout {
            return None;
        }
        std::thread::sleep(END_PAUSE);
    }
    Some(thread.join().is_ok())
}

/// Between a panic and the next attempt, so that one that fails at once does not fill the log.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Between two looks at whether a thread has ended.
const END_PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_begins_anew_after_a_panic_and_keeps_its_state() {
        let before = restarts();
        let mut calls = 0;
        let (sender, called) = mpsc::channel();
        let thread = spawn_restarting("restarting", move || {
            calls += 1;
            sender.send(calls).unwrap();
            assert_ne!(calls, 1, "the first call fails");
        });
        assert!(thread.unwrap().join().is_ok());
        assert_eq!(called.iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(restarts(), before + 1);
    }

    #[test]
    fn the_end_of_an_essential_thread_is_reported_if_it_panicked() {
        let (failed, failures) = mpsc::channel();
        let failed = Mutex::new(failed);
        on_failure(move |name| failed.lock().send(name.to_owned()).unwrap());
        let calm = spawn_essential("calm", || 7).unwrap();
        assert_eq!(calm.join().unwrap(), 7);
        let failing = spawn_essential("failing", || panic!("as the test wants")).unwrap();
        let failing: JoinHandle<()> = failing;
        assert_eq!(wait_for_end(failing, Duration::MAX), Some(false));
        assert_eq!(failures.recv().unwrap(), "failing");
        assert!(failures.try_recv().is_err());
    }
}
