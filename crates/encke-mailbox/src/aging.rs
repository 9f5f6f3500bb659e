//! Shedding by age: controlled delay, as CoDel has it for packets and servers have it for requests.

use crate::options::AgeLimit;

/// Watches how long the oldest item has waited each time the receiver looks. A peak passes; but when even the shortest
/// of these waits in a whole interval was above the target, a standing queue has formed, and items that have waited for
/// twice the target are not worth handling: whoever sent them has likely given up.
pub(crate) struct Aging {
    target_ns: u64,
    interval_ns: u64,
    interval_end_ns: u64,
    shortest_ns: u64,
    overloaded: bool,
}

impl Aging {
    pub(crate) fn new(limit: AgeLimit) -> Self {
        let ns = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Self {
            target_ns: ns(limit.target),
            interval_ns: ns(limit.interval),
            interval_end_ns: 0,
            shortest_ns: 0,
            overloaded: false,
        }
    }

    /// Takes note that the oldest item has waited for `age_ns`. Returns the age beyond which items go, if they do.
    pub(crate) fn observe(&mut self, age_ns: u64, now_ns: u64) -> Option<u64> {
        if now_ns >= self.interval_end_ns {
            self.overloaded = self.shortest_ns > self.target_ns;
            self.interval_end_ns = now_ns.saturating_add(self.interval_ns);
            self.shortest_ns = age_ns;
        } else {
            self.shortest_ns = self.shortest_ns.min(age_ns);
        }
        self.overloaded.then(|| self.target_ns.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn aging() -> Aging {
        Aging::new(AgeLimit {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
        })
    }

    #[test]
    fn a_peak_sheds_nothing() {
        let mut aging = aging();
        let ages = [0, 500, 500, 3, 500, 500];
        for (n, age) in ages.into_iter().cycle().take(600).enumerate() {
            assert_eq!(aging.observe(age * MS, n as u64 * 10 * MS), None);
        }
    }

    #[test]
    fn a_standing_queue_sheds_what_is_twice_too_old_until_it_has_gone() {
        let mut aging = aging();
        let mut at = |n: u64, age: u64| aging.observe(age * MS, n * 10 * MS);
        for n in 1..=10 {
            assert_eq!(at(n, 6), None, "the first interval only watches");
        }
        for n in 11..=20 {
            assert_eq!(at(n, 6), Some(10 * MS));
        }
        assert_eq!(at(21, 4), Some(10 * MS), "one short wait in an interval");
        for n in 22..=30 {
            assert_eq!(at(n, 6), Some(10 * MS));
        }
        assert_eq!(at(31, 6), None, "ends it");
    }

    #[test]
    fn what_comes_after_an_idle_time_is_young_enough() {
        let mut aging = aging();
        assert_eq!(aging.observe(50 * MS, 10 * MS), None);
        // Nothing came for long, and then one that waited a little.
        assert_eq!(aging.observe(MS, 10_000 * MS), Some(10 * MS));
        assert_eq!(aging.observe(MS, 10_200 * MS), None);
    }
}
