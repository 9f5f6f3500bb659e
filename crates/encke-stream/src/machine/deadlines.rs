//! When something is due for which streams: their ends, and the ages of their records.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::Duration;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::StreamNo;

/// What a stream waits for, by each of the two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DueTimes {
    steady_ms: Option<NonZeroU64>,
    wall_ms: Option<NonZeroU64>,
}

// What a stream holds of it.
const _: () = assert!(size_of::<DueTimes>() <= 16);

impl DueTimes {
    /// The end of a duration, and a time of day.
    pub(crate) fn new(steady: Option<SteadyTime>, wall: Option<WallTime>) -> Self {
        // The first millisecond of 1970 is the second one, so that an absent time costs nothing.
        let some = |ms: u64| NonZeroU64::MIN.saturating_add(ms.saturating_sub(1));
        DueTimes {
            steady_ms: steady.map(|at| some(at.as_ms())),
            wall_ms: wall.map(|at| some(at.as_ms())),
        }
    }

    fn steady(self) -> Option<SteadyTime> {
        self.steady_ms.map(|ms| SteadyTime::from_ms(ms.get()))
    }

    fn wall(self) -> Option<WallTime> {
        self.wall_ms.map(|ms| WallTime::from_ms(ms.get()))
    }
}

/// The streams that wait, in memory or not, by the time at which something is due. Each is there once for each clock, at the
/// time that [`State::watched`](crate::stream::State) holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadlines {
    steady: Queue<SteadyTime>,
    wall: Queue<WallTime>,
}

type Queue<Time> = BTreeSet<(Time, StreamNo)>;

/// What [`Deadlines::next_due`] has returned of each queue.
#[derive(Debug, Default)]
pub(crate) struct VisitedDeadlines {
    steady: Option<(SteadyTime, StreamNo)>,
    wall: Option<(WallTime, StreamNo)>,
}

impl Deadlines {
    /// Moves a stream from the times at which it is to others.
    pub(crate) fn replace(&mut self, no: StreamNo, before: DueTimes, after: DueTimes) {
        if before == after {
            return;
        }
        self.remove(no, before);
        self.add(no, after);
    }

    pub(crate) fn add(&mut self, no: StreamNo, due: DueTimes) {
        self.steady.extend(due.steady().map(|at| (at, no)));
        self.wall.extend(due.wall().map(|at| (at, no)));
    }

    pub(crate) fn remove(&mut self, no: StreamNo, due: DueTimes) {
        if let Some(at) = due.steady() {
            self.steady.remove(&(at, no));
        }
        if let Some(at) = due.wall() {
            self.wall.remove(&(at, no));
        }
    }

    /// The next stream for which something is due. One that stays at its time is not returned again.
    pub(crate) fn next_due(&self, visited: &mut VisitedDeadlines, now: Now) -> Option<StreamNo> {
        next(&self.steady, &mut visited.steady, now.steady)
            .or_else(|| next(&self.wall, &mut visited.wall, now.wall))
    }

    /// How long until something is due, if the time of day does not step before. `None`: nothing is.
    pub(crate) fn wait(&self, now: Now) -> Option<Duration> {
        let steady = self.steady.first().map(|(at, _)| at.since(now.steady));
        let wall = self.wall.first().map(|(at, _)| at.since(now.wall));
        steady.into_iter().chain(wall).min()
    }
}

fn next<Time: Copy + Ord>(
    queue: &Queue<Time>,
    visited: &mut Option<(Time, StreamNo)>,
    now: Time,
) -> Option<StreamNo> {
    use std::ops::Bound::{Excluded, Unbounded};
    let behind = visited.map_or(Unbounded, Excluded);
    let first = *queue.range((behind, Unbounded)).next()?;
    if first.0 > now {
        return None;
    }
    *visited = Some(first);
    Some(first.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(steady_ms: u64, wall_ms: u64) -> Now {
        Now {
            steady: SteadyTime::from_ms(steady_ms),
            wall: WallTime::from_ms(wall_ms),
        }
    }

    fn times(steady_ms: Option<u64>, wall_ms: Option<u64>) -> DueTimes {
        DueTimes::new(
            steady_ms.map(SteadyTime::from_ms),
            wall_ms.map(WallTime::from_ms),
        )
    }

    fn due(deadlines: &Deadlines, steady_ms: u64, wall_ms: u64) -> Vec<StreamNo> {
        let now = now(steady_ms, wall_ms);
        let mut visited = VisitedDeadlines::default();
        std::iter::from_fn(|| deadlines.next_due(&mut visited, now)).collect()
    }

    #[test]
    fn each_deadline_follows_its_own_clock() {
        let mut deadlines = Deadlines::default();
        deadlines.add(1, times(Some(100), None));
        deadlines.add(2, times(None, Some(100)));
        deadlines.add(3, times(Some(150), Some(50)));
        assert_eq!(due(&deadlines, 99, 49), []);
        assert_eq!(due(&deadlines, 100, 0), [1]);
        assert_eq!(due(&deadlines, 0, 100), [3, 2]);
        assert_eq!(due(&deadlines, 150, 50), [1, 3, 3]);
        let wait_ms = |steady_ms, wall_ms| {
            let wait = deadlines.wait(now(steady_ms, wall_ms));
            wait.map(|wait| wait.as_millis())
        };
        assert_eq!(wait_ms(90, 0), Some(10));
        assert_eq!(wait_ms(0, 45), Some(5));
        assert_eq!(wait_ms(0, 3_600_000), Some(0));
    }

    #[test]
    fn a_stream_leaves_both_queues() {
        let mut deadlines = Deadlines::default();
        let before = times(Some(0), Some(7));
        deadlines.add(1, before);
        assert_eq!(due(&deadlines, 1, 7), [1, 1]);
        deadlines.replace(1, before, times(None, Some(9)));
        assert_eq!(due(&deadlines, 1, 8), []);
        deadlines.replace(1, times(None, Some(9)), DueTimes::default());
        assert_eq!(deadlines, Deadlines::default());
        assert_eq!(deadlines.wait(Now::default()), None);
    }
}
