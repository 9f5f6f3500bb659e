//! One moment, by both clocks.

use crate::{SteadyTime, WallTime};

/// A moment by two clocks, which are never compared with each other.
///
/// Durations, such as a sliding lifetime, follow the clock that never steps; what a user has named as an instant, such as the
/// end of a stream, follows the time of day. On a node of a fleet both are the time of the order, so that all nodes decide alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The time by the clock that never steps.
    pub steady: SteadyTime,
    /// The time of day.
    pub wall: WallTime,
}

impl Now {
    /// The moment at which both clocks read this time: as at the start of a process, and as always where the time is that of the order
    /// of a fleet.
    pub const fn at(time: WallTime) -> Self {
        Now::from_ms(time.as_ms())
    }

    /// The moment at which both clocks read `ms`.
    pub const fn from_ms(ms: u64) -> Self {
        Now {
            steady: SteadyTime::from_ms(ms),
            wall: WallTime::from_ms(ms),
        }
    }

    /// The time of day at an instant of the steady clock, unless the time of day steps before.
    pub fn wall_at(self, at: SteadyTime) -> WallTime {
        let ahead = self.wall.after(at.since(self.steady));
        ahead.before(self.steady.since(at))
    }

    /// The instant of the steady clock at a time of day, unless the time of day steps before.
    pub fn steady_at(self, at: WallTime) -> SteadyTime {
        let ahead = self.steady.after(at.since(self.wall));
        ahead.before(self.wall.since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_as_far_away_by_either_clock() {
        let (steady, wall) = (SteadyTime::from_ms, WallTime::from_ms);
        let now = Now {
            steady: steady(10_000),
            wall: wall(4_000),
        };
        for (steady_ms, wall_ms) in [(10_000, 4_000), (11_500, 5_500), (9_000, 3_000)] {
            assert_eq!(now.wall_at(steady(steady_ms)), wall(wall_ms));
            assert_eq!(now.steady_at(wall(wall_ms)), steady(steady_ms));
        }
        assert_eq!(now.wall_at(steady(0)), wall(0), "before 1970");
        assert_eq!(now.wall_at(steady(u64::MAX)), wall(u64::MAX - 6_000));
        assert_eq!(now.steady_at(wall(u64::MAX)), steady(u64::MAX));
    }
}
