//! Ends all tests when one of them does not end, and names it: a run that is cut off from outside says nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// How long a test may take, beside other builds too. The longest needs a tenth of it.
const LONGEST: Duration = Duration::from_secs(600);

/// A thread that uses the rig.
struct User {
    test: String,
    begin: Instant,
    /// What the servers write that it started.
    logs: Mutex<Vec<PathBuf>>,
}

static USERS: Mutex<Vec<Arc<User>>> = Mutex::new(Vec::new());

thread_local! {
    /// The harness runs each test on a thread of its own, and the end of the thread is that of the test.
    static USER: Entry = Entry::new();
}

struct Entry(Arc<User>);

impl Entry {
    fn new() -> Entry {
        static WATCHES: Once = Once::new();
        WATCHES.call_once(|| drop(std::thread::spawn(watch)));
        let user = Arc::new(User {
            test: std::thread::current().name().unwrap_or("a thread").into(),
            begin: Instant::now(),
            logs: Mutex::default(),
        });
        locked(&USERS).push(Arc::clone(&user));
        Entry(user)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        locked(&USERS).retain(|user| !Arc::ptr_eq(user, &self.0));
    }
}

/// From now on the test of this thread has a bounded time.
pub(crate) fn bound() {
    USER.with(|_| ());
}

/// Has the log of a server printed if the test of this thread does not end.
pub(crate) fn bound_with(log: &Path) {
    USER.with(|entry| locked(&entry.0.logs).push(log.to_owned()));
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let users = locked(&USERS).clone();
        let Some(user) = users.iter().find(|user| user.begin.elapsed() > LONGEST) else {
            continue;
        };
        eprintln!("\n{} does not end: all tests end here", user.test);
        for log in locked(&user.logs).iter() {
            // The servers that are gone have taken theirs with them.
            if let Ok(text) = std::fs::read_to_string(log) {
                eprintln!("the log of a server of it:\n{text}");
            }
        }
        std::process::exit(1);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
