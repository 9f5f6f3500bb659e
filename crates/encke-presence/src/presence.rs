//! The registry, as threads share it: one lock around its state, and the call when there are events.

use std::fmt;
use std::sync::{Arc, OnceLock};

use encke_clock::SteadyTime;
use parking_lot::Mutex;

use crate::fleet::node::PresenceFleet;
use crate::fleet::{Outgoing, PacketRefused, PresenceNode};
use crate::holding::HeldConnection;
use crate::state::RegistryState;
use crate::{
    NewMember, PresenceCounts, PresenceEvent, PresenceFigures, PresenceLimits, PresencePlace,
    PresenceRefusal, PresenceSnapshot,
};

/// A registry of the members of streams.
///
/// The caller calls [`turn`](Self::turn) about ten times per second, takes events when the function of [`on_event`](Self::on_event) was
/// called, and in a fleet carries packets. Calls from several threads follow each other.
pub struct Presence {
    state: Mutex<RegistryState>,
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Presence {
    /// A registry of a server that is alone.
    pub fn new(limits: PresenceLimits) -> Arc<Presence> {
        Presence::with(RegistryState::new(limits, None))
    }

    /// A registry of a node of a fleet.
    pub fn in_fleet(limits: PresenceLimits, node: PresenceNode) -> Arc<Presence> {
        Presence::with(RegistryState::new(limits, Some(PresenceFleet::new(node))))
    }

    /// A connection of a member enters a stream. It has left when the hold is dropped.
    pub fn enter(
        self: &Arc<Self>,
        place: &PresencePlace<'_>,
        member: NewMember,
        now: SteadyTime,
    ) -> Result<PresenceHold, PresenceRefusal> {
        self.hold(|state| state.enter(place, member, now))
    }

    /// A connection without a member enters a stream: it counts as a connection.
    pub fn enter_anonymous(
        self: &Arc<Self>,
        place: &PresencePlace<'_>,
    ) -> Result<PresenceHold, PresenceRefusal> {
        self.hold(|state| state.enter_anonymous(place))
    }

    /// Keeps the entry of a stream, whether or not it has members.
    pub fn follow(self: &Arc<Self>, stream: &str) -> PresenceFollower {
        let mut state = self.state.lock();
        let is_first = state.roster.streams.len() == 0;
        let slot = state.roster.stream_or_add(stream);
        let of = &mut state.roster.streams[slot];
        of.followers += 1;
        let number = of.number;
        drop(state);
        if let Some(waker) = self.waker.get().filter(|_| is_first) {
            waker();
        }
        PresenceFollower {
            presence: Arc::clone(self),
            stream: slot,
            number,
        }
    }

    /// Ends graces that are over and nodes that are silent. Returns what is to be sent to other nodes.
    ///
    /// A grace ends at the first turn after its time. A node that turns less often than every 500 ms takes others for silent later.
    pub fn turn(&self, now: SteadyTime) -> Vec<Outgoing> {
        self.change(|state| state.begin_turn(now));
        // What is over may be much, and others wait for the lock.
        while self.change(|state| state.end_graces(now, BATCH_MAX)) {}
        while self.change(|state| state.end_departed(now, BATCH_MAX)) {}
        self.change(|state| state.outgoing(now))
    }

    /// A packet of another node has come. Those of this node may come too and are ignored.
    pub fn receive(&self, packet: &[u8], now: SteadyTime) -> Result<(), PacketRefused> {
        self.change(|state| state.receive(packet, now))
    }

    /// The last packet of this node: it ends, and other nodes do not wait until it is silent. Later turns return nothing to send.
    pub fn goodbye(&self) -> Option<Outgoing> {
        self.change(RegistryState::goodbye)
    }

    /// The members of a stream now.
    pub fn snapshot(&self, stream: &str) -> PresenceSnapshot {
        self.state.lock().roster.snapshot(stream)
    }

    /// How many members and connections a stream has now.
    pub fn counts(&self, stream: &str) -> PresenceCounts {
        self.state.lock().roster.counts(stream)
    }

    /// How many connections of this node a stream has.
    pub fn local_connections(&self, stream: &str) -> u32 {
        self.state.lock().roster.local_connections(stream)
    }

    /// The streams that have a member or a connection, and whose names begin so, in the order of their names. What enters or leaves
    /// meanwhile may be there or not.
    pub fn streams(&self, prefix: &str) -> Vec<(Arc<str>, PresenceCounts)> {
        let mut found = Vec::new();
        let mut at = 0;
        // A registry may be large, and others wait for the lock.
        loop {
            let state = self.state.lock();
            let (streams, end) = (&state.roster.streams, state.roster.streams.end());
            if at >= end {
                break;
            }
            let to = end.min(at + SCAN_MAX);
            let known = (at..to).filter_map(|slot| streams.get(slot));
            let named = known.filter(|of| of.is_occupied() && of.name.starts_with(prefix));
            found.extend(named.map(|of| (Arc::clone(&of.name), of.counts())));
            at = to;
        }
        found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        found
    }

    /// Makes [`Counted`](crate::PresenceChange::Counted) events for streams whose names begin so and that get their entry from now on.
    pub fn count_below(&self, prefix: &str) {
        self.state
            .lock()
            .roster
            .counted_prefixes
            .push(prefix.into());
    }

    /// Adds all events since the last call to `into`, in order.
    pub fn take_events(&self, into: &mut Vec<PresenceEvent>) {
        let mut state = self.state.lock();
        state.roster.count();
        state.roster.events.take(into);
    }

    /// Registers what is called when there are events and there were none, and when a stream is followed and none had an entry. It is
    /// called outside of the lock, in the thread that made the first event or follows. The first registration counts.
    pub fn on_event(&self, waker: Box<dyn Fn() + Send + Sync>) {
        if self.waker.set(waker).is_ok() {
            self.change(|_| ());
        }
    }

    /// Streams with an entry.
    pub fn entries(&self) -> usize {
        self.state.lock().roster.streams.len()
    }

    /// Counters for operators.
    pub fn figures(&self) -> PresenceFigures {
        self.state.lock().figures()
    }

    pub(crate) fn disconnect(&self, connection: HeldConnection) {
        self.change(|state| state.disconnect(connection));
    }

    pub(crate) fn unfollow(&self, stream: u32) {
        self.change(|state| {
            state.roster.streams[stream].followers -= 1;
            state.release(stream);
        });
    }

    fn with(state: RegistryState) -> Arc<Presence> {
        Arc::new(Presence {
            state: Mutex::new(state),
            waker: OnceLock::new(),
        })
    }

    /// Has a connection enter.
    fn hold(
        self: &Arc<Self>,
        enter: impl FnOnce(&mut RegistryState) -> Result<HeldConnection, PresenceRefusal>,
    ) -> Result<PresenceHold, PresenceRefusal> {
        let entered = self.change(|state| {
            let entered = enter(state);
            state.refused += u64::from(entered.is_err());
            entered
        });
        Ok(PresenceHold {
            presence: Arc::clone(self),
            connection: entered?,
        })
    }

    /// Changes the state, and calls the caller if there are events since.
    fn change<T>(&self, change: impl FnOnce(&mut RegistryState) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        let has_news = state.roster.has_news();
        let waker = self.waker.get();
        let waker = waker.filter(|_| state.roster.events.announce(has_news));
        drop(state);
        if let Some(waker) = waker {
            waker();
        }
        changed
    }
}

/// A connection that has entered a stream. It has left when the hold is dropped.
#[derive(Debug)]
#[must_use = "the connection leaves when the hold is dropped"]
pub struct PresenceHold {
    pub(crate) presence: Arc<Presence>,
    pub(crate) connection: HeldConnection,
}

impl PresenceHold {
    /// The name of the stream, which all that have entered it can share.
    pub fn stream(&self) -> Arc<str> {
        let state = self.presence.state.lock();
        let stream = state.stream_of(self.connection);
        Arc::clone(&state.roster.streams[stream].name)
    }
}

impl Drop for PresenceHold {
    fn drop(&mut self) {
        self.presence.disconnect(self.connection);
    }
}

/// Keeps the entry of a stream, and with it its number, while the stream is empty.
#[derive(Debug)]
#[must_use = "the entry is kept until the follower is dropped"]
pub struct PresenceFollower {
    pub(crate) presence: Arc<Presence>,
    pub(crate) stream: u32,
    pub(crate) number: u64,
}

impl PresenceFollower {
    /// The number of the stream's entry, as events have it: unique in the process, never used again.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for PresenceFollower {
    fn drop(&mut self) {
        self.presence.unfollow(self.stream);
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

/// Members that leave under one hold of the lock.
const BATCH_MAX: usize = 1024;

/// Streams that are looked at under one hold of the lock.
const SCAN_MAX: u32 = 1024;
