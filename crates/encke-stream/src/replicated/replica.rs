//! What the machine of a node of a fleet has beside streams.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_clock::SteadyTime;
use encke_log::{Sequence, StreamNo};

use super::chain::Chain;
use crate::Stream;

/// What a machine has beside streams on a node of a fleet.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    pub(crate) chain: Chain,
    /// Records that the log has behind the last whole batch, until the commit path takes them.
    pub(crate) cut: VecDeque<CutRecord>,
    /// Streams with a limited retention that have new records.
    pub(crate) counted: Vec<Arc<Stream>>,
    /// When the node last looked for lifetimes that its live readers must renew.
    pub(crate) renewed_at: SteadyTime,
}

/// A record of a batch that a crash has cut.
#[derive(Debug)]
pub(crate) struct CutRecord {
    pub(crate) sequence: Sequence,
    pub(crate) stream: StreamNo,
    /// The payload of its frame.
    pub(crate) payload: Vec<u8>,
}
