//! Inline commit: at level `accepted`, the shard that submits a command commits it on its own thread.
//!
//! At the other levels a command waits for the disk, so a hand-over to the sequencer's thread costs nothing extra. At
//! [`AckLevel::Accepted`](crate::AckLevel::Accepted) a command waits for nothing but that hand-over, which takes longer than
//! the commit itself. So the sequencer is behind a lock that every shard can take. A shard that gets the lock commits all
//! commands in the mailbox, its own and those of other shards. A shard that does not get it continues: the holder looks
//! into the mailbox once more before it leaves. There is still one order, one mailbox, and one batch at a time.
//!
//! The stages are the same as in [`Sequencer::run`]. What waits is left to a background thread ([`InlineCommit::run`]) a
//! few milliseconds later: it writes files, waits for outlets, ends expired streams, and commits what belongs to streams of
//! stricter levels. It syncs without the lock, because a slow disk must not hold up shards.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use encke_clock::Now;
use encke_log::{CommitError, DeferredSync, Disk, Files};
use parking_lot::Mutex;

use crate::Piece;
use crate::commit::SETTLE_WHEN_IDLE;
use crate::sequencer::Sequencer;

/// A sequencer that threads share. Only for level `accepted`.
pub struct InlineCommit<D: Disk = Files> {
    /// None once the log is closed.
    shared: Mutex<Option<Shared<D>>>,
    /// Commands were submitted since the mailbox was last drained.
    submitted: AtomicBool,
    background: OnceLock<Thread>,
}

struct Shared<D: Disk> {
    sequencer: Sequencer<D>,
    /// The background thread sleeps, and for longer than [`WRITE_EVERY`].
    resting: bool,
    /// When a command was last decided.
    busy_at: Instant,
}

impl<D: Disk> InlineCommit<D> {
    /// Shares a sequencer of level `accepted`.
    pub fn new(mut sequencer: Sequencer<D>) -> Self {
        sequencer.share();
        let shared = Shared {
            sequencer,
            resting: false,
            busy_at: Instant::now(),
        };
        InlineCommit {
            shared: Mutex::new(Some(shared)),
            submitted: AtomicBool::new(false),
            background: OnceLock::new(),
        }
    }

    /// Commits what is in the mailbox, unless another thread does so already and will find it. Never waits for a file or
    /// another thread.
    pub fn commit(&self, now: Now) {
        self.submitted.store(true, Ordering::SeqCst);
        for _ in 0..TURNS_MAX {
            // Either the lock is free here, or its holder sees the flag after it has left.
            fence(Ordering::SeqCst);
            let Some(mut lock) = self.shared.try_lock() else {
                return;
            };
            let Some(shared) = &mut *lock else {
                return;
            };
            self.submitted.store(false, Ordering::SeqCst);
            let done = shared.commit(now);
            drop(lock);
            if !done {
                self.wake();
                return;
            }
            if !self.is_submitted() {
                return;
            }
        }
        // Other shards submit more than this thread should commit for them.
        self.wake();
    }

    /// Wakes the background thread, because records must be written now, or because the last sender of the mailbox is
    /// gone.
    pub fn wake(&self) {
        if let Some(thread) = self.background.get() {
            thread.unpark();
        }
    }

    /// Wakes the background thread if a read needs records that are accepted and not written yet.
    pub fn note_read(&self, piece: &Piece) {
        if piece.lacks() {
            self.wake();
        }
    }

    /// Whether commands were submitted while this thread held the lock. To be called after it has left.
    fn is_submitted(&self) -> bool {
        fence(Ordering::SeqCst);
        self.submitted.load(Ordering::SeqCst)
    }

    /// Runs the background thread until all senders of the mailbox are gone and every command is done, then closes the
    /// log. After the last sender is dropped, [`InlineCommit::wake`] must be called. `clock` returns the time.
    ///
    /// # Errors
    /// The log cannot be closed: acknowledged records may be missing on the disk.
    pub fn run(&self, clock: impl Fn() -> Now) -> Result<(), CommitError> {
        // One thread runs this, so it is set once.
        let _ = self.background.set(thread::current());
        loop {
            let mut lock = self.shared.lock();
            let Some(shared) = &mut *lock else {
                return Ok(());
            };
            self.submitted.store(false, Ordering::SeqCst);
            if shared.turn(&clock) {
                let last = lock.take();
                drop(lock);
                return last.map_or(Ok(()), |shared| shared.sequencer.close());
            }
            if let Some(sync) = shared.begin_sync() {
                // Shards commit while the disk syncs. No other thread writes.
                drop(lock);
                if self.is_submitted() {
                    self.commit(clock());
                }
                let synced = sync.run();
                if let Some(shared) = &mut *self.shared.lock() {
                    shared.sequencer.end_sync(synced);
                }
                continue;
            }
            let wait_max = shared.sleep_max(clock());
            drop(lock);
            if self.is_submitted() {
                continue;
            }
            match wait_max {
                None => thread::park(),
                Some(wait_max) => thread::park_timeout(wait_max),
            }
        }
    }
}

impl<D: Disk> Shared<D> {
    /// Commits what is in the mailbox if that needs no wait. False: the background thread is needed.
    fn commit(&mut self, now: Now) -> bool {
        if !self.sequencer.is_free() || self.sequencer.unwritten_bytes() >= UNWRITTEN_BYTES_MAX {
            return false;
        }
        if self.sequencer.commit_on_shard(now) > 0 {
            self.busy_at = Instant::now();
        }
        let done = self.sequencer.is_free() && !self.sequencer.has_late_replies();
        done && !std::mem::take(&mut self.resting)
    }

    /// Does everything that is to be done except for syncs. True when nothing follows.
    fn turn(&mut self, clock: &impl Fn() -> Now) -> bool {
        // Before the drain, so that no command arrives after it.
        let closed = self.sequencer.is_closed();
        let commands = self.sequencer.commit_in_background(clock());
        if commands > 0 {
            self.busy_at = Instant::now();
        }
        closed && commands == 0
    }

    fn begin_sync(&mut self) -> Option<DeferredSync<D>> {
        let idle = self.busy_at.elapsed() >= SETTLE_WHEN_IDLE;
        self.sequencer.begin_sync(idle)
    }

    /// How long the background thread may sleep; forever if nothing is to be done.
    fn sleep_max(&mut self, now: Now) -> Option<Duration> {
        let active = self.busy_at.elapsed() < WRITE_EVERY * 2;
        let wait_max = self.sequencer.wait_max(now);
        self.resting = !active;
        if active {
            return Some(wait_max.map_or(WRITE_EVERY, |wait_max| wait_max.min(WRITE_EVERY)));
        }
        wait_max
    }
}

/// Accepted records are written this often.
const WRITE_EVERY: Duration = Duration::from_millis(5);

/// With this many accepted bytes in memory, they are written before more is decided.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;

/// How often a thread commits what other shards have submitted meanwhile, before it leaves that to the background thread.
const TURNS_MAX: usize = 4;
