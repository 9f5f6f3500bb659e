//! Whether a new connection has a place: the bound on the connections of all shards, and those that are refused for it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::SocketAddrAny;

use crate::clients::Clients;
use crate::clients::addresses::Denied;
use crate::clients::owners::Owner;
use crate::clock::Monotonic;
use crate::feed::slot::Token;

/// Counts the connections of all shards.
pub(crate) struct Admission {
    connections_max: usize,
    /// Connections of all shards.
    connections: Arc<AtomicUsize>,
    /// Connections of all shards that are open until they are refused.
    turned_away: Arc<AtomicUsize>,
    /// Those of this shard, and until when they have time for a request.
    waiting: VecDeque<(Monotonic, Token)>,
}

impl Admission {
    /// Counts in counters that all shards share.
    pub(crate) fn new(
        connections_max: usize,
        connections: Arc<AtomicUsize>,
        turned_away: Arc<AtomicUsize>,
    ) -> Self {
        Admission {
            connections_max,
            connections,
            turned_away,
            waiting: VecDeque::new(),
        }
    }

    /// Counts a new connection and determines its owner, and why it is turned away if it is.
    ///
    /// # Errors
    /// Why it is refused at once.
    pub(super) fn enter(
        &self,
        peer: Option<SocketAddrAny>,
        clients: &Clients,
        now: Instant,
    ) -> Result<(Owner, Option<Denied>), Denied> {
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let has_place = self.connections.fetch_add(1, Ordering::Relaxed) < self.connections_max;
        let admitted = match has_place {
            true => clients.admit(peer.map(|peer| peer.ip()), now),
            false => Err(Denied::NoPlace),
        };
        let denied = match admitted {
            Ok(owner) => return Ok((owner, None)),
            Err(denied) => denied,
        };
        // Those that are turned away take no place of the others.
        self.connections.fetch_sub(1, Ordering::Relaxed);
        if denied == Denied::Untrusted {
            return Err(denied);
        }
        if self.turned_away.fetch_add(1, Ordering::Relaxed) < TURNED_AWAY_MAX {
            return Ok((Owner::default(), Some(denied)));
        }
        self.turned_away.fetch_sub(1, Ordering::Relaxed);
        Err(denied)
    }

    /// Counts a connection that another process has given away, whatever the limits.
    pub(super) fn arrive(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection is closed that had entered.
    pub(super) fn leave(&self, turned_away: bool) {
        let counter = match turned_away {
            true => &self.turned_away,
            false => &self.connections,
        };
        counter.fetch_sub(1, Ordering::Relaxed);
    }

    /// A connection that is turned away has some time for the request that is refused.
    pub(super) fn await_request(&mut self, token: Token, now: Monotonic) {
        self.waiting.push_back((now.after(TURNED_AWAY_WAIT), token));
    }

    /// The next connection that was turned away and has not been refused in time.
    pub(super) fn next_overdue(&mut self, now: Monotonic) -> Option<Token> {
        let (until, token) = *self.waiting.front()?;
        if until > now {
            return None;
        }
        self.waiting.pop_front();
        Some(token)
    }
}

/// Connections beyond a limit that are open until their first request is refused, so that the response is one for this
/// request. All others get a response that knows nothing of theirs.
const TURNED_AWAY_MAX: usize = 64;

/// How long such a request may take to arrive, with all that comes before it.
const TURNED_AWAY_WAIT: Duration = Duration::from_secs(1);
