//! Who belongs to a pool: names, slots and connections. A plain data structure behind the pool's lock, off every path
//! that picks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::choice::hash_of;
use crate::connection::{Shares, Worker};
use crate::error::PoolError;
use crate::options::Size;
use crate::sync::Arc;

type Name = std::sync::Arc<str>;

/// The workers of a pool.
///
/// Invariant: `by_name` and `slots` tell the same: every worker has exactly one slot and one name, whatever failed
/// before. So nothing is changed before everything has been checked.
pub(crate) struct Roster<W> {
    size: Size,
    slots: Vec<Option<Member<W>>>,
    by_name: HashMap<Name, usize>,
    /// No slot below this one is free.
    first_free: usize,
    /// Seats that nobody owns.
    seats_given_up: BinaryHeap<Reverse<usize>>,
    /// How often each seat that was ever owned has been given up.
    seat_terms: Vec<u64>,
    /// The pool has been deleted.
    pub(crate) deleted: bool,
}

/// Where a connection can be claimed, until the seat is given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) number: usize,
    term: u64,
}

/// A worker, connected or not.
pub(crate) struct Member<W> {
    pub(crate) worker: Arc<Worker>,
    pub(crate) connection: Option<Arc<Shares<W>>>,
}

impl<W> Roster<W> {
    pub(crate) fn new(size: Size) -> Self {
        Self {
            size,
            slots: Vec::new(),
            by_name: HashMap::new(),
            first_free: 0,
            seats_given_up: BinaryHeap::new(),
            seat_terms: Vec::new(),
            deleted: false,
        }
    }

    /// Adds a worker at the next free slot, or at the one that is asked for. Returns its slot.
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
        let name = Name::from(name);
        self.by_name.insert(name.clone(), slot);
        self.slots[slot] = Some(Member {
            worker: Arc::new(Worker::new(name.clone(), slot, hash_of(&*name))),
            connection: None,
        });
        Ok(slot)
    }

    /// Takes a worker away that is not connected; its name and slot are free then.
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
    pub(crate) fn member(&mut self, name: &str) -> Result<&mut Member<W>, PoolError> {
        let unknown = || PoolError::UnknownWorker { name: name.into() };
        let slot = *self.by_name.get(name).ok_or_else(unknown)?;
        self.slots[slot].as_mut().ok_or_else(unknown)
    }

    /// Every worker, in the order of slots.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member<W>> {
        self.slots.iter().flatten()
    }

    /// Every worker, to be changed, in the order of slots.
    pub(crate) fn members_mut(&mut self) -> impl Iterator<Item = &mut Member<W>> {
        self.slots.iter_mut().flatten()
    }

    /// How many slots there are now.
    pub(crate) fn slot_count(&self) -> usize {
        match self.size {
            Size::Fixed(size) => size,
            Size::Growing { .. } => self.slots.len(),
        }
    }

    /// A seat that nobody owns, of `count` that there are. The lowest first, so that few words are in use.
    pub(crate) fn seat(&mut self, count: usize) -> Option<Seat> {
        let number = match self.seats_given_up.pop() {
            Some(Reverse(number)) => number,
            None if self.seat_terms.len() < count => {
                self.seat_terms.push(0);
                self.seat_terms.len() - 1
            }
            None => return None,
        };
        Some(Seat {
            number,
            term: self.seat_terms[number],
        })
    }

    /// True while this seat has not been given up; then nobody else can have got it.
    pub(crate) fn is_current(&self, seat: Seat) -> bool {
        self.seat_terms.get(seat.number) == Some(&seat.term)
    }

    /// Nobody owns this seat any more.
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
