//! A worker and its load.

use crate::choice::hash_of;
use crate::options::Capacity;
use crate::sync::{AtomicU64, Ordering};

/// A named place in a pool. It stays while its worker disconnects and connects again.
pub(crate) struct PoolWorker {
    pub(crate) name: std::sync::Arc<str>,
    pub(crate) slot: usize,
    /// The hash of the name; see [`crate::choice::rendezvous`].
    pub(crate) seed: u64,
    pub(crate) load: WorkerLoad,
}

/// The jobs that a worker has: their number in the upper 16 bits, the sum of their bytes in the lower 48, which 65,535
/// jobs of 4 GiB do not exceed.
pub(crate) struct WorkerLoad(AtomicU64);

impl PoolWorker {
    pub(crate) fn new(name: std::sync::Arc<str>, slot: usize) -> Self {
        Self {
            seed: hash_of(&*name),
            name,
            slot,
            load: WorkerLoad(AtomicU64::new(0)),
        }
    }
}

impl WorkerLoad {
    /// Whether a job of this size fits.
    pub(crate) fn fits(&self, bytes: u32, capacity: &Capacity) -> bool {
        fits(self.0.load(Ordering::Acquire), bytes, capacity)
    }

    /// Whether any job fits.
    pub(crate) fn has_room(&self, capacity: &Capacity) -> bool {
        self.fits(0, capacity)
    }

    /// Adds a job. True: it took the last room. None: it does not fit.
    pub(crate) fn add(&self, bytes: u32, capacity: &Capacity) -> Option<bool> {
        let mut load = self.0.load(Ordering::Acquire);
        while fits(load, bytes, capacity) {
            let more = load + one_job(bytes);
            match self
                .0
                .compare_exchange_weak(load, more, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(room_changes(load, more, capacity)),
                Err(now) => load = now,
            }
        }
        None
    }

    /// Removes a job that was added before. True: there is room again.
    pub(crate) fn remove(&self, bytes: u32, capacity: &Capacity) -> bool {
        let load = self.0.fetch_sub(one_job(bytes), Ordering::AcqRel);
        room_changes(load, load - one_job(bytes), capacity)
    }
}

fn one_job(bytes: u32) -> u64 {
    (1 << BYTES_BITS) + u64::from(bytes)
}

fn fits(load: u64, bytes: u32, capacity: &Capacity) -> bool {
    let jobs = load >> BYTES_BITS;
    let all_bytes = (load & BYTES_MASK) + u64::from(bytes);
    jobs == 0 || jobs < u64::from(capacity.jobs_max) && all_bytes <= capacity.bytes_max
}

fn room_changes(before: u64, after: u64, capacity: &Capacity) -> bool {
    fits(before, 0, capacity) != fits(after, 0, capacity)
}

const BYTES_BITS: u32 = 48;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;

#[cfg(all(test, not(encke_model)))]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity {
        jobs_max: 3,
        bytes_max: 100,
    };

    #[test]
    fn room_ends_with_the_number_and_with_the_bytes() {
        let load = WorkerLoad(AtomicU64::new(0));
        assert_eq!(load.add(90, &CAPACITY), Some(false));
        assert!(load.fits(10, &CAPACITY) && !load.fits(11, &CAPACITY));
        assert_eq!(load.add(11, &CAPACITY), None);
        assert_eq!(load.add(1, &CAPACITY), Some(false));
        assert_eq!(load.add(1, &CAPACITY), Some(true));
        assert!(!load.has_room(&CAPACITY));
        assert_eq!(load.add(0, &CAPACITY), None);
        assert!(load.remove(90, &CAPACITY));
        assert!(load.fits(98, &CAPACITY));
    }

    #[test]
    fn a_worker_without_jobs_takes_one_of_any_size() {
        let load = WorkerLoad(AtomicU64::new(0));
        assert_eq!(load.add(u32::MAX, &CAPACITY), Some(true));
        assert!(!load.has_room(&CAPACITY));
        assert!(load.remove(u32::MAX, &CAPACITY));
        assert!(load.has_room(&CAPACITY));
    }
}
