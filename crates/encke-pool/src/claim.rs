//! Claims: one worker for one claim at a time.
//!
//! The seat of a free worker is a bit in [`crate::seats`]. A claim that clears the bit has the worker; no claim waits for
//! a lock while a worker is free. If none is, claims wait in order, and a release serves the first.

use encke_mailbox::{ReplyTo, reply};

use crate::error::PoolError;
use crate::options::Strategy;
use crate::pool::{ClaimOutcome, Inner, Picked, PickedPlace, Pool, WorkerConnection};
use crate::seats::TakenSeat;
use crate::sync::thread;

type Waiting<W> = std::collections::VecDeque<ReplyTo<Picked<W>>>;

impl<W> Pool<W> {
    /// Claims a free worker of a `claim` pool. Blocks the thread while there is none, behind earlier claims, also while no
    /// worker is connected.
    pub fn claim(&self) -> Result<Picked<W>, PoolError> {
        self.inner.only(Strategy::Claim)?;
        for _ in 0..=YIELDS_BEFORE_WAITING {
            if let Some(picked) = self.inner.try_claim(None) {
                return Ok(picked);
            }
            if YIELDS_BEFORE_WAITING > 0 {
                thread::yield_now();
            }
        }
        let (reply_to, reply) = reply();
        let mut waiting = self.inner.claims.lock();
        if waiting.is_empty() {
            self.inner.seats.close_gate();
        }
        waiting.push_back(reply_to);
        // A worker may have become free before the gate was closed.
        let served = self.inner.serve(&mut waiting);
        drop(waiting);
        deliver(served);
        reply.wait().map_err(|_| PoolError::NoWorkerConnected)
    }
}

impl<W> Inner<W> {
    /// Claims a free worker other than the one at the slot `avoid`. Never waits.
    #[inline]
    pub(crate) fn try_claim(&self, avoid: Option<usize>) -> Option<Picked<W>> {
        let picked = self.claim_first()?;
        if avoid.is_none() || avoid != Some(picked.slot()) {
            return Some(picked);
        }
        // Holds the avoided worker while it looks for another one.
        self.claim_first()
    }

    #[inline]
    fn claim_first(&self) -> Option<Picked<W>> {
        while let TakenSeat::Seat(seat) = self.seats.take() {
            if let Some(picked) = self.claim_on(seat) {
                return Some(picked);
            }
        }
        None
    }

    /// Claims the worker at this seat, which the caller owns. None: it has disconnected or is paused, and the caller
    /// owns the seat no more.
    #[inline]
    fn claim_on(&self, seat: usize) -> Option<Picked<W>> {
        if let Some(share) = self.occupant(seat) {
            match share.claim() {
                ClaimOutcome::Claimed => return Some(Picked::new(share, PickedPlace::SEAT)),
                ClaimOutcome::Parked => return None,
                ClaimOutcome::Gone => {}
            }
        }
        self.give_up_seat(seat);
        None
    }

    /// Makes a new connection free to be claimed.
    pub(crate) fn take_seat(&self, connection: &WorkerConnection<W>) {
        {
            let waiting = self.claims.lock();
            self.seats
                .use_up_to(connection.seat.number, !waiting.is_empty());
        }
        self.free(connection);
    }

    /// Releases a claim.
    #[inline]
    pub(crate) fn release(&self, connection: &WorkerConnection<W>) {
        if connection.is_gone() {
            self.give_up_seat(connection.seat.number);
        } else {
            self.free(connection);
        }
    }

    /// Returns the seat, which the caller owns, to the pool, and serves the claims that wait.
    pub(crate) fn free(&self, connection: &WorkerConnection<W>) {
        if self.seats.put(connection.seat.number) {
            let mut waiting = self.claims.lock();
            let served = self.serve(&mut waiting);
            drop(waiting);
            deliver(served);
        }
        // A disconnection in between found that the pool did not own the seat.
        if connection.is_gone() {
            self.leave_seat(connection);
        }
    }

    /// Assigns free workers to the first claims that wait. Deliver the result without the lock.
    fn serve(&self, waiting: &mut Waiting<W>) -> Vec<(ReplyTo<Picked<W>>, Picked<W>)> {
        let mut served = Vec::new();
        while !waiting.is_empty() {
            let Some(seat) = self.seats.take_for_waiting() else {
                return served;
            };
            if let Some(picked) = self.claim_on(seat)
                && let Some(first) = waiting.pop_front()
            {
                served.push((first, picked));
            }
        }
        self.seats.open_gate();
        served
    }
}

/// Hands out assigned workers. A worker whose claim is gone is released.
fn deliver<W>(served: Vec<(ReplyTo<Picked<W>>, Picked<W>)>) {
    for (reply_to, picked) in served {
        drop(reply_to.send(picked));
    }
}

/// How often a claim that finds no free worker yields before it waits. Most claims are short, so a worker is free sooner
/// than a thread falls asleep and wakes. Models need no yields: their scheduler tries every order.
const YIELDS_BEFORE_WAITING: usize = if cfg!(encke_model) { 0 } else { 8 };
