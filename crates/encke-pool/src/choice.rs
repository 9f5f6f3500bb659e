//! The arithmetic of picks: a stable hash, rendezvous hashing, and random numbers without an entropy source.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Odd, with well-distributed bits (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a value: the same in every process and every version, so that no key moves to another worker after a
/// restart. It does not resist chosen keys: a client that chooses keys can as well send one key.
pub(crate) fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = StableHasher(SPREAD);
    value.hash(&mut hasher);
    hasher.finish()
}

/// The index of the worker for this key: the one whose mix with the key is the highest. None: there are no workers.
///
/// Every key has its own order of preference among all workers. When a worker disconnects, each of its keys goes to the
/// next worker in the key's order, which spreads them over all others; no other keys move. When it connects again, exactly
/// its own keys return.
pub(crate) fn rendezvous(seeds: &[u64], key: u64) -> Option<usize> {
    let mut best: Option<(u64, usize)> = None;
    for (index, seed) in seeds.iter().enumerate() {
        let score = mix(seed ^ key);
        if best.is_none_or(|(highest, _)| score > highest) {
            best = Some((score, index));
        }
    }
    best.map(|(_, index)| index)
}

/// A uniform random number below `n` from a generator of this thread. Its seed is the thread's number in the process: the
/// choice of a worker is no secret, and runs can be repeated. `n` must not be 0.
pub(crate) fn random_below(n: usize) -> usize {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static STATE: Cell<u64> = Cell::new(mix(THREADS.fetch_add(1, Ordering::Relaxed)));
    }
    let state = STATE.with(|state| {
        let next = state.get().wrapping_add(SPREAD);
        state.set(next);
        next
    });
    scale(mix(state), n)
}

/// Scales a number of the whole range down to one below `n`, uniformly.
fn scale(number: u64, n: usize) -> usize {
    ((u128::from(number) * n as u128) >> 64) as usize
}

/// Makes every bit of the result depend on every bit of `x`.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

struct StableHasher(u64);

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(SPREAD);
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_same_in_every_version() {
        // Changing these figures moves every key of every user to another worker.
        assert_eq!(hash_of("a key"), 0x293a_d897_2c1f_7276);
        assert_eq!(hash_of(&7u64), 0x6706_a6eb_ce8d_1720);
    }

    #[test]
    fn equal_beginnings_and_lengths_make_no_equal_hashes() {
        let mut seen = std::collections::HashSet::new();
        for n in 0..1_000u64 {
            assert!(seen.insert(hash_of(&n)));
            assert!(seen.insert(hash_of(&format!("user-{n}"))));
            assert!(seen.insert(hash_of(&vec![0u8; n as usize])));
        }
    }

    #[test]
    fn a_scaled_number_is_below_and_even() {
        assert_eq!(scale(0, 6), 0);
        assert_eq!(scale(u64::MAX, 6), 5);
        assert_eq!(scale(u64::MAX / 2 + 1, 6), 3);
    }
}
