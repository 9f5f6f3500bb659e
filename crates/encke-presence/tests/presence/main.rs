//! What a registry promises, through its public interface.

mod bytes;
mod fleet;
mod network;
mod property;
mod replay;
mod rules;
mod simulation;
