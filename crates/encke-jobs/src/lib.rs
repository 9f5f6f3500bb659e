//! Job queues for pools of workers, over plain streams; and the thread that runs them, beside the subscriptions of workers to streams.
//!
//! Clients post jobs, workers register under names, and each job goes to exactly one worker, picked by the pool's strategy
//! (`encke-pool`). The worker acknowledges the job, refuses it or extends its deadline. When it disconnects or exceeds the
//! deadline, the job goes to another worker, and after the last attempt to the dead letters.
//!
//! [`JobMachine`] holds the rules. It is deterministic: requests, outcomes of commands and the time go in; commands for the log,
//! jobs to read and responses come out. [`DispatcherReceiver::start`] runs it in a thread, the *dispatcher*, which drains its
//! mailbox in batches. The same thread runs the machine of the subscriptions (`encke-subscriptions`).
//!
//! # The one invariant
//!
//! **Every response is backed by the log.** The machine accepts, dispatches, acknowledges, returns or gives up a job only when the
//! record of that decision is as durable as the server's level requires. So a crash loses no accepted job, no two workers have
//! the same attempt, and only unacknowledged work is done twice.
//!
//! # The records
//!
//! A pool's journal is a stream under a name that no client can use. A job is a record of it, and the record's sequence is the
//! job's name. Leases, ends and returns of one batch share a record. When the journal is long it is rotated: a new *segment* begins
//! with a snapshot, and an old one is deleted when it holds no unfinished jobs. So a start reads one segment however long the
//! pool's past is. A waiting job takes 24 bytes of memory; its content is read when it is dispatched, unless it is in the cache.
//! Results, dead letters and events go to public streams.
//!
//! # Where to start reading
//!
//! `request.rs` and `response.rs` have the interface. [`JobMachine::request`], [`JobMachine::committed`] and [`JobMachine::flush`]
//! are the entry points. `post.rs`, `dispatch.rs` and `report.rs` are a job's way; `batch.rs` writes decisions, `commit.rs` handles
//! commands and their outcomes, and `record.rs` is the format. `create.rs` has the creation of pools and the rotation of journals;
//! `replay.rs` recovers all of it. `dispatcher.rs` is the thread, and `subscriptions/` what it does for the subscriptions.

mod batch;
mod cache;
mod commit;
mod create;
mod delayed;
mod dispatch;
mod dispatcher;
mod dispatcher_mailbox;
mod error;
pub mod fleet;
mod loader;
mod message;
mod request;
mod response;

mod json;
mod machine;
mod machines;
mod op;
mod op_number;
mod pool_state;
mod post;
mod queue;
mod record;
mod replay;
mod report;
mod settings;
mod stats;
mod streams;
mod subscriptions;
mod token;
mod workers;

#[cfg(feature = "simulation")]
pub use dispatcher::SimulatedDispatcher;
pub use dispatcher::{
    DispatcherContext, DispatcherThreads, LookUpStream, ReadPiece, SendResponse, SubmitCommands,
};
pub use dispatcher_mailbox::{
    DispatcherOutlet, DispatcherReceiver, DispatcherSender, dispatcher_mailbox,
};
pub use error::JobError;
pub use json::{content, string};
pub use machine::{Effect, JobMachine};
pub use machines::DispatcherMachines;
pub use message::{DispatcherMessage, RelayMessage};
pub use record::BadJournalRecord;
pub use replay::{FindStream, ReadStream, ReplayError};
pub use request::{
    AttemptAction, AttemptReport, DispatchClient, DispatchRequest, JobId, NewJob, Payload,
    PoolRequest, Registration, WorkerCaller,
};
pub use response::{
    DispatchResponse, DispatchedJob, JobInfo, JobState, PoolStats, PoolStatus, WorkerStatus,
};
pub use settings::{PoolLimits, PoolSettings, SettingOutOfRange, SettingsChange};
pub use stats::{PublishedPool, PublishedStats};
pub use streams::pool_of_stream;
pub use subscriptions::{BuildDeliverer, SubscriptionsContext};
pub use token::{BadToken, JobToken};
