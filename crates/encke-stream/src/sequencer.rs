//! The one place where the order of records is decided.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_log::{CommitError, Disk, Files, Log, StateEntry, StreamNo};
use encke_mailbox::Receiver;

use crate::batch::{Batch, Handover, Outlet, Reply, Submission};
use crate::commit::{Group, Late};
use crate::watchers::watcher;
use crate::{AckLevel, Eviction, Machine, Outcome, Refusal, Stream};

/// Drains the mailbox, decides, commits, and hands out: one batch after the other.
///
/// While a batch is being written and synced, the next one gathers in the mailbox; there is no
/// timer and no knob. The caller brings the thread and the clock.
pub struct Sequencer<D: Disk = Files> {
    pub(crate) machine: Machine,
    pub(crate) log: Log<D>,
    pub(crate) mailbox: Receiver<Submission>,
    pub(crate) outlets: Vec<Box<dyn Outlet>>,
    pub(crate) level: AckLevel,
    pub(crate) watch: Box<dyn FnMut(&Committed) + Send>,
    /// Why the log takes nothing more, once it has failed.
    pub(crate) failed: Option<Arc<str>>,
    /// The log holds a batch that was acknowledged and could not be written yet, and why.
    pub(crate) owed: Option<Refusal>,
    /// What was decided and can be neither committed now nor taken back.
    pub(crate) pending: Option<Group>,
    /// Who asked for more than their streams do, and waits for it.
    pub(crate) late: Vec<Late>,
    /// Those of them who wait for the sync that is running ([`Self::sync_due`]).
    pub(crate) syncing: Vec<Late>,
    pub(crate) sync_every: Duration,
    /// Something was committed since the log last said that all it holds is durable.
    pub(crate) unsettled: bool,
    pub(crate) synced_at: Instant,
    /// No stream expires before then, because the log refused the last time.
    pub(crate) expire_after: Instant,
    /// What the next checkpoint will hold, while it is being gathered.
    pub(crate) entries: Vec<StateEntry>,
    /// Threads that must not wait decide too, so nothing that waits is done on the way ([`crate::InlineCommit`]).
    pub(crate) shared: bool,
    /// What outlets had no room for, oldest first. Nothing more is decided before it is handed over.
    pub(crate) stuck: VecDeque<(usize, Handover)>,
    /// Records that were decided since a checkpoint was last thought of.
    pub(crate) unkept: usize,
    pub(crate) gathering: bool,
    pub(crate) checked_at: Instant,
    pub(crate) eviction: Eviction,
    pub(crate) swept_at: Instant,
    /// Parts that were gone through one after the other without anything to let go of.
    pub(crate) fruitless: usize,
    /// Has a reader thread bring a stream into memory whose lifetime is over.
    pub(crate) load: Box<dyn FnMut(StreamNo) + Send>,
}

/// Figures of one batch, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// Commands that were judged.
    pub commands: usize,
    /// Records that were stored.
    pub records: usize,
    /// Bytes that they take in the log.
    pub bytes: usize,
    /// How long fdatasync took; nothing where the level needs none or nothing was written.
    pub sync: Option<Duration>,
    /// Whether the log failed with this batch, or before.
    pub failed: bool,
}

impl<D: Disk> Sequencer<D> {
    /// A sequencer over restored streams. `outlets` are the shards, in the order of their numbers.
    pub fn new(
        mut machine: Machine,
        log: Log<D>,
        mailbox: Receiver<Submission>,
        outlets: Vec<Box<dyn Outlet>>,
        level: AckLevel,
        watch: Box<dyn FnMut(&Committed) + Send>,
    ) -> Self {
        machine.level = level;
        let now = Instant::now();
        Sequencer {
            machine,
            log,
            mailbox,
            outlets,
            level,
            watch,
            failed: None,
            owed: None,
            pending: None,
            late: Vec::new(),
            syncing: Vec::new(),
            sync_every: SYNC_EVERY,
            unsettled: false,
            synced_at: now,
            expire_after: now,
            entries: Vec::new(),
            shared: false,
            stuck: VecDeque::new(),
            unkept: 0,
            gathering: false,
            checked_at: now,
            eviction: Eviction::NEVER,
            swept_at: now,
            fruitless: 0,
            load: Box::new(|_| {}),
        }
    }

