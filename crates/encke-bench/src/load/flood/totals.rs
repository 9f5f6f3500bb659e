//! The reports of all workers, added up.

use super::pipe::{Counters, Final};
use super::plan::Plan;
use crate::load::latency::Latencies;
use crate::load::report::endurance::HangUps;
use crate::load::report::flood::{Connections, Latency};
use crate::load::report::hostile::{Deeds, Hostile};
use crate::load::sequence::Faults;

/// All workers' reports in one.
pub(super) struct Totals {
    pub(super) counters: Counters,
    pub(super) live: Latencies,
    pub(super) paused: Latencies,
    pub(super) slow: Latencies,
    pub(super) returned: Latencies,
    pub(super) notices: Latencies,
    pub(super) faults: Faults,
}

impl Totals {
    pub(super) fn new(plan: &Plan, finals: Vec<Final>) -> Self {
        let mut all = Self {
            counters: Counters::default(),
            live: Latencies::new(),
            paused: Latencies::new(),
            slow: Latencies::new(),
            returned: Latencies::new(),
            notices: Latencies::new(),
            faults: Faults::default(),
        };
        for last in finals {
            all.counters.add(&last.counters);
            all.live.add_pairs(&last.live);
            all.paused.add_pairs(&last.paused);
            all.slow.add_pairs(&last.slow);
            all.returned.add_pairs(&last.returned);
            all.notices.add_pairs(&last.notices);
            let streams = &plan.streams;
            all.faults.add(last.faults, |subscriber| {
                streams.name(subscriber % streams.count())
            });
        }
        all
    }

    pub(super) fn connections(&self) -> Connections {
        let Counters {
            active,
            closed,
            hung_up,
            returned,
            given_up,
            over,
            ..
        } = self.counters;
        let failures = self.counters.reasons.clone();
        Connections {
            active,
            closed,
            hung_up,
            returned,
            failures,
            given_up,
            over,
        }
    }

    pub(super) fn latency(&self) -> Latency {
        Latency {
            live: self.live.percentiles(),
            while_slow_pause: self.paused.percentiles(),
            slow: self.slow.percentiles(),
            missed_while_away: self.returned.percentiles(),
        }
    }

    /// What hostile clients meant for the others: messages sent while they were there, and those sent before.
    pub(super) fn hostile(&self, deeds: Deeds) -> Hostile {
        let mut before = self.live.clone();
        before.subtract(&self.paused);
        Hostile::new(deeds, before.percentiles(), self.paused.percentiles())
    }

    /// Hang-ups, and when they were noticed; late is what took longer than `late_ns`.
    pub(super) fn hang_ups(&self, late_ns: u64) -> HangUps {
        HangUps {
            made: self.counters.hung_up,
            unnoticed: self.counters.unnoticed,
            unmeasured: self.counters.unmeasured,
            ..HangUps::new(&self.notices, late_ns)
        }
    }
}
