//! One answer to one question, found in O(1) whatever else waits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::sync::{self, Arc, Mutex, thread};

/// Makes a slot for one answer: the [`ReplyTo`] travels with the question, the [`Reply`] stays with who asks.
///
/// The answer goes straight to the one who waits for it and through no mailbox, so it is never behind anything. Either
/// side may be dropped at any time and leaves nothing behind: a lost question wakes who waits for its answer, and the
/// answer to someone who has gone comes back to who gave it.
///
/// ```
/// use encke_mailbox::{Bounds, Lane, Options, ReplyTo, mailbox, reply};
///
/// let options = Options::new(Bounds { items_max: 10, bytes_max: 1_000 });
/// let (sender, mut receiver) = mailbox::<(u32, ReplyTo<u32>)>("doubler", options);
/// let server = std::thread::spawn(move || {
///     while let Ok((n, reply_to)) = receiver.recv() {
///         // Who asked may have gone meanwhile.
///         let _ = reply_to.send(n * 2);
///     }
/// });
///
/// let (reply_to, reply) = reply();
/// sender.try_send(Lane::Data, (21, reply_to), 4).unwrap();
/// assert_eq!(reply.wait(), Ok(42));
/// # drop(sender);
/// # server.join().unwrap();
/// ```
pub fn reply<R>() -> (ReplyTo<R>, Reply<R>) {
    let slot = Arc::new(Mutex::new(Slot::Open(None)));
    (ReplyTo { slot: slot.clone() }, Reply { slot })
}

/// Gives the answer. Dropped without one, it tells who waits that none will come.
pub struct ReplyTo<R> {
    slot: Arc<Mutex<Slot<R>>>,
}

/// Waits for the answer, in a thread with [`Self::wait`] or as a future. Dropped, it gives the answer up.
pub struct Reply<R> {
    slot: Arc<Mutex<Slot<R>>>,
}

/// Why there is no answer.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// The question was dropped unanswered: it was shed, or who should have answered is gone.
    #[error("dropped without an answer")]
    Dropped,
    /// The time was up. If the answer comes later it goes back to who gave it.
    #[error("no answer in time")]
    TimedOut,
}

enum Slot<R> {
    /// No answer yet; who waits, if anyone does already.
    Open(Option<Asker>),
    Answered(R),
    /// There will be no answer, or nobody wants it, or it has been fetched.
    Closed,
}

enum Asker {
    Thread(thread::Thread),
    Task(Waker),
}

impl<R> ReplyTo<R> {
    /// Gives the answer. It comes back if nobody waits for it any more.
    pub fn send(self, answer: R) -> Result<(), R> {
        let mut slot = self.slot.lock();
        let Slot::Open(asker) = &mut *slot else {
            return Err(answer);
        };
        let asker = asker.take();
        *slot = Slot::Answered(answer);
        drop(slot);
        wake(asker);
        Ok(())
    }

    /// True when nobody waits for the answer any more, so that the work for it can be saved.
    pub fn is_unwanted(&self) -> bool {
        matches!(*self.slot.lock(), Slot::Closed)
    }
}

impl<R> Reply<R> {
    /// Blocks until the answer is there.
    pub fn wait(self) -> Result<R, NoReply> {
        self.wait_until(None)
    }

    /// The same, but no longer than `timeout`.
    pub fn wait_timeout(self, timeout: Duration) -> Result<R, NoReply> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// The answer if it is there already, or why none will come. None: not yet.
    pub fn try_take(&mut self) -> Option<Result<R, NoReply>> {
        take(&mut self.slot.lock())
    }

    fn wait_until(self, deadline: Option<Instant>) -> Result<R, NoReply> {
        let mut in_time = true;
        loop {
            {
                let mut slot = self.slot.lock();
                if let Some(answer) = take(&mut slot) {
                    return answer;
                }
                if !in_time {
                    // Dropping `self` closes the slot. An answer that comes in between is dropped with it.
                    return Err(NoReply::TimedOut);
                }
                if let Slot::Open(asker) = &mut *slot
                    && !matches!(asker, Some(Asker::Thread(_)))
                {
                    *asker = Some(Asker::Thread(thread::current()));
                }
            }
            in_time = sync::park(deadline);
        }
    }
}

impl<R> Future for Reply<R> {
    type Output = Result<R, NoReply>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.lock();
        if let Some(answer) = take(&mut slot) {
            return Poll::Ready(answer);
        }
        if let Slot::Open(asker) = &mut *slot {
            match asker {
                Some(Asker::Task(waker)) => waker.clone_from(context.waker()),
                _ => *asker = Some(Asker::Task(context.waker().clone())),
            }
        }
        Poll::Pending
    }
}

impl<R> Drop for ReplyTo<R> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock();
        let Slot::Open(asker) = &mut *slot else {
            return;
        };
        let asker = asker.take();
        *slot = Slot::Closed;
        drop(slot);
        wake(asker);
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        // The answer may be large, or have a drop of its own: it goes without the lock.
        let _gone = std::mem::replace(&mut *self.slot.lock(), Slot::Closed);
    }
}

impl<R> fmt::Debug for ReplyTo<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyTo").finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for Reply<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

fn take<R>(slot: &mut Slot<R>) -> Option<Result<R, NoReply>> {
    if matches!(slot, Slot::Open(_)) {
        return None;
    }
    match std::mem::replace(slot, Slot::Closed) {
        Slot::Answered(answer) => Some(Ok(answer)),
        Slot::Open(_) | Slot::Closed => Some(Err(NoReply::Dropped)),
    }
}

fn wake(asker: Option<Asker>) {
    match asker {
        Some(Asker::Thread(thread)) => thread.unpark(),
        Some(Asker::Task(waker)) => waker.wake(),
        None => {}
    }
}
