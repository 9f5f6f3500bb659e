//! A wheel of deadlines, for active connections. Idle ones have no entry.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Monotonic;
use crate::feed::slot::Token;

/// Deadlines by the tick in which they fall. An entry is only a reminder: its owner looks up its own deadline, so entries are
/// never searched for or removed.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    buckets: Vec<Vec<Token>>,
    /// The next tick to be looked at.
    tick: u64,
}

impl TimerWheel {
    pub(crate) fn new(now: Monotonic) -> Self {
        TimerWheel {
            buckets: vec![Vec::new(); BUCKETS as usize],
            tick: now.as_ms() / TICK_MS,
        }
    }

    /// Reminds of `token` soon after the deadline, or before it when it is far away; the earliest time when.
    pub(crate) fn remind(&mut self, token: Token, deadline: Monotonic) -> Monotonic {
        let tick = (deadline.as_ms() / TICK_MS + 1).clamp(self.tick, self.tick + BUCKETS - 1);
        self.buckets[(tick % BUCKETS) as usize].push(token);
        Monotonic::from_ms(tick * TICK_MS)
    }

    /// Moves to the present and collects the reminders that are due.
    pub(crate) fn advance(&mut self, now: Monotonic, due: &mut VecDeque<Token>) {
        let now = now.as_ms() / TICK_MS;
        // After a long sleep every bucket is due once.
        let last = now.min(self.tick + BUCKETS - 1);
        for tick in self.tick..=last {
            due.extend(self.buckets[(tick % BUCKETS) as usize].drain(..));
        }
        self.tick = self.tick.max(now + 1);
    }
}

/// The resolution of deadlines.
pub(crate) const TICK_MS: u64 = 50;
pub(crate) const TICK: Duration = Duration::from_millis(TICK_MS);
const BUCKETS: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminds_once_and_not_much_too_late() {
        let mut wheel = TimerWheel::new(Monotonic::from_ms(1_000));
        wheel.remind(1, Monotonic::from_ms(1_120));
        wheel.remind(2, Monotonic::from_ms(500));
        wheel.remind(3, Monotonic::from_ms(1_000_000));
        let mut seen = Vec::new();
        for now_ms in (1_000..60_000).step_by(10) {
            let mut due = VecDeque::new();
            wheel.advance(Monotonic::from_ms(now_ms), &mut due);
            seen.extend(due.into_iter().map(|token| (token, now_ms)));
        }
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[0].0, 2);
        assert!(
            (1_120..1_120 + 2 * TICK_MS).contains(&seen[1].1),
            "{seen:?}"
        );
        // The farthest reminder comes early; its owner asks for another.
        assert_eq!(seen[2].0, 3);
    }

    #[test]
    fn a_long_sleep_loses_nothing() {
        let mut wheel = TimerWheel::new(Monotonic::from_ms(0));
        for token in 0..1000 {
            wheel.remind(token, Monotonic::from_ms(token * 20));
        }
        let mut due = VecDeque::new();
        wheel.advance(Monotonic::from_ms(10_000_000), &mut due);
        assert_eq!(due.len(), 1000);
    }
}
