//! The connections and the request rate of each client address.
//!
//! One bounded table for all shards, in parts with a lock each. An address is in it while it has connections, or while its
//! recent requests still count; an exempt address never is. A connection knows its address by number,
//! see `connection::owners`.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;

use super::rate_limit::RateLimit;
use crate::settings::NetSettings;

/// The table of addresses.
#[derive(Debug)]
pub(crate) struct Addresses {
    parts: Vec<Mutex<Part>>,
    hasher: RandomState,
    begin: Instant,
    known: AtomicUsize,
    /// The next part to clean up.
    untidy: AtomicUsize,
    /// Another value may take its place while the server runs.
    limits: ArcSwap<EffectiveLimits>,
    part_max: usize,
}

/// The limits per client address that a reload of the configuration may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimits {
    /// See [`NetSettings::connections_per_address`].
    pub connections_per_address: usize,
    /// See [`NetSettings::request_rate`].
    pub request_rate: u64,
    /// See [`NetSettings::request_burst`].
    pub request_burst: u64,
}

/// Sets other limits per client address while the server runs.
#[derive(Clone, Debug)]
pub struct AddressLimiter(pub(crate) Arc<Addresses>);

/// Limits as they are applied.
#[derive(Clone, Copy, Debug)]
struct EffectiveLimits {
    connections_max: u32,
    pace: Option<RateLimit>,
}

/// The number of an address in the table; valid while a connection that has entered has not left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AddressNo(u32);

impl AddressNo {
    /// As bits that are never 0 and leave the topmost one free.
    pub(crate) fn to_bits(self) -> u32 {
        self.0 + 1
    }

    /// The number that these bits stand for; nothing for 0.
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        bits.checked_sub(1).map(AddressNo)
    }
}

/// Why a client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// It has too many connections.
    TooMany,
    /// It exceeds its request rate; it may try again after `retry_s` seconds.
    TooFast { retry_s: u8 },
    /// The table is full.
    Full,
    /// The server has as many connections as it may.
    NoPlace,
    /// The listener is for trusted proxies only.
    Untrusted,
}

#[derive(Debug, Default)]
struct Part {
    index: HashTable<u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Where the next search for a dispensable entry begins.
    hand: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    /// Up to when its rate is used up; see [`RateLimit::take`].
    taken_ns: u64,
    connections: u32,
}

// What an address costs beside its place in the index.
const _: () = assert!(size_of::<Entry>() <= 24);

/// What counts as one client: an IPv4 address, or the /64 that an IPv6 client has for itself.
pub(crate) type Key = u64;

impl Addresses {
    pub(crate) fn new(settings: &NetSettings) -> Self {
        Addresses {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            begin: Instant::now(),
            known: AtomicUsize::new(0),
            untidy: AtomicUsize::new(0),
            limits: ArcSwap::from_pointee(AddressLimits::of(settings).effective()),
            part_max: settings.addresses_max.div_ceil(PARTS).min(PART_MAX),
        }
    }

    /// Counts a connection of that address; for the rate it counts as a request.
    pub(crate) fn enter(&self, address: IpAddr, now: Instant) -> Result<AddressNo, Denied> {
        let key = key(address);
        let hash = self.hasher.hash_one(key);
        let number = (hash >> 40) as usize % PARTS;
        let now_ns = self.ns(now);
        let mut part = self.parts[number].lock();
        let at = self.find_or_add(&mut part, key, now_ns);
        let at = at.ok_or(Denied::Full)?;
        let entry = &mut part.entries[at as usize];
        let limits = self.limits.load();
        if entry.connections >= limits.connections_max {
            return Err(Denied::TooMany);
        }
        take(limits.pace, entry, now_ns)?;
        entry.connections += 1;
        Ok(AddressNo(at << PART_BITS | number as u32))
    }

    /// Counts a connection that another process has given away. The limits were those of its beginning. `None`: the table is full.
    pub(crate) fn arrive(&self, address: IpAddr) -> Option<AddressNo> {
        let key = key(address);
        let hash = self.hasher.hash_one(key);
        let number = (hash >> 40) as usize % PARTS;
        let now_ns = self.ns(Instant::now());
        let mut part = self.parts[number].lock();
        let at = self.find_or_add(&mut part, key, now_ns)?;
        part.entries[at as usize].connections += 1;
        Some(AddressNo(at << PART_BITS | number as u32))
    }

