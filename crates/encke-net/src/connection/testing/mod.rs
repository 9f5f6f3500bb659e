//! Connections without sockets, for tests and the fuzzer: a rig does what a connection wants done as a shard does it, with the
//! router over the machine over a log in memory, and with a clock that the test sets.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![cfg_attr(not(test), allow(dead_code, unused_imports))] // The fuzzer needs a part of it.

pub(crate) mod fuzzing;
#[cfg(test)]
mod http2_client;
mod response;
mod rig;
mod server;
#[cfg(test)]
pub(crate) mod websocket_client;

#[cfg(test)]
pub(crate) use http2_client::Http2Client;
pub(crate) use response::{ReceivedResponse, responses};
pub(crate) use rig::{ID, Rig};
pub(crate) use server::TestServer;
