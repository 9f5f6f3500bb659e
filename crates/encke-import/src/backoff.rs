//! Pauses between attempts: each twice as long as the last, with a random part, until patience ends.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::copy_failure::CopyFailure;

/// The attempts at one thing.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// How long to try without progress.
    patience: Duration,
    /// When the first attempt of those without progress failed.
    failing_since: Option<Instant>,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(patience: Duration) -> Self {
        Backoff {
            patience,
            failing_since: None,
            failures: 0,
        }
    }

    /// An attempt brought something.
    pub(crate) fn reset(&mut self) {
        *self = Backoff::new(self.patience);
    }

    /// Waits before the next attempt, or returns the error if there is none: because another attempt would not help, or because
    /// patience has ended.
    pub(crate) fn wait(&mut self, error: CopyFailure) -> Result<(), CopyFailure> {
        match self.pause(error, Instant::now()) {
            Ok(pause) => {
                std::thread::sleep(pause);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn pause(&mut self, error: CopyFailure, now: Instant) -> Result<Duration, CopyFailure> {
        if !error.is_transient() {
            return Err(error);
        }
        let since = *self.failing_since.get_or_insert(now);
        let after = now.saturating_duration_since(since);
        if after >= self.patience {
            let last = Box::new(error);
            return Err(CopyFailure::GaveUp { after, last });
        }
        let doubled = FIRST.saturating_mul(1 << self.failures.min(DOUBLINGS_MAX));
        self.failures += 1;
        let random = RandomState::new().hash_one(self.failures) % 512;
        let own = doubled.mul_f64(0.5 + random as f64 / 1_024.0);
        let asked = error.retry_after().unwrap_or_default();
        Ok(own.max(asked).min(LONGEST))
    }
}

/// The pause after the first failure, before its random part.
const FIRST: Duration = Duration::from_millis(100);

/// Pauses are doubled so often: to 25.6 s.
const DOUBLINGS_MAX: u32 = 8;

/// The longest pause, also if a server asks for more.
const LONGEST: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, retry_after_s: Option<u64>) -> CopyFailure {
        CopyFailure::Refused {
            method: "GET",
            url: "http://a/b".into(),
            status,
            detail: String::new(),
            retry_after: retry_after_s.map(Duration::from_secs),
        }
    }

    #[test]
    fn pauses_grow_up_to_a_bound_until_patience_ends() {
        let begin = Instant::now();
        let patience = Duration::from_secs(600);
        let mut backoff = Backoff::new(patience);
        let mut now = begin;
        for attempt in 0..20_u32 {
            let pause = backoff.pause(refused(503, None), now).unwrap();
            let doubled = FIRST * (1 << attempt.min(8));
            assert!(pause >= doubled / 2 && pause <= doubled, "{pause:?}");
            now += pause;
        }
        let error = backoff.pause(refused(503, None), begin + patience);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("given up after 600s"), "{text}");
        assert!(text.contains("got 503"), "{text}");
        backoff.reset();
        let again = backoff.pause(refused(503, None), begin + patience * 2);
        assert!(again.unwrap() <= FIRST);
    }

    #[test]
    fn a_server_that_asks_for_time_gets_it_within_a_bound() {
        let mut backoff = Backoff::new(Duration::from_secs(600));
        let now = Instant::now();
        let pause = backoff.pause(refused(429, Some(7)), now).unwrap();
        assert_eq!(pause, Duration::from_secs(7));
        let pause = backoff.pause(refused(429, Some(86_400)), now).unwrap();
        assert_eq!(pause, LONGEST);
    }

    #[test]
    fn what_will_not_succeed_is_not_tried_again() {
        for status in [400, 401, 403, 404, 409, 410, 412, 413] {
            let mut backoff = Backoff::new(Duration::from_secs(600));
            let error = backoff.pause(refused(status, None), Instant::now());
            assert!(
                matches!(error, Err(CopyFailure::Refused { .. })),
                "{status}"
            );
        }
    }
}
