//! What the sequencer does so that idle streams cost no memory: checkpoints, and letting go.

use std::time::{Duration, Instant};

use encke_log::{Disk, StreamNo};

use crate::{Machine, Sequencer};

/// Which streams stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// A stream that nobody used for so long, or up to twice as long, is let go of.
    pub idle: Duration,
    /// With more streams and free names in memory than this, those used last stay, and the others go
    /// sooner. Streams that somebody holds stay in any case.
    pub hot_max: usize,
}

impl Default for Eviction {
    fn default() -> Self {
        Eviction {
            idle: Duration::from_secs(60),
            hot_max: 200_000,
        }
    }
}

impl Eviction {
    /// Nothing is ever let go of.
    pub const NEVER: Eviction = Eviction {
        idle: Duration::MAX,
        hot_max: usize::MAX,
    };

    /// What changed is in the store after so long.
    fn checkpoint_every(&self) -> Duration {
        (self.idle / 2).min(CHECKPOINT_EVERY_MAX)
    }

    /// A part of the streams in memory is gone through so often.
    fn sweep_every(&self) -> Duration {
        (self.idle / Machine::sweeps() as u32).max(SWEEP_EVERY_MIN)
    }

    /// So many changed streams are a checkpoint, so that they can be let go of, and so that a start
    /// does not bring back more.
    fn changed_max(&self) -> usize {
        (self.hot_max / 2).clamp(1, CHANGED_MAX)
    }
}

impl<D: Disk> Sequencer<D> {
    /// Lets go of streams that are not in use. `load` is called with the number of a stream that is
    /// not in memory and must end: it has a reader thread load it
    /// ([`Loader::load_number`](crate::Loader::load_number)), and must not wait.
    #[must_use]
    pub fn evicting(mut self, eviction: Eviction, load: Box<dyn FnMut(StreamNo) + Send>) -> Self {
        self.eviction = eviction;
        self.load = load;
        self
    }

    /// When it must be gone through the streams in memory again, if ever.
    pub(crate) fn sweep_patience(&self) -> Option<Duration> {
        (self.eviction != Eviction::NEVER).then(|| {
            let every = match (self.is_crowded(), self.machine.in_memory()) {
                (true, _) => CROWDED_SWEEP_EVERY,
                // Readers may put something in at any time.
                (false, 0) => self.eviction.idle.min(EMPTY_SWEEP_EVERY),
                (false, _) => self.eviction.sweep_every(),
            };
            every.saturating_sub(self.swept_at.elapsed())
        })
    }

    /// When there must be a checkpoint, if ever.
    pub(crate) fn checkpoint_patience(&self) -> Option<Duration> {
        (self.machine.changed() > 0 && self.eviction != Eviction::NEVER).then(|| {
            let every = self.eviction.checkpoint_every();
            every.saturating_sub(self.checked_at.elapsed())
        })
    }

    /// Keeps what the streams are in the log's state store, whenever that would shorten the next
    /// start or let go of streams: bit by bit, a bounded number of streams after each batch, so that
    /// no batch waits long.
    pub(crate) fn checkpoint(&mut self) {
        let records = std::mem::take(&mut self.unkept);
        if self.failed.is_some() || self.owed.is_some() {
            return;
        }
        if !self.gathering && !self.wants_checkpoint() {
            return;
        }
        self.gathering = true;
        // More than a batch can have changed, or it would never be done.
        let count_max = 2 * records + CHECKPOINT_STREAMS;
        let committed = self.log.next_sequence() - 1;
        if !self
            .machine
            .take_changed(committed, count_max, &mut self.entries)
        {
            return;
        }
        // A poisoned log would not take it.
        self.sync_late();
        if self.failed.is_none() {
            // Who still reads one of them sees that it has ended, and believes nothing that comes short.
            for ended in self.machine.take_over() {
                self.log.forget(ended);
            }
            self.log.checkpoint(std::mem::take(&mut self.entries));
            self.machine.stored();
            self.gathering = false;
            // More may go now.
            self.fruitless = 0;
            self.checked_at = Instant::now();
        }
    }

    fn wants_checkpoint(&self) -> bool {
        let changed = self.machine.changed();
        // One that the disk has not taken yet costs memory, and so would the next.
        let lets_go =
            self.eviction != Eviction::NEVER && changed > 0 && self.log.checkpoints_waiting() == 0;
        self.log.wants_checkpoint()
            || lets_go
                && (changed >= self.eviction.changed_max()
                    || self.checked_at.elapsed() >= self.eviction.checkpoint_every())
    }

    /// Lets go of streams that are not in use: of one part at a time, of more when there are too many.
    pub(crate) fn sweep(&mut self) {
        if self.eviction == Eviction::NEVER {
            return;
        }
        if self.swept_at.elapsed() >= self.eviction.sweep_every() {
            self.swept_at = Instant::now();
            self.sweep_part();
        }
        for _ in 0..SWEEPS_AT_ONCE {
            if !self.is_crowded() {
                break;
            }
            self.swept_at = Instant::now();
            self.sweep_part();
        }
    }

    /// Whether more is in memory than should be, and some of it may go: when every part was gone
    /// through twice in vain, what is left is in use.
    fn is_crowded(&self) -> bool {
        self.machine.in_memory() > self.eviction.hot_max && self.fruitless < 2 * Machine::sweeps()
    }

    fn sweep_part(&mut self) {
        match self.machine.sweep(false) {
            0 => self.fruitless += 1,
            _ => self.fruitless = 0,
        }
    }
}

/// What changed is in the store after so long at most, however long streams stay in memory.
const CHECKPOINT_EVERY_MAX: Duration = Duration::from_secs(10);

/// Unstored streams are a checkpoint when there are so many, however many stay in memory.
const CHANGED_MAX: usize = 50_000;

/// Even when streams are let go of at once, the streams are not gone through all the time.
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(1);

/// How soon the streams are gone through again when there are too many.
const CROWDED_SWEEP_EVERY: Duration = Duration::from_millis(5);

/// How soon it is looked again whether streams came into memory, when there are none.
const EMPTY_SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Parts of the streams in memory that are gone through after each batch when there are too many.
const SWEEPS_AT_ONCE: usize = 16;

/// Streams that a checkpoint takes after a batch, beside twice as many as the batch had records.
const CHECKPOINT_STREAMS: usize = 2_000;
