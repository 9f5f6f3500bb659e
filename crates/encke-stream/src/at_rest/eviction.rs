//! Eviction: idle streams leave memory once a checkpoint holds them.

use std::time::{Duration, Instant};

use encke_log::{Disk, Log, StateEntry};

use crate::Machine;

/// Which streams stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// A stream that is idle for this long, or up to twice as long, is evicted.
    pub idle: Duration,
    /// With more streams and free names in memory than this, the least recently used are evicted sooner. Streams in use
    /// stay in any case. A free name counts once, and once more for each 128 bytes.
    pub hot_max: usize,
    /// When the producers of streams in memory take more bytes than this, streams with producers are evicted sooner, and streams with
    /// many producers take no further ones for the moment.
    pub producer_bytes_max: usize,
}

impl Default for Eviction {
    fn default() -> Self {
        Eviction {
            idle: Duration::from_secs(60),
            hot_max: 200_000,
            producer_bytes_max: 64 << 20,
        }
    }
}

impl Eviction {
    /// No stream is ever evicted.
    pub const NEVER: Eviction = Eviction {
        idle: Duration::MAX,
        hot_max: usize::MAX,
        producer_bytes_max: usize::MAX,
    };

    /// The store has each change after this long.
    fn checkpoint_every(&self, machine: &Machine) -> Duration {
        let max = match machine.is_full_of_producers() {
            // Only what is stored can be evicted.
            true => CROWDED_CHECKPOINT_EVERY,
            false => CHECKPOINT_EVERY_MAX,
        };
        (self.idle / 2).min(max)
    }

    /// The time between two sweeps of a part of the view.
    fn sweep_every(&self) -> Duration {
        (self.idle / Machine::sweeps() as u32).max(SWEEP_EVERY_MIN)
    }

    /// This many changed streams make a checkpoint due: so that they can be evicted, and so that a start does not bring
    /// back more.
    fn changed_max(&self) -> usize {
        (self.hot_max / 2).clamp(1, CHANGED_MAX)
    }
}

/// Makes checkpoints and evicts streams, a bounded number after each batch, so that no batch waits long.
#[derive(Debug)]
pub(crate) struct Evictor {
    settings: Eviction,
    /// What the next checkpoint holds, while it is being collected.
    entries: Vec<StateEntry>,
    collecting: bool,
    /// Records that were decided since [`Evictor::collect`] last ran.
    records: usize,
    checkpointed_at: Instant,
    swept_at: Instant,
    /// Sweeps in a row that evicted nothing.
    fruitless: usize,
}

impl Evictor {
    pub(crate) fn new(settings: Eviction) -> Self {
        let now = Instant::now();
        Evictor {
            settings,
            entries: Vec::new(),
            collecting: false,
            records: 0,
            checkpointed_at: now,
            swept_at: now,
            fruitless: 0,
        }
    }

    /// An evictor for which everything has been due for a while.
    #[cfg(test)]
    pub(crate) fn overdue(settings: Eviction) -> Self {
        let before = Instant::now().checked_sub(CHECKPOINT_EVERY_MAX + EMPTY_SWEEP_EVERY);
        let before = before.expect("the machine has run for that long");
        Evictor {
            checkpointed_at: before,
            swept_at: before,
            ..Evictor::new(settings)
        }
    }

    /// Notes that a batch has stored records.
    pub(crate) fn stored(&mut self, records: usize) {
        self.records += records;
    }

    /// How long until a sweep is due; None if there is none.
    pub(crate) fn sweep_due_in(&self, machine: &Machine) -> Option<Duration> {
        self.evicts().then(|| {
            let every = self.sweep_every(machine);
            every.saturating_sub(self.swept_at.elapsed())
        })
    }

    /// The time between two sweeps of a part of the view.
    fn sweep_every(&self, machine: &Machine) -> Duration {
        match (self.is_over_limit(machine), machine.in_memory()) {
            (true, _) => CROWDED_SWEEP_EVERY,
            // Reader threads may load a stream at any time.
            (false, 0) => self.settings.idle.min(EMPTY_SWEEP_EVERY),
            (false, _) => self.settings.sweep_every(),
        }
    }

    /// How long until a checkpoint is due or continues; None if nothing has changed.
    pub(crate) fn checkpoint_due_in<D: Disk>(
        &self,
        machine: &Machine,
        log: &Log<D>,
    ) -> Option<Duration> {
        if self.collecting {
            return Some(Duration::ZERO);
        }
        (self.evicts() && machine.changed() > 0).then(|| {
            let every = self.settings.checkpoint_every(machine);
            let left = every.saturating_sub(self.checkpointed_at.elapsed());
            match log.checkpoints_waiting() {
                0 => left,
                // The next one waits until history has taken this one, which may take long or fail.
                _ => left.max(CHECKPOINT_LOOK_EVERY),
            }
        })
    }

