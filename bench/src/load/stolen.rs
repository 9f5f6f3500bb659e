//! What became of the processors' time: how much of it work took, and how much the host of a virtual machine gave to others.

/// The processors' time from some moment on.
#[derive(Debug, Clone, Copy)]
pub struct Stolen {
    begun: Ticks,
}

/// What the system has counted since it started, of all processors together.
#[derive(Debug, Clone, Copy, Default)]
struct Ticks {
    stolen: u64,
    idle: u64,
    all: u64,
}

impl Stolen {
    /// From now on.
    pub fn begin() -> Self {
        Self {
            begun: Ticks::read(),
        }
    }

    /// The share of the processors' time that the host has taken since, in percent. 0 without a host, or if it
    /// does not report it.
    pub fn percent(&self) -> f64 {
        self.begun.percent_upto(Ticks::read())
    }

    /// The time that all processes together and the kernel have worked since, and all that the processors had, in seconds of
    /// processor time.
    pub(crate) fn worked_seconds(&self) -> (f64, f64) {
        let (worked, all) = self.begun.worked_upto(Ticks::read());
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        (worked as f64 / per_second, all as f64 / per_second)
    }
}

impl Ticks {
    fn read() -> Self {
        Self::of(&crate::proc::text("/proc/stat"))
    }

    /// From the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. What follows is in these.
    fn of(stat: &str) -> Self {
        let line = stat
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("cpu "));
        let fields = line.unwrap_or_default().split_ascii_whitespace();
        let ticks: Vec<u64> = fields
            .map_while(|ticks| ticks.parse().ok())
            .take(8)
            .collect();
        Self {
            stolen: ticks.get(7).copied().unwrap_or(0),
            idle: ticks.iter().skip(3).take(2).sum(),
            all: ticks.iter().sum(),
        }
    }

    fn percent_upto(self, end: Self) -> f64 {
        let stolen = end.stolen.saturating_sub(self.stolen) as f64;
        100.0 * stolen / end.all.saturating_sub(self.all).max(1) as f64
    }

    /// The ticks in which a processor worked, and all.
    fn worked_upto(self, end: Self) -> (u64, u64) {
        let all = end.all.saturating_sub(self.all);
        let rested = (end.idle + end.stolen).saturating_sub(self.idle + self.stolen);
        (all.saturating_sub(rested), all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_processors_since_the_beginning() {
        let begun = Ticks::of("cpu  100 0 50 800 10 0 5 35 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        let end = Ticks::of("cpu  150 0 70 900 10 0 5 65 9 9\n");
        assert_eq!(begun.percent_upto(end), 15.0);
        // 50 of user and 20 of system.
        assert_eq!(begun.worked_upto(end), (70, 200));
        assert_eq!(begun.percent_upto(begun), 0.0);
        assert_eq!(Ticks::of("").percent_upto(Ticks::of("nothing")), 0.0);
    }

    #[test]
    fn this_system_tells() {
        assert!(Ticks::read().all > 0);
        let begun = Stolen::begin();
        assert!((0.0..=100.0).contains(&begun.percent()));
        let (worked, all) = begun.worked_seconds();
        assert!(worked <= all, "{worked} {all}");
    }
}
