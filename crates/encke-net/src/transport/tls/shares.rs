//! Which connections make their handshakes now, and which wait: an address takes no more than its share.
//!
//! A client that connects and says nothing costs a place for as long as its handshake may take. So that one address does not keep
//! all others out, it has at most a share of the places. Its further connections wait here, where they cost next to nothing, in a
//! queue of their own: they are in the way of each other only. Those that wait get places in turn, one of each address.
//!
//! What counts as one address is what [`addresses::key`] says. No address is exempt: behind a proxy that does not name its clients
//! all of them have the proxy's address, and programs of this machine have that of loopback.
//!
//! [`addresses::key`]: crate::clients::addresses::key

use std::collections::{HashMap, VecDeque};

use encke_clock::SteadyTime;

use crate::clients::addresses::Key;

/// The handshakes of one thread, by address. It knows of each handshake under way only that it is there.
#[derive(Debug)]
pub(super) struct HandshakeShares<T> {
    bounds: ShareBounds,
    addresses: HashMap<Key, Address<T>>,
    /// Addresses with connections that may begin, in the order of their turns.
    turns: VecDeque<Key>,
    under_way: usize,
    waiting: usize,
}

/// Bounds of the handshakes of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShareBounds {
    /// Handshakes under way.
    pub(super) under_way_max: usize,
    /// Those of one address.
    pub(super) share: usize,
    /// Connections of one address that wait.
    pub(super) waiting_max: usize,
}

#[derive(Debug)]
struct Address<T> {
    under_way: usize,
    /// Those that wait, each since this time.
    waiting: VecDeque<(SteadyTime, T)>,
    /// It is in the list of turns.
    has_turn: bool,
}

impl<T> HandshakeShares<T> {
    pub(super) fn new(bounds: ShareBounds) -> Self {
        HandshakeShares {
            bounds,
            addresses: HashMap::new(),
            turns: VecDeque::new(),
            under_way: 0,
            waiting: 0,
        }
    }

    /// Adds a connection to those that wait. Returns the one of the same address that has waited longest, if too many do.
    pub(super) fn enter(&mut self, key: Key, connection: T, now: SteadyTime) -> Option<T> {
        let address = self.addresses.entry(key).or_insert_with(|| Address {
            under_way: 0,
            waiting: VecDeque::new(),
            has_turn: false,
        });
        address.waiting.push_back((now, connection));
        self.waiting += 1;
        let mut displaced = None;
        if address.waiting.len() > self.bounds.waiting_max {
            displaced = address.waiting.pop_front().map(|(_, oldest)| oldest);
            self.waiting -= 1;
        }
        self.give_turn(key);
        displaced
    }

    /// The next connection whose handshake may begin; it counts as under way from now on.
    pub(super) fn next(&mut self) -> Option<(Key, T)> {
        while self.under_way < self.bounds.under_way_max {
            let key = self.turns.pop_front()?;
            let address = self.addresses.get_mut(&key)?;
            address.has_turn = false;
            // Those that waited may have waited for too long.
            let Some((_, connection)) = address.waiting.pop_front() else {
                self.forget_if_idle(key);
                continue;
            };
            address.under_way += 1;
            self.under_way += 1;
            self.waiting -= 1;
            self.give_turn(key);
            return Some((key, connection));
        }
        None
    }

    /// A handshake of an address has ended.
    pub(super) fn leave(&mut self, key: Key) {
        let Some(address) = self.addresses.get_mut(&key) else {
            return;
        };
        address.under_way = address.under_way.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(1);
        self.give_turn(key);
        self.forget_if_idle(key);
    }

    /// Takes out the connections that have waited since before then.
    pub(super) fn take_waiting_since(&mut self, then: SteadyTime) -> Vec<T> {
        let mut over = Vec::new();
        self.addresses.retain(|_, address| {
            while address.waiting.front().is_some_and(|(at, _)| *at < then) {
                over.extend(address.waiting.pop_front().map(|(_, oldest)| oldest));
            }
            // One that has a turn goes when that comes, so that the list names each address once.
            address.under_way > 0 || !address.waiting.is_empty() || address.has_turn
        });
        self.waiting -= over.len();
        over
    }

