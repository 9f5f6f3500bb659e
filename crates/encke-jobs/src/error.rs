//! Reasons for refusals.

use std::borrow::Cow;

use encke_pool::PoolError;
use encke_stream::Refusal;
use serde::{Deserialize, Serialize};

use crate::request::JobId;
use crate::settings::SettingOutOfRange;

/// Why a request was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum JobError {
    /// The pool's set of workers refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingOutOfRange),
    /// The pool does not exist.
    #[error("unknown pool {0:?}; PUT creates it")]
    UnknownPool(Box<str>),
    /// The maximum number of pools exists.
    #[error("there are {pools_max} pools, which is the maximum")]
    TooManyPools {
        /// The maximum.
        pools_max: usize,
    },
    /// The log of the dispatcher has a retention. Only a node of an earlier version answers this.
    #[error(
        "the node that dispatches jobs has an earlier version, which has no pools with --retention-age or --retention-size: upgrade it"
    )]
    RetentionIsSet,
    /// The pool exists with other settings.
    #[error(
        "the pool exists with another {what}: it has {has}, the request says {requested}{}",
        how_to_change(what)
    )]
    SettingsDiffer {
        /// The setting.
        what: String,
        /// The pool's value.
        has: String,
        /// The request's value.
        requested: String,
    },
    /// The pool is being created or removed.
    #[error("the pool is being created or removed; try again")]
    PoolChanging,
    /// A stream has the name of one of the pool's streams, and is not of an earlier pool of that name.
    #[error("stream {0:?} exists, and no pool has made it; delete it, or name the pool otherwise")]
    StreamTaken(Box<str>),
    /// The pool has unfinished jobs or connected workers.
    #[error(
        "unfinished jobs: {jobs}, connected workers: {workers}; with ?force the pool is removed all the same"
    )]
    PoolBusy {
        /// Waiting and running jobs.
        jobs: u64,
        /// Connected workers.
        workers: u64,
    },
    /// The pool's queue is full.
    #[error("{waiting_max} jobs wait, which is the maximum")]
    TooManyJobs {
        /// The maximum.
        waiting_max: usize,
    },
    /// The job is too large.
    #[error("the job has {bytes} bytes, at most {bytes_max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The maximum.
        bytes_max: u32,
    },
    /// The job's key or slot does not match the pool's type.
    #[error("{0}")]
    WrongSelector(Cow<'static, str>),
    /// The job does not exist, or finished so long ago that it was evicted from memory.
    #[error("unknown job {0}: it does not exist or finished long ago")]
    UnknownJob(JobId),
    /// The attempt is over.
    #[error("attempt {attempt} of job {id} is over: {state}")]
    AttemptOver {
        /// The job.
        id: JobId,
        /// The attempt.
        attempt: u16,
        /// The state of the job.
        state: Cow<'static, str>,
    },
    /// The log refused the record.
    #[error(transparent)]
    Log(#[from] Refusal),
    /// The queue of commands to the log is full.
    #[error("the server is overloaded; try again")]
    Overloaded,
    /// The server is stopping.
    #[error("the server is stopping; try again")]
    Stopping,
    /// The node of the fleet that dispatches the jobs does not answer. If the request had reached it, it may have been carried
    /// out.
    #[error(
        "the node that dispatches the jobs does not answer; the request may have been carried out or not: try again"
    )]
    NoDispatcher,
    /// The token is not that of the attempt.
    #[error("this is not the token that a worker got with attempt {attempt} of job {id}")]
    WrongToken {
        /// The job.
        id: JobId,
        /// The attempt.
        attempt: u16,
    },
    /// The stream is one of a pool that exists.
    #[error("the stream belongs to the pool {0:?}; it can be deleted when the pool is removed")]
    StreamOfPool(Box<str>),
    /// The pool cannot write to one of its streams.
    #[error(
        "a stream of the pool is closed, so that nothing can be stored in it: DELETE /v1/stream/pool/{0}/results or /dead makes it anew"
    )]
    StreamClosed(Box<str>),
    /// One of the pool's streams was missing.
    #[error("a stream of the pool was missing and is made again; try again")]
    StreamMissing,
    /// The credentials of the client have ended while its request waited.
    #[error("the credentials of the request have ended before it was carried out")]
    CallerEnded,
}

impl JobError {
    /// Whether it says what a dispatcher has in memory. Otherwise it is about the request alone, about the server, or what the log has
    /// answered.
    pub(crate) fn is_from_memory(&self) -> bool {
        match self {
            JobError::Pool(_)
            | JobError::UnknownPool(_)
            | JobError::TooManyPools { .. }
            | JobError::SettingsDiffer { .. }
            | JobError::PoolChanging
            | JobError::StreamTaken(_)
            | JobError::PoolBusy { .. }
            | JobError::TooManyJobs { .. }
            | JobError::TooLarge { .. }
            | JobError::WrongSelector(_)
            | JobError::UnknownJob(_)
            | JobError::AttemptOver { .. }
            | JobError::WrongToken { .. }
            | JobError::StreamOfPool(_) => true,
            JobError::Setting(_)
            | JobError::RetentionIsSet
            | JobError::Log(_)
            | JobError::Overloaded
            | JobError::Stopping
            | JobError::NoDispatcher
            | JobError::StreamClosed(_)
            | JobError::StreamMissing
            | JobError::CallerEnded => false,
        }
    }
}

/// How a setting of a pool that exists is changed.
fn how_to_change(setting: &str) -> &'static str {
    match setting {
        "type" | "size" | "size_max" => "",
        _ => "; PATCH changes it",
    }
}
