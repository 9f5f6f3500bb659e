//! A wake of a subscription, and when the next call of its webhook may be.

use std::sync::Arc;

use encke_clock::SteadyTime;
use encke_stream::StreamNo;

use crate::entry::LinkPosition;

/// A wake that is not over.
#[derive(Debug)]
pub(super) struct CurrentWake {
    pub(super) snapshot: WakeSnapshot,
    /// The stream that has its event.
    pub(super) announced: Option<StreamNo>,
    /// Who has it, and until when. A webhook has it from the response to its call on.
    pub(super) lease: Option<Lease>,
}

#[derive(Debug)]
pub(super) struct Lease {
    /// The worker of pull-wake; none for a webhook.
    pub(super) worker: Option<Arc<str>>,
    pub(super) until: SteadyTime,
}

/// What a wake has found.
#[derive(Debug, Default)]
pub(super) struct WakeSnapshot {
    /// Links with this number or a greater one are followed since.
    pub(super) links_below: u32,
    /// Where the streams with new records ended.
    pub(super) tails: Vec<LinkPosition>,
}

/// When a webhook may be called again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retry {
    /// So many calls in a row have failed.
    pub(super) failures: u32,
    /// Not before.
    pub(super) at: SteadyTime,
}
