//! What changed, and what a stream has now.

use std::sync::Arc;

use crate::Member;

/// A change of a stream's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceEvent {
    /// Grows by 1 with each event of the registry. The first is 1.
    pub sequence: u64,
    /// The name of the stream.
    pub stream: Arc<str>,
    /// The number of the stream's entry: unique in the process, never used again.
    pub number: u64,
    /// What changed.
    pub change: PresenceChange,
    /// Members of the stream after the change.
    pub members: usize,
    /// Connections to the stream after the change.
    pub connections: usize,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresenceChange {
    /// The stream had no connection and no member, and has one. It precedes the first [`Joined`](Self::Joined).
    Occupied,
    /// A member is there that was not.
    Joined(Arc<Member>),
    /// A member has other data.
    Updated(Arc<Member>),
    /// A member is not there any more.
    Left(Arc<Member>),
    /// The stream has no connection and no member any more. A member in its grace counts, so it follows the last [`Left`](Self::Left).
    Vacated,
    /// The stream has another number of connections than when events were last taken, if its connections are
    /// [counted](crate::Presence::count_below).
    Counted,
}

/// How many a stream has, over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresenceCounts {
    /// Members, each counted once.
    pub members: usize,
    /// Connections: those of members and anonymous ones.
    pub connections: usize,
}

/// The members of a stream at one moment. The snapshot and all events of the stream with a larger sequence are exactly the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresenceSnapshot {
    /// The sequence of the last event of the stream that the snapshot includes. If the stream had no event since it has its entry, or has
    /// no entry: a sequence that no earlier event of a stream of this name exceeds. 0: there was no event at all.
    pub sequence: u64,
    /// The members, in the order in which they joined.
    pub members: Vec<Arc<Member>>,
    /// Connections: those of members and anonymous ones.
    pub connections: usize,
}

/// Events in order, until the caller takes them.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: Vec<PresenceEvent>,
    /// The sequence of the last event.
    pub(crate) sequence: u64,
    /// The caller was called for what is in the queue.
    is_announced: bool,
}

impl EventQueue {
    /// Adds an event and returns its sequence. `of` has the sequence that the event gets.
    pub(crate) fn push(&mut self, event: impl FnOnce(u64) -> PresenceEvent) -> u64 {
        self.sequence += 1;
        self.events.push(event(self.sequence));
        self.sequence
    }

    /// Whether there is something to take for the first time since the last time. Then the caller must be called.
    pub(crate) fn announce(&mut self, has_news: bool) -> bool {
        let is_new = has_news && !self.is_announced;
        self.is_announced |= is_new;
        is_new
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(crate) fn take(&mut self, into: &mut Vec<PresenceEvent>) {
        self.is_announced = false;
        if into.is_empty() {
            std::mem::swap(&mut self.events, into);
        } else {
            into.append(&mut self.events);
        }
    }
}
