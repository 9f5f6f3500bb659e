//! One answer to one question.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, thread};

/// Creates a slot for one answer: the [`ReplyTo`] travels with the question, the [`PendingReply`] stays with the asker.
///
/// The answer goes straight to the waiting thread or task and not through a mailbox, so it waits behind nothing. Either side may be
/// dropped at any time: a lost question wakes the asker, and an answer without an asker returns to the sender.
///
/// ```
/// use encke_mailbox::{Bounds, Lane, ReplyTo, mailbox, reply};
///
/// let bounds = Bounds { items_max: 10, bytes_max: 1_000 };
/// let (sender, mut receiver) = mailbox::<(u32, ReplyTo<u32>)>("doubler", bounds);
/// let server = std::thread::spawn(move || {
///     while let Ok((n, reply_to)) = receiver.recv() {
///         // The asker may be gone.
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
pub fn reply<R>() -> (ReplyTo<R>, PendingReply<R>) {
    let slot = Arc::new(Mutex::new(ReplySlot::Open(None)));
    (ReplyTo { slot: slot.clone() }, PendingReply { slot })
}

/// Sends the answer. Dropping it without an answer wakes the asker with [`NoReply`].
pub struct ReplyTo<R> {
    slot: Arc<Mutex<ReplySlot<R>>>,
}

/// Waits for the answer, in a thread with [`Self::wait`] or as a future.
pub struct PendingReply<R> {
    slot: Arc<Mutex<ReplySlot<R>>>,
}

/// The question was dropped unanswered.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("dropped without an answer")]
pub struct NoReply;

enum ReplySlot<R> {
    /// No answer yet, and the waiter, if one waits already.
    Open(Option<Waiter>),
    Answered(R),
    /// No answer will follow, or the answer was taken, or the asker is gone.
    Closed,
}

enum Waiter {
    Thread(thread::Thread),
    Task(Waker),
}

impl<R> ReplyTo<R> {
    /// Sends the answer. It comes back if the asker is gone.
    pub fn send(self, answer: R) -> Result<(), R> {
        let mut slot = self.slot.lock();
        let ReplySlot::Open(waiter) = &mut *slot else {
            return Err(answer);
        };
        let waiter = waiter.take();
        *slot = ReplySlot::Answered(answer);
        drop(slot);
        wake(waiter);
        Ok(())
    }
}

impl<R> PendingReply<R> {
    /// Blocks the thread until the answer arrives.
    pub fn wait(self) -> Result<R, NoReply> {
        loop {
            {
                let mut slot = self.slot.lock();
                if let Some(answer) = take(&mut slot) {
                    return answer;
                }
                if let ReplySlot::Open(waiter) = &mut *slot
                    && !matches!(waiter, Some(Waiter::Thread(_)))
                {
                    *waiter = Some(Waiter::Thread(thread::current()));
                }
            }
            thread::park();
        }
    }
}

impl<R> Future for PendingReply<R> {
    type Output = Result<R, NoReply>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.lock();
        if let Some(answer) = take(&mut slot) {
            return Poll::Ready(answer);
        }
        if let ReplySlot::Open(waiter) = &mut *slot {
            match waiter {
                Some(Waiter::Task(waker)) => waker.clone_from(context.waker()),
                _ => *waiter = Some(Waiter::Task(context.waker().clone())),
            }
        }
        Poll::Pending
    }
}

impl<R> Drop for ReplyTo<R> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock();
        let ReplySlot::Open(waiter) = &mut *slot else {
            return;
        };
        let waiter = waiter.take();
        *slot = ReplySlot::Closed;
        drop(slot);
        wake(waiter);
    }
}

impl<R> Drop for PendingReply<R> {
    fn drop(&mut self) {
        // The answer may be large or have a drop of its own, so it is dropped without the lock.
        let _gone = std::mem::replace(&mut *self.slot.lock(), ReplySlot::Closed);
    }
}

impl<R> fmt::Debug for ReplyTo<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyTo").finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for PendingReply<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReply").finish_non_exhaustive()
    }
}

fn take<R>(slot: &mut ReplySlot<R>) -> Option<Result<R, NoReply>> {
    if matches!(slot, ReplySlot::Open(_)) {
        return None;
    }
    match std::mem::replace(slot, ReplySlot::Closed) {
        ReplySlot::Answered(answer) => Some(Ok(answer)),
        ReplySlot::Open(_) | ReplySlot::Closed => Some(Err(NoReply)),
    }
}

fn wake(waiter: Option<Waiter>) {
    match waiter {
        Some(Waiter::Thread(thread)) => thread.unpark(),
        Some(Waiter::Task(waker)) => waker.wake(),
        None => {}
    }
}