    /// What was acknowledged before it was synced is synced at least so often; every second, unless this is said. It
    /// bounds what a power cut takes of it.
    pub fn syncing_every(mut self, every: Duration) -> Self {
        self.sync_every = every;
        self
    }

    /// Works until all senders of the mailbox are gone and everything in it is done, then closes
    /// the log. `clock` tells milliseconds since 1970.
    ///
    /// # Errors
    /// The log could not be closed: something that was acknowledged below level `synced` may not be
    /// on the disk.
    pub fn run(mut self, clock: impl Fn() -> u64) -> Result<(), CommitError> {
        let mut requests = Vec::new();
        loop {
            let open = match self.patience(clock()) {
                None => self.mailbox.recv_batch(&mut requests).is_ok(),
                Some(patience) => self
                    .mailbox
                    .recv_batch_timeout(&mut requests, patience)
                    .is_ok(),
            };
            if !open {
                break;
            }
            let taken = requests.len();
            if taken == 0 {
                self.settle();
            } else if self.synced_at.elapsed() > self.sync_every {
                self.sync_late();
            }
            self.batch(&mut requests, clock());
            self.checkpoint();
            self.sweep();
            self.mailbox.handled(taken);
            for outlet in &self.outlets {
                outlet.admit();
            }
        }
        self.log.close()
    }

    /// How long the mailbox may be waited for; forever if nothing else is to do.
    pub(crate) fn patience(&self, now_ms: u64) -> Option<Duration> {
        let sweep = self.sweep_patience();
        // A failed log takes nothing more, no expiry either.
        if self.failed.is_some() {
            return sweep;
        }
        if self.gathering {
            return Some(Duration::ZERO);
        }
        let expiry = self.machine.next_deadline_ms().map(|deadline_ms| {
            let wait_ms = deadline_ms.saturating_sub(now_ms);
            let wait = Duration::from_millis(wait_ms.clamp(1, EXPIRY_WAIT_MS_MAX));
            wait.max(self.expire_after.saturating_duration_since(Instant::now()))
        });
        let sync = self.unsettled.then(|| self.settle_within());
        let retry = self.owed.as_ref().map(|_| RETRY);
        let check = self.checkpoint_patience();
        [expiry, sync, retry, check, sweep]
            .into_iter()
            .flatten()
            .min()
    }

    /// How long to wait for commands before what was acknowledged is synced because none come.
    fn settle_within(&self) -> Duration {
        if self.log.is_synced() {
            return SETTLE_WHEN_IDLE;
        }
        // A shorter interval holds also when nothing follows.
        SETTLE_WHEN_IDLE.min(self.sync_every)
    }

    /// When nothing is to be done: syncs what was acknowledged before it was synced, and writes down
    /// that everything is durable, so that damage to it can't be taken for a torn tail.
    fn settle(&mut self) {
        let soon = self.settle_within() < SETTLE_WHEN_IDLE;
        self.sync_late();
        if soon {
            // More may come before it is worth writing down.
            return;
        }
        if !std::mem::take(&mut self.unsettled) || self.failed.is_some() {
            return;
        }
        if let Err(error) = self.log.mark_durable().and_then(|()| self.log.sync()) {
            self.fail(&error);
        }
    }

    /// Syncs what was acknowledged before it was synced.
    pub(crate) fn sync_late(&mut self) {
        self.synced_at = Instant::now();
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.log.sync() {
            self.fail(&error);
        }
    }

