//! Job queues for pools of workers, over plain streams.
//!
//! Clients post jobs, workers connect under names, and each job goes to exactly one worker, as the
//! pool's type chooses (`encke-pool`). A worker acknowledges it, refuses it or asks for more time; when
//! it hangs up or takes too long the job goes to another, and after the last attempt to the dead
//! letters.
//!
//! [`JobMachine`] holds the rules. It is deterministic: what is asked, what the log took and the time go
//! in; commands for the log, jobs to be read and words for clients come out. [`DispatcherReceiver::start`] runs it in
//! a thread, the *dispatcher*, with a mailbox that is drained in batches.
//!
//! # The one invariant
//!
//! **What is told is in the log.** A job is accepted, handed out, acknowledged, given back or given up
//! only when the record that says so is as durable as the server's level asks; until then the machine
//! has decided it and told nobody. So a crash loses no accepted job, no two workers have the same
//! attempt, and what is done twice is what nobody had acknowledged.
//!
//! # What is written
//!
//! A pool's journal is a stream like all others, under a name that no client can say. A job is a record
//! of it and the record's sequence is the job's name; leases, ends and returns of one batch share a
//! record. When the journal has become long, a new *segment* begins with all that is left of the past,
//! and the old one is deleted when none of its jobs is waited for any more: a start reads one segment,
//! however long the pool's past. Of a job that waits only 24 bytes are in memory; its content is read
//! when it is handed out, unless it is among those that are kept at hand. Results, dead letters and
//! events go to streams that everybody may follow.
//!
//! # Where to start reading
//!
//! `ask.rs` says what can be asked and told. [`JobMachine::ask`], [`JobMachine::committed`] and
//! [`JobMachine::flush`] are the way in; `post.rs`, `work.rs` and `end.rs` are a job's way; `turn.rs` writes
//! it down, `op.rs` takes it to the log, and `record.rs` says how it looks there; `make.rs` has pools
//! and segments; `replay.rs` brings all back.

mod batch;
mod cache;
mod commit;
mod create;
mod dispatch;
mod dispatcher;
mod error;
mod request;
mod response;

mod json;
mod machine;
mod op;
mod pool_state;
mod post;
mod queue;
mod record;
mod replay;
mod report;
mod settings;
mod stats;
mod workers;

pub use dispatcher::{
    DispatcherContext, DispatcherMessage, DispatcherReceiver, DispatcherSender, DispatcherThreads,
    LookUpStream, ReadPiece, SendResponse, SubmitCommands, dispatcher_mailbox,
};
pub use error::JobError;
pub use json::{content, string};
pub use machine::{Effect, JobMachine};
pub use record::BadJournalRecord;
pub use replay::{Find, Read, ReplayError, pools};
pub use request::{
    AttemptAction, AttemptReport, JobId, NewJob, Payload, PoolClient, PoolRequest, Registration,
};
pub use response::{
    DispatchedJob, JobInfo, JobState, PoolResponse, PoolStats, PoolStatus, WorkerStatus,
};
pub use settings::{PoolLimits, PoolSettings, SettingOutOfRange};
pub use stats::{PublishedPool, PublishedStats};
