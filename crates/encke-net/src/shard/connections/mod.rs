//! The connections of a shard and their sockets.
//!
//! A connection that only waits is a slot. One that does something is in the table beside the slots, and only as long as it does.
//! `handle` gives events to connections, sends their output, and collects what they want done; `transfer` moves bytes through
//! sockets, encrypted or not; `patterns` counts what subscriptions hold in memory; `state` is what all of them use.

mod channels;
mod handle;
mod patterns;
mod state;
mod transfer;

pub(super) use state::{Connections, SharedParts};
pub(super) use transfer::Received;
