//! Copies streams from any server of the protocol to an Encke that runs, and follows them until their users have moved.
//!
//! [`Import`] is made from [`ImportSettings`]: it finds every mistake in them, and locks the directory of the state. [`Import::run`]
//! copies, follows if it was asked to, compares the contents if it was asked to, and returns an [`ImportReport`].
//!
//! # The invariant
//!
//! **The destination has the beginning of the source: each message once, in order, and nothing else.** Three things keep it:
//!
//! - An append names the offset at which the stream must end (`If-Match`) and the number of the request (`Producer-Seq`), so that it is
//!   made once, and only behind what the import knows.
//! - The journal of a stream ([`journal`](mod@journal)) has pairs of positions that belong together, one in the source and one in the
//!   destination. A run begins at the last pair. It takes from the source what the destination has behind that pair, compares the two by
//!   their hashes, and appends only what follows. So a run may be killed at any moment, and the journal may lack its last lines, or all.
//! - The journal is only appended to. Those of its pairs that the source gave as offsets are the map by which clients move
//!   ([`OffsetMap`]).
//!
//! # Where to start reading
//!
//! `copy.rs` copies one stream; `import.rs` runs several at a time. `protocol_stream.rs` reads, `destination.rs` writes.

mod append_batch;
mod backoff;
mod content_hash;
mod contents;
mod copy;
mod copy_failure;
mod destination;
mod follower;
mod http_server;
mod import;
mod imported_stream;
pub mod journal;
mod messages;
mod offset_map;
mod progress;
mod protocol_stream;
mod report;
mod server_access;
mod source_list;
mod stream_list;
mod surplus;
mod verify;

pub use copy_failure::CopyFailure;
pub use import::{FOLLOWED_MAX, Import, ImportError, ImportSettings, JOBS_MAX};
pub use offset_map::{MappedOffset, OffsetMap, ResolveError};
pub use progress::ImportProgress;
pub use report::{Compared, CopyOutcome, ImportReport, StreamReport};
pub use server_access::{BearerToken, ServerAccess};
pub use source_list::{ListError, list};
pub use stream_list::{BadStreams, SourceRoot, StreamTask, tasks};
