//! The order of one process: the order in which its mailbox hands commands out.

use std::time::Duration;

use encke_mailbox::{Closed, Receiver};

use super::Ordered;
use crate::batch::Submission;

/// Drains the sequencer's mailbox into ordered batches.
pub(crate) struct LocalOrder {
    mailbox: Receiver<Submission>,
    /// The memory of the last batch.
    spare: Vec<Submission>,
}

impl LocalOrder {
    pub(crate) fn new(mailbox: Receiver<Submission>) -> Self {
        LocalOrder {
            mailbox,
            spare: Vec::new(),
        }
    }

    /// Waits for commands, at most for `patience`, and takes all of them. The batch is empty if none arrive. `clock`
    /// returns milliseconds since 1970.
    ///
    /// # Errors
    /// All senders are gone and every command was taken.
    pub(crate) fn next(
        &mut self,
        patience: Option<Duration>,
        clock: impl Fn() -> u64,
    ) -> Result<Ordered, Closed> {
        let mut commands = std::mem::take(&mut self.spare);
        match patience {
            None => self.mailbox.recv_batch(&mut commands)?,
            Some(patience) => self.mailbox.recv_batch_timeout(&mut commands, patience)?,
        };
        let now_ms = clock();
        Ok(Ordered { commands, now_ms })
    }

    /// Takes all commands that wait, and waits for none.
    pub(crate) fn drain(&mut self, now_ms: u64) -> Ordered {
        let mut commands = std::mem::take(&mut self.spare);
        self.mailbox.drain(&mut commands);
        Ordered { commands, now_ms }
    }

    /// Takes `count` commands out of the mailbox's accounts before their replies are sent: a client that waits for each
    /// reply before it sends the next command never has two commands in the mailbox.
    pub(crate) fn answering(&mut self, count: usize) {
        self.mailbox.handled(count);
    }

    /// Takes back the memory of a batch that had `count` commands, all of which are decided.
    pub(crate) fn done(&mut self, ordered: Ordered, count: usize) {
        let Ordered { mut commands, .. } = ordered;
        commands.shrink_to(COMMANDS_KEPT);
        self.spare = commands;
        self.mailbox.handled(count);
    }

    /// Whether all senders are gone. Commands may still wait.
    pub(crate) fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }
}

/// How many commands fit the memory that is kept for the next batch.
const COMMANDS_KEPT: usize = 256;
