//! The order of commands.
//!
//! Everything that the outcome of a command depends on is in an [`Ordered`] batch, time included. Two machines that apply
//! the same batches return the same outcomes. Today the order is the order of one mailbox ([`local`]). A replicated log can
//! take its place: no later stage reads a clock or a mailbox to judge a command. One thing is still local: whether a batch
//! also ends expired streams. A refused attempt is repeated after a while by the local clock.

mod gather;
pub(crate) mod local;

use crate::batch::Submission;

/// Commands in their final order, and the time at which they are decided.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    pub(crate) commands: Vec<Submission>,
    /// Milliseconds since 1970.
    pub(crate) now_ms: u64,
}
