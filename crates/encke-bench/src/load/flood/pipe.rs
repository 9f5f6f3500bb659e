//! What the coordinator and its workers say to each other: one JSON value per line, over pipes.

use crate::load::produce::Expected;
use crate::load::sequence::Faults;
use crate::load::wire::payload::Format;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The first line that a worker reads: what it is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Work {
    /// The server's URL.
    pub(crate) url: String,
    /// The name of the one stream, or the prefix of the many.
    pub(crate) name: String,
    /// How many streams there are; 0 for one stream without a number.
    pub(crate) streams: u32,
    /// The streams' content type.
    pub(crate) content_type: String,
    /// How messages are written.
    pub(crate) format: Format,
    /// Whether to poll instead of listening to events.
    pub(crate) long_poll: bool,
    /// The run's number.
    pub(crate) run: u32,
    /// The first of this worker's subscribers; it has every `step`-th from there on.
    pub(crate) first: u32,
    /// How many workers there are.
    pub(crate) step: u32,
    /// How many subscribers there are in all.
    pub(crate) subscribers: u32,
    /// Connections per second of this worker; 0 for all at once.
    pub(crate) rate: f64,
    /// How many source addresses to use; `None` to choose.
    pub(crate) sources: Option<u32>,
    /// The subscribers' receive buffers, in bytes; `None` for the system's.
    pub(crate) receive_buffer: Option<u32>,
    /// The last so many subscribers of the run are slow.
    pub(crate) slow: u32,
    /// How many of this worker's subscribers hang up and come back each second.
    pub(crate) churn: f64,
    /// How long they stay away, in nanoseconds.
    pub(crate) away_ns: u64,
}

impl Work {
    /// How many subscribers this worker has.
    pub(crate) fn share(&self) -> u32 {
        let step = self.step.max(1);
        self.subscribers.saturating_sub(self.first).div_ceil(step)
    }
}

/// What a worker is told later.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// The run's producers begin; slow subscribers pause from the one time to the other, in
    /// nanoseconds of the monotonic clock.
    Publishing {
        /// When they stop reading.
        pause_from_ns: u64,
        /// When they go on.
        pause_to_ns: u64,
    },
    /// Nothing more will be published: wait until all is there, or nothing has come for so long,
    /// and then report.
    Finish {
        /// What should have arrived.
        expected: Vec<Expected>,
        /// How long to wait for more, in nanoseconds.
        quiet_ns: u64,
    },
}

/// What a worker says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// How it stands.
    Progress(Counters),
    /// How it has ended.
    Final(Box<Final>),
    /// Why it can't go on.
    Failed(String),
}

/// A worker's counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// Of these, the ones that the server has closed as well.
    pub(crate) noticed: u64,
    /// Of these, the ones that it has not closed in good time.
    pub(crate) unnoticed: u64,
    /// Of these, the ones that nobody knows about.
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
    /// The processor time of the worker, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// When the last of the first attempts was decided.
    pub(crate) settled_ns: u64,
}

impl Counters {
    /// Adds another worker's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        self.pending += other.pending;
        self.active += other.active;
        self.opened += other.opened;
        self.closed += other.closed;
        self.hung_up += other.hung_up;
        self.noticed += other.noticed;
        self.unnoticed += other.unnoticed;
        self.unmeasured += other.unmeasured;
        self.returned += other.returned;
        self.failed += other.failed;
        self.given_up += other.given_up;
        self.over += other.over;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
        self.events += other.events;
        self.bytes += other.bytes;
        self.cpu_ns += other.cpu_ns;
        self.last_event_ns = self.last_event_ns.max(other.last_event_ns);
        self.settled_ns = self.settled_ns.max(other.settled_ns);
    }
}

/// What a worker has found out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Final {
    /// Its last counts.
    pub(crate) counters: Counters,
    /// Latencies, as pairs of nanoseconds and count: of all but the slow and the returned.
    pub(crate) live: Vec<(u64, u64)>,
    /// Of these, the ones sent while slow subscribers paused.
    pub(crate) paused: Vec<(u64, u64)>,
    /// Latencies of slow subscribers.
    pub(crate) slow: Vec<(u64, u64)>,
    /// Latencies of messages sent while their subscriber was away.
    pub(crate) returned: Vec<(u64, u64)>,
    /// How long the server took to notice hang-ups.
    pub(crate) notices: Vec<(u64, u64)>,
    /// Gaps, duplicates, reorderings.
    pub(crate) faults: Faults,
}