    /// Whether more connections of an address wait than its share has room for.
    pub(super) fn is_exceeded(&self, key: Key) -> bool {
        let address = self.addresses.get(&key);
        address.is_some_and(|address| {
            address.waiting.len() > self.bounds.share.saturating_sub(address.under_way)
        })
    }

    /// Whether connections wait for others than those of their address.
    pub(super) fn is_full(&self) -> bool {
        self.under_way >= self.bounds.under_way_max && self.waiting > 0
    }

    /// Connections that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    fn give_turn(&mut self, key: Key) {
        if let Some(address) = self.addresses.get_mut(&key)
            && !address.has_turn
            && !address.waiting.is_empty()
            && address.under_way < self.bounds.share
        {
            address.has_turn = true;
            self.turns.push_back(key);
        }
    }

    fn forget_if_idle(&mut self, key: Key) {
        let address = self.addresses.get(&key);
        let is_idle = |address: &Address<T>| address.under_way == 0 && address.waiting.is_empty();
        if address.is_some_and(is_idle) {
            self.addresses.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ShareBounds = ShareBounds {
        under_way_max: 8,
        share: 3,
        waiting_max: 5,
    };

    fn begun(shares: &mut HandshakeShares<u32>) -> Vec<(Key, u32)> {
        std::iter::from_fn(|| shares.next()).collect()
    }

    #[test]
    fn an_address_takes_its_share_and_is_in_the_way_of_itself_only() {
        let mut shares = HandshakeShares::new(BOUNDS);
        let now = SteadyTime::from_ms(7);
        for number in 0..8 {
            assert_eq!(shares.enter(1, number, now), None);
            begun(&mut shares);
        }
        assert_eq!((shares.under_way, shares.waiting()), (3, 5));
        assert!(shares.is_exceeded(1) && !shares.is_full());
        // The bound of those that wait: the oldest of the same address goes.
        assert_eq!(shares.enter(1, 8, now), Some(3));
        assert_eq!(begun(&mut shares), []);
        // Another address has its places at once.
        assert_eq!(shares.enter(2, 100, now), None);
        assert_eq!(begun(&mut shares), [(2, 100)]);
        assert!(!shares.is_exceeded(2));
        // When one of the first ends, the next of it follows.
        shares.leave(1);
        assert_eq!(begun(&mut shares), [(1, 4)]);
    }

    #[test]
    fn while_all_places_are_taken_addresses_take_turns() {
        let mut shares = HandshakeShares::new(BOUNDS);
        let now = SteadyTime::from_ms(7);
        for key in 1..=3 {
            for number in 0..5 {
                shares.enter(key, number, now);
            }
        }
        assert_eq!(begun(&mut shares).len(), 8);
        assert!(shares.is_full());
        shares.enter(9, 0, now);
        assert_eq!(begun(&mut shares), []);
        // The newcomer waits for one place of another, not for all that came before it.
        for key in [1, 2] {
            shares.leave(key);
        }
        let next = begun(&mut shares);
        assert!(next.contains(&(9, 0)), "{next:?}");
    }

    #[test]
    fn those_that_wait_for_too_long_are_found() {
        let mut shares = HandshakeShares::new(BOUNDS);
        let then = SteadyTime::from_ms(7);
        let later = SteadyTime::from_ms(8);
        for number in 0..5 {
            shares.enter(1, number, then);
        }
        begun(&mut shares);
        shares.enter(1, 5, later);
        assert!(shares.take_waiting_since(then).is_empty());
        assert_eq!(shares.take_waiting_since(later), [3, 4]);
        for _ in 0..3 {
            shares.leave(1);
        }
        assert_eq!(begun(&mut shares), [(1, 5)]);
        shares.leave(1);
        assert!(shares.addresses.is_empty() && shares.turns.is_empty());
        assert_eq!((shares.under_way, shares.waiting()), (0, 0));
    }
}
