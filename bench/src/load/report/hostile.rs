//! The report on hostile clients and their effect on the others.

use crate::load::latency::Percentiles;
use serde::Serialize;
use std::collections::BTreeMap;

/// Hostile clients beside the subscribers.
#[derive(Debug, Clone, Serialize)]
pub struct Hostile {
    /// What they did and what became of them.
    pub deeds: Deeds,
    /// How late messages were before they came.
    pub before: Option<Percentiles>,
    /// How late messages were while they were there.
    pub beside: Option<Percentiles>,
    /// By what factor their presence made the 99th percentile longer.
    pub p99_ratio: Option<f64>,
}

/// The actions of hostile clients.
#[derive(Debug, Clone, Serialize)]
pub struct Deeds {
    /// How many they were.
    pub clients: u32,
    /// How often one of them connected.
    pub connects: u64,
    /// How often one of them could not.
    pub failed: u64,
    /// How often the server closed one, by what they did.
    pub closed: BTreeMap<&'static str, u64>,
    /// How many were connected at the end.
    pub open: u64,
}

impl Deeds {
    /// `kinds` are the names of what the clients do.
    pub(crate) fn new(clients: u32, kinds: impl Iterator<Item = &'static str>) -> Self {
        Self {
            clients,
            connects: 0,
            failed: 0,
            closed: kinds.map(|kind| (kind, 0)).collect(),
            open: 0,
        }
    }
}

impl Hostile {
    pub(crate) fn new(
        deeds: Deeds,
        before: Option<Percentiles>,
        beside: Option<Percentiles>,
    ) -> Self {
        let p99_ratio = before
            .zip(beside)
            .map(|(before, beside)| beside.p99_us / before.p99_us);
        Self {
            deeds,
            before,
            beside,
            p99_ratio,
        }
    }
}
