//! The time, by two clocks, which are not compared. Durations are measured by one that never steps, and only what a user has named
//! as an instant, such as the end of a token, follows the time of day. A shard reads both once a turn.
//!
//! A shard that was stopped, with its process or its machine, has not looked at its sockets meanwhile. That time counts for no
//! client: what has arrived in it is read before any deadline passes. The same holds for durations of streams and jobs, which all
//! threads measure by one clock (`steady`).

use std::num::NonZeroU64;
use std::time::{Duration, Instant, UNIX_EPOCH};

use encke_clock::{Now, SteadyTime, WallTime};

use crate::steady;
pub use crate::time_of_day::wall_time;

/// A moment by the clock that never steps, in milliseconds since the shard started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Monotonic(NonZeroU64);

impl Monotonic {
    /// So many milliseconds after the shard started.
    pub(crate) fn from_ms(ms: u64) -> Self {
        // The first moment is one millisecond, so that an absent one costs nothing.
        Monotonic(NonZeroU64::MIN.saturating_add(ms))
    }

    /// Milliseconds since the shard started.
    pub(crate) fn as_ms(self) -> u64 {
        self.0.get() - 1
    }

    /// The moment so much later.
    pub(crate) fn after(self, time: Duration) -> Self {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Monotonic(self.0.saturating_add(ms))
    }

    /// How long ago another moment was; nothing if it lies ahead.
    pub(crate) fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_millis(self.0.get().saturating_sub(earlier.0.get()))
    }
}

/// The time as of a turn's beginning.
#[derive(Debug)]
pub(crate) struct ShardClock {
    start: Instant,
    now: Instant,
    /// Time in which the shard was stopped.
    stopped: Duration,
    steady: SteadyTime,
    wall: WallTime,
    date_s: u64,
    date: String,
    /// The time passes only where a test says so.
    #[cfg(any(test, feature = "fuzzing"))]
    is_simulated: bool,
}

impl ShardClock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        let mut clock = ShardClock {
            start: now,
            now,
            stopped: Duration::ZERO,
            steady: SteadyTime::default(),
            wall: WallTime::default(),
            date_s: 0,
            date: String::new(),
            #[cfg(any(test, feature = "fuzzing"))]
            is_simulated: false,
        };
        clock.tick(Duration::ZERO);
        clock
    }

    /// Reads the time, behind a wait of at most this long.
    pub(crate) fn tick(&mut self, wait_max: Duration) {
        #[cfg(any(test, feature = "fuzzing"))]
        if self.is_simulated {
            return;
        }
        self.pass_to(Instant::now(), wait_max);
        self.steady = steady::at(self.now);
        self.set_time_of_day(wall_time());
    }

    fn set_time_of_day(&mut self, wall: WallTime) {
        self.wall = wall;
        let now_s = wall.as_ms() / 1_000;
        if self.date_s != now_s || self.date.is_empty() {
            self.date_s = now_s;
            self.date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(self.date_s));
        }
    }

    /// A turn begins behind a wait of at most `wait_max`. What passed beyond that, and beyond what a turn may take, the shard was
    /// stopped for.
    fn pass_to(&mut self, now: Instant, wait_max: Duration) {
        let passed = now.duration_since(self.now);
        if let Some(stopped) = passed.checked_sub(wait_max + TURN_MAX)
            && stopped > Duration::ZERO
        {
            self.stopped += stopped;
            let ms = stopped.as_millis() as u64;
            tracing::warn!(ms, "a shard was stopped; the time counts for no client");
        }
        self.now = now;
    }

    /// Time since the shard started, without that in which it was stopped, and [`BEFORE_START`].
    pub(crate) fn elapsed(&self) -> Duration {
        let passed = self.now.duration_since(self.start);
        BEFORE_START + passed.saturating_sub(self.stopped)
    }

    /// The time as of the turn's beginning.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// The moment of the turn's beginning, for durations.
    pub(crate) fn monotonic(&self) -> Monotonic {
        Monotonic::from_ms(self.elapsed().as_millis() as u64)
    }

    /// The time of day, which may step. For what a user has named as an instant, and for what is shown.
    pub(crate) fn wall(&self) -> WallTime {
        self.wall
    }

    /// The moment of the turn's beginning as streams know it: by the steady clock of the process, and the time of day.
    pub(crate) fn time(&self) -> Now {
        Now {
            steady: self.steady,
            wall: self.wall,
        }
    }

    /// Seconds since the shard started, as [`Self::monotonic`] counts them.
    pub(crate) fn now_s(&self) -> u32 {
        self.elapsed().as_secs() as u32
    }

    /// What has passed at least since [`Self::now_s`] was that. The parts of both seconds are not known.
    pub(crate) fn passed_at_least(&self, since_s: u32) -> Duration {
        Duration::from_secs(u64::from(
            self.now_s().saturating_sub(since_s).saturating_sub(1),
        ))
    }

    /// Microseconds since the shard started.
    pub(crate) fn now_us(&self) -> u64 {
        self.now.duration_since(self.start).as_micros() as u64
    }

    /// The value of the Date field.
    pub(crate) fn date(&self) -> &str {
        &self.date
    }
}

