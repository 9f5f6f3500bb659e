//! The steady clock of the process: it never steps, and leaves out time in which the process stood still, stopped or with its machine.
//!
//! It begins with the time of day at which it was first read. While a server runs, a thread reads it several
//! times a second, so that a longer time between two reads can only be a stop. What clients had sent before or during a stop is still
//! to be read then: no lifetime ends and no attempt times out before.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_clock::{Now, SteadyTime, WallTime};
use encke_threads::spawn_restarting;
use parking_lot::Mutex;

use crate::time_of_day::wall_time;

/// The time of the process at a moment.
pub(crate) fn at(at: Instant) -> SteadyTime {
    static CLOCK: OnceLock<SteadyClock> = OnceLock::new();
    let clock = CLOCK.get_or_init(|| SteadyClock::begin(at, wall_time()));
    clock.read(at, TICKERS.load(Ordering::Relaxed) > 0)
}

/// How many tickers run. While there is none, a long time between two reads means nothing.
static TICKERS: AtomicUsize = AtomicUsize::new(0);

/// The thread that reads the steady clock while a server runs, so that the clock notices when the process stood still. It ends when
/// this is dropped.
#[derive(Debug)]
pub struct Ticker {
    quit: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn start() -> std::io::Result<Ticker> {
        let (quit, quits) = channel::<()>();
        let thread = spawn_restarting("clock", move || {
            while quits.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                at(Instant::now());
            }
        })?;
        // The time since the last ticker ended, which no thread has read, is not part of any wait.
        at(Instant::now());
        TICKERS.fetch_add(1, Ordering::Relaxed);
        Ok(Ticker {
            quit,
            thread: Some(thread),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        TICKERS.fetch_sub(1, Ordering::Relaxed);
        let _ = self.quit.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct SteadyClock {
    begin: Instant,
    /// What it read then.
    first: SteadyTime,
    stops: Mutex<Stops>,
}

/// The time in which the process stood still.
#[derive(Debug)]
struct Stops {
    /// The latest read.
    read: Instant,
    total: Duration,
    /// The last read before the last stop, and the total before it: for threads that have the time from before it.
    last: Option<(Instant, Duration)>,
}

impl SteadyClock {
    fn begin(begin: Instant, wall: WallTime) -> Self {
        SteadyClock {
            begin,
            first: Now::at(wall).steady,
            stops: Mutex::new(Stops {
                read: begin,
                total: Duration::ZERO,
                last: None,
            }),
        }
    }

    fn read(&self, at: Instant, ticks: bool) -> SteadyTime {
        let passed = at.saturating_duration_since(self.begin);
        let running = passed.saturating_sub(self.stops.lock().until(at, ticks, self.begin));
        self.first.after(running)
    }
}

impl Stops {
    /// The time in which the process stood still until a moment.
    fn until(&mut self, at: Instant, ticks: bool, begin: Instant) -> Duration {
        let since = at.saturating_duration_since(self.read);
        if ticks && since > STOP_MIN {
            self.last = Some((self.read, self.total));
            // What a tick may take has passed for everyone.
            self.total += since - TICK;
            tracing::warn!(
                ms = (since - TICK).as_millis() as u64,
                "the process stood still; the time counts for no stream and no job"
            );
        }
        self.read = self.read.max(at);
        match self.last {
            Some((read, total)) if at <= read => total,
            // Within the stop, or right before it: the clock stood there.
            Some((read, total)) => {
                let stood_at = read.saturating_duration_since(begin).saturating_sub(total);
                let passed = at.saturating_duration_since(begin);
                self.total.min(passed.saturating_sub(stood_at))
            }
            None => self.total,
        }
    }
}

/// How often the clock is read at least.
const TICK: Duration = Duration::from_millis(250);

/// A longer time between two reads is a stop. A machine so busy that a thread waits for so long is not distinguished from one that stood
/// still, and it does no harm.
const STOP_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_stop_is_left_out_and_the_clock_never_goes_back() {
        let begin = Instant::now();
        let clock = SteadyClock::begin(begin, WallTime::from_ms(5_000));
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let read = |ms: u64| clock.read(at(ms), true).as_ms();
        for ms in [0, 200, 450, 1_400] {
            assert_eq!(read(ms), 5_000 + ms);
        }
        // A stop of a minute, found by the first thread that reads.
        assert_eq!(read(61_400), 5_000 + 1_650);
        assert_eq!(read(61_500), 5_000 + 1_750);
        // Threads that have read the time before or during it.
        assert_eq!(read(450), 5_450);
        assert_eq!(read(1_400), 6_400);
        for ms in [1_450, 20_000, 61_000] {
            assert_eq!(read(ms), 6_400, "{ms}");
        }
        // Another one.
        assert_eq!(read(161_500), 5_000 + 2_000);
        assert_eq!(read(161_600), 5_000 + 2_100);
    }

    #[test]
    fn without_a_ticker_nothing_is_left_out() {
        let begin = Instant::now();
        let clock = SteadyClock::begin(begin, WallTime::default());
        let later = clock.read(begin + Duration::from_secs(60), false);
        assert_eq!(later, SteadyTime::from_ms(60_000));
    }
}