    /// Counts a request.
    pub(crate) fn request(&self, address: AddressNo, now: Instant) -> Result<(), Denied> {
        let Some(pace) = self.limits.load().pace else {
            return Ok(());
        };
        let now_ns = self.ns(now);
        let mut part = self.part(address).lock();
        take(
            Some(pace),
            &mut part.entries[(address.0 >> PART_BITS) as usize],
            now_ns,
        )
    }

    /// A connection of the address is gone.
    pub(crate) fn leave(&self, address: AddressNo, now: Instant) {
        let now_ns = self.ns(now);
        let mut part = self.part(address).lock();
        let at = address.0 >> PART_BITS;
        let entry = &mut part.entries[at as usize];
        entry.connections -= 1;
        if entry.connections == 0 && entry.taken_ns <= now_ns {
            self.forget(&mut part, at);
        }
    }

    /// Removes some addresses that no longer matter; to be called periodically.
    pub(crate) fn tidy(&self, now: Instant) {
        if self.known() == 0 {
            return;
        }
        let now_ns = self.ns(now);
        let number = self.untidy.fetch_add(1, Ordering::Relaxed) % PARTS;
        let mut part = self.parts[number].lock();
        for _ in 0..part.entries.len().min(TIDY_STEP) {
            part.hand = (part.hand + 1) % part.entries.len();
            let entry = &part.entries[part.hand];
            if entry.connections == 0 && entry.taken_ns <= now_ns {
                let at = part.hand as u32;
                self.forget(&mut part, at);
            }
        }
    }

    /// Whether a number is that of this address.
    pub(crate) fn is(&self, number: AddressNo, address: IpAddr) -> bool {
        let part = self.part(number).lock();
        part.entries[(number.0 >> PART_BITS) as usize].key == key(address)
    }

    /// The address that a number stands for, as logs show it.
    pub(crate) fn shown(&self, number: AddressNo) -> String {
        match self.address(number) {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("{address}/64"),
        }
    }

    /// The address that a number stands for; of an IPv6 client the first of its network.
    pub(crate) fn address(&self, number: AddressNo) -> IpAddr {
        let key = self.part(number).lock().entries[(number.0 >> PART_BITS) as usize].key;
        match u32::try_from(key ^ V4) {
            Ok(address) => std::net::Ipv4Addr::from(address).into(),
            Err(_) => std::net::Ipv6Addr::from(u128::from(key) << 64).into(),
        }
    }

    /// How many addresses are known.
    pub(crate) fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    fn part(&self, address: AddressNo) -> &Mutex<Part> {
        &self.parts[address.0 as usize % PARTS]
    }

