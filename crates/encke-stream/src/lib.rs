//! What a stream is: create, append, close, delete, fork, expiry, producers.
//!
//! [`Machine`] holds the rules. It is deterministic: [`Command`]s and the time go in, records and
//! [`Outcome`]s come out. It has no clock, no I/O and no threads, so that the same code runs in the
//! server, in the simulator and under the fuzzer.
//!
//! Around it: [`Sequencer`] is the one place where the order of records is decided. It drains a
//! mailbox of [`Submission`]s, lets the machine judge them, commits what they changed to the log as
//! one batch, and hands the [`Batch`] to every shard. [`View`] is what shards look up meanwhile.
//!
//! The one invariant: **nobody sees a change before it is as durable as its stream's level asks.**
//! A stream's committed facts, the view, the batches and the replies all move only after the
//! commit; when it fails, [`Machine::abandon`] leaves no trace of the batch. At level
//! [`AckLevel::Accepted`] the order alone is what is asked for, so there they move before the write. Records become
//! visible in the order of the log, whatever the levels of their streams.
//!
//! Only streams that are in use are in memory. The log's state store has the others as they were when
//! they were last changed or read; a [`Loader`], which belongs to a thread that may wait for files,
//! brings one back into the view when somebody asks for it by name, and [`Machine::sweep`] lets go of
//! those that nobody uses. What the store does not have yet is never let go of.
//!
//! There may be several logs, so that several disks can be used: each has a machine, a view and a sequencer of its own,
//! and a stream lives in one of them, which its number says. [`Views`] knows which log has a name, and keeps two from
//! having the same ([`restore_all`]).
//!
//! Start reading at [`Machine::apply`], then [`Sequencer::run`], `decide.rs` and `commit.rs`. The rules are in `create.rs`,
//! `append.rs`, `writers.rs`, `truncate.rs` and `end.rs`; what a record is in `record.rs`; how the streams come back
//! after a start in `restore.rs`; how they come and go in between in `view.rs`, `changed.rs` and
//! `load.rs`; what is different where there are several logs in `views.rs`.

mod ack;
mod append;
mod batch;
mod checkpoint;
mod command;
mod commit;
mod create;
mod delete;
mod eviction;
mod inline;
mod journal;
mod load;
mod loaders;
mod logs;
mod lookup;
mod machine;
mod number;
mod offset;
mod order;
mod outcome;
mod piece;
mod record;
mod restore;
mod retention;
mod sequencer;
mod sequencers;
mod stored;
mod stream;
mod truncate;
mod unstored;
mod view;
mod views;
mod watchers;
mod writers;

pub use ack::{AckLevel, BadLevel};
pub use batch::{Batch, Caller, Handover, Outlet, Record, Reply, Submission};
pub use command::{Append, Command, Create, Data, ForkOf, Target};
pub use commit::Committed;
pub use create::DEFAULT_TYPE;
pub use eviction::Eviction;
pub use inline::InlineCommit;
pub use journal::{Journal, LogJournal};
pub use load::{LoadError, Loader, Store};
pub use loaders::Loaders;
pub use logs::{Logs, restore_all, restore_all_on};
pub use lookup::{FreeName, Lookup};
pub use machine::{Limits, Machine};
pub use number::{LOGS_MAX, born, home, log_of};
pub use offset::{BadOffset, Offset};
pub use piece::{Fetch, Item, Piece};
pub use record::{BadRecord, Change, Fork, KIND_CHANGE, Lifetime, Producer};
pub use restore::{RestoreError, restore, restore_on};
pub use retention::{BadRetention, Retention};
pub use sequencer::Sequencer;

pub use outcome::{Outcome, Refusal};
pub use sequencers::Sequencers;
pub use stream::{Facts, Life, Media, MediaKind, Source, Span, Stream};
pub use view::{Counts, View};
pub use views::{Totals, Views};
pub use writers::ProducerId;

// Positions are made of it, so whoever knows streams must be able to name it.
pub use encke_log::Sequence;
