//! The time, by two clocks.

/// A moment by two clocks, which are never compared with each other. This crate reads neither: the caller does.
///
/// Durations, such as a sliding lifetime, follow the clock that never steps; what a user has named as an instant, such as the
/// end of a stream, follows the time of day. On a node of a fleet both are the time of the order, so that all nodes decide alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds by a clock that never steps. It began at the start of the process, with the time of day: so what it
    /// measures can be stored, and a later process reads it as a time of day.
    pub steady_ms: u64,
    /// The time of day, in milliseconds since 1970. It steps when it is set.
    pub wall_ms: u64,
}

impl Now {
    /// A moment at which the clocks agree, as they do at the start of a process.
    pub const fn at(ms: u64) -> Self {
        Now {
            steady_ms: ms,
            wall_ms: ms,
        }
    }

    /// The time of day at a moment of the steady clock, unless the time of day steps before.
    pub fn wall_at(self, steady_ms: u64) -> u64 {
        moved(self.wall_ms, self.steady_ms, steady_ms)
    }

    /// The moment of the steady clock at a time of day, unless the time of day steps before.
    pub fn steady_at(self, wall_ms: u64) -> u64 {
        moved(self.steady_ms, self.wall_ms, wall_ms)
    }
}

/// As long before or behind `ms` as `to` is from `from`.
fn moved(ms: u64, from: u64, to: u64) -> u64 {
    ms.saturating_add(to.saturating_sub(from))
        .saturating_sub(from.saturating_sub(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_as_far_away_by_either_clock() {
        let now = Now {
            steady_ms: 10_000,
            wall_ms: 4_000,
        };
        for (steady_ms, wall_ms) in [(10_000, 4_000), (11_500, 5_500), (9_000, 3_000)] {
            assert_eq!(now.wall_at(steady_ms), wall_ms);
            assert_eq!(now.steady_at(wall_ms), steady_ms);
        }
        assert_eq!(now.wall_at(0), 0, "before 1970");
        assert_eq!(now.wall_at(u64::MAX), u64::MAX - 6_000);
        assert_eq!(now.steady_at(u64::MAX), u64::MAX);
    }
}
