//! The sequencers of all logs: a command goes to the one whose log has its stream.

use std::sync::Arc;

use encke_log::{Disk, Files};
use encke_mailbox::{Gauge, Lane, Sender};

use crate::{InlineCommit, Now, Submission, Views};

/// The sequencers of all logs.
pub struct Sequencers<D: Disk = Files> {
    views: Arc<Views>,
    /// By the logs' indices: a sequencer's mailbox, and its inline commit if shards commit themselves.
    logs: Arc<[Way<D>]>,
}

type Way<D> = (Sender<Submission>, Option<Arc<InlineCommit<D>>>);

impl<D: Disk> Clone for Sequencers<D> {
    fn clone(&self) -> Self {
        Sequencers {
            views: Arc::clone(&self.views),
            logs: Arc::clone(&self.logs),
        }
    }
}

impl<D: Disk> Sequencers<D> {
    /// The views of the logs.
    pub fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// The sequencers, by the logs' indices. There is one for each view.
    pub fn new(views: Arc<Views>, logs: Vec<Way<D>>) -> Self {
        debug_assert_eq!(views.logs(), logs.len(), "a sequencer for each log");
        Sequencers {
            views,
            logs: logs.into(),
        }
    }

    /// Submits commands with their weights to the sequencers, in order for each log, and commits at once what needs no
    /// wait. Commands without room in a mailbox stay in `commands`.
    pub fn submit(&self, commands: &mut Vec<(Submission, usize)>, now: Now) {
        if let [way] = &*self.logs {
            return submit(way, commands, now);
        }
        let mut parts: Vec<Vec<_>> = self.logs.iter().map(|_| Vec::new()).collect();
        for command in commands.drain(..) {
            parts[self.views.log_for(&command.0.command)].push(command);
        }
        for (way, mut part) in self.logs.iter().zip(parts) {
            if !part.is_empty() {
                submit(way, &mut part, now);
                commands.append(&mut part);
            }
        }
    }

    /// The gauge of each sequencer's mailbox, by the logs' indices.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> + '_ {
        self.logs.iter().map(|(sender, _)| sender.gauge())
    }
}

fn submit<D: Disk>((sender, inline): &Way<D>, commands: &mut Vec<(Submission, usize)>, now: Now) {
    sender.try_send_many(Lane::Data, commands);
    if let Some(inline) = inline {
        inline.commit(now);
    }
}
