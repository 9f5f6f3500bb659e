//! The order of commands.
//!
//! Everything that the outcome of a command depends on is in an [`Ordered`] batch, time included. Two machines that apply
//! the same batches return the same outcomes. The only [`Order`] is that of one mailbox ([`local`]). A node of a fleet has the same
//! stages behind another order ([`replicated`](crate::replicated)): no later stage reads a clock or a mailbox to judge a command. One thing is
//! local here: whether a batch also ends expired streams. A refused attempt is repeated after a while by the local clock.

pub(crate) mod gather;
pub(crate) mod local;
pub(crate) mod submission;

use std::time::Duration;

use encke_mailbox::Closed;

use crate::Now;
use crate::order::submission::Submission;

/// Hands out batches in their final order. The stages report what became of a batch, so that the order can pace the next one.
pub(crate) trait Order: Send {
    /// Waits for commands, at most for `patience`, and takes all of them. The batch is empty if none arrive. `clock`
    /// returns the time.
    ///
    /// # Errors
    /// No command will arrive any more, and every command was taken.
    fn next(
        &mut self,
        patience: Option<Duration>,
        clock: &dyn Fn() -> Now,
    ) -> Result<Ordered, Closed>;

    /// Takes all commands that are there, and waits for none.
    fn drain(&mut self, now: Now) -> Ordered;

    /// A sync of the batch took this long. Its replies follow.
    fn synced(&mut self, took: Duration);

    /// The replies to `count` commands of the batch are sent next.
    fn answering(&mut self, count: usize);

    /// The batch, which had `count` commands, has gone through all stages. Takes back its memory.
    fn done(&mut self, ordered: Ordered, count: usize);

    /// Whether no command will arrive any more. Some may still wait.
    fn is_closed(&self) -> bool;

    /// The number of commands that the next batch waits for.
    #[cfg(test)]
    fn expected(&self) -> Option<usize>;
}

/// Commands in their final order, and the time at which they are decided.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    pub(crate) commands: Vec<Submission>,
    pub(crate) now: Now,
}
