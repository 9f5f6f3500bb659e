//! One moment, by both clocks.

use std::time::Duration;

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

/// Notices that the time of day was set, so that what is stored as a time of day lies elsewhere now.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepDetector(Option<Now>);

impl StepDetector {
    /// Whether the time of day was set by a second or more since this was true last, or first called.
    pub fn has_stepped(&mut self, now: Now) -> bool {
        let Some(before) = self.0 else {
            self.0 = Some(now);
            return false;
        };
        let expected = before.wall_at(now.steady);
        let step = now.wall.since(expected).max(expected.since(now.wall));
        if step < STEP_MIN {
            return false;
        }
        self.0 = Some(now);
        true
    }
}

/// Smaller differences are slow corrections of a clock, until they add up to it.
const STEP_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_time_of_day_is_noticed_once() {
        let mut detector = StepDetector::default();
        let mut has_stepped = |steady_ms, wall_ms| {
            detector.has_stepped(Now {
                steady: SteadyTime::from_ms(steady_ms),
                wall: WallTime::from_ms(wall_ms),
            })
        };
        assert!(!has_stepped(10_000, 70_000));
        assert!(!has_stepped(20_000, 80_900));
        assert!(has_stepped(21_000, 20_000));
        assert!(!has_stepped(22_000, 21_000));
        // A slow correction adds up.
        assert!(!has_stepped(23_000, 22_600));
        assert!(has_stepped(24_000, 24_000));
    }

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
