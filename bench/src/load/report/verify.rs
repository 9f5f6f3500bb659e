//! The report of a verification.

use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How many examples of each kind a report gives.
const EXAMPLES_MAX: usize = 5;

/// What a verification has found out.
#[derive(Debug, Clone, Serialize)]
pub struct VerifyReport {
    /// The server.
    pub url: String,
    /// The log of what was acknowledged.
    pub ack_log: PathBuf,
    /// Streams that the log names.
    pub streams: u64,
    /// Streams that were read to their end, or are not there.
    pub streams_read: u64,
    /// Producers that the log names.
    pub producers: u64,
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    /// What is there of them.
    pub findings: Findings,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Why the last connection broke or did not come about.
    pub last_error: Option<String>,
}

/// What the streams hold.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Findings {
    /// Acknowledged messages that are there.
    pub found: u64,
    /// Messages that are there without having been acknowledged: their answer was lost, or they
    /// are of producers that the log doesn't name.
    pub unacknowledged: u64,
    /// Acknowledged messages that are not there.
    pub missing: FindingsOfKind,
    /// Messages that are there more than once.
    pub duplicates: FindingsOfKind,
    /// Messages that stand after a later one of the same producer.
    pub reordered: FindingsOfKind,
    /// Values on the streams that are no messages of this program.
    pub strangers: u64,
    /// Streams that could not be read, by reason.
    pub unreadable: BTreeMap<String, u64>,
}

/// One kind of finding: how often, and the first few.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FindingsOfKind {
    /// How many messages.
    pub count: u64,
    /// The first few.
    pub examples: Vec<Finding>,
}

impl FindingsOfKind {
    pub(crate) fn add(&mut self, finding: Finding) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(finding);
        }
    }
}

/// A message that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The stream's name.
    pub stream: String,
    /// The producer's number, as it stands in the payload.
    pub producer: u64,
    /// The message's number.
    pub sequence: u64,
}

impl VerifyReport {
    /// Whether every stream was read, and all that was acknowledged is there, in order, once.
    pub fn is_success(&self) -> bool {
        let Findings {
            missing,
            duplicates,
            reordered,
            ..
        } = &self.findings;
        let faults = missing.count + duplicates.count + reordered.count;
        self.streams_read == self.streams && faults == 0
    }

    /// What the process should exit with: 0 for success, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.is_success())
    }
}
