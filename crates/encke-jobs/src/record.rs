//! The records of the pools' streams.

use std::collections::VecDeque;

use encke_clock::{Now, SteadySeconds, WallSeconds, WallTime};
use serde::{Deserialize, Serialize};

use crate::request::{JobId, Payload};
use crate::settings::SettingsChange;
use crate::token::PoolKey;

/// The stream that names all pools.
pub(crate) const REGISTRY: &str = "\u{1}pools";

/// The name of a segment of a pool's journal. It begins with a control character, so that no client can use it.
pub(crate) fn segment_name(pool: &str, no: u64, segment: u32) -> String {
    format!("\u{1}pool/{pool}/{no}/{segment}")
}

/// A record of the registry.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RegistryRecord<'a> {
    /// A pool is being created; the record's sequence is the pool's number.
    Made {
        /// Its name.
        name: &'a str,
    },
    /// A segment of a pool's journal becomes current.
    Segment { no: u64, segment: u32 },
    /// The pool is removed.
    Gone { no: u64 },
}

/// A record of a pool's journal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JournalRecord<'a> {
    /// The first record of a segment of an earlier version: the pool's state, or the first part of it.
    Begin(PoolSnapshot),
    /// A job. Its content follows.
    Post {
        selector: u32,
        posted: WallSeconds,
        #[serde(borrow)]
        key: Option<&'a str>,
        content_type: &'a str,
    },
    /// Decisions on jobs, in order.
    Batch(Vec<JournalEntry>),
    /// A further part of the state that begins a segment.
    More(CarriedJobs),
    /// As [`JournalRecord::Begin`], which earlier versions have written, with the key of the pool's tokens.
    Start(PoolSnapshot, PoolKey),
    /// Settings have changed: a [`SettingsChange`] as JSON.
    Changed(&'a str),
}

/// Jobs that earlier segments leave, or a part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CarriedJobs {
    pub(crate) waiting: Vec<WaitingJob<WallSeconds>>,
    pub(crate) running: Vec<LeasedJob>,
    /// Finished jobs: their attempts, and whether they are dead.
    pub(crate) finished: Vec<(JobId, u16, bool)>,
}

/// A decision on a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JournalEntry {
    /// A worker gets it.
    Leased {
        id: JobId,
        attempt: u16,
        worker: Box<str>,
        deadline: WallTime,
    },
    /// The worker gets more time.
    Extended {
        id: JobId,
        attempt: u16,
        deadline: WallTime,
    },
    /// The attempt failed, or was not sent and does not count; the job waits again. `attempt` counts the attempts so far.
    Back { id: JobId, attempt: u16 },
    /// It is done.
    Done { id: JobId, attempt: u16 },
    /// The last attempt failed.
    Dead { id: JobId, attempt: u16 },
    /// The attempt failed; the job waits again, and is not dispatched before this time.
    Delayed {
        id: JobId,
        attempt: u16,
        until: WallTime,
    },
}

/// A pool without the content of its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolSnapshot {
    pub(crate) settings: String,
    pub(crate) counts: JobCounts,
    /// The segments that hold the content of unfinished jobs, and the first record of each.
    pub(crate) segments: Vec<(u32, u64)>,
    pub(crate) jobs: CarriedJobs,
}

/// A pool's counts since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobCounts {
    pub(crate) done: u64,
    pub(crate) retried: u64,
    pub(crate) dead: u64,
}

/// A waiting job: in memory with the time of the steady clock, in the journal with the time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaitingJob<Posted = SteadySeconds> {
    pub(crate) id: JobId,
    /// The slot, or the checksum of the key.
    pub(crate) selector: u32,
    /// When it was posted.
    pub(crate) posted: Posted,
    pub(crate) bytes: u32,
    pub(crate) attempts: u16,
}

const _: () = assert!(size_of::<WaitingJob>() <= 24);

impl WaitingJob {
    /// The job as it is in the journal.
    pub(crate) fn stored(&self, now: Now) -> WaitingJob<WallSeconds> {
        self.posted_at(now.wall_at(self.posted.start()).in_seconds())
    }
}

impl WaitingJob<WallSeconds> {
    /// The job as it is in memory.
    pub(crate) fn restored(&self, now: Now) -> WaitingJob {
        self.posted_at(now.steady_at(self.posted.start()).in_seconds())
    }
}

impl<Posted> WaitingJob<Posted> {
    fn posted_at<Other>(&self, posted: Other) -> WaitingJob<Other> {
        WaitingJob {
            id: self.id,
            selector: self.selector,
            posted,
            bytes: self.bytes,
            attempts: self.attempts,
        }
    }
}

/// A job that a worker has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeasedJob {
    pub(crate) job: WaitingJob<WallSeconds>,
    pub(crate) worker: Box<str>,
    pub(crate) deadline: WallTime,
}

/// A record that this version does not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown record format")]
pub struct BadJournalRecord;

