//! What the commit path owns, and how it gives up: a group that the log did not take, or the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use encke_log::{CommitError, Disk, Log, StreamNo};

use super::decide::{Decided, Expiry};
use super::publish::{self, Outlets};
use super::replies::LateReplies;
use super::sync::SyncSchedule;
use super::write::PendingWrite;
use crate::commit::batch::Outlet;
use crate::replicated::CutRecord;
use crate::{AckLevel, Machine, Refusal};

/// Commits ordered batches: owns the streams' machine, the log, and what waits for either of them.
pub(crate) struct Commit<D: Disk> {
    pub(super) machine: Machine,
    pub(super) log: Log<D>,
    pub(super) expiry: Expiry,
    pub(super) pending: PendingWrite,
    pub(super) late: LateReplies,
    pub(super) syncs: SyncSchedule,
    pub(super) outlets: Outlets,
    /// Why the log takes nothing more, once it has failed.
    pub(super) failed: Option<Arc<str>>,
    /// Records of a batch of the replicated order that a crash has cut. Empty on a server by itself.
    pub(super) cut: VecDeque<CutRecord>,
}

impl<D: Disk> Commit<D> {
    pub(crate) fn new(mut machine: Machine, log: Log<D>, outlets: Vec<Box<dyn Outlet>>) -> Self {
        let replica = machine.replica.as_mut();
        let cut = replica.map(|replica| std::mem::take(&mut replica.cut));
        Commit {
            machine,
            log,
            expiry: Expiry::new(),
            pending: PendingWrite::default(),
            late: LateReplies::default(),
            syncs: SyncSchedule::new(),
            outlets: Outlets::new(outlets),
            failed: None,
            cut: cut.unwrap_or_default(),
        }
    }

    /// Sets how often records that were acknowledged before a sync are synced, at least.
    pub(crate) fn sync_every(&mut self, every: Duration) {
        self.syncs.every = every;
    }

    /// Sets what has a reader thread load a stream that must end and is not in memory.
    pub(crate) fn load_with(&mut self, load: Box<dyn FnMut(StreamNo) + Send>) {
        self.expiry.load_with(load);
    }

    /// Sets how much memory the producers of streams may take before streams with producers are evicted sooner.
    pub(crate) fn set_producer_bytes_max(&mut self, bytes_max: usize) {
        self.machine.view.set_producer_bytes_max(bytes_max);
    }

    /// Undoes a group that the log did not take, and refuses its commands.
    pub(super) fn take_back(&mut self, group: Decided, refusal: &Refusal) {
        self.machine.abandon();
        if group.revocable {
            self.log.abandon();
        }
        self.expiry.postpone();
        let Decided {
            mut written,
            mut replies,
            late,
            ..
        } = group;
        for late in late {
            replies.push(late.shard, late.reply);
        }
        // Refusals too: they depend on commands that are undone now.
        for replies in [&mut written, &mut replies] {
            replies.refuse(refusal);
            self.outlets.refuse(std::mem::take(replies));
        }
    }

