//! The order of commands.
//!
//! Everything that the outcome of a command depends on is in an [`Ordered`] batch, time included. Two machines that apply
//! the same batches return the same outcomes. A server by itself has the order of its mailbox (`local.rs`). A node of a fleet
//! has the same stages behind another order ([`replicated`](crate::replicated)): no later stage reads a clock or a mailbox to
//! judge a command. One thing is local here: whether a batch also ends expired streams. A refused attempt is repeated after
//! a while by the local clock.

pub(crate) mod gather;
pub(crate) mod local;
pub(crate) mod submission;

use encke_clock::Now;

use crate::order::submission::Submission;

/// Commands in their final order, and the time at which they are decided.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    pub(crate) commands: Vec<Submission>,
    pub(crate) now: Now,
}
