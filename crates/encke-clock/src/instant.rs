//! An instant by each of the two clocks. Both have the same methods and nothing else in common.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Defines the instant of a clock: a count of milliseconds, with arithmetic in [`Duration`] only. In a format it is that number. Where
/// there are many, it is a count of whole seconds.
macro_rules! instant {
    ($(#[$doc:meta])* $name:ident, $(#[$seconds_doc:meta])* $seconds:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// An instant that a format on disk, a request or the system names, in milliseconds since 1970.
            pub const fn from_ms(ms: u64) -> Self {
                $name(ms)
            }

            /// Milliseconds since 1970, for a format on disk, a response or the system.
            pub const fn as_ms(self) -> u64 {
                self.0
            }

            /// The instant so much later. The last one that there is, if it would lie beyond.
            #[must_use]
            pub fn after(self, time: Duration) -> Self {
                $name(self.0.saturating_add(whole_ms(time)))
            }

            /// The instant so much earlier. The first one that there is, if it would lie beyond.
            #[must_use]
            pub fn before(self, time: Duration) -> Self {
                $name(self.0.saturating_sub(whole_ms(time)))
            }

            /// The time from another instant to this one; nothing if the other one is later.
            pub const fn since(self, earlier: Self) -> Duration {
                Duration::from_millis(self.0.saturating_sub(earlier.0))
            }

            /// The instant without the part of a second. The last one that there is in seconds, if it is later.
            pub fn in_seconds(self) -> $seconds {
                $seconds(u32::try_from(self.0 / 1_000).unwrap_or(u32::MAX))
            }
        }

        $(#[$seconds_doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $seconds(u32);

        impl $seconds {
            /// An instant that a format names, in seconds since 1970.
            pub const fn from_s(s: u32) -> Self {
                $seconds(s)
            }

            /// Seconds since 1970, for a format.
            pub const fn as_s(self) -> u32 {
                self.0
            }

            /// The first millisecond of the second.
            pub fn start(self) -> $name {
                $name(u64::from(self.0) * 1_000)
            }
        }
    };
}

instant! {
    /// An instant by a clock that never steps, in milliseconds. Durations follow this clock.
    ///
    /// The clock began at the start of the process, with the time of day. So what it measures can be stored, and a later process,
    /// which begins with a later time of day, reads it as an instant of its own clock.
    SteadyTime,
    /// A [`SteadyTime`] in whole seconds, in four bytes.
    SteadySeconds
}

instant! {
    /// An instant by the time of day, in milliseconds since 1970. This clock steps when it is set. What a user names as an instant
    /// follows it.
    WallTime,
    /// A [`WallTime`] in whole seconds, in four bytes.
    WallSeconds
}

impl From<SystemTime> for WallTime {
    /// The time of day as the system tells it. A time before 1970 is read as 1970.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        WallTime(whole_ms(since))
    }
}

/// Milliseconds of a duration; a part of one does not count.
fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let at = SteadyTime::from_ms(5_000);
        assert_eq!(at.after(Duration::from_millis(250)).as_ms(), 5_250);
        assert_eq!(at.after(Duration::MAX).as_ms(), u64::MAX);
        assert_eq!(at.before(Duration::from_secs(1)).as_ms(), 4_000);
        assert_eq!(at.before(Duration::MAX), SteadyTime::default());
        assert_eq!(at.since(SteadyTime::from_ms(4_250)).as_millis(), 750);
        assert_eq!(at.since(SteadyTime::from_ms(5_001)), Duration::ZERO);
    }

    #[test]
    fn seconds_are_whole() {
        let at = WallTime::from_ms(1_999);
        assert_eq!(at.in_seconds(), WallSeconds::from_s(1));
        assert_eq!(at.in_seconds().start(), WallTime::from_ms(1_000));
        let late = SteadyTime::from_ms(u64::MAX).in_seconds();
        assert_eq!(late.as_s(), u32::MAX);
    }

    #[test]
    fn a_format_has_the_milliseconds() {
        let at = WallTime::from_ms(1_700_000_000_000);
        let json = serde_json::to_string(&at).unwrap();
        assert_eq!(json, "1700000000000");
        assert_eq!(serde_json::from_str::<WallTime>(&json).unwrap(), at);
    }

    #[test]
    fn the_time_of_the_system_is_read_in_whole_milliseconds() {
        let at = UNIX_EPOCH + Duration::from_micros(1_999);
        assert_eq!(WallTime::from(at), WallTime::from_ms(1));
        let earlier = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(WallTime::from(earlier), WallTime::default());
    }
}
