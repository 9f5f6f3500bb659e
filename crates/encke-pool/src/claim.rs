//! Claims: one worker for one claimant at a time.
//!
//! The seat of a free worker is a bit in [`crate::seats`]. Whoever clears the bit has the worker; nobody waits for a
//! lock while a worker is free. When none is, claims stand in line, and a release serves the first of the line.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use encke_mailbox::{NoReply, Reply, ReplyTo, reply};

use crate::connection::{Connection, Share, tells_of_its_worker};
use crate::error::PoolError;
use crate::line::Line;
use crate::options::Strategy;
use crate::pool::{Inner, Pool};
use crate::seats::Taken;
use crate::sync::{Arc, thread};

/// A worker that nobody else can claim as long as this lives; it dereferences to what the worker connected with.
///
/// Dropping it releases the worker, also when the claimant panics. If the worker goes meanwhile, it is gone for others
/// and may even connect anew and be claimed anew: this claim is of the connection that it got.
pub struct Claim<W> {
    share: Arc<Share<W>>,
}

/// A place in the line of those who wait for a free worker: wait in a thread with [`Self::wait`], or as a future.
/// Dropping it leaves the line; if a worker was assigned in the same moment, it goes to the next.
pub struct InLine<W> {
    pool: Arc<Inner<W>>,
    ticket: u64,
    /// None once it has been waited for.
    reply: Option<Reply<Claim<W>>>,
}

/// How often a claim that finds no worker free yields before it goes into the line. Most claims are short, so a worker
/// is free sooner than this thread could be put to sleep and woken. Models need none: their scheduler tries every order.
const YIELDS_BEFORE_LINE: usize = if cfg!(encke_model) { 0 } else { 8 };

impl<W> Pool<W> {
    /// Claims a free worker of a `claim` pool. Never waits: [`PoolError::AllBusy`] if every connected worker is
    /// claimed or others wait already.
    pub fn try_claim(&self) -> Result<Claim<W>, PoolError> {
        self.inner.only(Strategy::Claim)?;
        self.inner.try_claim().ok_or_else(|| {
            if self.inner.has_nobody() {
                PoolError::NobodyConnected
            } else {
                PoolError::AllBusy
            }
        })
    }

    /// Claims a free worker and waits for one if there is none, behind those who came before, also while nobody
    /// is connected. Blocks the thread.
    pub fn claim(&self) -> Result<Claim<W>, PoolError> {
        self.claim_until(None)
    }

    /// The same, but waits no longer than `timeout`; then [`PoolError::TimedOut`].
    pub fn claim_timeout(&self, timeout: Duration) -> Result<Claim<W>, PoolError> {
        // A timeout beyond what the clock can say is no timeout.
        self.claim_until(Instant::now().checked_add(timeout))
    }

    /// Stands in line for a worker without blocking; it may be assigned at once.
    pub fn line_up(&self) -> Result<InLine<W>, PoolError> {
        let inner = &self.inner;
        inner.only(Strategy::Claim)?;
        let (reply_to, reply) = reply();
        let mut line = inner.line.lock();
        if line.closed {
            return Err(inner.unknown());
        }
        let waiting_max = inner.options.waiting_max;
        if line.len() >= waiting_max {
            return Err(PoolError::TooManyWaiting { waiting_max });
        }
        if line.is_empty() {
            inner.seats.close_gate();
        }
        let ticket = line.push(reply_to);
        // A worker may have become free before the gate was closed.
        let served = inner.serve(&mut line);
        drop(line);
        deliver(served);
        Ok(InLine {
            pool: inner.clone(),
            ticket,
            reply: Some(reply),
        })
    }

    fn claim_until(&self, deadline: Option<Instant>) -> Result<Claim<W>, PoolError> {
        self.inner.only(Strategy::Claim)?;
        for _ in 0..=YIELDS_BEFORE_LINE {
            if let Some(claim) = self.inner.try_claim() {
                return Ok(claim);
            }
            if YIELDS_BEFORE_LINE > 0 {
                thread::yield_now();
            }
        }
        self.line_up()?.wait_until(deadline)
    }
}

impl<W> Inner<W> {
    fn try_claim(&self) -> Option<Claim<W>> {
        loop {
            let Taken::Seat(seat) = self.seats.take() else {
                return None;
            };
            if let Some(claim) = self.claim_on(seat) {
                return Some(claim);
            }
        }
    }

