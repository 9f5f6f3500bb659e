//! What each client of a shard holds in memory beyond its slots, and whose turn it is when memory runs short.
//!
//! One memory for all clients is a lock that any of them can hold. So what is held is counted by client: by the caller of a
//! request, once its credentials are checked, else by the address, and where no limits by address apply by the connection. A
//! client that holds more than its bound loses the largest of its own, and when all clients together hold too much, the client
//! with the most does: one without credentials, while those hold more than their part. What a connection holds is noted when it changes; it is a guide to whom to ask, not an account: the
//! shard asks the connection itself before it takes anything.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use encke_access::CallerIdentity;
use foldhash::{HashMap, HashMapExt};

use super::addresses::AddressNo;
use crate::buffers::{BufferShare, Buffers, Losers};
use crate::connection::exchange_id::ExchangeId;

/// A client, as far as the server can tell one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// A caller with credentials.
    Caller(CallerIdentity),
    /// The callers of one address with the same credentials, which do not tell one from another: those of a key or of signed URLs.
    Sharing(CallerIdentity, AddressNo),
    /// The servers of an app, whose secret signs requests.
    App(u32),
    /// A connection with such credentials, to which no limits by address apply.
    KnownConnection(ExchangeId),
    /// All connections of an address, without credentials.
    Address(AddressNo),
    /// A connection without credentials, to which no limits by address apply.
    Connection(ExchangeId),
}

impl Holder {
    fn is_stranger(self) -> bool {
        matches!(self, Holder::Address(_) | Holder::Connection(_))
    }
}

/// What the clients of one shard hold.
#[derive(Debug)]
pub(crate) struct Holdings {
    connections: HashMap<ExchangeId, Holding>,
    holders: HashMap<Holder, usize>,
    /// Bytes of the clients without credentials.
    of_strangers: usize,
    /// The lasting bytes, as parts of the memory of all connections.
    shares: HashMap<ExchangeId, BufferShare>,
    /// Bytes that one client may hold at this shard.
    bytes_max: usize,
    /// Clients that held more when they were noted last.
    over: Vec<Holder>,
}

#[derive(Clone, Copy, Debug)]
struct Holding {
    holder: Holder,
    /// Held by the connection while it does something.
    bytes: usize,
    /// Held by its feeds for as long as they last.
    lasting: usize,
}

impl Holding {
    fn total(self) -> usize {
        self.bytes + self.lasting
    }
}

