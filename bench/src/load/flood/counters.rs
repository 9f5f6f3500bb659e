//! Counters of the thread of the subscribers, readable by other threads during the run.

use std::collections::BTreeMap;

/// The counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counters {
    /// Subscribers whose first attempt has neither succeeded nor failed.
    pub(crate) pending: u64,
    /// Subscribers that are connected and listening.
    pub(crate) active: u64,
    /// Subscribers that have ever been ready.
    pub(crate) opened: u64,
    /// Connections that the server has closed.
    pub(crate) closed: u64,
    /// Connections that this side has closed to come back.
    pub(crate) hung_up: u64,
    /// Hang-ups after which the server has closed its side as well.
    pub(crate) noticed: u64,
    /// Hang-ups that the server has not noticed in time.
    pub(crate) unnoticed: u64,
    /// Hang-ups that were not measured.
    pub(crate) unmeasured: u64,
    /// Subscribers that came back.
    pub(crate) returned: u64,
    /// Attempts that failed.
    pub(crate) failed: u64,
    /// Subscribers that were ready once and could not come back.
    pub(crate) given_up: u64,
    /// Subscribers whose stream was closed.
    pub(crate) over: u64,
    /// Failures by reason.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Messages that arrived.
    pub(crate) events: u64,
    /// Bytes of bodies that arrived.
    pub(crate) bytes: u64,
    /// When the last message arrived, in nanoseconds of the monotonic clock.
    pub(crate) last_event_ns: u64,
    /// The processor time of the thread, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// When the last of the first attempts was decided.
    pub(crate) settled_ns: u64,
}