    /// Collects changed streams for a checkpoint, if one is due. True when the checkpoint is complete.
    pub(crate) fn collect<D: Disk>(&mut self, machine: &mut Machine, log: &Log<D>) -> bool {
        let records = std::mem::take(&mut self.records);
        if !self.collecting && !self.wants_checkpoint(machine, log) {
            return false;
        }
        self.collecting = true;
        // More than a batch can change, or the checkpoint would never be complete.
        let count_max = 2 * records + CHECKPOINT_STREAMS;
        let committed = log.next_sequence() - 1;
        machine.take_changed(committed, count_max, &mut self.entries)
    }

    /// Hands the complete checkpoint to the log.
    pub(crate) fn checkpoint<D: Disk>(&mut self, machine: &mut Machine, log: &mut Log<D>) {
        // A reader that still reads one of these streams sees that it has ended, and discards what it has read.
        for ended in machine.take_over() {
            log.forget(ended);
        }
        log.checkpoint(std::mem::take(&mut self.entries));
        machine.stored();
        self.collecting = false;
        // More streams can be evicted now.
        self.fruitless = 0;
        self.checkpointed_at = Instant::now();
    }

    /// Evicts idle streams: from one part of the view at a time, from more parts when there are too many streams.
    pub(crate) fn sweep(&mut self, machine: &mut Machine) {
        if !self.evicts() {
            return;
        }
        if self.swept_at.elapsed() >= self.sweep_every(machine) {
            let only_producers = self.is_over_limit(machine) && !self.has_too_many(machine);
            self.sweep_part(machine, only_producers);
        }
        for _ in 0..SWEEPS_AT_ONCE {
            if !self.is_over_limit(machine) {
                break;
            }
            self.sweep_part(machine, !self.has_too_many(machine));
        }
    }

    fn evicts(&self) -> bool {
        self.settings != Eviction::NEVER
    }

    fn wants_checkpoint<D: Disk>(&self, machine: &Machine, log: &Log<D>) -> bool {
        let changed = machine.changed();
        // A checkpoint that the disk has not taken yet costs memory, and so would the next one.
        let may = self.evicts() && changed > 0 && log.checkpoints_waiting() == 0;
        log.wants_checkpoint()
            || may
                && (changed >= self.settings.changed_max()
                    || self.checkpointed_at.elapsed() >= self.settings.checkpoint_every(machine))
    }

    /// Whether there are too many streams in memory, or too many producers, and some can be evicted. When two sweeps of every part in a
    /// row evict nothing, all streams are in use.
    fn is_over_limit(&self, machine: &Machine) -> bool {
        (self.has_too_many(machine) || machine.is_full_of_producers())
            && self.fruitless < 2 * Machine::sweeps()
    }

    fn has_too_many(&self, machine: &Machine) -> bool {
        machine.in_memory() > self.settings.hot_max
    }

    fn sweep_part(&mut self, machine: &mut Machine, only_producers: bool) {
        self.swept_at = Instant::now();
        let gone = match only_producers {
            true => machine.sweep_producers(),
            false => machine.sweep(false),
        };
        match gone {
            0 => self.fruitless += 1,
            _ => self.fruitless = 0,
        }
    }
}

/// The longest time until the store has a change, whatever the settings.
const CHECKPOINT_EVERY_MAX: Duration = Duration::from_secs(10);

/// The same while the producers of streams take as much memory as they may.
const CROWDED_CHECKPOINT_EVERY: Duration = Duration::from_secs(2);

/// The most changed streams before a checkpoint, whatever the settings.
const CHANGED_MAX: usize = 50_000;

/// While a checkpoint waits for history, the sequencer looks this often whether the next one can follow.
const CHECKPOINT_LOOK_EVERY: Duration = Duration::from_millis(100);

/// The shortest time between two sweeps, even when streams are evicted at once.
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(1);

/// The time between two sweeps when there are too many streams.
const CROWDED_SWEEP_EVERY: Duration = Duration::from_millis(5);

/// The time between two looks for loaded streams when there are none in memory.
const EMPTY_SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Parts that are swept after each batch when there are too many streams.
const SWEEPS_AT_ONCE: usize = 16;

/// Streams that a checkpoint collects after a batch, beside twice as many as the batch had records.
const CHECKPOINT_STREAMS: usize = 2_000;
