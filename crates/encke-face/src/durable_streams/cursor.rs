//! Cursors that keep caches from answering the same poll for ever (section 10.1).

/// The cursor for an answer now: the number of the interval, and more than the client brought.
pub(crate) fn next(now_ms: u64, brought: u64) -> u64 {
    let interval = (now_ms / 1000).saturating_sub(EPOCH_S) / INTERVAL_S;
    if brought < interval {
        return interval;
    }
    // Between 1 and 3,600 s further, spread by what differs between clients and moments.
    let spread = (now_ms ^ brought).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    brought.saturating_add(1 + spread % (JITTER_S_MAX / INTERVAL_S))
}

/// 2024-10-09, 00:00 UTC.
const EPOCH_S: u64 = 1_728_432_000;
const INTERVAL_S: u64 = 20;
const JITTER_S_MAX: u64 = 3600;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_intervals_of_20_s() {
        assert_eq!(next((EPOCH_S + 41) * 1000, 0), 2);
    }

    proptest! {
        #[test]
        fn never_goes_back(now_ms: u64, brought in 0..u64::MAX / 2) {
            prop_assert!(next(now_ms, brought) > brought || brought < next(now_ms, 0));
        }
    }
}
