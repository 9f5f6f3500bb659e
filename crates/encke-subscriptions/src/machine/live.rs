//! What only memory has of a subscription.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use encke_clock::SteadyTime;
use encke_stream::StreamNo;

use super::warning::PacedWarning;
use crate::request::{RequestNo, SubscriptionRequest};
use crate::webhook::delivery::DeliveryResult;

/// What only memory has of a subscription.
#[derive(Debug, Default)]
pub(super) struct LiveState {
    /// Its creation is not in the journal yet.
    pub(super) is_creating: bool,
    /// A decision about it is on its way to the log, or a look-up for one is under way. Everything else waits.
    pub(super) is_busy: bool,
    /// Requests that wait.
    pub(super) held: VecDeque<(RequestNo, SubscriptionRequest)>,
    /// Streams that have ended since a look-up began. `None`: none is under way.
    pub(super) ended: Option<BTreeSet<StreamNo>>,
    /// The call that is under way.
    pub(super) call: Option<Call>,
    /// It waits for a free place for its call.
    pub(super) is_queued: bool,
    /// The result of a call, until a decision can be made about it.
    pub(super) result: Option<(u64, DeliveryResult)>,
    /// The lease of a wake whose call has failed ends then.
    pub(super) failed_until: Option<SteadyTime>,
    /// The stream whose commit has made it pending last.
    pub(super) cause: Option<Arc<str>>,
    /// Its links have changed while the server was down, and the journal does not have that yet.
    pub(super) has_lost_links: bool,
    /// A cursor has moved in this wake.
    pub(super) has_moved: bool,
    /// So many wakes in a row were given back without any progress.
    pub(super) idle_wakes: u32,
    /// No wake begins before.
    pub(super) rest_until: SteadyTime,
    /// The stream for its events, if it exists.
    pub(super) wake_stream: Option<StreamNo>,
    pub(super) event: EventState,
    /// That streams are not followed for want of room.
    pub(super) no_room_warning: PacedWarning,
    /// That events cannot be written.
    pub(super) event_warning: PacedWarning,
    /// The timer that is set.
    pub(super) timer: Option<SteadyTime>,
}

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) generation: u64,
    /// The lease that begins with it.
    pub(super) until: SteadyTime,
}

/// The event of a wake on its way to its stream.
#[derive(Debug, Default)]
pub(super) struct EventState {
    pub(super) is_under_way: bool,
    /// The event of the wake of the first number is in the stream of the second one, and the journal does not say so yet.
    pub(super) written: Option<(u64, StreamNo)>,
    /// So many attempts in a row have failed.
    pub(super) failures: u32,
    /// No attempt before.
    pub(super) at: SteadyTime,
}
