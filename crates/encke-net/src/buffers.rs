//! The memory of connections beyond their slots: parts of requests, output that sockets have not taken, and patterns of subscriptions.
//!
//! When it runs short, the client that holds the most loses some of it, and not the one that asks next: see `holdings`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The clients among which the one with the most loses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losers {
    Everyone,
    /// Those without credentials.
    Strangers,
}

/// The bytes that all connections of a server hold, and how many they may.
#[derive(Debug)]
pub(crate) struct Buffers {
    bytes: AtomicUsize,
    bytes_max: usize,
    shards: Vec<ShardBuffers>,
}

/// What the shards know of each other.
#[derive(Debug)]
struct ShardBuffers {
    /// What the client with the most holds at this shard, as far as it matters.
    largest: AtomicUsize,
    /// Bytes that the clients without credentials hold at this shard, as far as they matter.
    of_strangers: AtomicUsize,
    /// Wakes the shard.
    wake: Arc<OwnedFd>,
}

/// One connection's share. It is given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct BufferShare {
    bytes: usize,
    of: Option<Arc<Buffers>>,
}

impl Buffers {
    /// `wakes` are the descriptors for events that wake the shards, by their numbers.
    pub(crate) fn new(bytes_max: usize, wakes: impl IntoIterator<Item = Arc<OwnedFd>>) -> Self {
        let shards = wakes.into_iter().map(|wake| ShardBuffers {
            largest: AtomicUsize::new(0),
            of_strangers: AtomicUsize::new(0),
            wake,
        });
        Buffers {
            bytes: AtomicUsize::new(0),
            bytes_max,
            shards: shards.collect(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether anything more may be kept.
    pub(crate) fn have_room(&self) -> bool {
        self.bytes() < self.bytes_max
    }

    /// Whether so much is held that the clients with the most must lose some of it. The rest of the room is for all others meanwhile.
    pub(crate) fn are_crowded(&self) -> bool {
        self.bytes() >= self.bytes_max / 8 * 7
    }

    /// Whether it begins to matter which client holds the most.
    pub(crate) fn matter(&self) -> bool {
        self.bytes() >= self.bytes_max / 4
    }

    /// How much must be given back, so that there is room for a while.
    pub(crate) fn excess(&self) -> usize {
        self.bytes().saturating_sub(self.bytes_max / 4 * 3)
    }

    /// Notes what the client with the most holds at a shard.
    pub(crate) fn note_largest(&self, shard: u16, bytes: usize) {
        if let Some(own) = self.shards.get(usize::from(shard)) {
            note(&own.largest, bytes);
        }
    }

    /// Notes what the clients without credentials hold at a shard, and determines who loses memory while it is short: those, while they
    /// hold more than a quarter of it together. So they fill none of the rest, which is for clients with credentials.
    pub(crate) fn losers(&self, shard: u16, of_strangers: usize) -> Losers {
        if let Some(own) = self.shards.get(usize::from(shard)) {
            note(&own.of_strangers, of_strangers);
        }
        let shards = self.shards.iter();
        let held = shards.map(|shard| shard.of_strangers.load(Ordering::Relaxed));
        match held.sum::<usize>() > self.bytes_max / 4 {
            true => Losers::Strangers,
            false => Losers::Everyone,
        }
    }

    /// Whether the client with the most is at this shard. If not, the shard where it is gets woken.
    pub(crate) fn is_largest(&self, shard: u16) -> bool {
        let shards = self.shards.iter().enumerate();
        // The first one of those that are equal.
        let largest = shards
            .rev()
            .max_by_key(|(_, other)| other.largest.load(Ordering::Relaxed));
        match largest {
            Some((number, other)) if number != usize::from(shard) => {
                // The counter is never read; see `shard_channel`.
                let _ = rustix::io::write(&other.wake, &1u64.to_ne_bytes());
                false
            }
            _ => true,
        }
    }
}

fn note(noted: &AtomicUsize, bytes: usize) {
    if noted.load(Ordering::Relaxed) != bytes {
        noted.store(bytes, Ordering::Relaxed);
    }
}

impl BufferShare {
    /// Sets the bytes that it holds.
    pub(crate) fn set(&mut self, bytes: usize, buffers: &Arc<Buffers>) {
        if bytes == self.bytes {
            return;
        }
        let of = self.of.get_or_insert_with(|| Arc::clone(buffers));
        if bytes > self.bytes {
            of.bytes.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            of.bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        if let Some(of) = &self.of {
            of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back() {
        let buffers = Arc::new(Buffers::new(100, []));
        let mut first = BufferShare::default();
        let mut second = BufferShare::default();
        first.set(60, &buffers);
        assert!(!buffers.are_crowded());
        second.set(30, &buffers);
        assert!(buffers.are_crowded() && buffers.have_room());
        assert_eq!(buffers.excess(), 15);
        first.set(80, &buffers);
        assert!(!buffers.have_room());
        first.set(1, &buffers);
        assert_eq!(buffers.bytes(), 31);
        drop(second);
        drop(first);
        assert_eq!(buffers.bytes(), 0);
    }

    #[test]
    fn one_shard_has_the_client_with_the_most() {
        let wakes = std::array::from_fn::<_, 3, _>(|_| wake());
        let buffers = Buffers::new(100, wakes.clone());
        let is_woken = |shard: usize| rustix::io::read(&wakes[shard], &mut [0; 8]).is_ok();
        buffers.note_largest(1, 10);
        assert!(buffers.is_largest(1));
        assert!(!buffers.is_largest(2));
        assert!(is_woken(1) && !is_woken(0) && !is_woken(2));
        buffers.note_largest(0, 10);
        assert!(buffers.is_largest(0), "one of those that are equal");
        buffers.note_largest(2, 11);
        assert!(buffers.is_largest(2) && !buffers.is_largest(0));
    }

    #[test]
    fn strangers_lose_memory_while_they_hold_more_than_their_part() {
        let buffers = Buffers::new(100, [wake(), wake()]);
        assert_eq!(buffers.losers(0, 20), Losers::Everyone);
        assert_eq!(buffers.losers(1, 6), Losers::Strangers);
        assert_eq!(buffers.losers(0, 19), Losers::Everyone);
    }

    fn wake() -> Arc<OwnedFd> {
        use rustix::event::{EventfdFlags, eventfd};
        Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
    }
}
