//! Lines of progress on standard error.

use crate::load::clock::{SECOND_NS, duration_ns, monotonic_ns};
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

/// Says when a line is due, and prints it.
#[derive(Debug)]
pub(crate) struct Progress {
    start_ns: u64,
    next_ns: u64,
    interval_ns: u64,
}

impl Progress {
    /// A line every `interval`; by default every second on a terminal, else every ten.
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        let default = if std::io::stderr().is_terminal() {
            1
        } else {
            10
        };
        let interval = interval.unwrap_or(Duration::from_secs(default));
        let start_ns = monotonic_ns();
        let interval_ns = duration_ns(interval).max(SECOND_NS / 10);
        Self {
            start_ns,
            next_ns: start_ns + interval_ns,
            interval_ns,
        }
    }

    /// Prints what `line` makes of the seconds since the start, if a line is due.
    pub(crate) fn when_due(&mut self, line: impl FnOnce() -> String) {
        let now_ns = monotonic_ns();
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + self.interval_ns - (now_ns - self.next_ns) % self.interval_ns;
            self.say(&line());
        }
    }

    /// Prints a line now.
    pub(crate) fn say(&self, line: &str) {
        let seconds = self.seconds();
        // A run goes on without its progress.
        let _ = writeln!(std::io::stderr(), "{seconds:8.1} s  {line}");
    }

    /// Seconds since the start.
    pub(crate) fn seconds(&self) -> f64 {
        (monotonic_ns() - self.start_ns) as f64 / SECOND_NS as f64
    }
}

/// Turns a growing count into a rate per second.
#[derive(Debug)]
pub(crate) struct Speed {
    then_ns: u64,
    before: u64,
}

impl Speed {
    /// Begins now, from a count of zero.
    pub(crate) fn new() -> Self {
        Self {
            then_ns: monotonic_ns(),
            before: 0,
        }
    }

    /// The rate since the last call, or since the beginning.
    pub(crate) fn of(&mut self, count: u64) -> f64 {
        let now_ns = monotonic_ns();
        let elapsed_ns = (now_ns - self.then_ns).max(1);
        let grown = count.saturating_sub(self.before);
        *self = Self {
            then_ns: now_ns,
            before: count,
        };
        grown as f64 * SECOND_NS as f64 / elapsed_ns as f64
    }
}
