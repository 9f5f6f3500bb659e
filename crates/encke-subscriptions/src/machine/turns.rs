//! A turn of the machine: what is due, what is decided, and what is written.

use encke_clock::{Now, SteadyTime};

use super::state::{SubscriptionEffect, SubscriptionMachine};

impl SubscriptionMachine {
    /// Handles all that is due.
    pub fn tick(&mut self, now: Now) {
        while let Some((at, no)) = self.timers.first().copied()
            && at <= now.steady
        {
            self.timers.pop_first();
            if let Some(subscription) = self.subscriptions.get_mut(&no) {
                subscription.live.timer = None;
            }
            self.touched.insert(no);
        }
        self.delete_old_segments(now);
    }

    /// When [`SubscriptionMachine::tick`] has work next.
    pub fn next_due(&self) -> Option<SteadyTime> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.segments.next_due()).min()
    }

    /// Makes the decisions that are due since the last flush, and writes them.
    pub fn flush(&mut self, now: Now) {
        loop {
            while let Some(no) = self.touched.pop_first() {
                self.advance(now, no);
            }
            self.begin_calls(now);
            if self.touched.is_empty() {
                break;
            }
        }
        self.write_decisions();
        self.rotate(now);
    }

    /// Takes the effects, in order.
    pub fn take_effects(&mut self) -> Vec<SubscriptionEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether no command is on its way to the log.
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.decisions.is_empty()
    }
}