/// A clock whose time passes only where a test says so.
#[cfg(any(test, feature = "fuzzing"))]
impl ShardClock {
    /// A clock that begins at a moment.
    pub(crate) fn simulated(now: Now) -> Self {
        let mut clock = ShardClock::start();
        clock.is_simulated = true;
        // No real time that is read beside it is later.
        clock.start += SIMULATION_AHEAD;
        clock.now = clock.start;
        clock.steady = now.steady;
        clock.set_time_of_day(now.wall);
        clock
    }

    /// So much time passes, by both clocks.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.steady = self.steady.after(time);
        self.set_time_of_day(self.wall.after(time));
    }

    /// The time of day steps.
    pub(crate) fn step(&mut self, ms: i64) {
        let stepped = self.wall.as_ms().saturating_add_signed(ms);
        self.set_time_of_day(WallTime::from_ms(stepped));
    }
}

/// How far a simulated clock is ahead of the real one.
#[cfg(any(test, feature = "fuzzing"))]
const SIMULATION_AHEAD: Duration = Duration::from_secs(1 << 20);

/// The time, by the steady clock of the process and by the time of day.
pub fn now() -> Now {
    Now {
        steady: steady::at(Instant::now()),
        wall: wall_time(),
    }
}

/// What a turn may take under load. A longer one is not distinguished from a stop, and does no harm: deadlines are as much later.
const TURN_MAX: Duration = Duration::from_millis(500);

/// Time that counts as passed when a shard starts: connections that it takes over from another process may have been quiet for so long.
const BEFORE_START: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_stop_does_not_count() {
        let mut clock = ShardClock::start();
        let begin = clock.monotonic();
        let wait = Duration::from_millis(100);
        let mut now = clock.now;
        // Turns that take their time, and waits.
        for _ in 0..10 {
            now += wait + TURN_MAX;
            clock.pass_to(now, wait);
        }
        let passed = 10 * (wait + TURN_MAX);
        assert_eq!(clock.monotonic().since(begin), passed);
        // An hour in which the process stood still, within a wait or within a turn.
        now += Duration::from_secs(3_600);
        clock.pass_to(now, wait);
        let passed = passed + wait + TURN_MAX;
        assert_eq!(clock.monotonic().since(begin), passed);
        let deadline = clock.monotonic().after(Duration::from_secs(1));
        now += Duration::from_secs(3_600);
        clock.pass_to(now, Duration::ZERO);
        assert!(clock.monotonic() < deadline);
        assert_eq!(clock.now(), now, "what is no deadline goes on");
    }

    #[test]
    fn between_two_seconds_passes_at_least_one_less() {
        let mut clock = ShardClock::simulated(Now::from_ms(5_000));
        let part_ms = 1_000 - clock.elapsed().subsec_millis() as u64;
        clock.pass(Duration::from_millis(part_ms + 900));
        let since_s = clock.now_s();
        for (passed_ms, at_least_s) in [(0, 0), (200, 0), (900, 1), (1_100, 2)] {
            clock.pass(Duration::from_millis(passed_ms));
            let at_least = clock.passed_at_least(since_s);
            assert_eq!(at_least, Duration::from_secs(at_least_s));
        }
    }

    #[test]
    fn a_simulated_clock_goes_on_only_where_a_test_says_so() {
        let mut clock = ShardClock::simulated(Now::from_ms(5_000));
        let begin = clock.monotonic();
        clock.tick(Duration::ZERO);
        assert_eq!(clock.time(), Now::from_ms(5_000));
        clock.pass(Duration::from_secs(2));
        clock.step(-1_000);
        assert_eq!(clock.monotonic().since(begin), Duration::from_secs(2));
        assert_eq!(
            (clock.time().steady.as_ms(), clock.wall().as_ms()),
            (7_000, 6_000)
        );
        assert_eq!(clock.date(), "Thu, 01 Jan 1970 00:00:06 GMT");
        assert!(clock.now() > Instant::now());
    }
}
