//! The report of a repair.

use crate::ids::Sequence;
use std::path::PathBuf;

/// Records that a repair loses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The first lost record.
    pub from: Sequence,
    /// The last lost record that left a trace. A segment with a damaged head does not show how many records it had;
    /// `what` says so.
    pub upto: Sequence,
    /// What is lost, and why.
    pub what: String,
}

/// What [`repair`](crate::repair) has done or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What is lost. Everything else is kept.
    pub losses: Vec<Loss>,
    /// Files that are set aside: their content stays, under names that the log ignores.
    pub set_aside: Vec<PathBuf>,
    /// Steps without a loss.
    pub notes: Vec<String>,
    /// Whether there is anything to repair.
    pub needed: bool,
    /// Whether the repair was carried out.
    pub done: bool,
}