    /// Why no command can be decided now. None: commands can be decided.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match &self.failed {
            Some(reason) => Some(Refusal::LogFailed(Arc::clone(reason))),
            None => self.pending.refusal.clone(),
        }
    }

    /// The refusal for commands that the log did not take. Any error but a full disk or a stalled history fails the log.
    pub(super) fn refusal_for(&mut self, error: &CommitError) -> Refusal {
        match error {
            CommitError::NoSpace { .. } => {
                tracing::error!(%error, "the disk is full");
                Refusal::NoSpace
            }
            CommitError::HistoryFailed { reason } => {
                tracing::error!(%error, "writes are refused until history continues");
                Refusal::Stalled(Arc::clone(reason))
            }
            _ => Refusal::LogFailed(self.fail(error)),
        }
    }

    /// Whether the log takes nothing more.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Gives up the log, and refuses everything that waits for it.
    pub(super) fn fail(&mut self, error: &CommitError) -> Arc<str> {
        tracing::error!(%error, "the log has failed; reads continue, writes are refused");
        let reason: Arc<str> = error.to_string().into();
        self.failed = Some(Arc::clone(&reason));
        let refusal = Refusal::LogFailed(Arc::clone(&reason));
        let late = self.late.refuse(&refusal);
        publish::acknowledge_late(late, &self.machine.view, &mut self.outlets);
        if let Some(group) = self.pending.group.take() {
            self.take_back(group, &refusal);
        }
        reason
    }

    /// Whether everything that was decided is written.
    pub(super) fn is_written(&self) -> bool {
        self.pending.is_none() && self.unwritten_bytes() == 0
    }

    /// Bytes that were decided and are not written yet.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.log.batch_bytes()
    }

    /// Sends the late replies that wait for this level.
    pub(super) fn send_late_replies(&mut self, reached: AckLevel) {
        let late = self.late.reached(reached);
        publish::acknowledge_late(late, &self.machine.view, &mut self.outlets);
    }

    pub(super) fn send_late_replies_if_written(&mut self) {
        if self.failed.is_none() && self.is_written() {
            self.send_late_replies(AckLevel::Written);
        }
    }

    /// Whether a late reply waits for a write or a sync.
    pub(crate) fn has_late_replies(&self) -> bool {
        self.late.are_waiting()
    }

    /// Whether a shard's thread can decide commands without a wait.
    pub(crate) fn is_free(&self) -> bool {
        self.refusal().is_none() && self.pending.is_none() && self.outlets.are_free()
    }

    /// From now on sending to an outlet never waits: what it has no room for becomes the backlog.
    pub(crate) fn share(&mut self) {
        debug_assert_eq!(
            self.machine.level,
            AckLevel::Accepted,
            "at stricter levels each command waits for a file"
        );
        self.outlets.never_wait();
    }

    /// Delivers the backlog of the outlets, and waits for them.
    pub(crate) fn flush_backlog(&mut self) {
        self.outlets.flush();
        // The last commit could not say it.
        let view = &self.machine.view;
        view.set_delivered(view.committed());
    }

    /// Waits until every outlet is near enough to the newest record.
    pub(crate) fn admit(&self) {
        self.outlets.admit();
    }

    #[cfg(test)]
    pub(crate) fn log_has_waiting_checkpoints(&self) -> bool {
        self.log.checkpoints_waiting() > 0
    }

    /// Closes the log.
    pub(crate) fn close(self) -> Result<(), CommitError> {
        self.log.close()
    }
}

#[cfg(test)]
mod tests {
    use encke_clock::SteadyTime;
    use encke_log::Options;
    use encke_log::simulated::SimulatedDisk;

    use super::*;
    use crate::{Limits, restore_on};

    #[test]
    fn only_a_poisoned_log_is_given_up() {
        let disk = SimulatedDisk::new(1);
        let (machine, _, log) = restore_on(
            disk,
            Options::default(),
            Limits::default(),
            SteadyTime::from_ms(0),
        )
        .unwrap();
        let mut commit = Commit::new(machine, log, Vec::new());
        let reason: Arc<str> = "for a reason".into();
        let no_space = CommitError::NoSpace {
            bytes: 1,
            reason: Arc::clone(&reason),
        };
        let waits = CommitError::HistoryFailed {
            reason: Arc::clone(&reason),
        };
        assert_eq!(commit.refusal_for(&no_space), Refusal::NoSpace);
        let stalled = Refusal::Stalled(Arc::clone(&reason));
        assert_eq!(commit.refusal_for(&waits), stalled);
        assert_eq!(commit.refusal(), None);
        let poisoned = CommitError::Poisoned { reason };
        let refusal = commit.refusal_for(&poisoned);
        assert!(matches!(&refusal, Refusal::LogFailed(why) if why.contains("for a reason")));
        assert_eq!(commit.refusal(), Some(refusal));
    }
}
