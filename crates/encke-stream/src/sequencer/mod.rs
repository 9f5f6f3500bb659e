//! The sequencer: a loop over the stages of the commit path, and what is periodic.
//!
//! `sequencers.rs` joins those of several logs. `inline.rs` commits on the threads of shards, where nothing waits for the disk.

pub(crate) mod inline;
pub(crate) mod sequencers;

use std::time::Duration;

use encke_clock::Now;
use encke_log::{CommitError, DeferredSync, DeferredSyncResult, Disk, Files, Log, StreamNo};
use encke_mailbox::Receiver;

use crate::at_rest::eviction::{Eviction, Evictor};
use crate::commit::batch::Outlet;
use crate::commit::{Commit, CommitThread, Committed};
use crate::order::Ordered;
use crate::order::local::LocalOrder;
use crate::order::submission::Submission;
use crate::{AckLevel, Machine};

/// Decides the order of records: drains the mailbox, decides, commits and publishes one batch after the other.
///
/// While a batch is written and synced, the next one collects in the mailbox. After a slow sync the sequencer also waits a
/// moment for clients that answer its replies. The caller brings the thread and the clock.
pub struct Sequencer<D: Disk = Files> {
    order: LocalOrder,
    commit: Commit<D>,
    evictor: Evictor,
    /// Receives the figures of each batch.
    watch: Box<dyn FnMut(&Committed) + Send>,
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
        Sequencer {
            order: LocalOrder::new(mailbox),
            commit: Commit::new(machine, log, outlets),
            evictor: Evictor::new(Eviction::NEVER),
            watch,
        }
    }

    /// Sets how often records that were acknowledged before a sync are synced, at least; once per second by default. This
    /// bounds what a power cut takes of them.
    #[must_use]
    pub fn syncing_every(mut self, every: Duration) -> Self {
        self.commit.sync_every(every);
        self
    }

    /// Evicts streams that are not in use. `load` gets the number of a stream that is not in memory and must end: it has
    /// a reader thread load the stream ([`Loader::load_number`](crate::Loader::load_number)), and must not wait.
    #[must_use]
    pub fn evicting(mut self, eviction: Eviction, load: Box<dyn FnMut(StreamNo) + Send>) -> Self {
        self.evictor = Evictor::new(eviction);
        self.commit
            .set_producer_bytes_max(eviction.producer_bytes_max);
        self.commit.load_with(load);
        self
    }

    /// Runs until all senders of the mailbox are gone and every command is done, then closes the log. `clock` returns
    /// the time.
    ///
    /// # Errors
    /// The log cannot be closed: records that were acknowledged below level `synced` may be missing on the disk.
    pub fn run(mut self, clock: impl Fn() -> Now) -> Result<(), CommitError> {
        loop {
            let wait_max = self.wait_max(clock());
            let Ok(batch) = self.order.next(wait_max, &clock) else {
                break;
            };
            if batch.commands.is_empty() {
                self.commit.settle();
            } else {
                self.commit.sync_if_due();
            }
            self.batch(batch, CommitThread::Sequencer);
            self.upkeep();
        }
        self.close()
    }

    /// One turn of [`Self::run`] that waits for nothing, for a simulation.
    #[doc(hidden)]
    #[cfg(any(test, feature = "simulation"))]
    pub fn turn(&mut self, now: Now) {
        let batch = self.order.drain(now);
        self.commit.settle();
        self.batch(batch, CommitThread::Sequencer);
        self.upkeep();
    }

    /// How long the mailbox may be waited for; forever if nothing else is to be done.
    pub(crate) fn wait_max(&self, now: Now) -> Option<Duration> {
        self.commit.wait_max(now, &self.evictor)
    }

    /// Takes a batch through all stages, after the pending write.
    fn batch(&mut self, mut batch: Ordered, thread: CommitThread) -> usize {
        let commands = batch.commands.len();
        if thread != CommitThread::Shard {
            self.commit.flush_pending(&mut self.order, thread);
        }
        let committed = self.commit.batch(&mut batch, &mut self.order, thread);
        self.evictor.stored(committed.records);
        (self.watch)(&committed);
        self.order.done(batch, commands);
        commands
    }

    /// What is periodic, and the wait for shards that are behind.
    fn upkeep(&mut self) {
        self.commit.checkpoint(&mut self.evictor);
        self.commit.evict(&mut self.evictor);
        self.commit.admit();
    }

    /// Closes the log.
    pub(crate) fn close(self) -> Result<(), CommitError> {
        self.commit.close()
    }
}

