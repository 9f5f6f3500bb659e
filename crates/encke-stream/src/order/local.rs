//! The order of one process: the order in which its mailbox hands commands out.

use std::time::{Duration, Instant};

use encke_clock::Now;
use encke_mailbox::{Closed, Receiver};

use super::Ordered;
use super::gather::Gather;
use crate::order::submission::Submission;

/// Drains the sequencer's mailbox into ordered batches.
pub(crate) struct LocalOrder {
    mailbox: Receiver<Submission>,
    /// The memory of the last batch.
    spare: Vec<Submission>,
    gather: Gather,
    /// A batch was synced, and its replies were not sent yet.
    synced: bool,
    answered_at: Instant,
}

impl LocalOrder {
    pub(crate) fn new(mailbox: Receiver<Submission>) -> Self {
        LocalOrder {
            mailbox,
            spare: Vec::new(),
            gather: Gather::default(),
            synced: false,
            answered_at: Instant::now(),
        }
    }

    /// Waits for commands, at most until `timeout`, and takes all of them. The batch is empty if none arrive. `clock` returns
    /// the time.
    ///
    /// # Errors
    /// No command will arrive any more, and every command was taken.
    pub(crate) fn next(
        &mut self,
        timeout: Option<Duration>,
        clock: &dyn Fn() -> Now,
    ) -> Result<Ordered, Closed> {
        let mut commands = std::mem::take(&mut self.spare);
        match timeout {
            None => self.mailbox.recv_batch(&mut commands)?,
            Some(timeout) => self.mailbox.recv_batch_timeout(&mut commands, timeout)?,
        };
        if !commands.is_empty() {
            self.gather(&mut commands, |sleep| {
                let begin = Instant::now();
                std::thread::sleep(sleep);
                begin.elapsed()
            });
        }
        let now = clock();
        Ok(Ordered { commands, now })
    }

    /// Takes all commands that are there, and waits for none.
    pub(crate) fn drain(&mut self, now: Now) -> Ordered {
        let mut commands = std::mem::take(&mut self.spare);
        self.mailbox.drain(&mut commands);
        Ordered { commands, now }
    }

    /// Notes that a sync of the batch took this long. Its replies follow.
    pub(crate) fn synced(&mut self, took: Duration) {
        self.gather.synced(took);
        self.synced = true;
    }

    /// Takes `count` commands out of the mailbox's accounts before their replies are sent: a client that waits for each
    /// reply before it sends the next command never has two commands in the mailbox.
    pub(crate) fn answering(&mut self, count: usize) {
        let synced = std::mem::take(&mut self.synced);
        if count == 0 {
            return;
        }
        self.mailbox.handled(count);
        if synced {
            let gauge = self.mailbox.gauge();
            let waiting = gauge.control.queued + gauge.data.queued;
            self.gather.expect(waiting + count);
            self.answered_at = Instant::now();
        }
    }

    /// Takes back the memory of a batch that has gone through all stages, and had `count` commands.
    pub(crate) fn done(&mut self, ordered: Ordered, count: usize) {
        let Ordered { mut commands, .. } = ordered;
        commands.shrink_to(COMMANDS_KEPT);
        self.spare = commands;
        self.mailbox.handled(count);
    }

    /// Whether no command will arrive any more. Some may still wait.
    pub(crate) fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// The number of commands that the next batch waits for.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> Option<usize> {
        self.gather.expected()
    }

    /// Waits for more commands while that promises a larger batch ([`Gather`]). `pause` sleeps and returns how long.
    fn gather(
        &mut self,
        commands: &mut Vec<Submission>,
        mut pause: impl FnMut(Duration) -> Duration,
    ) {
        let since_replies = self.answered_at.elapsed();
        let Some(mut window) = self.gather.begin(since_replies, commands.len()) else {
            return;
        };
        let mut elapsed = Duration::ZERO;
        while let Some(sleep) = window.next_sleep(elapsed, commands.len()) {
            elapsed += pause(sleep);
            // Into the same vector: what it holds keeps counting against the bounds of the mailbox.
            self.mailbox.drain(commands);
        }
        self.gather.end(&window);
    }
}

/// How many commands fit the memory that is kept for the next batch.
const COMMANDS_KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use encke_mailbox::{Bounds, Lane, Sender, mailbox};

    use super::*;
    use crate::order::submission::Submitter;
    use crate::{Command, Target};

    /// So long that the time that the test takes means nothing beside it.
    const SYNC: Duration = Duration::from_secs(1_000_000);

    fn send(sender: &Sender<Submission>, count: u64) {
        for token in 0..count {
            let target = Target::Named("x".into());
            let command = Command::Delete { target, ack: None };
            let from = Submitter { shard: 0, token };
            let submission = Submission::new(command, from);
            assert!(sender.try_send(Lane::Data, submission, 1).is_ok());
        }
    }

    #[test]
    fn clients_that_wait_for_each_other_share_a_batch_after_a_slow_sync() {
        let (sender, receiver) = mailbox("test", Bounds::default());
        let mut order = LocalOrder::new(receiver);
        send(&sender, 31);
        let mut first = order.drain(Now::default());
        assert_eq!(first.commands.len(), 31);
        order.synced(SYNC);
        order.synced(SYNC);
        // The other half arrives during the sync.
        send(&sender, 33);
        order.answering(31);
        first.commands.clear();
        order.done(first, 31);
        // The first half returns after its replies, a few clients at a time.
        let mut batch = order.drain(Now::default());
        let mut returning = [0, 10, 0, 0, 20, 1, 100].iter();
        let mut pauses = Vec::new();
        order.gather(&mut batch.commands, |sleep| {
            send(&sender, *returning.next().unwrap());
            pauses.push(sleep);
            sleep
        });
        assert_eq!(batch.commands.len(), 64, "all clients in one batch");
        assert_eq!(pauses.len(), 6, "no pause after the last client");
        assert!(pauses.iter().sum::<Duration>() <= SYNC / 4);
        // What gathers is still in the accounts of the mailbox.
        assert_eq!(sender.gauge().depth(), 64);
    }

    #[test]
    fn a_batch_without_a_sync_before_it_does_not_wait() {
        let (sender, receiver) = mailbox("test", Bounds::default());
        let mut order = LocalOrder::new(receiver);
        send(&sender, 2);
        order.synced(SYNC);
        order.synced(SYNC);
        let mut batch = order.drain(Now::default());
        let waits = |order: &mut LocalOrder, batch: &mut Ordered| {
            let mut pauses = 0;
            order.gather(&mut batch.commands, |sleep| {
                pauses += 1;
                sleep
            });
            pauses > 0
        };
        assert!(!waits(&mut order, &mut batch), "no replies were sent yet");
        order.answering(2);
        assert!(!waits(&mut order, &mut batch), "both clients are here");
        order.answering(2);
        batch.commands.clear();
        send(&sender, 1);
        order.done(batch, 2);
        let mut batch = order.drain(Now::default());
        assert!(
            !waits(&mut order, &mut batch),
            "these replies came without a sync"
        );
    }
}
