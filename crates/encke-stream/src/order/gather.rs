//! How long commands gather before a batch, where the disk syncs slowly.
//!
//! A client that waits for each reply before it sends the next command works in a closed loop. When one batch is synced
//! while others gather, closed-loop clients split into two halves that alternate: each half waits for the sync of the
//! other, and each sync serves half of the clients. A short pause after the replies lets the first half send its next
//! commands, so that one sync serves both halves.
//!
//! The pause begins when the first command waits. It ends when as many commands have arrived as replies were sent, when
//! arrivals stop, or after a quarter of a sync. It waits for arrivals, not for a time: a fixed pause is too short for many clients and too long for
//! few.

use std::time::Duration;

/// Decides when a pause is worth its time. Contains no clock: the caller hands durations in.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// How long the last two syncs took. The shorter one counts, so that a single slow sync changes nothing.
    syncs: [Duration; 2],
    /// How many commands the next batch has when every client that got a reply has sent its next command. None when
    /// there is nothing to wait for: no batch was synced since the last pause.
    expected: Option<usize>,
    /// Pauses in a row in which no command arrived.
    vain: u32,
    /// Pauses that are still to be left out.
    skips: u32,
}

impl Gather {
    /// Notes how long the sync of a batch took.
    pub(crate) fn synced(&mut self, took: Duration) {
        self.syncs = [self.syncs[1], took];
    }

    /// Notes that replies are about to be sent after a sync. `commands` is the number of replies plus the number of
    /// commands that wait already.
    pub(crate) fn expect(&mut self, commands: usize) {
        self.expected = Some(commands);
    }

    /// The number of commands in the next batch that is worth a pause.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> Option<usize> {
        self.expected
    }

    /// Begins a pause for a batch that has `taken` commands so far. `elapsed` is the time since the replies were sent.
    /// None when a pause is not worth its time.
    pub(crate) fn begin(&mut self, elapsed: Duration, taken: usize) -> Option<Pause> {
        let expected = self.expected.take()?;
        let sync = self.syncs[0].min(self.syncs[1]);
        let late = elapsed >= sync / BEGIN_DIVISOR;
        if sync < SYNC_MIN || taken >= expected || late {
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        Some(Pause {
            limit: sync / LIMIT_DIVISOR,
            expected,
            before: taken,
            taken,
            arrived_at: Duration::ZERO,
        })
    }

    /// Ends a pause and learns from it.
    pub(crate) fn end(&mut self, pause: &Pause) {
        if pause.taken > pause.before {
            self.vain = 0;
            return;
        }
        self.vain += 1;
        if self.vain >= VAIN_MAX {
            self.vain = VAIN_MAX;
            self.skips = SKIPS;
        }
    }
}

/// One pause before a batch.
#[derive(Debug)]
pub(crate) struct Pause {
    /// The pause takes at most this long, so no command waits longer for others.
    limit: Duration,
    expected: usize,
    /// Commands that the batch had when the pause began, and has now.
    before: usize,
    taken: usize,
    /// When a command arrived last, measured from the beginning of the pause.
    arrived_at: Duration,
}

impl Pause {
    /// How long to sleep before the mailbox is drained again. None when the pause is over. `elapsed` is the time since
    /// the pause began, `taken` the number of commands that the batch has now.
    pub(crate) fn next_sleep(&mut self, elapsed: Duration, taken: usize) -> Option<Duration> {
        if taken > self.taken {
            self.taken = taken;
            self.arrived_at = elapsed;
        }
        let arrives = self.taken > self.before;
        let silence = elapsed.saturating_sub(self.arrived_at);
        let quiet = arrives && silence >= self.limit / QUIET_DIVISOR;
        if taken >= self.expected || quiet || elapsed >= self.limit {
            return None;
        }
        let left = self.limit - elapsed;
        Some((self.limit / STEPS).max(STEP_MIN).min(left))
    }
}

/// Nothing gathers where a sync takes less than this: the next sync is over sooner than a pause.
const SYNC_MIN: Duration = Duration::from_millis(2);

/// A pause begins within this part of a sync after the replies, or not at all. Later commands do not answer them.
const BEGIN_DIVISOR: u32 = 2;

/// A pause takes at most this part of a sync.
const LIMIT_DIVISOR: u32 = 4;

/// After the first arrival, a pause is over when no command arrives for this part of its limit.
const QUIET_DIVISOR: u32 = 2;

/// How often the mailbox is drained during a pause, at most.
const STEPS: u32 = 16;

/// The shortest sleep; a shorter one costs more than it gains.
const STEP_MIN: Duration = Duration::from_micros(50);