/// What an inline commit uses. Several threads share the sequencer then, one at a time.
impl<D: Disk> Sequencer<D> {
    /// From now on nothing that [`Sequencer::commit_on_shard`] does waits for an outlet.
    pub(crate) fn share(&mut self) {
        self.commit.share();
    }

    /// Whether a shard's thread can commit without a wait.
    pub(crate) fn is_free(&self) -> bool {
        self.commit.is_free()
    }

    /// Whether the background thread must write or sync because a late reply waits for that.
    pub(crate) fn has_late_replies(&self) -> bool {
        self.commit.has_late_replies()
    }

    /// Bytes that were decided and are not written yet.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.commit.unwritten_bytes()
    }

    /// Decides what is in the mailbox on the thread of a shard. Touches no file and waits for nothing. Returns the
    /// number of commands.
    pub(crate) fn commit_on_shard(&mut self, now: Now) -> usize {
        let batch = self.order.drain(now);
        if batch.commands.is_empty() {
            self.order.done(batch, 0);
            return 0;
        }
        self.batch(batch, CommitThread::Shard)
    }

    /// Decides what is in the mailbox and does everything that waits, except for syncs. Returns the number of commands.
    pub(crate) fn commit_in_background(&mut self, now: Now) -> usize {
        self.commit.flush_backlog();
        let batch = self.order.drain(now);
        let commands = self.batch(batch, CommitThread::Background);
        self.commit.flush_backlog();
        self.commit.write_accepted();
        self.upkeep();
        commands
    }

    /// Begins a sync if one is due ([`Commit::begin_sync`]).
    pub(crate) fn begin_sync(&mut self, idle: bool) -> Option<DeferredSync<D>> {
        self.commit.begin_sync(idle)
    }

    /// Notes the result of that sync.
    pub(crate) fn end_sync(&mut self, synced: DeferredSyncResult) {
        self.commit.end_sync(synced);
    }

    /// Whether no command arrives any more, beside those in the mailbox.
    pub(crate) fn is_closed(&self) -> bool {
        self.order.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use encke_clock::SteadyTime;
    use encke_log::Options;
    use encke_log::simulated::{Faults, SimulatedDisk};
    use encke_mailbox::{Lane, mailbox};

    use super::*;
    use crate::{Command, Create, Lifetime, Limits, Submitter, restore_on};

    type Sender = encke_mailbox::Sender<Submission>;

    fn create(name: &str) -> Submission {
        let command = Command::Create(Create::new(name));
        let from = Submitter { shard: 0, token: 0 };
        Submission::new(command, from)
    }

    fn sequencer(disk: &SimulatedDisk, level: AckLevel) -> (Sender, Sequencer<SimulatedDisk>) {
        let options = Options {
            segment_bytes: encke_log::SEGMENT_BYTES_MIN,
            ..Options::default()
        };
        let limits = Limits::default();
        let (machine, _, log) =
            restore_on(disk.clone(), options, limits, SteadyTime::from_ms(0)).unwrap();
        let (sender, receiver) = mailbox("test", encke_mailbox::Bounds::default());
        let watch = Box::new(|_: &_| {});
        let sequencer = Sequencer::new(machine, log, receiver, Vec::new(), level, watch);
        (sender, sequencer)
    }

    impl Sequencer<SimulatedDisk> {
        /// Whether the thread sleeps after a few turns in which no command arrives and everything is due that ever can be.
        fn sleeps(&mut self, now: Now) -> bool {
            self.evictor = Evictor::overdue(Eviction {
                idle: Duration::from_secs(3600),
                hot_max: usize::MAX,
                ..Eviction::default()
            });
            let rest = Duration::from_millis(10);
            (0..100).any(|_| {
                let sleeps = self.wait_max(now).is_none_or(|wait_max| wait_max >= rest);
                self.turn(now);
                sleeps
            })
        }
    }

    fn create_for_a_second(name: &str) -> Submission {
        let mut submission = create(name);
        if let Command::Create(create) = &mut submission.command {
            create.lifetime = Some(Lifetime::Sliding { ttl_s: 1 });
        }
        submission
    }

    #[test]
    fn the_thread_sleeps_whatever_the_log_does_not_take() {
        const LATER_MS: u64 = 1_000_000;
        for level in AckLevel::ALL {
            let directory = tempfile::tempdir().unwrap();
            let history = directory.path().join("history");
            let disk = SimulatedDisk::new(1);
            disk.set_history(history.clone());
            let (sender, mut sequencer) = sequencer(&disk, level);
            let send = |submission| assert!(sender.try_send(Lane::Data, submission, 1).is_ok());
            assert!(
                sequencer.sleeps(Now::from_ms(0)),
                "{level}: nothing in memory"
            );
            send(create_for_a_second("a"));
            sequencer.turn(Now::from_ms(0));
            assert!(
                sequencer.sleeps(Now::from_ms(0)),
                "{level}: the first checkpoint"
            );
            // In one step: a thread of the storage engine may write at any time.
            std::fs::rename(&history, directory.path().join("gone")).unwrap();
            for name in ["b", "c"] {
                send(create_for_a_second(name));
                sequencer.turn(Now::from_ms(0));
                assert!(
                    sequencer.sleeps(Now::from_ms(0)),
                    "{level}: history has gone"
                );
            }
            assert!(sequencer.commit.log_has_waiting_checkpoints());
            disk.set_capacity(disk.used_bytes());
            let mut names = 0;
            while sequencer.commit.is_free() && names < 200 {
                names += 1;
                send(create(&format!("{names}-{}", "x".repeat(200))));
                sequencer.turn(Now::from_ms(0));
            }
            // At stricter levels each command is refused by itself, and the log is as it was.
            assert_eq!(sequencer.commit.is_free(), level > AckLevel::Accepted);
            assert!(
                sequencer.sleeps(Now::from_ms(LATER_MS)),
                "{level}: the disk is full"
            );
        }
    }

    #[test]
    fn the_thread_sleeps_when_the_log_has_failed() {
        for level in AckLevel::ALL {
            let disk = SimulatedDisk::new(1);
            let (sender, mut sequencer) = sequencer(&disk, level);
            disk.set_faults(Faults {
                failing_operation: Some(1),
                ..Faults::default()
            });
            let sent = sender.try_send(Lane::Data, create_for_a_second("a"), 1);
            assert!(sent.is_ok());
            // Below level synced, the sync of a turn without commands fails.
            sequencer.turn(Now::from_ms(0));
            sequencer.turn(Now::from_ms(0));
            assert!(sequencer.commit.has_failed(), "{level}");
            assert!(sequencer.sleeps(Now::from_ms(1_000_000)), "{level}");
        }
    }

    #[test]
    fn after_a_synced_batch_the_next_one_waits_for_the_clients_that_got_replies() {
        for level in AckLevel::ALL {
            let disk = SimulatedDisk::new(1);
            let options = Options::default();
            let (machine, _, log) =
                restore_on(disk, options, Limits::default(), SteadyTime::from_ms(0)).unwrap();
            let (sender, receiver) = mailbox("test", encke_mailbox::Bounds::default());
            let watch = Box::new(|_: &_| {});
            let mut sequencer = Sequencer::new(machine, log, receiver, Vec::new(), level, watch);
            for name in ["a", "b", "c"] {
                assert!(sender.try_send(Lane::Data, create(name), 1).is_ok());
            }
            let batch = sequencer.order.drain(Now::default());
            // Two commands arrive while the batch is committed.
            for name in ["d", "e"] {
                assert!(sender.try_send(Lane::Data, create(name), 1).is_ok());
            }
            sequencer.batch(batch, CommitThread::Sequencer);
            let expected = (level == AckLevel::Synced).then_some(5);
            assert_eq!(sequencer.order.expected(), expected, "{level}");
            sequencer.close().unwrap();
        }
    }
}
