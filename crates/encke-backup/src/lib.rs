//! Backups of a running server.
//!
//! A server listens on a socket in its data directory ([`SnapshotServer`]). A process that may use that directory gets a snapshot of all
//! logs there (`ServerSnapshot`): their files as they are at one moment of each. A backup copies them to a [`Repository`]: pieces of files under the names of their hashes, each
//! stored once, and for each backup a manifest that names the pieces of each file. It is written last, so that a backup is there as a
//! whole or not at all. Each piece of a backup is known to be stored, by its size and by when it was last read; one that is missing or damaged
//! is stored again. A restore writes the files of a manifest into an empty directory, which then opens as the log of that moment
//! would.
//!
//! `server.rs` and `client.rs` are the two ends of the socket, whose messages are in `wire.rs`. `repository.rs` and `manifest.rs` say what is
//! stored, `pieces.rs` and `catalog.rs` what is known of it, `storage/` where; `backup.rs` and `restore.rs` do the work.

mod backup;
mod catalog;
mod client;
mod error;
mod manifest;
mod pieces;
mod repository;
mod restore;
mod server;
mod storage;
mod wire;

pub use backup::{BackupReport, back_up};
pub use error::BackupError;
pub use manifest::{BackupName, Manifest};
pub use pieces::{RemovalObstacle, Removed, StoredPieces};
pub use repository::{Repository, Verified};
pub use restore::{RestoreReport, restore};
pub use server::{SNAPSHOTS_MAX, SnapshotMetrics, SnapshotServer, with_short_path};
pub use storage::BucketAccess;
