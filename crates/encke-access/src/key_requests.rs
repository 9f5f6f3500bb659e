//! Asks for the keys of issuers to be fetched, by threads that are no part of this crate.

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

/// What the thread that fetches the keys of a source should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFetch {
    /// Fetch them and report the result to [`crate::Access::keys_fetched`].
    Now,
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

    /// Waits until a fetch of this source is asked for, for at most `time`; one that nothing asked for is due then. The fetch
    /// has begun when this returns.
    pub fn wait(&self, source: usize, time: Duration) -> KeyFetch {
        let mut state = self.state.lock();
        let is_idle = |state: &mut State| !state.stopped && !state.sources[source].asked;
        self.wake.wait_while_for(&mut state, is_idle, time);
        if state.stopped {
            return KeyFetch::Stop;
        }
        state.sources[source].asked = false;
        state.sources[source].running = true;
        KeyFetch::Now
    }

    /// Makes [`Self::wait`] return [`KeyFetch::Stop`], for all sources.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Asks for a fetch because of an unknown key.
    pub(crate) fn ask(&self, source: usize, now_ms: u64) -> Asked {
        let mut state = self.state.lock();
        let source = &mut state.sources[source];
        if source.asked || source.running {
            return Asked::Pending;
        }
        // A time of day that was set back says nothing of how long ago that was; without a fetch it could be hours until the next.
        let since = source
            .last_asked_ms
            .and_then(|last| now_ms.checked_sub(last));
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
    use std::time::Instant;

    #[test]
    fn unknown_keys_cause_one_fetch_a_minute() {
        let requests = KeyRequests::new(2);
        let fetches = |source| requests.wait(source, Duration::ZERO);
        // The first fetch is asked for from the beginning.
        assert_eq!(requests.ask(1, 1_000), Asked::Pending);
        assert_eq!(fetches(0), KeyFetch::Now);
        assert_eq!(fetches(1), KeyFetch::Now);
        assert_eq!(requests.ask(1, 2_000), Asked::Pending);
        requests.ended(1);
        assert_eq!(requests.ask(1, 3_000), Asked::Pending);
        assert_eq!(fetches(1), KeyFetch::Now);
        requests.ended(1);
        assert_eq!(requests.ask(1, 62_999), Asked::TooSoon);
        assert!(!requests.state.lock().sources[1].asked);
        assert_eq!(requests.ask(1, 63_000), Asked::Pending);
        // The other issuer is not delayed by it.
        requests.ended(0);
        assert_eq!(requests.ask(0, 63_001), Asked::Pending);
    }

    #[test]
    fn a_step_of_the_time_of_day_stops_no_fetches() {
        let requests = KeyRequests::new(1);
        requests.wait(0, Duration::ZERO);
        requests.ended(0);
        assert_eq!(requests.ask(0, 10_000_000), Asked::Pending);
        requests.wait(0, Duration::ZERO);
        requests.ended(0);
        let asked = |now_ms| requests.ask(0, now_ms);
        assert_eq!(asked(10_059_999), Asked::TooSoon);
        // Back by an hour: one fetch at once, and the next a minute later.
        assert_eq!(asked(6_400_000), Asked::Pending);
        requests.wait(0, Duration::ZERO);
        requests.ended(0);
        assert_eq!(asked(6_459_999), Asked::TooSoon);
        assert_eq!(asked(6_460_000), Asked::Pending);
    }

    #[test]
    fn a_wait_ends_when_its_own_source_is_asked_for() {
        let requests = KeyRequests::new(2);
        for source in 0..2 {
            assert_eq!(requests.wait(source, LONG), KeyFetch::Now);
            requests.ended(source);
        }
        let start = Instant::now();
        std::thread::scope(|threads| {
            let first = threads.spawn(|| requests.wait(0, LONG));
            let second = threads.spawn(|| requests.wait(1, LONG));
            requests.ask(1, 1_000);
            assert_eq!(second.join().unwrap(), KeyFetch::Now);
            requests.stop();
            assert_eq!(first.join().unwrap(), KeyFetch::Stop);
        });
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn a_fetch_is_due_when_the_time_is_over() {
        let requests = KeyRequests::new(1);
        requests.wait(0, Duration::ZERO);
        requests.ended(0);
        assert_eq!(requests.wait(0, Duration::from_millis(1)), KeyFetch::Now);
        assert_eq!(requests.ask(0, 1_000), Asked::Pending);
    }

    /// Longer than the test.
    const LONG: Duration = Duration::from_secs(600);
}
