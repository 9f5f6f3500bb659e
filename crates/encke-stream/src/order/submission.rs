//! Commands on their way to the order, and the shards that submit them.

use std::sync::Arc;

use encke_trace::CommandTrace;

use crate::{Command, StorageHold};

/// A command, and the submitter that waits for its outcome.
#[derive(Debug)]
pub struct Submission {
    /// The command.
    pub command: Command,
    /// The caller.
    pub from: Submitter,
    /// The span of the command, if its request is traced.
    pub trace: Option<Arc<CommandTrace>>,
    /// The storage that it will use, until it is visible.
    pub holds: Vec<StorageHold>,
}

impl Submission {
    /// A command that is neither traced nor counted for an account.
    pub fn new(command: Command, from: Submitter) -> Self {
        Submission {
            command,
            from,
            trace: None,
            holds: Vec::new(),
        }
    }
}

/// The submitter of a command. The token means something to its shard only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitter {
    /// The shard, counted from 0.
    pub shard: u16,
    /// The shard's name for the caller.
    pub token: u64,
}
