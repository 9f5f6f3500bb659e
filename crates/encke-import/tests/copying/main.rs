//! Imports between two small servers of the protocol in the process of the test, whose faults a seed decides.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used)]

#[path = "../../../../tests/faulty_server/mod.rs"]
mod faulty_server;

mod exactly_once;
mod following;
mod listing;
mod mistakes;
mod rig;
