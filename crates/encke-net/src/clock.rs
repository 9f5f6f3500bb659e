//! A shard's time, read once a turn.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time as of a turn's beginning.
#[derive(Debug)]
pub(crate) struct ShardClock {
    start: Instant,
    now: Instant,
    now_ms: u64,
    date_s: u64,
    date: String,
}

impl ShardClock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        let mut clock = ShardClock {
            start: now,
            now,
            now_ms: 0,
            date_s: 0,
            date: String::new(),
        };
        clock.tick();
        clock
    }

    /// Reads the time.
    pub(crate) fn tick(&mut self) {
        self.now = Instant::now();
        self.now_ms = now_ms();
        let now_s = self.now_ms / 1000;
        if self.date_s != now_s || self.date.is_empty() {
            self.date_s = now_s;
            self.date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(self.date_s));
        }
    }

    /// The time as of the turn's beginning.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Seconds since the shard started.
    pub(crate) fn now_s(&self) -> u32 {
        self.now.duration_since(self.start).as_secs() as u32
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

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
