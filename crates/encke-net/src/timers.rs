//! Deadlines of active connections, and the sweep over all connections.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Monotonic;
use crate::connection::timer::Timer;
use crate::feed::slot::Token;
use crate::timer_wheel::{TICK, TimerWheel};

/// A shard's timers.
#[derive(Debug)]
pub(crate) struct Timers {
    wheel: TimerWheel,
    /// Connections whose deadline may have passed.
    due: VecDeque<Token>,
    /// The slot that the sweep comes to next.
    sweep_at: u32,
    /// Slots that are left in this step of the sweep.
    sweep_left: u64,
    swept: Monotonic,
}

impl Timers {
    pub(crate) fn new(now: Monotonic) -> Self {
        Timers {
            wheel: TimerWheel::new(now),
            due: VecDeque::new(),
            sweep_at: 0,
            sweep_left: 0,
            swept: now,
        }
    }

    /// Reminds of a connection's deadline, unless the wheel does in time already. So one reminder is enough for a connection
    /// whose deadline moves again and again.
    /// A client that `is_behind` is looked at more often.
    pub(crate) fn remind(
        &mut self,
        timer: &mut Timer,
        is_behind: bool,
        token: Token,
        now: Monotonic,
    ) {
        let Some(deadline) = timer.first() else {
            return;
        };
        let due = match is_behind {
            true => deadline.min(now.after(LAG_CHECK)),
            false => deadline,
        };
        let is_late = |reminder: Monotonic| reminder > due.after(TICK);
        if timer.reminder.is_none_or(is_late) {
            timer.reminder = Some(self.wheel.remind(token, due));
        }
    }

    /// Moves to the present: collects the connections that the wheel reminds of.
    pub(crate) fn advance(&mut self, now: Monotonic) {
        self.wheel.advance(now, &mut self.due);
    }

    /// The next connection whose deadline may have passed.
    pub(crate) fn next_due(&mut self) -> Option<Token> {
        let token = self.due.pop_front();
        if token.is_none() {
            self.due.shrink_to(DUE_KEPT);
        }
        token
    }

    /// Begins the next step of the sweep, when it is time to. Whether it was.
    pub(crate) fn begin_sweep(&mut self, slots: usize, now: Monotonic) -> bool {
        let passed_ms = now.since(self.swept).as_millis() as u64;
        if passed_ms < SWEEP_STEP_MS {
            return false;
        }
        self.swept = now;
        let slots = slots as u64;
        let part = slots * passed_ms / SWEEP_MS + 1;
        self.sweep_left = (self.sweep_left + part).min(slots);
        true
    }

    /// The next slot of this step.
    pub(crate) fn next_swept(&mut self, slots: usize) -> Option<u32> {
        self.sweep_left = self.sweep_left.checked_sub(1)?;
        let index = self.sweep_at % slots as u32;
        self.sweep_at = index + 1;
        Some(index)
    }

    /// Whether something is left to do now.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty() || self.sweep_left > 0
    }
}

/// The sweep comes to each connection once in this time, in steps of that.
const SWEEP_MS: u64 = 5_000;
const SWEEP_STEP_MS: u64 = 100;

/// How often a client that is behind is checked.
const LAG_CHECK: Duration = Duration::from_millis(500);

/// Reminders for which room is kept.
const DUE_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_ms(ms)
    }

    #[test]
    fn a_deadline_that_moves_needs_one_reminder() {
        let mut timers = Timers::new(at(0));
        let mut timer = Timer::default();
        for deadline_ms in [1_000, 1_500, 2_000] {
            timer.deadline = Some(at(deadline_ms));
            timers.remind(&mut timer, false, 7, at(0));
        }
        timers.advance(at(1_000).after(2 * TICK));
        assert_eq!(timers.next_due(), Some(7));
        assert_eq!(timers.next_due(), None);
        // One that comes earlier needs another.
        timer.reminder = None;
        timers.remind(&mut timer, false, 7, at(1_100));
        timer.deadline = Some(at(1_300));
        timers.remind(&mut timer, false, 7, at(1_100));
        timers.advance(at(1_300).after(2 * TICK));
        assert_eq!(timers.next_due(), Some(7));
    }

    #[test]
    fn the_sweep_comes_to_every_slot_once_in_its_time() {
        let mut timers = Timers::new(at(0));
        let mut seen = vec![0; 1_000];
        for now_ms in (0..=SWEEP_MS).step_by(20) {
            timers.begin_sweep(seen.len(), at(now_ms));
            while let Some(index) = timers.next_swept(seen.len()) {
                seen[index as usize] += 1;
            }
        }
        assert!(seen.iter().all(|times| (1..=2).contains(times)));
        assert!(!timers.is_due());
    }
}
