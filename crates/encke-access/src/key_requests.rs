//! Asks for the keys of issuers to be fetched, by threads that are no part of this crate.

use std::time::Duration;

use encke_clock::SteadyTime;
use parking_lot::{Condvar, Mutex};

use crate::unknown_keys::{Unknown, UnknownKeys};

/// The state of all issuers with a `jwks-url`, by the order of the configuration.
#[derive(Debug)]
pub(crate) struct KeyRequests {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    sources: Vec<SourceState>,
    stopped: bool,
}

#[derive(Debug, Default)]
struct SourceState {
    /// A fetch is asked for and has not begun.
    asked: bool,
    /// A fetch runs.
    running: bool,
    unknown: UnknownKeys,
}

/// What the thread that fetches the keys of a source should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFetch {
    /// Fetch them and report the result to [`crate::Access::keys_fetched`].
    Now,
    /// End.
    Stop,
}

/// What becomes of a token whose key is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It may wait for a fetch, which is asked for or runs.
    Pending,
    /// It is refused for now. The keys can be fetched after this many seconds.
    Later {
        /// At least 1.
        retry_s: u64,
    },
    /// A fetch has looked for the key in vain.
    Missing,
}

impl KeyRequests {
    /// Every source waits for its first fetch.
    pub(crate) fn new(sources: usize) -> Self {
        let first = || SourceState {
            asked: true,
            ..SourceState::default()
        };
        KeyRequests {
            state: Mutex::new(State {
                sources: std::iter::repeat_with(first).take(sources).collect(),
                stopped: false,
            }),
            wake: Condvar::new(),
        }
    }

    /// Waits until a fetch of this source is asked for, for at most `time`; one that nothing asked for is due then. The fetch
    /// has begun when this returns.
    pub(crate) fn wait(&self, source: usize, time: Duration) -> KeyFetch {
        let mut state = self.state.lock();
        let is_idle = |state: &mut State| !state.stopped && !state.sources[source].asked;
        self.wake.wait_while_for(&mut state, is_idle, time);
        if state.stopped {
            return KeyFetch::Stop;
        }
        let source = &mut state.sources[source];
        source.asked = false;
        source.running = true;
        source.unknown.fetch_began();
        KeyFetch::Now
    }

    /// Makes [`Self::wait`] return [`KeyFetch::Stop`], for all sources.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Asks for a fetch because of an unknown key. A token without the name of a key has an empty one.
    pub(crate) fn ask(&self, source: usize, kid: &str, now: SteadyTime) -> Asked {
        let mut state = self.state.lock();
        let source = &mut state.sources[source];
        let is_due = source.asked || source.running;
        match source.unknown.ask(kid, is_due, now) {
            Unknown::Missing => Asked::Missing,
            Unknown::Wait { time } => Asked::Later {
                retry_s: time.as_millis().div_ceil(1_000) as u64,
            },
            Unknown::Fetch => {
                if !is_due {
                    source.asked = true;
                    self.wake.notify_all();
                }
                Asked::Pending
            }
        }
    }

    /// The fetch that runs has ended.
    pub(crate) fn ended(&self, source: usize, went_well: bool) {
        let source = &mut self.state.lock().sources[source];
        source.running = false;
        source.unknown.fetch_ended(went_well);
    }

    /// Unknown keys of all sources that are remembered.
    pub(crate) fn unknown_len(&self) -> usize {
        let state = self.state.lock();
        state.sources.iter().map(|one| one.unknown.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::unknown_keys::{FETCH_INTERVAL, FETCHES_AT_ONCE};

    #[test]
    fn each_source_fetches_for_its_own_unknown_keys() {
        let requests = KeyRequests::new(2);
        let fetches = |source| requests.wait(source, Duration::ZERO);
        // The first fetch is asked for from the beginning.
        assert_eq!(
            requests.ask(1, "a", SteadyTime::from_ms(1_000)),
            Asked::Pending
        );
        for source in 0..2 {
            assert_eq!(fetches(source), KeyFetch::Now);
            assert_eq!(
                requests.ask(source, "b", SteadyTime::from_ms(2_000)),
                Asked::Pending
            );
            requests.ended(source, true);
        }
        assert_eq!(
            requests.ask(1, "a", SteadyTime::from_ms(3_000)),
            Asked::Missing
        );
        for number in 0..FETCHES_AT_ONCE {
            assert_eq!(
                requests.ask(1, &number.to_string(), SteadyTime::from_ms(3_000)),
                Asked::Pending
            );
            assert_eq!(fetches(1), KeyFetch::Now);
            requests.ended(1, true);
        }
        let retry_s = FETCH_INTERVAL.as_secs();
        assert_eq!(
            requests.ask(1, "c", SteadyTime::from_ms(3_000)),
            Asked::Later { retry_s }
        );
        assert_eq!(
            requests.ask(1, "c", SteadyTime::from_ms(3_001)),
            Asked::Later { retry_s }
        );
        assert!(!requests.state.lock().sources[1].asked);
        // The other issuer is not delayed by it.
        assert_eq!(
            requests.ask(0, "c", SteadyTime::from_ms(3_000)),
            Asked::Pending
        );
        // `c` is remembered for the one that fetches.
        assert_eq!(requests.unknown_len(), 7);
    }

    #[test]
    fn a_wait_ends_when_its_own_source_is_asked_for() {
        let requests = KeyRequests::new(2);
        for source in 0..2 {
            assert_eq!(requests.wait(source, LONG), KeyFetch::Now);
            requests.ended(source, true);
        }
        let start = Instant::now();
        std::thread::scope(|threads| {
            let first = threads.spawn(|| requests.wait(0, LONG));
            let second = threads.spawn(|| requests.wait(1, LONG));
            requests.ask(1, "a", SteadyTime::from_ms(1_000));
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
        requests.ended(0, true);
        assert_eq!(requests.wait(0, Duration::from_millis(1)), KeyFetch::Now);
        assert_eq!(
            requests.ask(0, "a", SteadyTime::from_ms(1_000)),
            Asked::Pending
        );
    }

    /// Longer than the test.
    const LONG: Duration = Duration::from_secs(600);
}
