//! Streams: create, append, close, delete, fork, expiry, producers.
//!
//! [`Machine`] holds the rules. It is deterministic: [`Command`]s and the time go in, records and
//! [`Outcome`]s come out. It has no clock, no I/O and no threads, so that the same code runs in the
//! server, in the simulator and under the fuzzer.
//!
//! [`Sequencer`] decides the order of records. It takes [`Submission`]s from a mailbox in batches, has the machine
//! judge them, commits the changes to the log, and sends the [`Batch`] to every shard. [`View`] is where shards look
//! streams up.
//!
//! The invariant: **no reader sees a change before it is as durable as its stream's level asks.** A stream's committed
//! facts, the view, the batches and the replies change only after the commit. When the commit fails,
//! [`Machine::abandon`] leaves no trace of the batch. Level [`AckLevel::Accepted`] asks for the order only, so there
//! they change before the write. Records become visible in the order of the log, whatever the levels of their streams.
//!
//! Only streams in use are in memory. The state store of the log has the others. A [`Loader`], on a thread that may
//! wait for files, brings a stream back into the view when a request names it. [`Machine::sweep`] evicts idle streams.
//! A stream that has changed is never evicted before the store has the change.
//!
//! There can be several logs, to use several disks. Each has a machine, a view and a sequencer of its own. A stream
//! lives in one log, which its number names. [`Views`] finds the log of a name, and gives no name twice
//! ([`restore_all`]).
//!
//! Where to start reading: `command.rs`, then the path of a command: `order/local.rs` (the order), `commit/decide.rs`,
//! `commit/write.rs`, `commit/sync.rs`, `commit/publish.rs`, and `sequencer.rs`, the loop over them. [`Machine::apply`]
//! has the rules, in `create.rs`, `append.rs`, `writers.rs`, `truncate.rs` and `delete.rs`. `record.rs` is the format
//! of a record. `restore.rs` restores streams at a start; `view.rs`, `checkpoint.rs`, `eviction.rs` and `load.rs` move
//! them out of memory and back. `views.rs` joins several logs. `pattern.rs` finds the subscribers of a prefix of names, and
//! `order_read.rs` reads the records of such streams.

mod ack;
mod append;
mod at_rest;
mod batch;
mod checkpoint;
mod command;
mod commit;
mod create;
mod deadlines;
mod delete;
mod eviction;
mod inline;
mod journal;
mod label;
mod load;
mod loaders;
mod logs;
mod lookup;
mod machine;
mod now;
mod number;
mod offset;
mod order;
mod order_read;
mod outcome;
mod pattern;
mod piece;
mod record;
mod replicated;
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
pub use at_rest::data_at_rest;
pub use batch::{Batch, Handover, Outlet, PatternMatch, Record, Reply, Submission, Submitter};
pub use command::{Append, Command, Create, Data, FleetCommand, ForkOf, NamedStream, Target};
pub use commit::Committed;
pub use create::DEFAULT_TYPE;
pub use eviction::Eviction;
pub use inline::InlineCommit;
pub use journal::{Journal, LogJournal};
pub use label::StreamLabel;
pub use load::{LoadError, Loader, Store};
pub use loaders::Loaders;
pub use logs::{Logs, restore_all, restore_all_on};
pub use lookup::{FreeName, Lookup};
pub use machine::{Limits, Machine};
pub use now::Now;
pub use number::{LOGS_MAX, born, home, is_pattern, log_of};
pub use offset::{BadOffset, Offset};
pub use order_read::OrderFetch;
pub use pattern::{NotAPattern, Pattern};
pub use piece::{Fetch, Item, OrderEvent, OrderedRecord, Piece};
pub use record::{BadRecord, Change, Fork, KIND_CHANGE, Lifetime, Producer};
pub use replicated::{
    Applied, BadMessage, BatchId, Chain, DispatcherTerm, FollowError, FollowStopped, Following,
    IncomingBatches, JOURNAL_PREFIX, KIND_MARK, NODE_NAME_BYTES_MAX, NODES_MAX, OrderHandle,
    OrderStatus, OutgoingBatch, OutgoingBatches, ReplicaSequencer, ReplicatedOrder, Tip,
    message_hash, replicated_order,
};
pub use restore::{OrderKind, RestoreError, restore, restore_on};
pub use retention::{BadRetention, Retention};
pub use sequencer::Sequencer;

pub use outcome::{Outcome, Refusal};
pub use sequencers::Sequencers;
pub use stream::{Facts, Life, Media, MediaKind, Source, Span, Stream};
pub use view::{Counts, View};
pub use views::{Totals, Views};
pub use writers::ProducerId;

// Part of positions, so users of streams need it too.
pub use encke_log::Sequence;