    /// The place of an address. `None`: there is no room for it.
    fn find_or_add(&self, part: &mut Part, key: Key, now_ns: u64) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let found = part
            .index
            .find(hash, |at| part.entries[*at as usize].key == key)
            .copied();
        found.or_else(|| self.add(part, key, now_ns))
    }

    fn add(&self, part: &mut Part, key: Key, now_ns: u64) -> Option<u32> {
        if part.index.len() >= self.part_max {
            let idle = part.dispensable(now_ns)?;
            self.forget(part, idle);
        }
        let entry = Entry {
            key,
            taken_ns: 0,
            connections: 0,
        };
        let at = match part.free.pop() {
            Some(at) => {
                part.entries[at as usize] = entry;
                at
            }
            None => {
                part.entries.push(entry);
                part.entries.len() as u32 - 1
            }
        };
        let Part { index, entries, .. } = part;
        index.insert_unique(self.hasher.hash_one(key), at, |at| {
            self.hasher.hash_one(entries[*at as usize].key)
        });
        self.known.fetch_add(1, Ordering::Relaxed);
        Some(at)
    }

    fn forget(&self, part: &mut Part, at: u32) {
        let hash = self.hasher.hash_one(part.entries[at as usize].key);
        if let Ok(entry) = part.index.find_entry(hash, |other| *other == at) {
            entry.remove();
            part.free.push(at);
            self.known.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Nanoseconds since the table was made.
    fn ns(&self, now: Instant) -> u64 {
        // 0 stands for a new address, so the present is never 0.
        now.duration_since(self.begin).as_nanos() as u64 + 1
    }
}

impl AddressLimits {
    /// Those of settings.
    pub fn of(settings: &NetSettings) -> Self {
        AddressLimits {
            connections_per_address: settings.connections_per_address,
            request_rate: settings.request_rate,
            request_burst: settings.request_burst,
        }
    }

    fn effective(self) -> EffectiveLimits {
        EffectiveLimits {
            connections_max: match self.connections_per_address {
                0 => u32::MAX,
                max => u32::try_from(max).unwrap_or(u32::MAX),
            },
            pace: RateLimit::new(self.request_rate, self.request_burst),
        }
    }
}

impl AddressLimiter {
    /// Sets other limits for all that comes from now on. Connections that are there stay.
    pub fn set(&self, limits: AddressLimits) {
        self.0.limits.store(Arc::new(limits.effective()));
    }
}

impl Part {
    /// An entry without connections; preferably one whose rate no longer matters.
    fn dispensable(&mut self, now_ns: u64) -> Option<u32> {
        let mut second = None;
        for _ in 0..self.entries.len().min(DISPENSABLE_TRIES) {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &self.entries[self.hand];
            if entry.connections > 0 {
                continue;
            }
            second = Some(self.hand as u32);
            if entry.taken_ns <= now_ns {
                break;
            }
        }
        second
    }
}

fn take(pace: Option<RateLimit>, entry: &mut Entry, now_ns: u64) -> Result<(), Denied> {
    let Some(pace) = pace else {
        return Ok(());
    };
    pace.take(&mut entry.taken_ns, now_ns)
        .map_err(|wait_ns| Denied::TooFast {
            retry_s: u8::try_from(wait_ns.div_ceil(1_000_000_000)).unwrap_or(u8::MAX),
        })
}

/// The key of an address.
pub(crate) fn key(address: IpAddr) -> Key {
    match address.to_canonical() {
        IpAddr::V4(address) => V4 | u64::from(u32::from(address)),
        IpAddr::V6(address) => (u128::from(address) >> 64) as u64,
    }
}

/// Marks a key as an IPv4 address. No IPv6 client has such a prefix: it would be that of a group.
const V4: Key = 0xffff_ffff_0000_0000;

const PART_BITS: u32 = 4;
const PARTS: usize = 1 << PART_BITS;

/// What the bits of an [`AddressNo`] leave room for; the topmost has another meaning.
const PART_MAX: usize = (1 << (31 - PART_BITS)) - 1;

/// Entries that are looked at for a dispensable one; an address is refused at little cost if there is none.
const DISPENSABLE_TRIES: usize = 64;

/// Entries that are looked at in one step of tidying.
const TIDY_STEP: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn addresses(change: impl FnOnce(&mut NetSettings)) -> Addresses {
        let mut settings = NetSettings::default();
        change(&mut settings);
        Addresses::new(&settings)
    }

    fn v4(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    #[test]
    fn connections_are_counted_while_they_last() {
        let addresses = addresses(|settings| settings.connections_per_address = 2);
        let now = Instant::now();
        let first = addresses.enter(v4(1), now).unwrap();
        let second = addresses.enter(v4(1), now).unwrap();
        assert_eq!(addresses.enter(v4(1), now), Err(Denied::TooMany));
        assert!(addresses.enter(v4(2), now).is_ok());
        assert!(addresses.is(first, v4(1)) && !addresses.is(first, v4(2)));
        addresses.leave(first, now);
        assert!(addresses.enter(v4(1), now).is_ok());
        let later = now + Duration::from_secs(1);
        addresses.leave(second, later);
        addresses.leave(first, later);
        assert_eq!(addresses.known(), 1);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_ipv4_stays_itself() {
        let addresses = addresses(|settings| settings.connections_per_address = 1);
        let now = Instant::now();
        let enter = |text: &str| addresses.enter(text.parse().unwrap(), now);
        assert!(enter("2001:db8::1").is_ok());
        assert_eq!(enter("2001:db8::ffff:1:2:3"), Err(Denied::TooMany));
        assert!(enter("2001:db8:0:1::1").is_ok());
        assert!(enter("192.0.2.1").is_ok());
        assert_eq!(enter("::ffff:192.0.2.1"), Err(Denied::TooMany));
        assert_eq!(addresses.shown(enter("192.0.2.9").unwrap()), "192.0.2.9");
        let shown = addresses.shown(enter("2001:db8:0:2:3::4").unwrap());
        assert_eq!(shown, "2001:db8:0:2::/64");
        assert!(enter("192.0.2.2").is_ok());
    }

    #[test]
    fn the_rate_outlives_the_connection() {
        let addresses = addresses(|settings| {
            settings.request_rate = 1;
            settings.request_burst = 3;
        });
        let now = Instant::now();
        for _ in 0..3 {
            let entered = addresses.enter(v4(1), now).unwrap();
            addresses.leave(entered, now);
        }
        assert_eq!(
            addresses.enter(v4(1), now),
            Err(Denied::TooFast { retry_s: 1 })
        );
        let later = now + Duration::from_secs(2);
        let entered = addresses.enter(v4(1), later).unwrap();
        assert_eq!(addresses.request(entered, later), Ok(()));
        assert!(addresses.request(entered, later).is_err());
        addresses.leave(entered, later);
        // Once nothing of it matters, nothing of it is kept.
        let entered = addresses
            .enter(v4(1), later + Duration::from_secs(9))
            .unwrap();
        addresses.leave(entered, later + Duration::from_secs(20));
        assert_eq!(addresses.known(), 0);
        // Or it is found out later that it does not matter any more.
        let entered = addresses.enter(v4(1), later).unwrap();
        addresses.leave(entered, later);
        (0..PARTS).for_each(|_| addresses.tidy(later));
        assert_eq!(addresses.known(), 1);
        (0..PARTS).for_each(|_| addresses.tidy(later + Duration::from_secs(2)));
        assert_eq!(addresses.known(), 0);
    }

    #[test]
    fn other_limits_apply_to_what_comes_next() {
        let addresses = Arc::new(addresses(|settings| {
            settings.connections_per_address = 2;
            settings.request_rate = 0;
        }));
        let now = Instant::now();
        let limiter = AddressLimiter(Arc::clone(&addresses));
        let entered = addresses.enter(v4(1), now).unwrap();
        addresses.enter(v4(1), now).unwrap();
        limiter.set(AddressLimits {
            connections_per_address: 1,
            request_rate: 1,
            request_burst: 1,
        });
        // Both are still there.
        assert_eq!(addresses.enter(v4(1), now), Err(Denied::TooMany));
        assert!(addresses.request(entered, now).is_ok());
        let too_fast = Denied::TooFast { retry_s: 1 };
        assert_eq!(addresses.request(entered, now), Err(too_fast));
        limiter.set(AddressLimits {
            connections_per_address: 0,
            request_rate: 0,
            request_burst: 1,
        });
        assert!(addresses.request(entered, now).is_ok() && addresses.enter(v4(1), now).is_ok());
    }

    #[test]
    fn the_table_is_bounded_and_never_removes_an_address_with_connections() {
        let addresses = addresses(|settings| {
            settings.addresses_max = 64;
            settings.request_rate = 1;
        });
        let now = Instant::now();
        // Addresses without connections are removed for new ones, although their rate still matters.
        for number in 0..1_000 {
            let entered = addresses.enter(v4(number), now).unwrap();
            addresses.leave(entered, now);
            assert!(addresses.known() <= 64);
        }
        let mut inside = Vec::new();
        for number in 1_000..2_000 {
            match addresses.enter(v4(number), now) {
                Ok(entered) => inside.push((entered, v4(number))),
                Err(turned) => assert_eq!(turned, Denied::Full),
            }
        }
        assert_eq!(inside.len(), 64);
        (0..PARTS).for_each(|_| addresses.tidy(now));
        assert_eq!(addresses.known(), 64);
        for (entered, address) in inside {
            assert!(addresses.is(entered, address));
            addresses.leave(entered, now + Duration::from_secs(100));
        }
        assert_eq!(addresses.known(), 0);
    }
}
