//! Encke's log: stores records durably, in one global order.
//!
//! The log stores *frames* in one global order and finds them by the number of a stream. A frame is a kind, a time, the
//! numbers of the streams that it belongs to, and bytes. The log does not know what a stream is; it knows no protocol
//! and no network.
//!
//! # The one invariant
//!
//! **Every record for which [`Log::sync`] returned is there after any crash, once and in order, or [`Log::open`]
//! refuses to start and names the file and the position.** Nothing is skipped silently, and a frame whose checksum does
//! not match is never given to a reader.
//!
//! # How the log ensures it
//!
//! - Frames go into preallocated segments, each named by its first sequence. A batch is built in memory
//!   ([`Log::append`]), written with one `pwrite` ([`Log::write`]) and made durable with one `fdatasync`
//!   ([`Log::sync`]); [`Log::publish`] shows it to readers.
//! - Each frame carries a CRC32C salted by its segment, its sequence, and for each of its streams the position of that
//!   stream's previous frame. The first frame of a batch also holds the last record that was durable when the batch was
//!   written. By this, recovery distinguishes a torn tail, which is cut off, from damage, which is refused.
//! - A segment begins only when the one before it is durable to its end, so only the last one can be torn.
//! - The first failed write or sync poisons the log: it acknowledges nothing more, reads continue. A sync is never
//!   retried.
//! - A full disk refuses a batch before any byte of it is written ([`CommitError::NoSpace`]), and the same batch can be
//!   written once there is room.
//!
//! # Where records go from there
//!
//! A background thread sorts a sealed segment by stream and ingests it into *history* (fjall, a log-structured merge
//! tree). There the records of a stream are contiguous and need no memory. The segment stays for some time for readers
//! of the global order ([`Reader::read_all`]). History also keeps the caller's state ([`Log::checkpoint`]), so that a
//! start replays only the records after the last checkpoint, and floors ([`Log::set_floor`]), below which the records
//! of a stream are removed. Records that exceed a limit of [`Options::retention`] are removed too; [`ReadEnd::floor`]
//! shows how far.
//!
//! # What a crash can lose
//!
//! | acknowledged | a crash of the process loses | a crash of the system or a power cut loses |
//! |---|---|---|
//! | after [`Log::sync`] | nothing | nothing |
//! | after [`Log::write`] | nothing | what was written since the last sync |
//! | after [`Log::append`] | what was not written | what was not synced |
//!
//! A crash loses records from the end only: the records that remain have no gaps.
//!
//! # Where to start reading
//!
//! - The format on disk: `frame.rs`, `segment.rs`, `statement.rs`, `history.rs`, `stored.rs`, `floor.rs`; names of
//!   files: `file_name.rs`.
//! - The path of a record: `batch.rs`, `log.rs`; in the background `seal.rs`, `sort.rs`, `ingest.rs` and
//!   `generations.rs`; its removal: `retire.rs`, `reclaim.rs`.
//! - The path of a read: `reader.rs`, `read.rs`, `index.rs`, `shared.rs`; when a read fails: `failed_read.rs`.
//! - A copy of an open log: `snapshot.rs` reads it, `log_copy.rs` writes it and puts it in its place.
//! - Opening a log: `start.rs`, `log_directory.rs`, `recover.rs`, `inspect.rs`. When it is refused: `check.rs`,
//!   `dump.rs`, and `repair.rs` with `plan.rs`, `segment_repair.rs` and `history_repair.rs`.
//! - The trait that lets the same code run on real files and on the simulated disk of the tests (feature `simulation`):
//!   `disk.rs`, `simulated.rs`. The main tests are `tests/crash.rs` and `tests/crash_history.rs`.
//!
//! Modules import each other in one direction only, without cycles.

mod active_segment;
mod background;
mod batch;
mod check;
mod copy;
mod damaged_log;
mod deferred_sync;
mod diagnosis;
mod disk;
mod dump;
mod error;
mod failed_read;
mod file_name;
mod files;
mod fingerprints;
mod floor;
mod floors;
mod frame;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub mod fuzzing;
mod generations;
mod health;
mod history;
mod history_error;
mod history_repair;
mod ids;
mod index;
mod ingest;
mod inspect;
mod jobs;
mod layout;
mod lists;
mod log;
mod log_copy;
mod log_directory;
mod options;
mod plan;
mod prepare;
mod ranges;
mod read;
mod reader;
mod reclaim;
mod recover;
mod remake;
mod repair;
mod repair_report;
mod retention;
mod retire;
mod salvage;
mod scan;
mod seal;
mod segment;
mod segment_repair;
mod shared;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;
mod snapshot;
mod sort;
mod start;
mod state;
mod statement;
mod stored;
mod superblock;
mod superblock_updater;
mod survey;
mod tree;
mod unstated;
mod window;

pub use check::{CheckReport, Progress, check, check_on};
pub use deferred_sync::{DeferredSync, DeferredSyncResult};
pub use disk::{Disk, DiskFile};
pub use dump::{DumpFilter, DumpReport, dump, dump_on, state_at_rest};
pub use error::{AppendError, CommitError, OpenError, ReadError};
pub use files::Files;
pub use floor::FORGOTTEN;
pub use frame::{Frame, FrameView, Position, Streams};
pub use health::{Health, STALL};
pub use ids::{Sequence, StreamNo};
pub use layout::{LayoutError, arrange, logs_in};
pub use log::Log;
pub use log_copy::{CopiedFile, CopyError, LogCopy, REPLACED, finish_copy, holds_files_of_log};
pub use options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use read::ReadEnd;
pub use reader::Reader;
pub use repair::{plan_repair, repair, repair_on};
pub use repair_report::{Loss, RepairReport};
pub use retention::LogRetention;
pub use snapshot::{LogSnapshot, SnapshotError, is_name_in_copy};
pub use start::preflight;
pub use state::StateEntry;
pub use survey::Problem;
