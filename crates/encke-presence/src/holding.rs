//! What this node holds: connections of members, and members in their grace.

use std::collections::BTreeSet;

use encke_clock::SteadyTime;

use crate::member::Shown;

/// What this node holds of a member.
#[derive(Debug, Default)]
pub(crate) struct LocalHolding {
    /// How this node shows it. None: this node does not hold it.
    pub(crate) shown: Option<Shown>,
    pub(crate) connections: u32,
    pub(crate) phase: LocalPhase,
    /// Its slot is in the list of those whose last connection is gone.
    pub(crate) is_listed: bool,
}

/// How far a member is on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LocalPhase {
    /// It has connections, or is not held.
    #[default]
    Connected,
    /// Its last connection is gone, and its grace begins at the next turn.
    Released,
    /// It leaves at this time.
    Grace(SteadyTime),
}

/// Members whose last connection is gone, and which stay for their grace.
#[derive(Debug, Default)]
pub(crate) struct Graces {
    /// Those whose grace begins at the next turn. A slot may have another member since.
    pub(crate) released: Vec<u32>,
    pub(crate) ends: BTreeSet<(SteadyTime, u32)>,
}

/// What a hold is for. The slots stay the same for as long as the hold is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldConnection {
    /// A connection of the member in this slot.
    Member(u32),
    /// A connection without a member, to the stream in this slot.
    Anonymous(u32),
}
