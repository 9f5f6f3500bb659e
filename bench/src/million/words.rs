//! What the process of a group of clients says on its standard output, a line of JSON each, and what it obeys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// No further client connects.
pub(super) const STOP_OPENING: &str = "stop opening";

/// The group says what its clients have received.
pub(super) const REPORT: &str = "report";

/// A line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// Said whenever it changes, and at most every 100 ms.
    State(GroupState),
    /// The answer to [`REPORT`].
    Receipts(Receipts),
}

/// How far a group is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupState {
    /// Clients that are subscribed.
    pub(super) subscribed: u32,
    /// Clients that have given up.
    pub(super) over: u32,
    /// No client is connecting, and none will for the first time.
    pub(super) settled: bool,
    /// Clients that have the message to all.
    pub(super) common: u32,
    /// Clients that have a message to themselves.
    pub(super) own: u32,
}

/// What the clients of a group have received.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Receipts {
    /// Clients that have the message to all once.
    pub(super) common_once: u32,
    /// Messages to all that a client has received again.
    pub(super) common_again: u64,
    /// From the publishing of the message to all to its receipt, in nanoseconds, and how often.
    pub(super) common_ns: Vec<(u64, u64)>,
    /// Clients that have messages to themselves, how many, and how long the first one took, in nanoseconds.
    pub(super) own: Vec<(u32, u32, u64)>,
    /// Records that were for others.
    pub(super) strays: u64,
    /// Connections that broke.
    pub(super) lost: u64,
    /// Why connections did not come about or broke.
    pub(super) reasons: BTreeMap<String, u64>,
}
