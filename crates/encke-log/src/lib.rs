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
//! - The path of a record: `write/log.rs`, `write/batch.rs`; in the background `background/seal.rs`, `history/sort.rs`,
//!   `history/ingest.rs` and `history/generations.rs`; its removal: `background/retire.rs`, `history/reclaim.rs`.
//! - The path of a read: `read/reader.rs`, `read/mod.rs`, `read/backwards.rs`, `segments/index.rs`, `shared.rs`.
//! - The format on disk: `segments/` (a segment and its frames), `history/stored.rs` (the same records in history),
//!   `superblock/statement.rs` (what the directory must hold); names of files: `disk/file_name.rs`.
//! - Opening a log: `start/mod.rs`. When it is refused: `diagnosis/` says why, `repair/` makes it open again.
//! - A copy of an open log: `copies/`.
//! - The trait that lets the same code run on real files and on the simulated disk of the tests (feature `simulation`):
//!   `disk/mod.rs`. The main tests are `tests/crash.rs` and `tests/crash_history.rs`.
//!
//! The first lines of each folder's `mod.rs` say what its files do.
//! Modules import each other in one direction only, without cycles.

mod background;
mod copies;
mod diagnosis;
mod disk;
mod error;
mod formats;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod history;
mod ids;
mod options;
mod read;
mod repair;
mod retention;
mod segments;
mod shared;
mod start;
mod superblock;
mod write;

#[cfg(any(test, feature = "simulation"))]
pub use disk::simulated;

pub use copies::log_copy::{
    CopiedFile, CopyError, LogCopy, REPLACED, finish_copy, holds_files_of_log,
};
pub use copies::snapshot::{LogSnapshot, SnapshotError, is_name_in_copy};
pub use copies::unfinished_directory::{MayHold, UnfinishedDirectory, make_durably};
pub use diagnosis::dump::{DumpFilter, DumpReport, dump, dump_on};
pub use diagnosis::survey::Problem;
pub use disk::files::Files;
pub use disk::held_directories::{
    copy_held_directories, hold_directory, hold_given_directories, release_directories,
};
pub use disk::{Disk, DiskFile};
pub use error::{AppendError, CommitError, OpenError, ReadError};
pub use formats::{DataFormat, data_formats};
pub use health::{Health, STALL};
pub use history::floor::FORGOTTEN;
pub use history::state::StateEntry;
pub use history::state_range::{EachState, StateRange};
pub use ids::{Sequence, StreamNo};
pub use options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use read::backwards::BackwardBounds;
pub use read::large::{FileRange, GivenRecord, LargeRecord, StreamRead};
pub use read::progress::ReadEnd;
pub use read::reader::Reader;
pub use repair::check::{CheckReport, Progress, check, check_on};
pub use repair::report::{Loss, RepairReport};
pub use repair::{plan_repair, repair, repair_on};
pub use retention::LogRetention;
pub use segments::frame::{Frame, FrameView, Position, Streams};
pub use start::layout::{LOGS_MAX, LayoutError, arrange, logs_in};
pub use start::preflight;
pub use write::deferred_sync::{DeferredSync, DeferredSyncResult};
pub use write::log::Log;
