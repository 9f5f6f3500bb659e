//! Responses of the pools.

use std::sync::Arc;

use encke_clock::{SteadySeconds, SteadyTime, WallTime};
use encke_subscriptions::{SubscriptionError, SubscriptionResponse};
use serde::{Deserialize, Serialize};

use crate::error::JobError;
use crate::request::{JobId, Payload};
use crate::settings::PoolSettings;
use crate::token::JobToken;

/// What the dispatcher sends: a response to a client, or an event for a registered worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum DispatchResponse {
    /// The pool exists now.
    Created {
        /// It existed before with the same settings.
        existed: bool,
        /// Its state.
        status: Box<PoolStatus>,
    },
    /// The state of a pool.
    Described(Box<PoolStatus>),
    /// The names and settings of all pools.
    Listed(Vec<(Arc<str>, PoolSettings)>),
    /// The pool or worker is removed.
    Removed,
    /// The job is committed.
    Posted {
        /// Its name.
        id: JobId,
        /// Its token.
        token: JobToken,
    },
    /// The state of a job. A client that waits for a result gets this when the result arrives or its time is over.
    Job(JobInfo),
    /// The worker is registered and receives jobs from now on.
    Registered {
        /// Its slot.
        slot: u32,
    },
    /// A job for this worker alone.
    Dispatched(DispatchedJob),
    /// The poll timed out without a job.
    NoJob,
    /// The report on the attempt is committed.
    Reported {
        /// The new deadline of an extended attempt.
        deadline: Option<WallTime>,
    },
    /// The same caller has registered the worker by another connection: no more jobs follow.
    Replaced,
    /// The pool was removed: no more jobs follow.
    PoolRemoved,
    /// The server is stopping.
    Stopping,
    /// The request was refused and nothing has changed.
    Refused(JobError),
    /// The response to a request to the subscriptions.
    Subscription(Box<SubscriptionResponse>),
}

impl DispatchResponse {
    /// The refusal of a request for which the dispatcher has no room.
    pub fn overloaded() -> DispatchResponse {
        DispatchResponse::Refused(JobError::Overloaded)
    }

    /// Whether it gives a job or a slot to its client. If the client is gone, the dispatcher must know, so that the job and the
    /// slot go to other workers.
    pub fn needs_client(&self) -> bool {
        matches!(
            self,
            DispatchResponse::Dispatched(_) | DispatchResponse::Registered { .. }
        )
    }

    /// Whether a dispatcher decides by its memory that there is nothing to do, without a record that shows that it still dispatches.
    pub(crate) fn is_from_memory(&self) -> bool {
        match self {
            DispatchResponse::Refused(error) => error.is_from_memory(),
            DispatchResponse::Created { existed, .. } => *existed,
            DispatchResponse::Subscription(response) => is_from_memory(response),
            _ => false,
        }
    }

    /// The bytes of content that it holds; 0 if it has none of note.
    pub fn weight_bytes(&self) -> usize {
        match self {
            DispatchResponse::Dispatched(job) => job.payload.body.len(),
            DispatchResponse::Job(JobInfo {
                state: JobState::Done {
                    result: Some(result),
                },
                ..
            }) => result.body.len(),
            DispatchResponse::Subscription(response) => response.content_bytes(),
            _ => 0,
        }
    }
}

/// Whether the subscriptions have made it without a record of their journal.
fn is_from_memory(response: &SubscriptionResponse) -> bool {
    match response {
        SubscriptionResponse::Created { existed, .. } => *existed,
        SubscriptionResponse::Refused(error) => !matches!(
            error,
            SubscriptionError::Log(_) | SubscriptionError::Overloaded | SubscriptionError::Stopping
        ),
        SubscriptionResponse::Claimed(_)
        | SubscriptionResponse::Reported { .. }
        | SubscriptionResponse::Released => false,
        // Some of these change something, and some find it as it is to be.
        SubscriptionResponse::Described(_)
        | SubscriptionResponse::Keys(_)
        | SubscriptionResponse::Deleted
        | SubscriptionResponse::LinksChanged => true,
    }
}

