//! Requests to the pools.

use std::sync::Arc;

use encke_subscriptions::SubscriptionRequest;
use serde::{Deserialize, Serialize};

use crate::settings::{PoolSettings, SettingsChange};
use crate::token::JobToken;

/// A job's name: the sequence of the record that holds it.
pub type JobId = u64;

/// The sender of a request to the dispatcher: numbers that have a meaning only for a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DispatchClient {
    /// The node of the fleet that the client is connected to: 0 is this one, and the relay numbers the others.
    pub node: u16,
    /// The shard, counted from 0.
    pub shard: u16,
    /// The shard's name of the connection.
    pub token: u64,
    /// The number of the request: a connection sends one after another.
    pub request: u32,
}

/// A request to the dispatcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DispatchRequest {
    /// To the pools.
    Pool(PoolRequest),
    /// To the subscriptions, which the dispatcher runs beside the pools.
    Subscription(Box<SubscriptionRequest>),
}

impl DispatchRequest {
    /// The bytes of content that it holds; 0 if it has none of note.
    pub(crate) fn content_bytes(&self) -> usize {
        match self {
            DispatchRequest::Pool(
                PoolRequest::Post(NewJob { payload, .. })
                | PoolRequest::Report(AttemptReport {
                    action: AttemptAction::Ack { result: payload },
                    ..
                }),
            ) => payload.body.len(),
            DispatchRequest::Pool(_) => 0,
            DispatchRequest::Subscription(request) => request.content_bytes(),
        }
    }
}

/// A request about one pool or all pools.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PoolRequest {
    /// Create a pool. An existing pool with the same settings is success.
    Create {
        /// The pool's name.
        pool: Box<str>,
        /// Its settings.
        settings: PoolSettings,
    },
    /// Change settings of a pool. The response is its state.
    Change {
        /// The pool's name.
        pool: Box<str>,
        /// What changes.
        change: SettingsChange,
    },
    /// Describe a pool.
    Describe {
        /// The pool's name.
        pool: Box<str>,
    },
    /// List all pools.
    List,
    /// Remove a pool.
    Remove {
        /// The pool's name.
        pool: Box<str>,
        /// Remove it although it has unfinished jobs or connected workers.
        force: bool,
    },
    /// Remove a disconnected worker and its counts.
    RemoveWorker {
        /// The pool's name.
        pool: Box<str>,
        /// The worker's name.
        worker: Box<str>,
    },
    /// Post a job.
    Post(NewJob),
    /// Describe a job.
    DescribeJob {
        /// The pool's name.
        pool: Box<str>,
        /// The job.
        id: JobId,
        /// The job's token, if the client sees the job only with it.
        token: Option<JobToken>,
    },
    /// Register a worker for jobs.
    Register(Registration),
    /// Report on an attempt.
    Report(AttemptReport),
    /// Delete one of the streams that a removed pool has left.
    DeleteStream {
        /// The name of the pool.
        pool: Box<str>,
        /// The name of the stream.
        stream: Box<str>,
    },
}

/// A job to post.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewJob {
    /// The pool's name.
    pub pool: Box<str>,
    /// The content.
    pub payload: Payload,
    /// The worker's slot, in a `direct` pool.
    pub slot: Option<u32>,
    /// The time to wait for the result, in milliseconds. None: do not wait.
    pub wait_ms: Option<u64>,
    /// Refuse the job unless a worker that can take it is connected.
    pub if_connected: bool,
}

/// The content of a job or of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// The content type, as the client sent it.
    pub content_type: Box<str>,
    /// The key that selects the worker in a `hash` pool.
    pub key: Option<Box<str>>,
    /// The bytes.
    #[serde(with = "bytes")]
    pub body: Arc<[u8]>,
}

/// A worker that requests jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// The pool's name.
    pub pool: Box<str>,
    /// The worker's name.
    pub worker: Box<str>,
    /// The requested slot. None: any.
    pub slot: Option<u32>,
    /// The time to wait for a single job, in milliseconds. None: stream jobs until either side disconnects.
    pub poll_ms: Option<u64>,
    /// Who registers: a worker of the same name is replaced if it is the same caller.
    pub caller: WorkerCaller,
}

/// Who registers a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerCaller {
    /// There is no access control: all are the same.
    Anyone,
    /// The one that this text names.
    Known(Box<str>),
    /// It is not known whether two of them are the same.
    Unknown,
}

impl WorkerCaller {
    pub(crate) fn is_same(&self, other: &WorkerCaller) -> bool {
        *self != WorkerCaller::Unknown && self == other
    }
}

/// A worker's report on an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttemptReport {
    /// The pool's name.
    pub pool: Box<str>,
    /// The job.
    pub id: JobId,
    /// The attempt, from 1. Reports on attempts that are over are refused.
    pub attempt: u16,
    /// The token that the worker got with the job. None: the number is enough, because there is no access control.
    pub token: Option<JobToken>,
    /// What to do with the attempt.
    pub action: AttemptAction,
}

/// What a report does with an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AttemptAction {
    /// Acknowledge: the job is done.
    Ack {
        /// The result.
        result: Payload,
    },
    /// Refuse: another worker gets the job.
    Refuse {
        /// How long the job waits before its next attempt, in milliseconds, instead of the pool's backoff.
        after_ms: Option<u64>,
        /// The worker's reason.
        reason: Box<str>,
    },
    /// Extend the deadline.
    Extend {
        /// The new time limit from now on, in milliseconds. None: the pool's `ack_ms`.
        ms: Option<u64>,
    },
}

/// Shared bytes for serde, as one piece.
mod bytes {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        Bytes::new(bytes).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[u8]>, D::Error> {
        Ok(ByteBuf::deserialize(from)?.into_vec().into())
    }
}
