//! The commit path, in reading order: `decide.rs`, `write.rs`, `sync.rs`, `publish.rs`.
//!
//! A batch changes its type on the way: [`Ordered`] → [`Decided`] → [`Written`](self::write::Written) →
//! [`Durable`] → visible. A stage takes what the stage before it returns.
//!
//! A batch goes through the stages in groups, one for each durability level of its streams, the weakest level first
//! ([`levels`]). So a group is committed or taken back as a whole, records become visible in the order of the log whatever
//! their levels, and no command waits for a stricter level than its stream asks for.
//!
//! A request may ask for another level than its stream has. That moves its reply, never the moment at which readers see the
//! record. A request that asks for less gets its reply before the record is visible, so the group can no longer be taken
//! back: if the disk is full, it becomes a [`PendingWrite`](write::PendingWrite). A request that asks for more gets its reply
//! later than readers get the record ([`LateReplies`](replies::LateReplies)).

pub(crate) mod batch;
pub(crate) mod change;
mod decide;
mod levels;
mod publish;
pub(crate) mod replicate;
mod replies;
mod settle;
mod state;
mod sync;
mod write;

use std::time::Duration;

use encke_clock::Now;
use encke_log::Disk;

use crate::AckLevel;
use crate::at_rest::eviction::Evictor;
use crate::order::Ordered;
use crate::order::local::LocalOrder;
use decide::Decided;
pub(crate) use decide::RETRY;
pub(crate) use state::Commit;
use sync::Durable;
pub(crate) use sync::SETTLE_WHEN_IDLE;

/// Figures of one batch, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Committed {
    /// Commands that were judged.
    pub commands: usize,
    /// Records that were stored.
    pub records: usize,
    /// Bytes that they take in the log.
    pub bytes: usize,
    /// How long fdatasync took. None if the level needs no sync or nothing was written.
    pub sync: Option<Duration>,
    /// Whether the log failed with this batch, or before.
    pub failed: bool,
}

/// The log did not take a group, so the group is undone and its commands are refused.
struct TakenBack;

/// The thread that runs the stages. It determines what a batch may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitThread {
    /// The thread of a sequencer. It writes and syncs a batch before it takes the next one.
    Sequencer,
    /// The background thread of an inline commit. It writes and syncs groups of stricter levels; accepted records are
    /// written later in its turn, and syncs for late replies run without the lock.
    Background,
    /// The thread of a shard. It touches no file and waits for nothing.
    Shard,
}

impl<D: Disk> Commit<D> {
    /// Takes a batch through all stages. Its commands are gone afterwards.
    pub(crate) fn batch(
        &mut self,
        batch: &mut Ordered,
        order: &mut LocalOrder,
        thread: CommitThread,
    ) -> Committed {
        let mut committed = Committed {
            commands: batch.commands.len(),
            ..Committed::default()
        };
        let waits = thread != CommitThread::Shard;
        if levels::is_of_one_level(batch, &self.machine) {
            self.group(batch, order, (thread, waits), &mut committed);
        } else {
            let mut expires = waits;
            for mut group in levels::by_level(batch, &self.machine, !waits) {
                self.group(&mut group, order, (thread, expires), &mut committed);
                expires = false;
            }
        }
        if thread == CommitThread::Sequencer {
            self.sync_for_late_replies();
        }
        committed.failed = self.failed.is_some();
        committed
    }

    /// Takes a group through all stages, as far as the thread may.
    fn group(
        &mut self,
        group: &mut Ordered,
        order: &mut LocalOrder,
        (thread, expires): (CommitThread, bool),
        committed: &mut Committed,
    ) {
        let decided = match self.refusal() {
            Some(refusal) => decide::refuse(group, &refusal),
            None => {
                let expiry = expires.then_some(&mut self.expiry);
                decide::decide(group, &mut self.machine, &mut self.log, expiry)
            }
        };
        let (records, bytes) = (decided.records(), decided.log_bytes);
        if let Ok(sync) = self.store(decided, order, thread) {
            committed.records += records;
            committed.bytes += bytes;
            committed.sync = committed.sync.or(sync);
        }
    }

    /// Makes a group as durable as its level asks and publishes it, or leaves it as a pending write. Returns how long a
    /// sync took, if there was one.
    fn store(
        &mut self,
        mut decided: Decided,
        order: &mut LocalOrder,
        thread: CommitThread,
    ) -> Result<Option<Duration>, TakenBack> {
        if !decided.needs_file() {
            let has_records = decided.records() > 0;
            self.publish(Durable::without_file(decided), order);
            if has_records && thread == CommitThread::Sequencer {
                self.write_acknowledged();
            }
            return Ok(None);
        }
        if !decided.accepted.is_empty() {
            decided.revocable = false;
            self.acknowledge_early(AckLevel::Accepted, &mut decided, order);
        }
        if thread == CommitThread::Shard {
            self.pending.hold(decided);
            return Ok(None);
        }
        self.write_and_sync(decided, order)
    }

