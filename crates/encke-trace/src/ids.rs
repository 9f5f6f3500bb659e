//! Makes ids. They are unique in a process, and by chance among processes; they are no secrets.

use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::context::{SpanId, TraceId};

/// Makes ids for all threads.
#[derive(Debug)]
pub(crate) struct IdSource {
    /// Two keys that differ in each process.
    keys: [u64; 2],
    next: AtomicU64,
}

impl IdSource {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        IdSource {
            keys: [random.hash_one("traces"), random.hash_one("spans")],
            next: AtomicU64::new(random.hash_one("first")),
        }
    }

    pub(crate) fn trace(&self) -> TraceId {
        let (high, low) = (
            mixed(self.number(), self.keys[0]),
            mixed(self.number(), self.keys[1]),
        );
        let id = u128::from(high) << 64 | u128::from(low);
        TraceId(NonZeroU128::new(id).unwrap_or(NonZeroU128::MIN))
    }

    pub(crate) fn span(&self) -> SpanId {
        let id = mixed(self.number(), self.keys[1]);
        SpanId(NonZeroU64::new(id).unwrap_or(NonZeroU64::MIN))
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// A permutation of all numbers for each key: multiplications by odd constants, and shifts.
fn mixed(number: u64, key: u64) -> u64 {
    let mut mixed = number.wrapping_add(key);
    for odd in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        mixed = (mixed ^ mixed >> 33).wrapping_mul(odd);
    }
    mixed ^ mixed >> 33
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_ids_are_equal() {
        let ids = IdSource::new();
        let spans: BTreeSet<_> = (0..10_000).map(|_| ids.span().to_bytes()).collect();
        let traces: BTreeSet<_> = (0..10_000).map(|_| ids.trace().to_bytes()).collect();
        assert_eq!((spans.len(), traces.len()), (10_000, 10_000));
    }
}
