//! The order of commands.
//!
//! Everything that a decision depends on is in an [`Ordered`] batch, time included. Two machines that apply the same
//! batches make the same decisions. Today the order is the order of one mailbox ([`local`]); a replicated log can take its
//! place, because nothing after this stage reads a clock or a mailbox to decide.

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
