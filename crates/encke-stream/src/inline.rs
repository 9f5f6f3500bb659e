//! Level `accepted` without a hand-over to another thread: whoever brings a command has it decided at once.
//!
//! At the other levels a command waits for the disk, so a thread of its own costs nothing extra. At
//! [`AckLevel::Accepted`](crate::AckLevel::Accepted) it waits for nothing but that thread to wake up, which takes longer
//! than all the rest. So the sequencer sits at a desk that every shard can reach: a shard that finds it free has everything
//! in the mailbox decided, its own commands and those of others; one that finds it taken goes on, because whoever sits
//! there looks once more before leaving. There is still one order, one mailbox, and one batch at a time.
//!
//! What waits is not done there: what belongs to streams of stricter levels is decided and left to the desk's thread, and files are written, outlets waited for and streams expired by the desk's own thread
//! ([`InlineCommit::run`]), a few milliseconds later. It syncs without sitting there, for a disk may take long and nobody who is
//! here waits for it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use encke_log::{CommitError, Disk, Files, LateSync, LateSynced};
use parking_lot::Mutex;

use crate::batch::{Handover, Submission};
use crate::sequencer::{SETTLE_WHEN_IDLE, Sequencer};
use crate::{AckLevel, Piece};

/// A sequencer that threads share. Only for level `accepted`.
pub struct InlineCommit<D: Disk = Files> {
    /// Nothing once the log is closed.
    shared: Mutex<Option<Shared<D>>>,
    /// Somebody brought commands since the mailbox was last looked into.
    wanted: AtomicBool,
    thread: OnceLock<Thread>,
}

struct Shared<D: Disk> {
    sequencer: Sequencer<D>,
    requests: Vec<Submission>,
    /// The desk's own thread sleeps and means to for long.
    resting: bool,
    /// When something was decided last.
    busy_at: Instant,
}

impl<D: Disk> InlineCommit<D> {
    /// A desk for a sequencer of level `accepted`.
    pub fn new(mut sequencer: Sequencer<D>) -> Self {
        sequencer.share();
        let shared = Shared {
            sequencer,
            requests: Vec::new(),
            resting: false,
            busy_at: Instant::now(),
        };
        InlineCommit {
            shared: Mutex::new(Some(shared)),
            wanted: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Has decided what is in the mailbox, unless somebody is at it: then they will do it. Never waits for a file or
    /// another thread. `now_ms` is the time in milliseconds since 1970.
    pub fn decide(&self, now_ms: u64) {
        self.wanted.store(true, Ordering::SeqCst);
        for _ in 0..TURNS_MAX {
            // Either the shared is seen to be free here, or whoever leaves it sees that it is wanted.
            fence(Ordering::SeqCst);
            let Some(mut shared) = self.shared.try_lock() else {
                return;
            };
            let Some(taken) = &mut *shared else {
                return;
            };
            self.wanted.store(false, Ordering::SeqCst);
            let call = !taken.decide(now_ms);
            drop(shared);
            if call {
                self.wake();
                return;
            }
            if !self.is_wanted() {
                return;
            }
        }
        // Others bring more than this thread should do for them.
        self.wake();
    }

    /// Has the desk's thread look after everything now: what is not written yet, or that no command will come any more.
    pub fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// A piece was read. One that is empty though there is more lacks what is accepted and not written yet: then the desk's
    /// thread writes it now.
    pub fn note_read(&self, piece: &Piece) {
        if piece.lacks() {
            self.wake();
        }
    }

    /// Whether commands were brought while this thread sat at the desk. To be asked once it has left.
    fn is_wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        self.wanted.load(Ordering::SeqCst)
    }

    /// Does what waits, until all senders of the mailbox are gone and everything in it is done; whoever drops the last one
    /// must [`InlineCommit::wake`]. Then it closes the log. `clock` tells milliseconds since 1970.
    ///
    /// # Errors
    /// The log could not be closed: something that was acknowledged may not be on the disk.
    pub fn run(&self, clock: impl Fn() -> u64) -> Result<(), CommitError> {
        // Set once, because one thread runs it.
        let _ = self.thread.set(thread::current());
        loop {
            let mut shared = self.shared.lock();
            let Some(taken) = &mut *shared else {
                return Ok(());
            };
            self.wanted.store(false, Ordering::SeqCst);
            if taken.work(&clock) {
                let last = shared.take();
                drop(shared);
                return last.map_or(Ok(()), |shared| shared.sequencer.close());
            }
            if let Some(late) = taken.sync_due() {
                // The disk may take its time: others decide meanwhile, and nobody else writes.
                drop(shared);
                if self.is_wanted() {
                    self.decide(clock());
                }
                let synced = late.run();
                if let Some(taken) = &mut *self.shared.lock() {
                    taken.sequencer.synced(synced);
                }
                continue;
            }
            let patience = taken.rest(clock());
            drop(shared);
            if self.is_wanted() {
                continue;
            }
            match patience {
                None => thread::park(),
                Some(patience) => thread::park_timeout(patience),
            }
        }
    }
}

impl<D: Disk> Sequencer<D> {
    /// From now on [`crate::InlineCommit`] runs it.
    fn share(&mut self) {
        debug_assert_eq!(
            self.level,
            AckLevel::Accepted,
            "at the others all wait for files"
        );
        self.shared = true;
    }

