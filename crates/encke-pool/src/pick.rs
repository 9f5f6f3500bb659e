//! Picks by turn, by chance, by value and by slot.

use std::hash::Hash;

use crate::choice;
use crate::error::PoolError;
use crate::options::Strategy;
use crate::pool::{Inner, Picked, PickedPlace, Pool, Shares, Snapshot};
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
                _ => PoolError::NoWorkerConnected,
            });
        }
        loop {
            let (slot, shares) = match strategy {
                Strategy::RoundRobin => inner.choose_next(&snapshot, bytes, avoid)?,
                Strategy::Random => inner.choose_any(&snapshot, bytes, avoid)?,
                Strategy::Claim => return inner.try_claim(avoid).ok_or(PoolError::NoRoom),
                strategy => return Err(PoolError::WrongStrategy { strategy }),
            };
            // Another pick may have taken the last place.
            if let Some(place) = inner.take(shares, slot, bytes) {
                return Ok(Picked::new(shares.share(), place));
            }
        }
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
            .ok_or(PoolError::NoWorkerConnected)?;
        self.inner
            .pick_this(&snapshot.connected[index], snapshot.slots[index], bytes)
    }

    /// The slot of the worker that [`Self::pick_for`] picks for this value, whether it has room or not.
    pub fn slot_for(&self, value: &(impl Hash + ?Sized)) -> Result<usize, PoolError> {
        self.inner.only(Strategy::Hash)?;
        let snapshot = self.inner.snapshot.load();
        let index = choice::rendezvous(&snapshot.seeds, choice::hash_of(value))
            .ok_or(PoolError::NoWorkerConnected)?;
        Ok(snapshot.slots[index])
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
            Some(Some(shares)) => self.inner.pick_this(shares, slot, bytes),
            _ if slot < snapshot.slot_count => Err(PoolError::NoWorkerConnected),
            _ => Err(PoolError::OutOfRange {
                slot,
                size: snapshot.slot_count,
            }),
        }
    }
}

/// A worker and its slot.
type Chosen<'a, W> = (usize, &'a Shares<W>);

impl<W> Inner<W> {
    #[inline]
    fn choose_next<'a>(
        &self,
        snapshot: &'a Snapshot<W>,
        bytes: u32,
        avoid: Option<usize>,
    ) -> Result<Chosen<'a, W>, PoolError> {
        loop {
            let turn = self.turns.current(snapshot.slot_count);
            let chosen = self.find(snapshot, turn.slot(), bytes, avoid)?;
            // Another pick may have taken this turn.
            if turn.advance(chosen.0 + 1) {
                return Ok(chosen);
            }
        }
    }

    #[inline]
    fn choose_any<'a>(
        &self,
        snapshot: &'a Snapshot<W>,
        bytes: u32,
        avoid: Option<usize>,
    ) -> Result<Chosen<'a, W>, PoolError> {
        let index = choice::random_below(snapshot.connected.len());
        let (slot, shares) = (snapshot.slots[index], &snapshot.connected[index]);
        if Some(slot) != avoid && self.open.is_open(slot) && self.fits(shares, bytes) {
            return Ok((slot, shares));
        }
        self.choose_any_open(snapshot, bytes, avoid)
    }

    /// Chooses among the workers with room only, all with the same probability.
    #[cold]
    fn choose_any_open<'a>(
        &self,
        snapshot: &'a Snapshot<W>,
        bytes: u32,
        avoid: Option<usize>,
    ) -> Result<Chosen<'a, W>, PoolError> {
        let open = self.open.count(snapshot.slot_count);
        if open == 0 {
            return Err(PoolError::NoRoom);
        }
        let number = choice::random_below(open);
        let mut slot = self.open.nth(number);
        if slot.is_some() && slot == avoid && open > 1 {
            let other = number + 1 + choice::random_below(open - 1);
            slot = self.open.nth(other % open);
        }
        // The chosen worker may lack room for this job; then the next one with room gets it.
        self.find(snapshot, slot.unwrap_or(0), bytes, avoid)
    }

    /// The first worker from the slot `from` on with room for this job, and its slot.
    #[inline]
    fn find<'a>(
        &self,
        snapshot: &'a Snapshot<W>,
        from: usize,
        bytes: u32,
        avoid: Option<usize>,
    ) -> Result<Chosen<'a, W>, PoolError> {
        let worker = |slot: usize| {
            let shares = snapshot.places.get(slot).and_then(Option::as_ref);
            shares.filter(|shares| Some(slot) != avoid && self.fits(shares, bytes))
        };
        let found = self.open.find(snapshot.slot_count, from, worker);
        let (slot, shares) = found.ok_or(PoolError::NoRoom)?;
        Ok((slot, shares))
    }

    #[inline]
    fn fits(&self, shares: &Shares<W>, bytes: u32) -> bool {
        // The snapshot may be older than the bit, so the connection itself is checked.
        self.capacity()
            .is_none_or(|capacity| shares.takes_jobs() && shares.worker.load.fits(bytes, &capacity))
    }

    /// Takes a place of the worker at this slot. None: it has none.
    #[inline]
    fn take(&self, shares: &Shares<W>, slot: usize, bytes: u32) -> Option<PickedPlace> {
        let Some(capacity) = self.capacity() else {
            return Some(PickedPlace::UNLIMITED);
        };
        if !shares.takes_jobs() {
            return None;
        }
        if shares.worker.load.add(bytes, &capacity)? {
            self.refresh(slot);
        }
        Some(PickedPlace::job(bytes))
    }

    /// Picks the worker at this slot if it has room.
    #[inline]
    fn pick_this(
        &self,
        shares: &Shares<W>,
        slot: usize,
        bytes: u32,
    ) -> Result<Picked<W>, PoolError> {
        if self.open.is_open(slot)
            && let Some(place) = self.take(shares, slot, bytes)
        {
            return Ok(Picked::new(shares.share(), place));
        }
        Err(PoolError::NoRoom)
    }

    /// Removes a job from a worker's load.
    pub(crate) fn remove_job(&self, worker: &PoolWorker, bytes: u32) {
        if let Some(capacity) = self.capacity()
            && worker.load.remove(bytes, &capacity)
        {
            self.refresh(worker.slot);
        }
    }
}