/// After this many pauses in a row without an arrival, the next ones are left out.
const VAIN_MAX: u32 = 4;

/// How many pauses are left out. After them one is tried again.
const SKIPS: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(16);

    fn after(syncs: [Duration; 2], expected: usize) -> Gather {
        let mut gather = Gather::default();
        for took in syncs {
            gather.synced(took);
        }
        gather.expect(expected);
        gather
    }

    /// Runs a pause in which `arrivals` come at these times after its beginning. Returns the number of commands in the
    /// batch and the time at which it is complete.
    fn run(gather: &mut Gather, before: usize, arrivals: &[Duration]) -> (usize, Duration) {
        let mut elapsed = Duration::ZERO;
        let mut taken = before;
        let Some(mut pause) = gather.begin(Duration::ZERO, taken) else {
            return (taken, elapsed);
        };
        while let Some(sleep) = pause.next_sleep(elapsed, taken) {
            assert!(sleep > Duration::ZERO);
            elapsed += sleep;
            taken = before + arrivals.iter().filter(|at| **at <= elapsed).count();
        }
        gather.end(&pause);
        (taken, elapsed)
    }

    fn every(interval: Duration, count: u32) -> Vec<Duration> {
        (1..=count).map(|number| interval * number).collect()
    }

    #[test]
    fn halves_merge_and_the_pause_ends_with_the_last_of_them() {
        let mut gather = after([SLOW; 2], 64);
        // Half of the clients wait already; the others return one after the other.
        let arrivals = every(Duration::from_micros(100), 31);
        let (taken, took) = run(&mut gather, 33, &arrivals);
        assert_eq!(taken, 64);
        assert!(took < Duration::from_micros(3_100) + SLOW / 64, "{took:?}");
    }

    #[test]
    fn a_pause_ends_after_a_quarter_of_a_sync_whatever_arrives() {
        let mut gather = after([SLOW; 2], usize::MAX);
        let arrivals = every(Duration::from_micros(100), 1_000);
        let (taken, took) = run(&mut gather, 1, &arrivals);
        assert_eq!((taken, took), (41, SLOW / 4));
    }

    #[test]
    fn a_pause_ends_when_arrivals_stop() {
        let mut gather = after([SLOW; 2], 64);
        let arrivals = every(Duration::from_micros(100), 10);
        let (taken, took) = run(&mut gather, 33, &arrivals);
        assert_eq!(taken, 43);
        assert_eq!(
            took,
            Duration::from_millis(3),
            "1 ms and a quiet time of 2 ms"
        );
    }

    #[test]
    fn one_client_in_a_closed_loop_never_waits() {
        let mut gather = after([SLOW; 2], 1);
        for _ in 0..100 {
            assert!(gather.begin(Duration::ZERO, 1).is_none());
            gather.synced(SLOW);
            gather.expect(1);
        }
    }

    #[test]
    fn nothing_gathers_on_a_fast_disk_even_after_one_slow_sync() {
        let fast = SYNC_MIN - Duration::from_nanos(1);
        for syncs in [[fast; 2], [SLOW, fast], [fast, SLOW]] {
            assert!(after(syncs, 64).begin(Duration::ZERO, 1).is_none());
        }
        assert!(after([SYNC_MIN; 2], 64).begin(Duration::ZERO, 1).is_some());
        let mut first = Gather::default();
        first.synced(SLOW);
        first.expect(64);
        assert!(
            first.begin(Duration::ZERO, 1).is_none(),
            "one sync says nothing"
        );
    }

    #[test]
    fn a_batch_that_begins_late_or_without_a_sync_does_not_wait() {
        assert!(after([SLOW; 2], 64).begin(SLOW / 2, 1).is_none());
        let mut gather = after([SLOW; 2], 64);
        assert!(gather.begin(Duration::ZERO, 1).is_some());
        assert!(
            gather.begin(Duration::ZERO, 1).is_none(),
            "once for each sync"
        );
    }

    #[test]
    fn pauses_in_vain_are_left_out_until_one_is_tried_again() {
        let mut gather = after([SLOW; 2], 2);
        let mut pauses = 0;
        let rounds = VAIN_MAX + 2 * (SKIPS + 1);
        for _ in 0..rounds {
            gather.expect(2);
            let (_, took) = run(&mut gather, 1, &[]);
            pauses += u32::from(took > Duration::ZERO);
        }
        assert_eq!(pauses, VAIN_MAX + 2);
        // One that brings something makes the next ones worth trying.
        gather.skips = 0;
        for _ in 0..VAIN_MAX {
            gather.expect(2);
            assert_eq!(run(&mut gather, 1, &[STEP_MIN]).0, 2);
        }
    }
}
