//! The report of a spray, and what it shares with a flood's publishing.

use crate::load::latency::Percentiles;
use crate::load::produce::Account;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a spray has found out.
#[derive(Debug, Clone, Serialize)]
pub struct SprayReport {
    /// The server.
    pub url: String,
    /// Producers, each with a connection.
    pub producers: u32,
    /// Streams appended to.
    pub streams: u32,
    /// Their content type.
    pub content_type: String,
    /// Bytes per message.
    pub size: usize,
    /// Appends in flight per connection.
    pub pipeline: u32,
    /// How it went to create the streams, in seconds; `None` when they were there.
    pub create_seconds: Option<f64>,
    /// From the first append to the last answer, in seconds.
    pub seconds: f64,
    /// Messages handed to the system.
    pub sent: u64,
    /// Messages acknowledged.
    pub acknowledged: u64,
    /// Messages acknowledged per second.
    pub acknowledged_per_second: f64,
    /// From the writing of an append to its acknowledgement.
    pub acknowledgement: Option<Percentiles>,
    /// From when the rate wanted a message to when it was written; only with a rate.
    pub lateness: Option<Percentiles>,
    /// What was not acknowledged, and why.
    pub refused: NotAcknowledged,
    /// The server's processor time per acknowledged message, in microseconds, if its process is
    /// known.
    pub server_cpu_per_message_us: Option<f64>,
}

/// Appends that were not acknowledged.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NotAcknowledged {
    /// Answers other than success, by status.
    pub by_status: BTreeMap<u16, u64>,
    /// Appends whose connection was lost before the answer.
    pub unanswered: u64,
    /// Connections that broke.
    pub connections_lost: u64,
    /// Producers that could not connect again.
    pub producers_given_up: u64,
    /// Why the last connection broke or did not come about.
    pub last_error: Option<String>,
}

impl NotAcknowledged {
    pub(crate) fn new(account: &Account, outcome: &crate::load::requests::Outcome) -> Self {
        Self {
            by_status: account.refused.clone(),
            unanswered: account.unanswered,
            connections_lost: outcome.lost,
            producers_given_up: outcome.given_up,
            last_error: outcome.last_error.clone(),
        }
    }
}

impl SprayReport {
    /// Whether anything was acknowledged and nothing was refused or lost for good.
    pub fn is_success(&self) -> bool {
        let NotAcknowledged {
            by_status,
            unanswered,
            producers_given_up,
            ..
        } = &self.refused;
        let lost = by_status.values().sum::<u64>() + unanswered;
        self.acknowledged > 0 && *producers_given_up == 0 && lost == 0
    }

    /// What the process should exit with: 0 for success, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.is_success())
    }
}
