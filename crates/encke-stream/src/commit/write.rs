//! Decided → written: the log's batch in memory goes to the file.

use encke_log::{CommitError, Disk, Log};

use super::decide::Decided;
use crate::Refusal;

/// A group whose records are in the file: a crash of the process cannot take them.
#[derive(Debug)]
pub(crate) struct Written(Decided);

/// Writes the group, and everything that the log's batch in memory holds beside it.
///
/// # Errors
/// The log did not take the batch. It is still in memory unless the log failed.
pub(crate) fn write<D: Disk>(
    decided: Decided,
    log: &mut Log<D>,
) -> Result<Written, (Box<Decided>, CommitError)> {
    match log.write() {
        Ok(()) => Ok(Written(decided)),
        Err(error) => Err((Box::new(decided), error)),
    }
}

impl Written {
    pub(super) fn group(&mut self) -> &mut Decided {
        &mut self.0
    }

    pub(super) fn into_group(self) -> Decided {
        self.0
    }
}

/// What is decided, not written yet, and cannot be taken back. Nothing else is decided before it is written.
#[derive(Debug, Default)]
pub(crate) struct PendingWrite {
    /// Why the log did not take its batch, whose records are acknowledged. Commands are refused with it meanwhile.
    pub(super) refusal: Option<Refusal>,
    /// A group that waits for the write: it has replies that wait, or the thread that decided it must not wait for files.
    pub(super) group: Option<Decided>,
}

impl PendingWrite {
    /// Keeps a group that can no longer be taken back.
    pub(super) fn hold(&mut self, mut group: Decided) {
        group.revocable = false;
        // The mailbox counts these commands as handled with the rest of their batch.
        group.commands = 0;
        self.group = Some(group);
    }

    pub(super) fn is_none(&self) -> bool {
        self.refusal.is_none() && self.group.is_none()
    }
}
