//! A rate limit with bursts: the generic cell rate algorithm, with one number as the state of each client.

/// A rate and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimit {
    /// The time between two events at this rate.
    interval_ns: u64,
    /// How far ahead of now a client may have used its rate when it requests one more.
    ahead_ns: u64,
}

impl RateLimit {
    /// `per_s` a second, and `burst` at once; `None` for a rate of 0, which stands for no limit.
    pub(crate) fn new(per_s: u64, burst: u64) -> Option<RateLimit> {
        // Rates beyond one per nanosecond are no limits.
        let interval_ns = NANOSECONDS.checked_div(per_s)?;
        Some(RateLimit {
            interval_ns,
            ahead_ns: interval_ns.saturating_mul(burst.max(1) - 1),
        })
    }

    /// The same for a rate that is known to be none of these; both are at least 1.
    pub(crate) const fn at(per_s: u64, burst: u64) -> RateLimit {
        let interval_ns = NANOSECONDS / per_s;
        RateLimit {
            interval_ns,
            ahead_ns: interval_ns * (burst - 1),
        }
    }

    /// Takes one off what `taken_ns` has left; how long to wait for it, in nanoseconds, if nothing is left.
    ///
    /// `taken_ns` is the time up to which everything was taken, in nanoseconds since the same moment as `now_ns`; 0 for a new
    /// client.
    pub(crate) fn take(self, taken_ns: &mut u64, now_ns: u64) -> Result<(), u64> {
        let from_ns = now_ns.max(*taken_ns);
        let ahead_ns = from_ns - now_ns;
        if ahead_ns > self.ahead_ns {
            return Err(ahead_ns - self.ahead_ns);
        }
        *taken_ns = from_ns.saturating_add(self.interval_ns);
        Ok(())
    }

    /// Gives back what was taken, so many times. No more than the burst is ever left.
    pub(crate) fn give_back(self, taken_ns: &mut u64, times: u64) {
        *taken_ns = taken_ns.saturating_sub(self.interval_ns.saturating_mul(times));
    }
}

const NANOSECONDS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let pace = RateLimit::new(10, 5).unwrap();
        let mut taken_ns = 0;
        let now_ns = 7 * NANOSECONDS;
        for _ in 0..5 {
            assert_eq!(pace.take(&mut taken_ns, now_ns), Ok(()));
        }
        assert_eq!(pace.take(&mut taken_ns, now_ns), Err(NANOSECONDS / 10));
        let later_ns = now_ns + NANOSECONDS / 10;
        assert_eq!(pace.take(&mut taken_ns, later_ns), Ok(()));
        assert!(pace.take(&mut taken_ns, later_ns).is_err());
        assert_eq!(RateLimit::new(0, 5), None);
    }

    proptest! {
        /// No interval sees more than the burst and the rate allow, and a client that waits for the returned time succeeds.
        #[test]
        fn never_more_than_agreed(
            per_s in 1u64..5_000, burst in 1u64..50, pauses in proptest::collection::vec(0u64..5_000_000, 1..300),
        ) {
            let pace = RateLimit::new(per_s, burst).unwrap();
            let mut taken_ns = 0;
            let mut now_ns = 1;
            let mut taken_at = Vec::new();
            for pause in pauses {
                now_ns += pause;
                match pace.take(&mut taken_ns, now_ns) {
                    Ok(()) => taken_at.push(now_ns),
                    Err(wait_ns) => {
                        let mut copy = taken_ns;
                        prop_assert!(pace.take(&mut copy, now_ns + wait_ns - 1).is_err());
                        prop_assert!(pace.take(&mut copy, now_ns + wait_ns).is_ok());
                    }
                }
            }
            for (first, begin_ns) in taken_at.iter().enumerate() {
                for (last, end_ns) in taken_at.iter().enumerate().skip(first) {
                    let allowed = burst + (end_ns - begin_ns) / (NANOSECONDS / per_s);
                    prop_assert!((last - first) as u64 <= allowed);
                }
            }
        }
    }
}
