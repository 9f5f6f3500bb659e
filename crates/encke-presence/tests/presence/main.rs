//! What a registry promises, through its public interface.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bytes;
mod fleet;
mod network;
mod property;
mod recovery;
mod replay;
mod rules;
mod simulation;
