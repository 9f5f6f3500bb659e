//! The time of the order between two batches, as a node estimates it.

use encke_clock::{Now, SteadyTime, WallTime};

/// What a node proposes by: the time of the last batch, and what has passed since by the steady clock. So a node whose own time
/// of day is wrong, or steps, proposes what the others do. Before the first batch it has only its own time of day.
#[derive(Debug, Default)]
pub(super) struct OrderClock {
    /// The time of the last batch, and when it was applied.
    last: Option<(WallTime, SteadyTime)>,
}

impl OrderClock {
    /// Notes a batch of this time.
    pub(super) fn note(&mut self, time: WallTime, now: Now) {
        self.last = Some((time, now.steady));
    }

    /// The time of the order now.
    pub(super) fn time(&self, now: Now) -> Now {
        Now::at(match self.last {
            Some((time, applied_at)) => time.after(now.steady.since(applied_at)),
            None => now.wall,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_nodes_own_clock_do_not_show() {
        let mut clock = OrderClock::default();
        let now = |steady_ms, wall_ms| Now {
            steady: SteadyTime::from_ms(steady_ms),
            wall: WallTime::from_ms(wall_ms),
        };
        assert_eq!(clock.time(now(5_000, 9_000)), Now::from_ms(9_000));
        clock.note(WallTime::from_ms(7_000), now(5_000, 9_000));
        for wall_ms in [0, 9_100, 3_600_000] {
            assert_eq!(clock.time(now(5_100, wall_ms)), Now::from_ms(7_100));
        }
        clock.note(WallTime::from_ms(7_050), now(5_100, 0));
        assert_eq!(clock.time(now(5_100, 0)), Now::from_ms(7_050));
    }
}