impl Holdings {
    /// `bytes_max` is for each client; 0 for no bound.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Holdings {
            connections: HashMap::new(),
            holders: HashMap::new(),
            of_strangers: 0,
            shares: HashMap::new(),
            bytes_max: match bytes_max {
                0 => usize::MAX,
                bytes_max => bytes_max,
            },
            over: Vec::new(),
        }
    }

    /// Notes what a connection holds for a client now.
    pub(crate) fn set(&mut self, exchange: ExchangeId, holder: Holder, bytes: usize) {
        let lasting = self.lasting(exchange);
        self.put(
            exchange,
            Holding {
                holder,
                bytes,
                lasting,
            },
        );
    }

    /// Sets the bytes that the patterns of a connection's feeds hold for a client as long as the feeds last. `buffers`: the memory of all
    /// connections.
    pub(crate) fn set_lasting(
        &mut self,
        exchange: ExchangeId,
        holder: Holder,
        lasting: usize,
        buffers: &Arc<Buffers>,
    ) {
        match lasting {
            0 => drop(self.shares.remove(&exchange)),
            _ => self
                .shares
                .entry(exchange)
                .or_default()
                .set(lasting, buffers),
        }
        let bytes = self.connections.get(&exchange).map_or(0, |held| held.bytes);
        self.put(
            exchange,
            Holding {
                holder,
                bytes,
                lasting,
            },
        );
    }

    /// A connection only waits: it holds nothing but its feeds.
    pub(crate) fn rest(&mut self, exchange: ExchangeId) {
        if let Some(held) = self.connections.get(&exchange).copied() {
            self.put(exchange, Holding { bytes: 0, ..held });
        }
    }

    /// Bytes that the feeds of a connection hold.
    pub(crate) fn lasting(&self, exchange: ExchangeId) -> usize {
        let held = self.connections.get(&exchange);
        held.map_or(0, |held| held.lasting)
    }

    fn put(&mut self, exchange: ExchangeId, held: Holding) {
        let bytes = held.total();
        if bytes == 0 {
            return self.remove(exchange);
        }
        if let Some(before) = self.connections.insert(exchange, held) {
            self.give_back(before);
        }
        let all = self.holders.entry(held.holder).or_default();
        *all += bytes;
        if held.holder.is_stranger() {
            self.of_strangers += bytes;
        }
        if *all > self.bytes_max && self.over.last() != Some(&held.holder) {
            self.over.push(held.holder);
        }
    }

    /// A connection holds nothing any more.
    pub(crate) fn remove(&mut self, exchange: ExchangeId) {
        self.shares.remove(&exchange);
        if let Some(before) = self.connections.remove(&exchange) {
            self.give_back(before);
        }
    }

    /// What a connection holds.
    pub(crate) fn bytes(&self, exchange: ExchangeId) -> usize {
        let held = self.connections.get(&exchange);
        held.map_or(0, |held| held.total())
    }

    /// Whether a client holds more than it may.
    pub(crate) fn exceeds(&self, holder: Holder) -> bool {
        self.of(holder) > self.bytes_max
    }

    /// The clients that came to hold more than they may since this was last called.
    pub(crate) fn take_over(&mut self) -> Vec<Holder> {
        std::mem::take(&mut self.over)
    }

    /// The client with the most among those, and how much that is.
    pub(crate) fn largest(&self, losers: Losers) -> Option<(Holder, usize)> {
        let holders = self.holders.iter().map(|(holder, bytes)| (*holder, *bytes));
        let among = holders.filter(|(one, _)| losers == Losers::Everyone || one.is_stranger());
        among.max_by_key(|(_, bytes)| *bytes)
    }

    /// Bytes that the clients without credentials hold together.
    pub(crate) fn of_strangers(&self) -> usize {
        self.of_strangers
    }

    /// The connection by which a client holds the most, and how much that is.
    pub(crate) fn largest_of(&self, holder: Holder) -> Option<(ExchangeId, usize)> {
        let connections = self.connections.iter();
        connections
            .filter(|(_, held)| held.holder == holder)
            .map(|(exchange, held)| (*exchange, held.total()))
            .max_by_key(|(_, bytes)| *bytes)
    }

    fn of(&self, holder: Holder) -> usize {
        self.holders.get(&holder).copied().unwrap_or_default()
    }

    fn give_back(&mut self, held: Holding) {
        if held.holder.is_stranger() {
            self.of_strangers -= held.total();
        }
        if let Entry::Occupied(mut all) = self.holders.entry(held.holder) {
            *all.get_mut() -= held.total();
            if *all.get() == 0 {
                all.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn id(slot: u32) -> ExchangeId {
        ExchangeId::new(slot)
    }

    fn address(number: u32) -> Holder {
        Holder::Address(AddressNo::from_bits(number + 1).unwrap())
    }

    #[test]
    fn the_client_with_the_most_is_found_by_all_that_it_holds() {
        let mut holdings = Holdings::new(0);
        assert_eq!(holdings.largest(Losers::Everyone), None);
        holdings.set(id(1), Holder::Connection(id(1)), 50);
        holdings.set(id(2), address(7), 30);
        holdings.set(id(3), address(7), 40);
        assert_eq!(holdings.largest(Losers::Everyone), Some((address(7), 70)));
        assert_eq!(holdings.largest_of(address(7)), Some((id(3), 40)));
        holdings.remove(id(3));
        holdings.remove(id(3));
        assert_eq!(
            holdings.largest(Losers::Everyone),
            Some((Holder::Connection(id(1)), 50))
        );
        // The caller of a connection is known once its credentials are checked.
        holdings.set(id(1), address(7), 50);
        assert_eq!(holdings.largest(Losers::Everyone), Some((address(7), 80)));
        holdings.set(id(1), address(7), 0);
        holdings.remove(id(2));
        assert_eq!(holdings.largest(Losers::Everyone), None);
        assert!(holdings.holders.is_empty() && holdings.connections.is_empty());
    }

    #[test]
    fn strangers_are_counted_together_and_found_apart() {
        let mut holdings = Holdings::new(0);
        holdings.set(id(1), Holder::App(3), 90);
        holdings.set(id(2), Holder::KnownConnection(id(2)), 80);
        assert_eq!(holdings.of_strangers(), 0);
        assert_eq!(holdings.largest(Losers::Strangers), None);
        holdings.set(id(3), address(1), 30);
        holdings.set(id(4), Holder::Connection(id(4)), 40);
        holdings.set(id(5), address(1), 20);
        assert_eq!(holdings.of_strangers(), 90);
        assert_eq!(holdings.largest(Losers::Strangers), Some((address(1), 50)));
        assert_eq!(
            holdings.largest(Losers::Everyone),
            Some((Holder::App(3), 90))
        );
        // Its credentials have been checked.
        holdings.set(id(4), Holder::App(3), 40);
        holdings.remove(id(3));
        assert_eq!(holdings.of_strangers(), 20);
    }

    #[test]
    fn what_feeds_hold_stays_while_their_connection_rests() {
        let mut holdings = Holdings::new(100);
        let buffers = Arc::new(Buffers::new(1_000, []));
        holdings.set_lasting(id(1), address(1), 70, &buffers);
        assert_eq!(buffers.bytes(), 70);
        holdings.set(id(1), address(1), 20);
        assert_eq!((holdings.bytes(id(1)), holdings.lasting(id(1))), (90, 70));
        assert_eq!(holdings.take_over(), []);
        holdings.rest(id(1));
        assert_eq!(holdings.largest_of(address(1)), Some((id(1), 70)));
        // Another client has it once its credentials are checked.
        holdings.set(id(1), address(2), 40);
        assert_eq!(holdings.largest(Losers::Everyone), Some((address(2), 110)));
        assert_eq!(holdings.take_over(), [address(2)]);
        holdings.set_lasting(id(1), address(2), 0, &buffers);
        assert_eq!(buffers.bytes(), 0);
        holdings.rest(id(1));
        holdings.set_lasting(id(1), address(2), 7, &buffers);
        holdings.remove(id(1));
        assert_eq!(buffers.bytes(), 0);
        holdings.rest(id(2));
        assert!(holdings.holders.is_empty() && holdings.connections.is_empty());
    }

    #[test]
    fn a_client_has_a_bound() {
        let mut holdings = Holdings::new(100);
        holdings.set(id(1), address(1), 60);
        holdings.set(id(2), address(2), 60);
        assert_eq!(holdings.take_over(), []);
        holdings.set(id(3), address(1), 60);
        holdings.set(id(4), address(1), 1);
        assert_eq!(holdings.take_over(), [address(1)]);
        assert!(holdings.exceeds(address(1)) && !holdings.exceeds(address(2)));
        let (largest, _) = holdings.largest_of(address(1)).unwrap();
        holdings.remove(largest);
        assert!(!holdings.exceeds(address(1)));
        assert_eq!(holdings.take_over(), []);
    }

    proptest! {
        #[test]
        fn clients_hold_what_their_connections_hold(
            changes in proptest::collection::vec((0u32..8, 0u32..3, 0usize..5), 0..60),
        ) {
            let mut holdings = Holdings::new(0);
            let mut expected = std::collections::BTreeMap::new();
            for (index, number, bytes) in changes {
                holdings.set(id(index), address(number), bytes);
                expected.insert(index, (number, bytes));
                for number in 0..3 {
                    let held = expected.values().filter(|(of, _)| *of == number);
                    let held = held.map(|(_, bytes)| bytes).sum::<usize>();
                    prop_assert_eq!(holdings.of(address(number)), held);
                }
            }
        }
    }
}
