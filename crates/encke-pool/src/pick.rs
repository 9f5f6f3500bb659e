//! Picks by turn, by chance, by value and by slot.

use std::hash::Hash;

use crate::choice;
use crate::error::PoolError;
use crate::options::Strategy;
use crate::pool::{Inner, Picked, PickedPlace, Pool, Shares, Snapshot};
use crate::sync::{Arc, Ordering};
use crate::worker::PoolWorker;

impl<W> Pool<W> {
    /// Picks a worker for a job of this size: the next one with room in a `round_robin` pool, any one with room in a
    /// `random` pool, the first free one in a `claim` pool. The worker at the slot `avoid` is never picked.
    #[inline]
    pub fn pick(&self, bytes: u32, avoid: Option<usize>) -> Result<Picked<W>, PoolError> {
        let inner = &self.inner;
        let strategy = inner.options.strategy;
        let snapshot = inner.snapshot.load();
        if snapshot.connected.is_empty() {
            return Err(match strategy {
                Strategy::Hash | Strategy::Direct => PoolError::WrongStrategy { strategy },
                _ => PoolError::NobodyConnected,
            });
        }
        let picked = match strategy {
            Strategy::RoundRobin => inner.pick_next(&snapshot, bytes, avoid),
            Strategy::Random => inner.pick_any(&snapshot, bytes, avoid),
            Strategy::Claim => inner.try_claim(avoid),
            strategy => return Err(PoolError::WrongStrategy { strategy }),
        };
        picked.ok_or(PoolError::NoRoom)
    }

    /// Picks the worker of a `hash` pool for this value: the same for the same value, also after a restart, while that
    /// worker is connected. The values of a worker that disconnects spread over all others; no other value moves. Costs
    /// about a nanosecond for each connected worker.
    #[inline]
    pub fn pick_for(
        &self,
        value: &(impl Hash + ?Sized),
        bytes: u32,
    ) -> Result<Picked<W>, PoolError> {
        self.inner.only(Strategy::Hash)?;
        let snapshot = self.inner.snapshot.load();
        let index = choice::rendezvous(&snapshot.seeds, choice::hash_of(value))
            .ok_or(PoolError::NobodyConnected)?;
        self.inner
            .take(&snapshot.connected[index], bytes)
            .ok_or(PoolError::NoRoom)
    }

    /// The slot of the worker that [`Self::pick_for`] picks for this value, whether it has room or not.
    pub fn slot_for(&self, value: &(impl Hash + ?Sized)) -> Result<usize, PoolError> {
        self.inner.only(Strategy::Hash)?;
        let snapshot = self.inner.snapshot.load();
        let index = choice::rendezvous(&snapshot.seeds, choice::hash_of(value))
            .ok_or(PoolError::NobodyConnected)?;
        Ok(snapshot.connected[index].worker.slot)
    }

    /// Picks the worker at this slot of a `direct` or `hash` pool; the first is 0.
    #[inline]
    pub fn pick_at(&self, slot: usize, bytes: u32) -> Result<Picked<W>, PoolError> {
        let strategy = self.inner.options.strategy;
        if !matches!(strategy, Strategy::Direct | Strategy::Hash) {
            return Err(PoolError::WrongStrategy { strategy });
        }
        let snapshot = self.inner.snapshot.load();
        match snapshot.places.get(slot) {
            Some(Some(shares)) => self.inner.take(shares, bytes).ok_or(PoolError::NoRoom),
            _ if slot < snapshot.slot_count => Err(PoolError::NobodyConnected),
            _ => Err(PoolError::OutOfRange {
                slot,
                size: snapshot.slot_count,
            }),
        }
    }
}

impl<W> Inner<W> {
    fn pick_next(
        &self,
        snapshot: &Snapshot<W>,
        bytes: u32,
        avoid: Option<usize>,
    ) -> Option<Picked<W>> {
        let turn = &self.turn.0;
        loop {
            let from = turn.load(Ordering::Relaxed);
            let slot = self.find(snapshot, from, bytes, avoid)?;
            let shares = snapshot.places.get(slot)?.as_ref()?;
            // Another pick may have taken this turn, or the last place.
            if turn
                .compare_exchange(from, slot + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
                && let Some(picked) = self.take(shares, bytes)
            {
                return Some(picked);
            }
        }
    }

    fn pick_any(
        &self,
        snapshot: &Snapshot<W>,
        bytes: u32,
        avoid: Option<usize>,
    ) -> Option<Picked<W>> {
        // Any worker will do if it has room; otherwise any one of those with room, all with the same probability.
        let index = choice::random_below(snapshot.connected.len());
        let shares = &snapshot.connected[index];
        if Some(shares.worker.slot) != avoid
            && let Some(picked) = self.take(shares, bytes)
        {
            return Some(picked);
        }
        loop {
            let open = self.open.count(snapshot.slot_count);
            if open == 0 {
                return None;
            }
            let number = choice::random_below(open);
            let mut chosen = self.open.nth(number);
            if chosen.is_some() && chosen == avoid && open > 1 {
                let other = number + 1 + choice::random_below(open - 1);
                chosen = self.open.nth(other % open);
            }
            // The chosen worker may lack room for this job; then the next one with room gets it.
            let slot = self.find(snapshot, chosen.unwrap_or(0), bytes, avoid)?;
            let shares = snapshot.places.get(slot)?.as_ref()?;
            if let Some(picked) = self.take(shares, bytes) {
                return Some(picked);
            }
        }
    }

    /// The first slot from `from` on whose worker has room for this job.
    #[inline]
    fn find(
        &self,
        snapshot: &Snapshot<W>,
        from: usize,
        bytes: u32,
        avoid: Option<usize>,
    ) -> Option<usize> {
        self.open.find(snapshot.slot_count, from, |slot| {
            let shares = snapshot.places.get(slot).and_then(Option::as_ref);
            Some(slot) != avoid && shares.is_some_and(|shares| self.fits(shares, bytes))
        })
    }

    #[inline]
    fn fits(&self, shares: &Shares<W>, bytes: u32) -> bool {
        let capacity = &self.options.capacity;
        // The snapshot may be older than the bit, so the connection itself is checked.
        shares.takes_jobs()
            && capacity.is_none_or(|capacity| shares.worker.load.fits(bytes, &capacity))
    }

    /// Takes a place of this worker. None: it has none.
    #[inline]
    fn take(&self, shares: &Arc<Shares<W>>, bytes: u32) -> Option<Picked<W>> {
        if !shares.takes_jobs() {
            return None;
        }
        let place = match &self.options.capacity {
            None => PickedPlace::Unlimited,
            Some(capacity) => {
                if shares.worker.load.add(bytes, capacity)? {
                    self.refresh(shares.worker.slot);
                }
                PickedPlace::Job { bytes }
            }
        };
        Some(Picked::new(shares.share(), place))
    }

    /// Removes a job from a worker's load.
    pub(crate) fn remove_job(&self, worker: &PoolWorker, bytes: u32) {
        if let Some(capacity) = &self.options.capacity
            && worker.load.remove(bytes, capacity)
        {
            self.refresh(worker.slot);
        }
    }
}