    /// Claims who sits on this seat, which the caller owns. None: has gone, and the seat is given up.
    fn claim_on(&self, seat: usize) -> Option<Claim<W>> {
        let Some(share) = self.occupant(seat) else {
            self.give_up_seat(seat);
            return None;
        };
        share.connection.worker.picks.add_one();
        Some(Claim { share })
    }

    /// Makes a new connection free to be claimed.
    pub(crate) fn take_seat(&self, connection: &Connection<W>) {
        {
            let line = self.line.lock();
            self.seats
                .use_up_to(connection.seat.number, !line.is_empty());
        }
        self.free(connection);
    }

    /// Releases what was claimed.
    fn release(&self, connection: &Connection<W>) {
        if connection.is_gone() {
            self.give_up_seat(connection.seat.number);
        } else {
            self.free(connection);
        }
    }

    /// Puts the seat, which the caller owns, back into the pool, and serves the line if there is one.
    fn free(&self, connection: &Connection<W>) {
        if self.seats.put(connection.seat.number) {
            let mut line = self.line.lock();
            let served = self.serve(&mut line);
            drop(line);
            deliver(served);
        }
        // Who disconnected it in between found the seat owned, and left it to us.
        if connection.is_gone() {
            self.leave_seat(connection);
        }
    }

    /// Assigns free workers to the first in line. What comes out must be delivered without the lock.
    fn serve(&self, line: &mut Line<W>) -> Vec<(ReplyTo<Claim<W>>, Claim<W>)> {
        let mut served = Vec::new();
        while !line.is_empty() {
            let Some(seat) = self.seats.take_for_line() else {
                return served;
            };
            if let Some(claim) = self.claim_on(seat)
                && let Some(first) = line.pop()
            {
                served.push((first, claim));
            }
        }
        self.seats.open_gate();
        served
    }

    /// Sends everybody in line away.
    pub(crate) fn close_line(&self) {
        let mut line = self.line.lock();
        let sent_away = line.close();
        self.seats.open_gate();
        drop(line);
        sent_away.for_each(drop);
    }

    /// Takes somebody out of the line who leaves.
    fn leave_line(&self, ticket: u64) {
        let mut line = self.line.lock();
        let left = line.leave(ticket);
        if left.is_some() && line.is_empty() {
            self.seats.open_gate();
        }
        drop(line);
        drop(left);
    }
}

impl<W> InLine<W> {
    /// Blocks until a worker is assigned.
    pub fn wait(self) -> Result<Claim<W>, PoolError> {
        self.wait_until(None)
    }

    /// The same, but no longer than `timeout`; then [`PoolError::TimedOut`].
    pub fn wait_timeout(self, timeout: Duration) -> Result<Claim<W>, PoolError> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(mut self, deadline: Option<Instant>) -> Result<Claim<W>, PoolError> {
        let answer = match (self.reply.take(), deadline) {
            (None, _) => Err(NoReply::Dropped),
            (Some(reply), None) => reply.wait(),
            (Some(reply), Some(deadline)) => {
                reply.wait_timeout(deadline.saturating_duration_since(Instant::now()))
            }
        };
        answer.map_err(|why| self.explain(why))
    }

    fn explain(&self, why: NoReply) -> PoolError {
        match why {
            NoReply::TimedOut => PoolError::TimedOut,
            NoReply::Dropped => self.pool.unknown(),
        }
    }
}

impl<W> Future for InLine<W> {
    type Output = Result<Claim<W>, PoolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.reply {
            Some(reply) => ready!(Pin::new(reply).poll(context)),
            None => Err(NoReply::Dropped),
        };
        self.reply = None;
        Poll::Ready(answer.map_err(|why| self.explain(why)))
    }
}

impl<W> Drop for InLine<W> {
    fn drop(&mut self) {
        // After this nobody assigns us a worker any more; one that has been assigned is released with the reply.
        self.pool.leave_line(self.ticket);
    }
}

impl<W> Claim<W> {
    fn connection(&self) -> &Connection<W> {
        &self.share.connection
    }
}

tells_of_its_worker!(Claim);

impl<W> Deref for Claim<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.connection().value
    }
}

impl<W> Drop for Claim<W> {
    fn drop(&mut self) {
        let connection = self.connection();
        connection.pool.release(connection);
    }
}

impl<W> fmt::Debug for InLine<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InLine")
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

/// Hands out what was assigned. What nobody waits for any more is dropped, and so released to the next.
fn deliver<W>(served: Vec<(ReplyTo<Claim<W>>, Claim<W>)>) {
    for (reply_to, claim) in served {
        drop(reply_to.send(claim));
    }
}