impl PoolSnapshot {
    /// Encodes the state as records of at most about this many bytes. `delays` belong to waiting jobs.
    pub(crate) fn parts(
        mut self,
        key: &PoolKey,
        delays: &[JournalEntry],
        record_bytes: usize,
    ) -> VecDeque<Vec<u8>> {
        let CarriedJobs {
            waiting,
            running,
            finished,
        } = std::mem::take(&mut self.jobs);
        let mut parts = VecDeque::from([JournalRecord::Start(self, key.clone()).encode()]);
        let mut more = |jobs| parts.push_back(JournalRecord::More(jobs).encode());
        let short = (record_bytes / JOB_BYTES).max(1);
        for waiting in waiting.chunks(short) {
            more(CarriedJobs {
                waiting: waiting.to_vec(),
                ..CarriedJobs::default()
            });
        }
        for running in running.chunks((record_bytes / ENTRY_BYTES).max(1)) {
            more(CarriedJobs {
                running: running.to_vec(),
                ..CarriedJobs::default()
            });
        }
        for finished in finished.chunks(short) {
            more(CarriedJobs {
                finished: finished.to_vec(),
                ..CarriedJobs::default()
            });
        }
        for delays in delays.chunks(short) {
            parts.push_back(JournalRecord::Batch(delays.to_vec()).encode());
        }
        parts
    }
}

/// The maximum size of a job without its content.
const JOB_BYTES: usize = 32;

/// The maximum size of an entry, or of a job with its worker, whose name has at most 200 bytes.
pub(crate) const ENTRY_BYTES: usize = 256;

impl<'a> RegistryRecord<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, BadJournalRecord> {
        postcard::from_bytes(bytes).map_err(|_| BadJournalRecord)
    }
}

impl<'a> JournalRecord<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The record, and the content that follows it.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), BadJournalRecord> {
        postcard::take_from_bytes(bytes).map_err(|_| BadJournalRecord)
    }

    /// Encodes a change of settings.
    pub(crate) fn changed(change: &SettingsChange) -> Vec<u8> {
        let text = serde_json::to_string(change).unwrap_or_default();
        encode(&JournalRecord::Changed(&text))
    }

    /// Encodes a job's record.
    pub(crate) fn post(selector: u32, posted: WallSeconds, payload: &Payload) -> Vec<u8> {
        let mut bytes = encode(&JournalRecord::Post {
            selector,
            posted,
            key: payload.key.as_deref(),
            content_type: &payload.content_type,
        });
        bytes.extend_from_slice(&payload.body);
        bytes
    }
}

/// Decodes a job's content.
pub(crate) fn payload(bytes: &[u8]) -> Result<Payload, BadJournalRecord> {
    match JournalRecord::decode(bytes)? {
        (
            JournalRecord::Post {
                key, content_type, ..
            },
            body,
        ) => Ok(Payload {
            content_type: content_type.into(),
            key: key.map(Into::into),
            body: body.into(),
        }),
        _ => Err(BadJournalRecord),
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("growing a vector is the only thing that writes here")
}

#[cfg(test)]
mod tests {
    use encke_subscriptions::KeySeed;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_within_their_bound_and_hold_all_jobs() {
        let job = WaitingJob {
            id: u64::MAX,
            selector: u32::MAX,
            posted: WallSeconds::from_s(u32::MAX),
            bytes: u32::MAX,
            attempts: u16::MAX,
        };
        let held = LeasedJob {
            job,
            worker: "w".repeat(200).into(),
            deadline: WallTime::from_ms(u64::MAX),
        };
        let jobs = CarriedJobs {
            waiting: vec![job; 10_000],
            running: vec![held; 1_000],
            finished: vec![(u64::MAX, u16::MAX, true); 10_000],
        };
        let snapshot = PoolSnapshot {
            settings: String::new(),
            counts: JobCounts::default(),
            segments: Vec::new(),
            jobs: jobs.clone(),
        };
        let mut found = CarriedJobs::default();
        let delay = JournalEntry::Delayed {
            id: u64::MAX,
            attempt: u16::MAX,
            until: WallTime::from_ms(u64::MAX),
        };
        let delays = vec![delay; 1_000];
        let mut found_delays = Vec::new();
        let key = PoolKey::new(&KeySeed::of([1; 32]), 1);
        for part in snapshot.parts(&key, &delays, 4_096) {
            assert!(part.len() <= 4_096, "{}", part.len());
            match JournalRecord::decode(&part).unwrap().0 {
                JournalRecord::More(jobs) => {
                    found.waiting.extend(jobs.waiting);
                    found.running.extend(jobs.running);
                    found.finished.extend(jobs.finished);
                }
                JournalRecord::Batch(entries) => found_delays.extend(entries),
                _ => {}
            }
        }
        assert_eq!((found, found_delays), (jobs, delays));
    }

    proptest! {
        #[test]
        fn a_job_reads_back(
            selector: u32,
            key in proptest::option::of("\\PC{0,20}"),
            content_type in "\\PC{0,20}",
            body in vec(any::<u8>(), 0..100),
        ) {
            let payload = Payload {
                content_type: content_type.into(),
                key: key.map(Into::into),
                body: body.into(),
            };
            let record = JournalRecord::post(selector, WallSeconds::from_s(7), &payload);
            prop_assert_eq!(super::payload(&record), Ok(payload));
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes in vec(any::<u8>(), 0..200)) {
            let _ = JournalRecord::decode(&bytes).map(|(record, _)| format!("{record:?}"));
            let _ = RegistryRecord::decode(&bytes).map(|record| format!("{record:?}"));
        }
    }
}
