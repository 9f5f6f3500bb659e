//! When a loss of the order is certain.

use std::time::{Duration, Instant};

/// Since when all answers say that a part of the order is lost. A single one may be of a broker that becomes the leader, or loses
/// that, while it answers.
#[derive(Default)]
pub(crate) struct LossWatch(Option<Instant>);

impl LossWatch {
    /// An answer does not say so, or there is none.
    pub(crate) fn is_not_said(&mut self) {
        self.0 = None;
    }

    /// An answer says so. Whether it is certain.
    pub(crate) fn is_said(&mut self, now: Instant) -> bool {
        now.duration_since(*self.0.get_or_insert(now)) >= LOST_AFTER
    }
}

/// Positions that the brokers do not report for this long are lost. A message that is stored at such a position says so at once.
const LOST_AFTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_certain_when_all_answers_say_so_for_long() {
        let mut loss = LossWatch::default();
        let begin = Instant::now();
        assert!(!loss.is_said(begin));
        assert!(!loss.is_said(begin + LOST_AFTER / 2));
        assert!(loss.is_said(begin + LOST_AFTER));
        // What was said before a span without an answer was perhaps said by another leader.
        loss.is_not_said();
        assert!(!loss.is_said(begin + LOST_AFTER * 2));
        assert!(loss.is_said(begin + LOST_AFTER * 3));
    }
}