    /// Takes a decided group through the other stages.
    fn write_and_sync(
        &mut self,
        mut decided: Decided,
        order: &mut LocalOrder,
    ) -> Result<Option<Duration>, TakenBack> {
        decided.begin_stage("write");
        let mut written = match write::write(decided, &mut self.log) {
            Ok(written) => written,
            Err((decided, error)) => {
                let mut decided = *decided;
                let refusal = self.refusal_for(&error);
                if decided.revocable || self.failed.is_some() {
                    order.answering(decided.take_commands());
                    self.take_back(decided, &refusal);
                    return Err(TakenBack);
                }
                self.pending.refusal = Some(refusal);
                self.pending.hold(decided);
                return Ok(None);
            }
        };
        self.pending.refusal = None;
        self.syncs.unsettled = true;
        self.send_late_replies(AckLevel::Written);
        if !written.group().written.is_empty() {
            self.acknowledge_early(AckLevel::Written, written.group(), order);
        }
        if written.group().level == AckLevel::Synced {
            written.group().begin_stage("sync");
        }
        let (durable, sync) = match sync::sync(written, &mut self.log) {
            Ok(durable) => durable,
            Err((decided, error)) => {
                let mut decided = *decided;
                decided.revocable = true;
                let refusal = self.refusal_for(&error);
                order.answering(decided.take_commands());
                self.take_back(decided, &refusal);
                return Err(TakenBack);
            }
        };
        if let Some(took) = sync {
            order.synced(took);
        }
        self.publish(durable, order);
        Ok(sync)
    }

    fn publish(&mut self, mut durable: Durable, order: &mut LocalOrder) {
        order.answering(durable.take_commands());
        let Commit {
            machine,
            log,
            outlets,
            ..
        } = self;
        let late = publish::publish(durable, machine, log, outlets);
        self.late.add(late);
    }

    /// Sends the replies of a group that ask for less than its records.
    fn acknowledge_early(&mut self, level: AckLevel, group: &mut Decided, order: &mut LocalOrder) {
        order.answering(group.take_commands());
        let replies = match level {
            AckLevel::Accepted => &mut group.accepted,
            AckLevel::Written | AckLevel::Synced => &mut group.written,
        };
        let replies = std::mem::take(replies);
        publish::acknowledge(level, replies, &self.machine.view, &mut self.outlets);
    }

    /// Writes the pending write, if there is one.
    pub(crate) fn flush_pending(&mut self, order: &mut LocalOrder, thread: CommitThread) {
        if self.failed.is_some() {
            return;
        }
        match self.pending.group.take() {
            Some(group) => {
                // It cannot be taken back unless the log fails, and then its commands are refused.
                let _ = self.write_and_sync(group, order);
            }
            None if self.pending.refusal.is_some() => self.write_acknowledged(),
            None => return,
        }
        if thread == CommitThread::Sequencer {
            self.sync_for_late_replies();
        }
    }

    /// Writes records that are acknowledged already. If that fails, they stay in memory and nothing else is decided: their
    /// sequences are known, so they cannot be taken back.
    fn write_acknowledged(&mut self) {
        match self.log.write() {
            Ok(()) => {
                self.log.publish();
                self.syncs.unsettled = true;
                self.pending.refusal = None;
                self.send_late_replies(AckLevel::Written);
            }
            Err(error) => self.pending.refusal = Some(self.refusal_for(&error)),
        }
    }

    /// Writes the accepted records that are in memory only.
    pub(crate) fn write_accepted(&mut self) {
        if self.unwritten_bytes() > 0 && self.refusal().is_none() {
            self.write_acknowledged();
        }
        self.send_late_replies_if_written();
    }

    /// Continues the checkpoint that is being collected, or begins one that is due, and hands it to the log when it is
    /// complete.
    pub(crate) fn checkpoint(&mut self, evictor: &mut Evictor) {
        if !self.takes_checkpoints() {
            return;
        }
        // A poisoned log would not take it.
        if evictor.collect(&mut self.machine, &self.log) && self.sync_written() {
            evictor.checkpoint(&mut self.machine, &mut self.log);
        }
    }

    /// Whether a checkpoint may be made now. Records of a batch that is not whole are not in the state of the streams.
    fn takes_checkpoints(&self) -> bool {
        self.refusal().is_none() && self.cut.is_empty()
    }

    /// Evicts streams that are not in use.
    pub(crate) fn evict(&mut self, evictor: &mut Evictor) {
        evictor.sweep(&mut self.machine);
    }

    /// How long the sequencer may wait for commands; forever if None. Only what the next turn really does may be due: work that
    /// the state of the log does not allow would be due in every turn, and the thread would never sleep.
    pub(crate) fn wait_max(&self, now: Now, evictor: &Evictor) -> Option<Duration> {
        let sweep = evictor.sweep_due_in(&self.machine);
        // A failed log takes nothing more, no expiry either.
        if self.failed.is_some() {
            return sweep;
        }
        let checkpoint = match self.takes_checkpoints() {
            true => evictor.checkpoint_due_in(&self.machine, &self.log),
            false => None,
        };
        let expiry = match self.pending.refusal {
            None => self.expiry.expires_in(&self.machine, now),
            Some(_) => None,
        };
        let unsettled = self.syncs.unsettled;
        let sync = unsettled.then(|| self.syncs.settle_within(self.log.is_synced()));
        let retry = self.pending.refusal.as_ref().map(|_| RETRY);
        [expiry, sync, retry, checkpoint, sweep]
            .into_iter()
            .flatten()
            .min()
    }
}
