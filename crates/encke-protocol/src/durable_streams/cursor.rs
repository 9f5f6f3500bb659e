//! Cursors that keep caches from answering the same poll for ever (section 10.1).

use encke_clock::WallTime;

/// A cursor that a client sent, if the server may have given it.
pub(super) fn parse(cursor: &str) -> Option<u64> {
    cursor.parse().ok().filter(|cursor| *cursor <= CURSOR_MAX)
}

/// The cursor for one response: the number of the present interval, or more than the client's cursor.
pub(super) fn next(now: WallTime, client_cursor: u64) -> u64 {
    let interval = interval(now);
    if client_cursor < interval {
        interval
    } else {
        further(client_cursor)
    }
}

/// The floor of a subscription that was opened with a cursor: 0 for all whose cursor makes no difference, so that they can
/// share their encoding.
pub(super) fn floor(now: WallTime, client_cursor: u64) -> u64 {
    if client_cursor < interval(now) {
        0
    } else {
        client_cursor
    }
}

/// The cursor within a subscription: never less than an earlier one.
pub(super) fn above(now: WallTime, floor: u64) -> u64 {
    let interval = interval(now);
    if floor == 0 {
        interval
    } else {
        interval.max(further(floor))
    }
}

fn interval(now: WallTime) -> u64 {
    (now.as_ms() / 1_000).saturating_sub(EPOCH_S) / INTERVAL_S
}

/// Between 1 and 3,600 s further. The distance depends on the cursor alone, so that clients that poll with the same cursor get
/// the same next one, and share a cached response.
fn further(cursor: u64) -> u64 {
    let spread = cursor.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    cursor.saturating_add(1 + spread % (JITTER_S_MAX / INTERVAL_S))
}

/// 2024-10-09, 00:00 UTC.
const EPOCH_S: u64 = 1_728_432_000;
const INTERVAL_S: u64 = 20;
const JITTER_S_MAX: u64 = 3600;

/// The largest integer of JavaScript; beyond it there is room for further cursors.
const CURSOR_MAX: u64 = (1 << 53) - 1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_intervals_of_20_s() {
        assert_eq!(next(WallTime::from_ms((EPOCH_S + 41) * 1000), 0), 2);
        assert_eq!(
            next(WallTime::default(), 0),
            1,
            "before the epoch every cursor is of the future"
        );
        assert_eq!(parse("9007199254740991"), Some(CURSOR_MAX));
        for other in ["", "x", "-1", "9007199254740992", "18446744073709551616"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn an_answer_is_beyond_what_was_brought(
            now_ms in 0..1_u64 << 45,
            client_cursor in prop_oneof![0..1_u64 << 53, 0..200_000_000_u64],
        ) {
            let now = WallTime::from_ms(now_ms);
            let cursor = next(now, client_cursor);
            prop_assert!(cursor > client_cursor);
            if client_cursor < interval(now) {
                prop_assert_eq!(cursor, interval(now));
            } else {
                prop_assert!(cursor <= client_cursor + 180);
            }
        }

        #[test]
        fn a_connection_never_goes_back(
            opened_ms in 1_728_432_000_000..1_u64 << 42,
            ahead in -3..300_i64,
            waits in proptest::collection::vec(0..2_000_000_u64, 0..20),
        ) {
            let opened = WallTime::from_ms(opened_ms);
            let client_cursor = (interval(opened) as i64 + ahead).max(0) as u64;
            let floor = floor(opened, client_cursor);
            let (mut now, mut last) = (opened, client_cursor);
            for (turn, wait_ms) in waits.into_iter().enumerate() {
                let cursor = above(now, floor);
                prop_assert!(cursor > last || turn > 0 && cursor == last);
                last = cursor;
                now = now.after(Duration::from_millis(wait_ms));
            }
        }
    }
}