/// A job on its way to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DispatchedJob {
    /// The job's name.
    pub id: JobId,
    /// The number of this attempt, from 1.
    pub attempt: u16,
    /// The token with which the worker reports on it.
    pub token: JobToken,
    /// When the attempt times out.
    pub deadline: WallTime,
    /// The content.
    pub payload: Payload,
}

/// The state of a job and its attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// The job's name.
    pub id: JobId,
    /// Its state.
    pub state: JobState,
    /// How many attempts have been dispatched.
    pub attempts: u16,
    /// The job's token, for its poster.
    pub token: JobToken,
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// It waits for a worker.
    Waiting {
        /// It is not dispatched before this time, because an attempt failed.
        not_before: Option<WallTime>,
    },
    /// A worker has it.
    Running {
        /// The worker's name.
        worker: Arc<str>,
        /// When the attempt times out.
        deadline: WallTime,
    },
    /// It is done.
    Done {
        /// The result while it is in memory. The stream of results has it in any case.
        result: Option<Payload>,
    },
    /// All its attempts failed.
    Dead {
        /// Why the last one did, while that is in memory. The stream of dead letters has it in any case.
        reason: Option<Box<str>>,
    },
}

/// A pool at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The name.
    pub name: Arc<str>,
    /// The settings.
    pub settings: PoolSettings,
    /// The counts.
    pub stats: PoolStats,
    /// The age of the oldest unfinished job, in seconds; 0 if there is none.
    pub oldest_age_s: u64,
    /// The workers in the order of slots.
    pub workers: Vec<WorkerStatus>,
}

/// A pool's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    /// Jobs that wait for a worker.
    pub waiting: u64,
    /// Jobs that workers have.
    pub running: u64,
    /// Jobs done since the pool was created.
    pub done: u64,
    /// Attempts that failed and were followed by another, since the pool was created.
    pub retried: u64,
    /// Jobs that went to the dead letters since the pool was created.
    pub dead: u64,
    /// When the oldest unfinished job was posted, by the steady clock of the node that dispatches; 1970 if there is none.
    pub oldest_posted: SteadySeconds,
    /// Connected workers.
    pub connected: u64,
}

/// A worker at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The name.
    pub name: Arc<str>,
    /// The slot, counted from 0.
    pub slot: u32,
    /// Whether it is connected.
    pub connected: bool,
    /// Jobs that it has.
    pub running: u32,
    /// Jobs dispatched to it since it was added.
    pub given: u64,
    /// Jobs that it acknowledged since it was added.
    pub done: u64,
}

impl PoolStats {
    /// The age of the oldest unfinished job, in seconds; 0 if there is none.
    pub fn oldest_age_s(&self, now: SteadyTime) -> u64 {
        if self.oldest_posted == SteadySeconds::default() {
            return 0;
        }
        now.since(self.oldest_posted.start()).as_secs()
    }
}

#[cfg(test)]
mod tests {
    use encke_subscriptions::KeySeed;

    use super::*;
    use crate::token::PoolKey;

    #[test]
    fn a_job_weighs_its_body_and_needs_its_client() {
        let job = DispatchResponse::Dispatched(DispatchedJob {
            id: 1,
            attempt: 1,
            token: PoolKey::new(&KeySeed::of([1; 32]), 1).of_attempt(1, 1),
            deadline: WallTime::default(),
            payload: Payload {
                content_type: "text/plain".into(),
                key: None,
                body: vec![0; 1000].into(),
            },
        });
        assert_eq!((job.weight_bytes(), job.needs_client()), (1000, true));
        let registered = DispatchResponse::Registered { slot: 1 };
        assert_eq!(
            (registered.weight_bytes(), registered.needs_client()),
            (0, true)
        );
        for other in [DispatchResponse::NoJob, DispatchResponse::overloaded()] {
            assert_eq!((other.weight_bytes(), other.needs_client()), (0, false));
        }
    }
}
