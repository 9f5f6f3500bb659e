//! What can be asked of pools, and what is told.

use std::sync::Arc;

use encke_pool::PoolError;
use encke_stream::Refusal;

use crate::settings::{OutOfBounds, Settings};

/// A job's name: the sequence of the record that holds it.
pub type JobId = u64;

/// Somebody who asks, and which of its questions it is: numbers that mean something to a shard only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    /// The shard, counted from 0.
    pub shard: u16,
    /// What the shard knows the client by.
    pub token: u64,
    /// Which question: a client that has got its answer may ask another.
    pub question: u32,
}

/// Something that is asked of a pool, or of all pools.
#[derive(Debug)]
pub enum Ask {
    /// Make a pool, or make sure that it is there with just these settings.
    Make {
        /// Its name.
        pool: Box<str>,
        /// What it is to be.
        settings: Settings,
    },
    /// What a pool is and how it does.
    Show {
        /// Its name.
        pool: Box<str>,
    },
    /// The pools that there are.
    List,
    /// Remove a pool.
    Remove {
        /// Its name.
        pool: Box<str>,
        /// Also when it has jobs that are not done, or workers that are connected.
        force: bool,
    },
    /// Take a worker that is not connected off the list, with its counts.
    Dismiss {
        /// The pool's name.
        pool: Box<str>,
        /// The worker's.
        worker: Box<str>,
    },
    /// Take a job.
    Post(Post),
    /// What has become of a job.
    Find {
        /// The pool's name.
        pool: Box<str>,
        /// The job.
        id: JobId,
    },
    /// Give me jobs.
    Work(Work),
    /// An attempt at a job is over, or needs more time.
    End(End),
}

/// A job to be done.
#[derive(Debug)]
pub struct Post {
    /// The pool's name.
    pub pool: Box<str>,
    /// What it is.
    pub payload: Payload,
    /// The slot of its worker, in a `direct` pool.
    pub slot: Option<u32>,
    /// How long the client waits for the result, in milliseconds.
    pub wait_ms: Option<u64>,
    /// Only if a worker is there that it could go to.
    pub if_connected: bool,
}

/// A job's content, or a result's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Its type, as it was sent.
    pub content_type: Box<str>,
    /// The key that chooses its worker in a `hash` pool.
    pub key: Option<Box<str>>,
    /// The bytes.
    pub body: Arc<[u8]>,
}

/// A worker that wants jobs.
#[derive(Debug)]
pub struct Work {
    /// The pool's name.
    pub pool: Box<str>,
    /// The worker's.
    pub worker: Box<str>,
    /// The slot that it wants.
    pub slot: Option<u32>,
    /// For one job only, and how long it waits for it, in milliseconds. Nothing: for all jobs until
    /// one of the two hangs up.
    pub poll_ms: Option<u64>,
}

/// A word on an attempt.
#[derive(Debug)]
pub struct End {
    /// The pool's name.
    pub pool: Box<str>,
    /// The job.
    pub id: JobId,
    /// Which attempt: one that is over already is refused.
    pub attempt: u16,
    /// What is said.
    pub how: How,
}

/// What is said of an attempt.
#[derive(Debug)]
pub enum How {
    /// The job is done.
    Ack {
        /// What came of it.
        result: Payload,
    },
    /// The worker does not do it: somebody else is to try.
    Refuse {
        /// Why not.
        reason: Box<str>,
    },
    /// The worker needs so long from now on, in milliseconds.
    Extend {
        /// The pool's acknowledgement time if nothing is said.
        ms: Option<u64>,
    },
}

/// What a client is told.
#[derive(Debug)]
pub enum Told {
    /// The pool is there.
    Made {
        /// It was before, with the same settings.
        existed: bool,
        /// How it does.
        info: Box<Info>,
    },
    /// How a pool does.
    Shown(Box<Info>),
    /// The names of the pools, and their types.
    Listed(Vec<(Arc<str>, Settings)>),
    /// It is not there any more.
    Removed,
    /// The job is in the log.
    Posted {
        /// Its name.
        id: JobId,
    },
    /// What has become of the job. A client that waits for a result is told this when it has waited
    /// long enough, or when the result is there.
    Job(JobInfo),
    /// The worker is connected and will be told of jobs.
    Hired {
        /// Its slot.
        slot: u32,
    },
    /// A job, for this worker alone.
    Handed(Handed),
    /// The worker waited, and there was no job.
    NoJob,
    /// What was said of the attempt is in the log.
    Ended {
        /// When the attempt will be over, if it goes on, in milliseconds since 1970.
        deadline_ms: Option<u64>,
    },
    /// The pool was removed: there will be no more jobs.
    Closed,
    /// The server is going away.
    Stopping,
    /// Nothing has changed.
    No(JobError),
}

