//! Warnings that would come with each commit.

use std::time::Duration;

use encke_clock::{Now, SteadyTime};

/// When a warning was logged last, and how often there was reason for it since.
#[derive(Debug, Default)]
pub(super) struct PacedWarning {
    /// `None`: it was not logged yet.
    logged: Option<SteadyTime>,
    unlogged: u64,
}

impl PacedWarning {
    /// Counts a reason for the warning. Returns the reasons since the last line, this one included, if it is time for the next line.
    pub(super) fn count(&mut self, now: Now) -> Option<u64> {
        self.unlogged += 1;
        let is_due = self
            .logged
            .is_none_or(|logged| logged.after(WARNING_PAUSE) <= now.steady);
        is_due.then(|| {
            self.logged = Some(now.steady);
            std::mem::take(&mut self.unlogged)
        })
    }
}

/// The least time between two lines of the same warning.
const WARNING_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_logged_once_a_minute_with_the_number_of_reasons() {
        let mut warning = PacedWarning::default();
        assert_eq!(warning.count(Now::from_ms(5)), Some(1));
        for at_ms in [5, 6, 59_000, 60_004] {
            assert_eq!(warning.count(Now::from_ms(at_ms)), None);
        }
        assert_eq!(warning.count(Now::from_ms(60_005)), Some(5));
        assert_eq!(warning.count(Now::from_ms(120_004)), None);
        assert_eq!(warning.count(Now::from_ms(200_000)), Some(2));
    }
}
