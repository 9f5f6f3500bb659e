//! The sequencer of a node of a fleet: applies the batches of the replicated order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_clock::Now;
use encke_log::{CommitError, Disk, Files, Log, Reader, StreamNo};

use super::chain::MARK_EVERY;
use super::incoming::{Following, Next};
use super::order_clock::OrderClock;
use crate::at_rest::eviction::{Eviction, Evictor};
use crate::at_rest::load::Loader;
use crate::commit::batch::Outlet;
use crate::commit::replicate::{CannotApply, Stall};
use crate::commit::{Commit, Committed, RETRY};
use crate::order::submission::Submitter;
use crate::replicated::OrderedBatch;
use crate::{AckLevel, FleetCommand, Machine, Refusal};

/// Applies the batches of the replicated order: decides, writes, syncs and publishes them, and replies to this node's own
/// commands.
pub struct ReplicaSequencer<D: Disk = Files> {
    following: Following,
    commit: Commit<D>,
    loader: Loader<Reader<D>>,
    evictor: Evictor,
    clock: OrderClock,
    /// Receives the figures of each group of batches.
    watch: Box<dyn FnMut(&Committed) + Send>,
    /// Why nothing more is applied.
    stopped: Option<Arc<str>>,
    /// When this node last proposed a mark.
    settled_at: Option<Instant>,
}

impl<D: Disk> ReplicaSequencer<D> {
    /// A sequencer over restored streams. `outlets` are the shards, in the order of their numbers.
    pub fn new(
        mut machine: Machine,
        log: Log<D>,
        following: Following,
        outlets: Vec<Box<dyn Outlet>>,
        watch: Box<dyn FnMut(&Committed) + Send>,
    ) -> Self {
        machine.level = AckLevel::Synced;
        let loader = machine.loader(log.reader());
        ReplicaSequencer {
            following,
            commit: Commit::new(machine, log, outlets),
            loader,
            evictor: Evictor::new(Eviction::NEVER),
            clock: OrderClock::default(),
            watch,
            stopped: None,
            settled_at: None,
        }
    }

    /// Evicts streams that are not in use ([`Sequencer::evicting`](crate::Sequencer::evicting)).
    #[must_use]
    pub fn evicting(mut self, eviction: Eviction, load: Box<dyn FnMut(StreamNo) + Send>) -> Self {
        self.evictor = Evictor::new(eviction);
        self.commit
            .set_producer_bytes_max(eviction.producer_bytes_max);
        self.commit.load_with(load);
        self
    }

    /// Runs until nothing arrives from the order any more, then closes the log. `clock` returns the time.
    ///
    /// # Errors
    /// The log cannot be closed.
    pub fn run(mut self, clock: impl Fn() -> Now) -> Result<(), CommitError> {
        loop {
            // A stopped node does nothing that may be due.
            let timeout = match self.stopped {
                Some(_) => None,
                None => {
                    let now = self.clock.time(clock());
                    self.commit.wait_max(now, &self.evictor)
                }
            };
            let timeout = timeout.unwrap_or(LOOK_EVERY).min(LOOK_EVERY);
            if !self.turn(timeout, &clock) {
                break;
            }
        }
        let left = self.following.take_outstanding();
        let stops = Refusal::Unknown("the server stops".into());
        self.refuse(left, &stops);
        self.commit.close()
    }

    /// Waits for what arrives next, at most for `timeout`, and applies it. False: nothing arrives any more.
    pub(super) fn turn(&mut self, timeout: Duration, clock: &impl Fn() -> Now) -> bool {
        match self.following.next(timeout) {
            Next::End => return false,
            Next::Nothing => {
                if self.stopped.is_none() {
                    self.commit.settle();
                }
                self.propose(self.clock.time(clock()), false);
            }
            Next::Refused(submitters, refusal) => self.refuse(submitters, &refusal),
            Next::Stop(reason) => self.stop(reason),
            Next::Batches(batches) => self.apply(batches, clock()),
        }
        // What a stopped node holds in memory may not be what its log has.
        if self.stopped.is_none() {
            self.commit.sync_if_due();
            self.note_mark();
            self.commit.checkpoint(&mut self.evictor);
            self.commit.evict(&mut self.evictor);
        }
        self.commit.admit();
        true
    }

