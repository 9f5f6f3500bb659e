//! Backups of a log in this process: in a directory whose pieces are damaged, in a bucket of a server that fails in many ways, while the server
//! is upgraded, and restores that are killed.

#![allow(clippy::unwrap_used)] // A test and its parts may panic.

mod bucket;
mod directory;
mod restore;
mod s3;
mod source;
mod upgrade;
