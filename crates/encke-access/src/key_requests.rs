//! Asks for the keys of issuers to be fetched, by a thread that is no part of this crate.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The state of all issuers with a `jwks-url`, by the order of the configuration.
#[derive(Debug)]
pub struct KeyRequests {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    sources: Vec<SourceState>,
    stopped: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct SourceState {
    /// A fetch is asked for and has not begun.
    asked: bool,
    /// A fetch runs.
    running: bool,
    /// When an unknown key last asked, in milliseconds since 1970.
    last_asked_ms: Option<u64>,
}

/// What the fetching thread should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFetches {
    /// Fetch the keys of these sources, and report each to [`crate::Access::keys_fetched`]. Empty: the time is over.
    Fetch(Vec<usize>),
    /// End.
    Stop,
}

/// Whether an unknown key may wait for a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A fetch is asked for, or runs.
    Pending,
    /// The last unknown key asked less than [`UNKNOWN_KEY_INTERVAL_MS`] ago, and its fetch has ended.
    TooSoon,
}

impl KeyRequests {
    /// Every source waits for its first fetch.
    pub(crate) fn new(sources: usize) -> Self {
        let first = SourceState {
            asked: true,
            ..SourceState::default()
        };
        KeyRequests {
            state: Mutex::new(State {
                sources: vec![first; sources],
                stopped: false,
            }),
            wake: Condvar::new(),
        }
    }

    /// Waits until a fetch is asked for, for at most `time`. The fetches that it returns have begun.
    pub fn wait(&self, time: Duration) -> KeyFetches {
        let mut state = self.state.lock();
        let is_idle =
            |state: &mut State| !state.stopped && !state.sources.iter().any(|source| source.asked);
        self.wake.wait_while_for(&mut state, is_idle, time);
        if state.stopped {
            return KeyFetches::Stop;
        }
        let mut due = Vec::new();
        for (at, source) in state.sources.iter_mut().enumerate() {
            if std::mem::take(&mut source.asked) {
                source.running = true;
                due.push(at);
            }
        }
        KeyFetches::Fetch(due)
    }

    /// Makes [`Self::wait`] return [`KeyFetches::Stop`].
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Notes that a fetch begins which nothing asked for.
    pub fn begin(&self, source: usize) {
        let mut state = self.state.lock();
        state.sources[source].asked = false;
        state.sources[source].running = true;
    }

    /// Asks for a fetch because of an unknown key.
    pub(crate) fn ask(&self, source: usize, now_ms: u64) -> Asked {
        let mut state = self.state.lock();
        let source = &mut state.sources[source];
        if source.asked || source.running {
            return Asked::Pending;
        }
        let since = source.last_asked_ms.map(|last| now_ms.saturating_sub(last));
        if since.is_some_and(|since| since < UNKNOWN_KEY_INTERVAL_MS) {
            return Asked::TooSoon;
        }
        source.asked = true;
        source.last_asked_ms = Some(now_ms);
        self.wake.notify_all();
        Asked::Pending
    }

    pub(crate) fn ended(&self, source: usize) {
        self.state.lock().sources[source].running = false;
    }
}

/// Time between two fetches that unknown keys cause, for each issuer: what an attacker can cause by inventing keys.
pub const UNKNOWN_KEY_INTERVAL_MS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_cause_one_fetch_a_minute() {
        let requests = KeyRequests::new(2);
        // The first fetch is asked for from the beginning.
        assert_eq!(requests.ask(1, 1_000), Asked::Pending);
        assert_eq!(requests.wait(Duration::ZERO), KeyFetches::Fetch(vec![0, 1]));
        assert_eq!(requests.ask(1, 2_000), Asked::Pending);
        requests.ended(1);
        assert_eq!(requests.ask(1, 3_000), Asked::Pending);
        assert_eq!(requests.wait(Duration::ZERO), KeyFetches::Fetch(vec![1]));
        requests.ended(1);
        assert_eq!(requests.ask(1, 62_999), Asked::TooSoon);
        assert_eq!(requests.wait(Duration::ZERO), KeyFetches::Fetch(vec![]));
        assert_eq!(requests.ask(1, 63_000), Asked::Pending);
        assert_eq!(requests.wait(Duration::ZERO), KeyFetches::Fetch(vec![1]));
        // The other issuer is not delayed by it.
        requests.ended(0);
        assert_eq!(requests.ask(0, 63_001), Asked::Pending);
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let requests = KeyRequests::new(0);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| requests.wait(Duration::from_secs(600)));
            requests.stop();
            assert_eq!(waiting.join().unwrap(), KeyFetches::Stop);
        });
    }
}
