//! When something is due for which streams: their ends, and the ages of their records.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use encke_log::StreamNo;

use crate::Now;

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
    pub(crate) fn new(steady_ms: Option<u64>, wall_ms: Option<u64>) -> Self {
        let some = |ms: u64| NonZeroU64::MIN.saturating_add(ms.saturating_sub(1));
        DueTimes {
            steady_ms: steady_ms.map(some),
            wall_ms: wall_ms.map(some),
        }
    }
}

/// The streams that wait, in memory or not, by the time at which something is due. Each is there once for each clock, at the
/// time that [`State::watched`](crate::stream::State) holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadlines {
    steady: Queue,
    wall: Queue,
}

type Queue = BTreeSet<(NonZeroU64, StreamNo)>;

/// What [`Deadlines::next_due`] has returned of each queue.
#[derive(Debug, Default)]
pub(crate) struct VisitedDeadlines {
    steady: Option<(NonZeroU64, StreamNo)>,
    wall: Option<(NonZeroU64, StreamNo)>,
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
        self.steady.extend(due.steady_ms.map(|ms| (ms, no)));
        self.wall.extend(due.wall_ms.map(|ms| (ms, no)));
    }

    pub(crate) fn remove(&mut self, no: StreamNo, due: DueTimes) {
        if let Some(ms) = due.steady_ms {
            self.steady.remove(&(ms, no));
        }
        if let Some(ms) = due.wall_ms {
            self.wall.remove(&(ms, no));
        }
    }

    /// The next stream for which something is due. One that stays at its time is not returned again.
    pub(crate) fn next_due(&self, visited: &mut VisitedDeadlines, now: Now) -> Option<StreamNo> {
        next(&self.steady, &mut visited.steady, now.steady_ms)
            .or_else(|| next(&self.wall, &mut visited.wall, now.wall_ms))
    }

    /// How long until something is due, in milliseconds, if the time of day does not step before. `None`: nothing is.
    pub(crate) fn wait_ms(&self, now: Now) -> Option<u64> {
        let wait = |queue: &Queue, now_ms: u64| {
            let first = queue.first()?;
            Some(first.0.get().saturating_sub(now_ms))
        };
        let steady = wait(&self.steady, now.steady_ms);
        steady
            .into_iter()
            .chain(wait(&self.wall, now.wall_ms))
            .min()
    }
}

fn next(
    queue: &Queue,
    visited: &mut Option<(NonZeroU64, StreamNo)>,
    now_ms: u64,
) -> Option<StreamNo> {
    use std::ops::Bound::{Excluded, Unbounded};
    let behind = visited.map_or(Unbounded, Excluded);
    let first = *queue.range((behind, Unbounded)).next()?;
    if first.0.get() > now_ms {
        return None;
    }
    *visited = Some(first);
    Some(first.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(deadlines: &Deadlines, steady_ms: u64, wall_ms: u64) -> Vec<StreamNo> {
        let now = Now { steady_ms, wall_ms };
        let mut visited = VisitedDeadlines::default();
        std::iter::from_fn(|| deadlines.next_due(&mut visited, now)).collect()
    }

    #[test]
    fn each_deadline_follows_its_own_clock() {
        let mut deadlines = Deadlines::default();
        deadlines.add(1, DueTimes::new(Some(100), None));
        deadlines.add(2, DueTimes::new(None, Some(100)));
        deadlines.add(3, DueTimes::new(Some(150), Some(50)));
        assert_eq!(due(&deadlines, 99, 49), []);
        assert_eq!(due(&deadlines, 100, 0), [1]);
        assert_eq!(due(&deadlines, 0, 100), [3, 2]);
        assert_eq!(due(&deadlines, 150, 50), [1, 3, 3]);
        let wait_ms = |steady_ms, wall_ms| deadlines.wait_ms(Now { steady_ms, wall_ms });
        assert_eq!(wait_ms(90, 0), Some(10));
        assert_eq!(wait_ms(0, 45), Some(5));
        assert_eq!(wait_ms(0, 3_600_000), Some(0));
    }

    #[test]
    fn a_stream_leaves_both_queues() {
        let mut deadlines = Deadlines::default();
        let before = DueTimes::new(Some(0), Some(7));
        deadlines.add(1, before);
        assert_eq!(due(&deadlines, 1, 7), [1, 1]);
        deadlines.replace(1, before, DueTimes::new(None, Some(9)));
        assert_eq!(due(&deadlines, 1, 8), []);
        deadlines.replace(1, DueTimes::new(None, Some(9)), DueTimes::default());
        assert_eq!(deadlines, Deadlines::default());
        assert_eq!(deadlines.wait_ms(Now::default()), None);
    }
}