    /// Gives each shard its replies, and the records if some of them have subscribers there.
    pub(crate) fn hand_out(
        &mut self,
        batch: Option<(Arc<Batch>, &[Arc<Stream>])>,
        replies: Vec<Vec<Reply>>,
    ) {
        let (batch, streams) = batch.unzip();
        let streams = streams.unwrap_or_default().iter();
        let view = &self.machine.view;
        let watchers = streams.fold(0, |watchers, stream| watchers | view.watchers(stream));
        for (shard, (outlet, replies)) in self.outlets.iter().zip(replies).enumerate() {
            let watches = watchers & watcher(shard as u16) != 0;
            let batch = batch.as_ref().filter(|_| watches);
            if batch.is_none() && replies.is_empty() {
                continue;
            }
            let batch = batch.cloned();
            if !self.shared {
                outlet.deliver(batch, replies);
            } else if self.stuck.iter().any(|(other, _)| *other == shard) {
                // Nothing overtakes what it had no room for.
                self.stuck.push_back((shard, Handover { batch, replies }));
            } else if let Err(handover) = outlet.offer(batch, replies) {
                self.stuck.push_back((shard, handover));
            }
        }
    }

    /// What clients are told when the log does not take a batch.
    pub(crate) fn refusal(&mut self, error: &CommitError) -> Refusal {
        match error {
            CommitError::NoSpace { .. } => {
                tracing::error!(%error, "the disk is full");
                Refusal::NoSpace
            }
            CommitError::HistoryFailed { reason } => {
                tracing::error!(%error, "writes are refused until history goes on");
                Refusal::Stalled(Arc::clone(reason))
            }
            _ => Refusal::LogFailed(self.fail(error)),
        }
    }

    pub(crate) fn fail(&mut self, error: &CommitError) -> Arc<str> {
        tracing::error!(%error, "the log has failed; reads go on, writes are refused");
        let reason: Arc<str> = error.to_string().into();
        self.failed = Some(Arc::clone(&reason));
        self.give_up(&Refusal::LogFailed(Arc::clone(&reason)));
        reason
    }

    /// Room for replies to each shard.
    pub(crate) fn no_replies(&self) -> Vec<Vec<Reply>> {
        self.outlets.iter().map(|_| Vec::new()).collect()
    }
}

pub(crate) fn refused(refusal: &Refusal) -> Outcome {
    Outcome::Refused(refusal.clone())
}

/// When nothing came for so long, everything is synced and the log says so.
pub(crate) const SETTLE_WHEN_IDLE: Duration = Duration::from_millis(20);

/// Below level `synced`, what was acknowledged is synced at least this often, unless another time is said.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// What a full disk refused is tried again after so long.
pub(crate) const RETRY: Duration = Duration::from_millis(250);

/// Expiry is looked at this often at least, because reads may have moved deadlines.
const EXPIRY_WAIT_MS_MAX: u64 = 60_000;

#[cfg(test)]
mod tests {
    use encke_log::Options;
    use encke_log::simulated::SimulatedDisk;
    use encke_mailbox::mailbox;

    use super::*;
    use crate::{Limits, restore_on};

    #[test]
    fn only_a_poisoned_log_is_given_up() {
        let disk = SimulatedDisk::new(1);
        let (machine, _, log) = restore_on(disk, Options::default(), Limits::default(), 0).unwrap();
        let (_sender, receiver) = mailbox("test", encke_mailbox::Options::default());
        let level = AckLevel::default();
        let mut sequencer =
            Sequencer::new(machine, log, receiver, Vec::new(), level, Box::new(|_| {}));
        let reason: Arc<str> = "for a reason".into();
        let no_space = CommitError::NoSpace {
            bytes: 1,
            reason: Arc::clone(&reason),
        };
        let waits = CommitError::HistoryFailed {
            reason: Arc::clone(&reason),
        };
        assert_eq!(sequencer.refusal(&no_space), Refusal::NoSpace);
        let stalled = Refusal::Stalled(Arc::clone(&reason));
        assert_eq!(sequencer.refusal(&waits), stalled);
        assert_eq!(sequencer.barred(), None);
        let poisoned = CommitError::Poisoned { reason };
        let refusal = sequencer.refusal(&poisoned);
        assert!(matches!(&refusal, Refusal::LogFailed(why) if why.contains("for a reason")));
        assert_eq!(sequencer.barred(), Some(refusal));
    }
}
