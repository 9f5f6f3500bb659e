//! The sequencers of all logs: a command goes to the one whose log has its stream.

use std::sync::Arc;

use encke_clock::Now;
use encke_log::{Disk, Files};
use encke_mailbox::{Gauge, Lane, Sender};

use crate::{InlineCommit, Submission, Views};

/// The sequencers of all logs.
pub struct Sequencers<D: Disk = Files> {
    views: Arc<Views>,
    /// By the logs' indices.
    senders: Arc<[CommandSender<D>]>,
}

/// The mailbox of a sequencer, and its inline commit if shards commit themselves.
type CommandSender<D> = (Sender<Submission>, Option<Arc<InlineCommit<D>>>);

impl<D: Disk> Clone for Sequencers<D> {
    fn clone(&self) -> Self {
        Sequencers {
            views: Arc::clone(&self.views),
            senders: Arc::clone(&self.senders),
        }
    }
}

impl<D: Disk> Sequencers<D> {
    /// The views of the logs.
    pub fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// The sequencers, by the logs' indices. There is one for each view.
    pub fn new(views: Arc<Views>, senders: Vec<CommandSender<D>>) -> Self {
        debug_assert_eq!(views.logs(), senders.len(), "a sequencer for each log");
        Sequencers {
            views,
            senders: senders.into(),
        }
    }

    /// Submits commands with their weights to the sequencers, in order for each log, and commits at once what needs no
    /// wait. Commands without room in a mailbox stay in `commands`.
    pub fn submit(&self, commands: &mut Vec<(Submission, usize)>, now: Now) {
        if let [sender] = &*self.senders {
            return submit(sender, commands, now);
        }
        let mut by_log: Vec<Vec<_>> = self.senders.iter().map(|_| Vec::new()).collect();
        for command in commands.drain(..) {
            by_log[self.views.log_for(&command.0.command)].push(command);
        }
        for (sender, mut of_log) in self.senders.iter().zip(by_log) {
            if !of_log.is_empty() {
                submit(sender, &mut of_log, now);
                commands.append(&mut of_log);
            }
        }
    }

    /// The gauge of each sequencer's mailbox, by the logs' indices.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> + '_ {
        self.senders.iter().map(|(sender, _)| sender.gauge())
    }
}

fn submit<D: Disk>(
    (sender, inline): &CommandSender<D>,
    commands: &mut Vec<(Submission, usize)>,
    now: Now,
) {
    sender.try_send_many(Lane::Data, commands);
    if let Some(inline) = inline {
        inline.commit(now);
    }
}
