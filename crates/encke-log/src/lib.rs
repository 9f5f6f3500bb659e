//! Encke's log: where what was acknowledged is kept.
//!
//! The log stores *frames* in one global order and finds them again by the number of a stream. It knows nothing of
//! what a stream is, of protocols or of the network: a frame is a kind, a time, the numbers of the streams it belongs
//! to and bytes.
//!
//! # The one invariant
//!
//! **What [`Log::sync`] returned for is there after any crash, once and in order, or [`Log::open`] refuses to start and
//! names the file and the position.** Nothing is skipped in silence, and nothing that failed its checksum is ever
//! given to a reader.
//!
//! # How it keeps it
//!
//! - Frames go into preallocated segments, each named by its first sequence. A batch is built in memory
//!   ([`Log::append`]), written with one `pwrite` ([`Log::write`]) and made durable with one `fdatasync`
//!   ([`Log::sync`]); only [`Log::publish`] shows it to readers.
//! - Each frame carries a CRC32C salted by its segment, its sequence, and for each of its streams the position of that
//!   stream's previous frame. The first frame of a batch also says up to where the log was durable when it was
//!   written: that is how recovery tells a torn tail, which may go, from damage, which may not.
//! - A segment is begun only when the one before it is durable to its end, so only the last one can be torn.
//! - The first failed write or sync poisons the log: nothing more is acknowledged, reads go on. A sync is never retried.
//! - A full disk refuses a batch before a byte of it is written ([`CommitError::NoSpace`]), and the same batch can be
//!   written once there is room.
//!
//! # Where records go from there
//!
//! A sealed segment is sorted by stream in the background and ingested into *history* (fjall, a log-structured merge tree),
//! and then costs no memory: a stream's records are contiguous there. The segment stays for a while, for those who read the
//! global order ([`Reader::read_all`]). The user's own state is kept in history, too ([`Log::checkpoint`]), so that opening
//! replays only what came after the last checkpoint; and so are floors ([`Log::set_floor`]), below which a stream's records
//! are gone. Streams have a retention class ([`stream_no`]); of a class with limits ([`Options::retention`]) what is too old
//! or too much goes by itself, and a reader is told by [`ReadEnd::floor`].
//!
//! # What a crash can take
//!
//! | when the caller was told | the process dies | the system dies or the power goes |
//! |---|---|---|
//! | after [`Log::sync`] | nothing | nothing |
//! | after [`Log::write`] | nothing | what was written since the last sync |
//! | after [`Log::append`] | what was not written | what was not synced |
//!
//! Whatever is taken is taken from the end: of the records, always the first so many are there.
//!
//! # Where to start reading
//!
//! - The format on disk: `frame.rs`, `segment.rs`, `history.rs`, `stored.rs`.
//! - The path of a record: `batch.rs`, `log.rs`, then in the background `seal.rs`, `sort.rs` and
//!   `generations.rs`; how it goes again: `retire.rs`, `reclaim.rs`.
//! - The path of a read: `index.rs`, `read.rs`; what follows when one fails: `failed_read.rs`.
//! - The rule by which a log is opened: `recover.rs`; what an operator can do when it is refused: `check.rs`,
//!   `repair.rs`, `dump.rs`.
//! - The seam that lets the same code run on real files and on the simulated disk of the tests (feature `simulation`):
//!   `disk.rs`, `simulated.rs`. The tests to begin with are `tests/crash.rs` and `tests/crash_history.rs`.

mod background;
mod batch;
mod check;
mod copy;
mod disk;
mod dump;
mod error;
mod failed_read;
mod files;
mod fingerprints;
mod floor;
mod frame;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub mod fuzzing;
mod generations;
mod health;
mod history;
mod history_error;
mod index;
mod ingest;
mod inspect;
mod late;
mod layout;
mod lists;
mod log;
mod look;
mod marks;
mod opening;
mod options;
mod plan;
mod prepare;
mod read;
mod reclaim;
mod recover;
mod remake;
mod repair;
mod retention;
mod retire;
mod salvage;
mod scan;
mod seal;
mod segment;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;
mod sort;
mod state;
mod statement;
mod stored;
mod superblock;
mod survey;
mod tail;
mod tree;

pub use check::{CheckReport, Progress, check, check_on};
pub use disk::{Disk, DiskFile};
pub use dump::{DumpFilter, DumpReport, dump, dump_on};
pub use error::{AppendError, CommitError, OpenError, ReadError};
pub use files::Files;
pub use floor::FORGOTTEN;
pub use frame::{Frame, FrameView, Position, Streams};
pub use health::{Health, STALL};
pub use late::{LateSync, LateSynced};
pub use layout::{LayoutError, arrange, logs_in};
pub use log::Log;
pub use opening::preflight;
pub use options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use read::{ReadEnd, Reader};
pub use repair::{Loss, RepairReport, repair, repair_on};
pub use retention::{Class, ClassRetention, NUMBER_MAX, class_of, stream_no};
pub use state::StateEntry;
pub use survey::Problem;

/// Number of a stream: given by the caller, never 0, never reused.
pub type StreamNo = u64;

/// Position of a record in the global order of one log. The first record has sequence 1, and there are no gaps.
pub type Sequence = u64;