    /// Whether commands can be decided without waiting for anything.
    fn is_free(&self) -> bool {
        self.barred().is_none()
            && self.pending.is_none()
            && self.stuck.is_empty()
            && self.outlets.iter().all(|outlet| outlet.admits())
    }

    /// Bytes that were decided and are not written yet.
    fn unwritten(&self) -> usize {
        self.log.batch_bytes()
    }

    /// Decides what is in the mailbox and does nothing else; how many commands that were.
    fn decide_waiting(&mut self, requests: &mut Vec<Submission>, now_ms: u64) -> usize {
        let taken = self.mailbox.drain(requests);
        if taken > 0 {
            self.judge(requests, now_ms, false);
            self.mailbox.handled(taken);
        }
        taken
    }

    /// Decides what is in the mailbox and does everything that has waited, but for syncs; how many commands that were.
    fn work(&mut self, requests: &mut Vec<Submission>, now_ms: u64) -> usize {
        self.hand_over();
        let taken = self.mailbox.drain(requests);
        self.batch(requests, now_ms);
        self.mailbox.handled(taken);
        self.hand_over();
        if self.unwritten() > 0 && self.barred().is_none() {
            self.write_owed();
        }
        self.release_written();
        self.checkpoint();
        self.sweep();
        for outlet in &self.outlets {
            outlet.admit();
        }
        taken
    }

    /// What is to be synced now, if anything is: what was acknowledged a while ago, or, when nothing is to be done, all
    /// of it, and then the note that it is durable. Until [`Self::synced`] hears how it went, commands may be decided, and
    /// nothing may be written.
    fn sync_due(&mut self, idle: bool) -> Option<LateSync<D>> {
        let awaited = self.is_awaited() && self.is_written();
        let due = idle || awaited || self.synced_at.elapsed() > self.sync_every;
        if self.failed.is_some() || !due {
            return None;
        }
        self.synced_at = Instant::now();
        if let Some(late) = self.log.late_sync() {
            if awaited {
                self.syncing.append(&mut self.late);
            }
            return Some(late);
        }
        if awaited {
            self.release(AckLevel::Synced);
        }
        if !idle || !std::mem::take(&mut self.unsettled) {
            return None;
        }
        if let Err(error) = self.log.mark_durable() {
            self.fail(&error);
        }
        self.log.late_sync()
    }

    /// Takes note of how a sync went.
    fn synced(&mut self, synced: LateSynced) {
        match self.log.late_synced(synced) {
            Ok(()) => self.release_syncing(),
            Err(error) => {
                self.fail(&error);
            }
        }
    }

    /// Whether no command will come any more, beside those in the mailbox.
    fn is_over(&self) -> bool {
        self.mailbox.is_closed()
    }

    fn close(self) -> Result<(), CommitError> {
        self.log.close()
    }

    /// Hands over what outlets had no room for, and waits until they have.
    fn hand_over(&mut self) {
        for (shard, Handover { batch, replies }) in self.stuck.drain(..) {
            if let Some(outlet) = self.outlets.get(shard) {
                outlet.deliver(batch, replies);
            }
        }
    }
}

impl<D: Disk> Shared<D> {
    /// Decides what is in the mailbox if that means no waiting. False: the desk's thread is needed.
    fn decide(&mut self, now_ms: u64) -> bool {
        if !self.sequencer.is_free() || self.sequencer.unwritten() >= UNWRITTEN_BYTES_MAX {
            return false;
        }
        if self.sequencer.decide_waiting(&mut self.requests, now_ms) > 0 {
            self.busy_at = Instant::now();
        }
        let goes_on = self.sequencer.is_free() && !self.sequencer.is_awaited();
        goes_on && !std::mem::take(&mut self.resting)
    }

    /// Does everything that is to be done. True when nothing will follow.
    fn work(&mut self, clock: &impl Fn() -> u64) -> bool {
        // Asked before the mailbox is looked into, so that nothing comes after the look.
        let over = self.sequencer.is_over();
        let taken = self.sequencer.work(&mut self.requests, clock());
        if taken > 0 {
            self.busy_at = Instant::now();
        }
        over && taken == 0
    }

    /// What is to be synced now, if anything is.
    fn sync_due(&mut self) -> Option<LateSync<D>> {
        let idle = self.busy_at.elapsed() >= SETTLE_WHEN_IDLE;
        self.sequencer.sync_due(idle)
    }

    /// How long the thread may sleep; forever if nothing is to be done.
    fn rest(&mut self, now_ms: u64) -> Option<Duration> {
        let active = self.busy_at.elapsed() < WRITE_EVERY * 2;
        let patience = self.sequencer.patience(now_ms);
        self.resting = !active;
        if active {
            return Some(patience.map_or(WRITE_EVERY, |patience| patience.min(WRITE_EVERY)));
        }
        patience
    }
}

/// What is accepted is written this often, while anything is.
const WRITE_EVERY: Duration = Duration::from_millis(5);

/// What is accepted and not written may weigh so much; then it is written before more is decided.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;

/// A thread that came to have its own commands decided looks this often for others'.
const TURNS_MAX: usize = 4;