/// A job on its way to a worker.
#[derive(Clone, Debug)]
pub struct Handed {
    /// Its name.
    pub id: JobId,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// When it goes to another worker, in milliseconds since 1970.
    pub deadline_ms: u64,
    /// What it is.
    pub payload: Payload,
}

/// What is known of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// Its name.
    pub id: JobId,
    /// How far it is.
    pub state: JobState,
    /// How often it was handed out.
    pub attempts: u16,
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It waits for a worker.
    Waiting,
    /// A worker has it.
    Running {
        /// Which one.
        worker: Arc<str>,
        /// Until when, in milliseconds since 1970.
        deadline_ms: u64,
    },
    /// It is done.
    Done {
        /// What came of it, if that is still in memory; the stream of results has it in any case.
        result: Option<Payload>,
    },
    /// It was tried as often as it may be.
    Dead,
}

/// A pool at one moment.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its name.
    pub name: Arc<str>,
    /// What it is.
    pub settings: Settings,
    /// How it does.
    pub figures: Figures,
    /// Its workers, in the order of slots.
    pub workers: Vec<WorkerInfo>,
}

/// How a pool does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Jobs that wait for a worker.
    pub waiting: u64,
    /// Jobs that workers have.
    pub running: u64,
    /// Jobs that are done, ever.
    pub done: u64,
    /// Attempts that ended without an acknowledgement and were followed by another, ever.
    pub retried: u64,
    /// Jobs that went to the dead letters, ever.
    pub dead: u64,
    /// When the oldest job that is not over was posted, in seconds since 1970; 0 when there is none.
    pub oldest_s: u64,
    /// Workers that are connected.
    pub connected: u64,
}

/// A worker at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Its name.
    pub name: Arc<str>,
    /// Its slot; the first is 0.
    pub slot: u32,
    /// Whether it is connected.
    pub connected: bool,
    /// Jobs that it has.
    pub running: u32,
    /// Jobs that it was given since it was added.
    pub given: u64,
    /// Jobs that it acknowledged since it was added.
    pub done: u64,
}

/// Why nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// What the pool itself says.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A setting that can't be.
    #[error(transparent)]
    Setting(#[from] OutOfBounds),
    /// There is no such pool.
    #[error("there is no pool {0:?}")]
    UnknownPool(Box<str>),
    /// There are as many pools as may be.
    #[error("there are {pools_max} pools already")]
    TooManyPools {
        /// How many there may be.
        pools_max: usize,
    },
    /// The log lets go of what is old, and would of jobs that wait.
    #[error(
        "there can be no pools while the server lets go of old records (--retention-age, --retention-size): jobs that wait would be among them"
    )]
    Forgets,
    /// The pool is there with other settings.
    #[error("the pool exists with another {what}: it has {has}, the request says {asked}")]
    Differs {
        /// Which setting.
        what: String,
        /// As it is.
        has: String,
        /// As it was asked for.
        asked: String,
    },
    /// The pool is being made or removed.
    #[error("the pool is being made or removed; try again")]
    Changing,
    /// A stream that the pool needs is there and is something else.
    #[error("the stream {0:?} is there and is not one of JSON messages")]
    StreamTaken(Box<str>),
    /// The pool has jobs that are not done or workers that are connected.
    #[error("the pool has {jobs} jobs that are not done and {workers} connected workers")]
    Busy {
        /// Jobs that wait or run.
        jobs: u64,
        /// Workers that are connected.
        workers: u64,
    },
    /// As many jobs wait as may.
    #[error("{waiting_max} jobs wait already")]
    Full {
        /// How many may.
        waiting_max: usize,
    },
    /// The job is too large.
    #[error("the job has {bytes} bytes, at most {bytes_max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that it may have.
        bytes_max: u32,
    },
    /// What the pool's type needs to choose a worker is missing, or is not what it goes by.
    #[error("{0}")]
    Aim(&'static str),
    /// There is no such job, or it has been over for so long that it is forgotten.
    #[error("there is no job {0}, or it has been over for long")]
    UnknownJob(JobId),
    /// The job is not running, or this attempt at it is over.
    #[error("attempt {attempt} at job {id} is over: {now}")]
    Over {
        /// The job.
        id: JobId,
        /// The attempt.
        attempt: u16,
        /// What has become of it.
        now: &'static str,
    },
    /// The log did not take it.
    #[error(transparent)]
    Log(#[from] Refusal),
    /// More waits to be committed than may.
    #[error("more requests wait than the server takes; try again")]
    Overloaded,
    /// The server is going away.
    #[error("the server is going away; try again")]
    Stopping,
}
