//! The workers of a pool: names, slots and connections. Plain data behind the pool's lock, which no pick takes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::error::PoolError;
use crate::options::Size;
use crate::sync::Arc;
use crate::worker::PoolWorker;

/// The workers of a pool, with connections of type `C`.
///
/// Invariant: `by_name` and `slots` agree: every worker has exactly one slot and one name. So each method checks
/// everything before it changes anything.
pub(crate) struct Roster<C> {
    size: Size,
    slots: Vec<Option<RosterEntry<C>>>,
    by_name: HashMap<std::sync::Arc<str>, usize>,
    /// No slot below this one is free.
    first_free: usize,
    /// Seats without an owner.
    seats_given_up: BinaryHeap<Reverse<usize>>,
    /// How often each seat has been given up.
    seat_terms: Vec<u64>,
}

/// The seat of a connection, until it is given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimSeat {
    pub(crate) number: usize,
    term: u64,
}

/// A worker and its connection.
pub(crate) struct RosterEntry<C> {
    pub(crate) worker: Arc<PoolWorker>,
    pub(crate) connection: Option<C>,
}

impl<C> Roster<C> {
    pub(crate) fn new(size: Size) -> Self {
        Self {
            size,
            slots: Vec::new(),
            by_name: HashMap::new(),
            first_free: 0,
            seats_given_up: BinaryHeap::new(),
            seat_terms: Vec::new(),
        }
    }

    /// Adds a worker at the requested slot, or at the first free one. Returns its slot.
    pub(crate) fn add(&mut self, name: &str, slot: Option<usize>) -> Result<usize, PoolError> {
        if let Some(&slot) = self.by_name.get(name) {
            let name = name.into();
            return Err(PoolError::NameTaken { name, slot });
        }
        let size = self.size.max();
        let slot = match slot {
            None => self.next_free().ok_or(PoolError::Full { size })?,
            Some(slot) if slot >= size => return Err(PoolError::OutOfRange { slot, size }),
            Some(slot) => match self.slots.get(slot) {
                Some(Some(member)) => {
                    let by = member.worker.name.clone();
                    return Err(PoolError::SlotTaken { slot, by });
                }
                _ => slot,
            },
        };
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        let name = std::sync::Arc::<str>::from(name);
        self.by_name.insert(name.clone(), slot);
        self.slots[slot] = Some(RosterEntry {
            worker: Arc::new(PoolWorker::new(name, slot)),
            connection: None,
        });
        Ok(slot)
    }

    /// Removes a worker that is not connected; its name and slot become free.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), PoolError> {
        let member = self.member(name)?;
        let slot = member.worker.slot;
        if member.connection.is_some() {
            let name = name.into();
            return Err(PoolError::WorkerConnected { name });
        }
        self.by_name.remove(name);
        self.slots[slot] = None;
        self.first_free = self.first_free.min(slot);
        Ok(())
    }

    /// The worker of this name.
    pub(crate) fn member(&mut self, name: &str) -> Result<&mut RosterEntry<C>, PoolError> {
        let unknown = || PoolError::UnknownWorker { name: name.into() };
        let slot = *self.by_name.get(name).ok_or_else(unknown)?;
        self.slots[slot].as_mut().ok_or_else(unknown)
    }

    /// Every worker, in the order of slots.
    pub(crate) fn members(&self) -> impl Iterator<Item = &RosterEntry<C>> {
        self.slots.iter().flatten()
    }

    /// How many slots there are now.
    pub(crate) fn slot_count(&self) -> usize {
        match self.size {
            Size::Fixed(size) => size,
            Size::Growing { .. } => self.slots.len(),
        }
    }

    /// The lowest seat of `count` that has no owner.
    pub(crate) fn seat(&mut self, count: usize) -> Option<ClaimSeat> {
        let number = match self.seats_given_up.pop() {
            Some(Reverse(number)) => number,
            None if self.seat_terms.len() < count => {
                self.seat_terms.push(0);
                self.seat_terms.len() - 1
            }
            None => return None,
        };
        Some(ClaimSeat {
            number,
            term: self.seat_terms[number],
        })
    }

    /// True while this seat has not been given up, so it has no other owner since.
    pub(crate) fn is_current(&self, seat: ClaimSeat) -> bool {
        self.seat_terms.get(seat.number) == Some(&seat.term)
    }

    /// The seat has no owner from now on.
    pub(crate) fn give_up_seat(&mut self, number: usize) {
        self.seat_terms[number] += 1;
        self.seats_given_up.push(Reverse(number));
    }

    fn next_free(&mut self) -> Option<usize> {
        while self.slots.get(self.first_free).is_some_and(Option::is_some) {
            self.first_free += 1;
        }
        (self.first_free < self.size.max()).then_some(self.first_free)
    }
}