    fn apply(&mut self, batches: Vec<OrderedBatch>, now: Now) {
        if let Some(reason) = self.stopped.clone() {
            let all = batches.into_iter().flat_map(|batch| batch.submitters);
            let submitters = all.flatten().collect();
            return self.refuse(submitters, &Refusal::Unknown(reason));
        }
        let Some(last) = batches.last() else { return };
        let time = last.batch.time;
        let tips: Vec<_> = batches.iter().map(|one| one.batch.tip).collect();
        let own = batches
            .iter()
            .any(|one| self.following.is_own(&one.batch.batch));
        let mut newest = batches.iter().rev();
        let last = newest.find_map(|one| self.following.own_number(&one.batch.batch));
        let mut stall = StalledSequencer(&self.following);
        let applied = self.commit.replicate(batches, &self.loader, &mut stall);
        let status = &self.following.status;
        match applied {
            Ok(committed) => {
                status.stall(None);
                status.apply(&tips);
                if let Some(last) = last {
                    self.following.answered(last);
                }
                self.evictor.stored(committed.records);
                (self.watch)(&committed);
                self.clock.note(time, now);
                self.propose(self.clock.time(now), own);
            }
            Err(CannotApply::Failed(reason) | CannotApply::Stalled(reason)) => self.stop(reason),
        }
    }

    fn note_mark(&self) {
        if let Some(marked) = self.commit.durable_mark() {
            self.following.status.mark(marked);
        }
    }

    fn propose(&mut self, now: Now, own: bool) {
        if self.stopped.is_some() {
            return;
        }
        // What an operator asks for once comes first: proposals past a bound are dropped.
        let leaving = self.following.status.take_leaving().into_iter();
        let mut proposals: Vec<_> = leaving.map(|node| FleetCommand::Leave { node }).collect();
        proposals.extend(self.commit.proposals(now, own));
        if self.settled_at.is_none_or(|at| at.elapsed() > SETTLE_EVERY) {
            // Nodes wait for different times, so that one of them is enough.
            let idle_min = MARK_EVERY + self.following.jitter();
            let settling = self.commit.settling(now, idle_min);
            self.settled_at = settling.is_some().then(Instant::now).or(self.settled_at);
            proposals.extend(settling);
        }
        self.following.propose(proposals);
    }

    /// From now on everything is refused.
    fn stop(&mut self, reason: Arc<str>) {
        if self.commit.has_failed() {
            (self.watch)(&Committed {
                failed: true,
                ..Committed::default()
            });
        }
        tracing::error!(%reason, "this node follows the order no longer");
        self.following.status.stop(Arc::clone(&reason));
        let left = self.following.take_outstanding();
        self.refuse(left, &Refusal::Unknown(Arc::clone(&reason)));
        // A repair asks for the last mark.
        self.commit.sync_written();
        self.note_mark();
        self.stopped = Some(reason);
        self.following.status.halt();
    }

    fn refuse(&mut self, submitters: Vec<Submitter>, refusal: &Refusal) {
        if !submitters.is_empty() {
            self.commit.refuse_submitters(submitters, refusal);
        }
    }
}

/// The sequencer while it cannot apply a batch.
struct StalledSequencer<'a>(&'a Following);

impl Stall for StalledSequencer<'_> {
    fn wait(&mut self, reason: &Arc<str>) -> bool {
        let status = &self.0.status;
        tracing::error!(%reason, "this node cannot apply a batch, and tries again");
        status.stall(Some(Arc::clone(reason)));
        std::thread::sleep(RETRY);
        status.has_stopped() || status.is_closing()
    }

    fn take_waiting(&mut self) -> Vec<Submitter> {
        self.0.take_outstanding()
    }
}

/// A mark is proposed at most this often.
const SETTLE_EVERY: Duration = Duration::from_secs(10);

/// How often the sequencer looks for what it must propose, at least.
const LOOK_EVERY: Duration = Duration::from_millis(100);
