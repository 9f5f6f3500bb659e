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
//! Where to start reading: `machine/command.rs`, then the path of a command: `order/local.rs` (the order),
//! `commit/decide.rs`, `commit/write.rs`, `commit/sync.rs`, `commit/publish.rs`, and `sequencer/mod.rs`, the loop over
//! them. [`Machine::apply`] has the rules, in `machine/` and, for producers, `stream/writers.rs`. Then:
//!
//! - `stream/`: a stream in memory, and the format of a record (`record.rs`).
//! - `view/`: where shards look streams up, by name and by pattern.
//! - `read/`: the records of one stream, and of all streams that match patterns.
//! - `at_rest/`: how streams leave memory and come back.
//! - `restore/`: how they are restored at a start.
//! - `replicated/`: the order of a fleet.
//! - `ephemeral.rs`: messages that are not stored.
//! - `memory.rs`: streams that are not stored.

mod at_rest;
mod commit;
mod ephemeral;
mod machine;
mod memory;
mod order;
mod read;
mod replicated;
mod restore;
mod sequencer;
mod stream;
mod view;

pub use at_rest::eviction::Eviction;
pub use at_rest::list::{ListFetch, ListedStream, StreamPage};
pub use at_rest::load::{LoadError, Loader, Store};
pub use at_rest::loaders::Loaders;
pub use at_rest::stored::data_formats;
pub use commit::Committed;
pub use commit::batch::{
    AwaitedStream, Batch, Handover, ObserveCommits, Outlet, PatternMatch, Record, Reply,
};
pub use commit::change::{StreamChange, StreamState};
pub use ephemeral::{EphemeralMessage, LiveAudience};
pub use machine::command::{
    Append, AppendExtras, Command, Create, CreateExtras, Data, FleetCommand, ForkOf, NamedStream,
    Target,
};
pub use machine::create::DEFAULT_TYPE;
pub use machine::journal::{Journal, LogJournal};
pub use machine::{Limits, Machine};
pub use memory::{MemoryPublisher, MemoryRecord, MemorySource};
pub use order::submission::{Submission, Submitter};
pub use read::large_records::{LargeData, LargePart, LargeRecords, PartRead, RECORD_BYTES};
pub use read::last_messages::{LastMessages, LastMessagesBounds};
pub use read::order_read::OrderFetch;
pub use read::piece::{Fetch, OrderEvent, OrderedRecord, Piece};
pub use read::record_run::Item;
pub use read::records::each_record;
pub use read::run_cache::{RunCache, RunCacheBounds};
pub use replicated::{
    Applied, BadMessage, BatchId, Chain, DispatcherTerm, FollowError, FollowStopped, Following,
    IncomingBatches, JOURNAL_PREFIXES, KIND_MARK, MessageBytesMax, NODE_NAME_BYTES_MAX, NODES_MAX,
    NextOutgoing, OrderHandle, OrderStatus, OutgoingBatch, OutgoingBatches, ReplicaSequencer,
    ReplicatedOrder, Tip, message_hash, replicated_order,
};
pub use restore::logs::{Logs, restore_all, restore_all_on};
pub use restore::{OrderKind, RestoreError, restore, restore_on};
pub use sequencer::Sequencer;
pub use sequencer::inline::InlineCommit;
pub use stream::account::{AccountId, Payer, StorageExceeded, StorageLimit, StorageUse};
pub use stream::ack::{AckLevel, BadLevel};
pub use stream::count::{ByteCount, MessageCount};
pub use stream::label::StreamLabel;
pub use stream::number::{MEMORY_LOG, born, home, is_awaited, is_pattern, log_of, probe_stream};
pub use stream::offset::{BadOffset, Offset};
pub use stream::own::{APPS, OF_WEBHOOKS, is_own};
pub use stream::pending_storage::StorageHold;
pub use stream::record::{
    BadRecord, Change, EndReason, Extras, Fork, KIND_CHANGE, Lifetime, Producer,
};
pub use stream::retention::{BadRetention, Retention};
pub use stream::viewer::Viewer;
pub use view::lookup::{FreeName, Lookup};
pub use view::pattern::{NotAPattern, Pattern};

pub use machine::outcome::{Outcome, Refusal};
pub use sequencer::sequencers::Sequencers;
pub use stream::media::{Media, MediaKind};
pub use stream::writers::ProducerId;
pub use stream::{Facts, Life, Source, Span, Stream};
pub use view::View;
pub use view::counts::Counts;
pub use view::views::{Totals, Views};

// Part of positions, so users of streams need it too.
pub use encke_log::{FileRange, LOGS_MAX, Sequence, StreamNo};
