//! Jobs whose last attempt failed, and that wait some time before the next one.

use std::collections::BTreeMap;
use std::time::Duration;

use encke_clock::{Now, SteadyTime};

use crate::record::{JournalEntry, WaitingJob};
use crate::request::JobId;
use crate::settings::PoolSettings;

/// The delayed jobs of a pool, by their numbers, each with the time from which it may be dispatched.
#[derive(Debug, Default)]
pub(crate) struct DelayedJobs(BTreeMap<JobId, (WaitingJob, SteadyTime)>);

impl DelayedJobs {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn add(&mut self, job: WaitingJob, until: SteadyTime) {
        self.0.insert(job.id, (job, until));
    }

    /// Takes a job whose time has come.
    pub(crate) fn take(&mut self, id: JobId, now: SteadyTime) -> Option<WaitingJob> {
        let (_, until) = self.0.get(&id)?;
        if *until > now {
            return None;
        }
        self.0.remove(&id).map(|(job, _)| job)
    }

    pub(crate) fn find(&self, id: JobId) -> Option<(&WaitingJob, SteadyTime)> {
        self.0.get(&id).map(|(job, until)| (job, *until))
    }

    pub(crate) fn jobs(&self) -> impl Iterator<Item = &WaitingJob> {
        self.0.values().map(|(job, _)| job)
    }

    /// The delays as entries of the journal, for a snapshot.
    pub(crate) fn entries(&self, now: Now) -> Vec<JournalEntry> {
        let entry =
            |(id, (job, until)): (&JobId, &(WaitingJob, SteadyTime))| JournalEntry::Delayed {
                id: *id,
                attempt: job.attempts,
                until: now.wall_at(*until),
            };
        self.0.iter().map(entry).collect()
    }
}

/// How long a job waits after a failed attempt: `retry_ms` after the first one, twice as long after each further
/// one, at most `retry_ms_max`. Jitter takes up to half of it off, so that jobs that failed together do not return together.
pub(crate) fn retry_delay(settings: &PoolSettings, id: JobId, attempt: u16) -> Duration {
    let doublings = u32::from(attempt.saturating_sub(1)).min(32);
    let full = settings.retry_ms.saturating_mul(1 << doublings);
    let full = full.min(settings.retry_ms_max);
    let mixed = (id ^ u64::from(attempt) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Duration::from_millis(full - mixed % (full / 2 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> PoolSettings {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn delays_double_up_to_their_maximum() {
        let settings = settings(r#"{"type":"claim","retry_ms":1000,"retry_ms_max":10000}"#);
        let bounds = [
            (1, 1_000),
            (2, 2_000),
            (3, 4_000),
            (4, 8_000),
            (5, 10_000),
            (1_000, 10_000),
        ];
        for (attempt, full) in bounds {
            let delays: Vec<u128> = (0..1_000)
                .map(|id| retry_delay(&settings, id, attempt).as_millis())
                .collect();
            let (least, most) = (delays.iter().min(), delays.iter().max());
            assert!(least.is_some_and(|least| (full / 2..full * 6 / 10).contains(least)));
            assert!(most.is_some_and(|most| (full * 9 / 10..=full).contains(most)));
        }
    }

    #[test]
    fn a_pool_may_retry_at_once() {
        let settings = settings(r#"{"type":"claim","retry_ms":0}"#);
        assert_eq!(retry_delay(&settings, 7, 3), Duration::ZERO);
    }
}
