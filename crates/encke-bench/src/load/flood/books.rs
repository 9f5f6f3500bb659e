//! How a worker closes its books: when all is there, and what is missing.

use super::pipe::Report;
use super::subscriber::{Stage, Subscriber};
use super::tally::Tally;
use super::worker::{Worker, say};
use crate::BenchError;
use crate::load::clock::thread_cpu_ns;
use crate::load::produce::Expected;
use std::collections::HashMap;
use std::io::Write;

/// What must be there before a worker is done.
pub(super) struct Finish {
    pub(super) expected: HashMap<u32, Vec<Expected>>,
    pub(super) quiet_ns: u64,
    pub(super) since_ns: u64,
}

impl Worker {
    /// Whether all that can be expected has arrived, or nothing has come for long enough.
    pub(super) fn is_finished(&self, now_ns: u64) -> bool {
        let Some(finish) = &self.finish else {
            return false;
        };
        if !self.leaving.is_empty() {
            return false;
        }
        let quiet_since_ns = finish.since_ns.max(self.tally.last_event_ns);
        let has_all = |subscriber: &Subscriber| {
            let expected = finish.expected.get(&subscriber.stream);
            expected.into_iter().flatten().all(|expected| {
                let next = subscriber.seen.next_of(expected.producer);
                // Who came late may have come after the last message.
                next.map_or(!subscriber.traits.from_start, |next| next >= expected.count)
            })
        };
        let is_done = |subscriber: &Subscriber| {
            let over = matches!(subscriber.stage, Stage::Over);
            over || subscriber.traits.active && has_all(subscriber)
        };
        now_ns >= quiet_since_ns.saturating_add(finish.quiet_ns)
            || self.subscribers.iter().all(is_done)
    }

    pub(super) fn update_counters(&mut self) {
        self.counters.pending = self.pending();
        self.counters.opened = self.tally.ready;
        self.counters.noticed = self.leaving.noticed();
        self.counters.unnoticed = self.leaving.unnoticed;
        self.counters.unmeasured = self.leaving.unmeasured;
        self.counters.events = self.tally.events;
        self.counters.bytes = self.tally.bytes;
        self.counters.cpu_ns = thread_cpu_ns();
        self.counters.last_event_ns = self.tally.last_event_ns;
    }

    pub(super) fn report(&mut self, output: &mut impl Write) -> Result<(), BenchError> {
        self.update_counters();
        if let Some(finish) = &self.finish {
            for (index, subscriber) in self.subscribers.iter_mut().enumerate() {
                let number = self.work.first + index as u32 * self.work.step;
                let gone = matches!(subscriber.stage, Stage::Over);
                if gone || !subscriber.traits.ready {
                    continue;
                }
                for Expected {
                    producer,
                    count,
                    excused,
                    ..
                } in finish
                    .expected
                    .get(&subscriber.stream)
                    .into_iter()
                    .flatten()
                {
                    // Who came late can't tell what was missed before the first message seen.
                    if subscriber.traits.from_start || subscriber.seen.next_of(*producer).is_some()
                    {
                        let seen = &mut subscriber.seen;
                        self.tally
                            .ledger
                            .settle(seen, number, *producer, *count, excused);
                    }
                }
            }
        }
        let empty = Tally::new(self.tally.mode, self.tally.format, self.work.run);
        let tally = std::mem::replace(&mut self.tally, empty);
        say(
            output,
            &Report::Final(Box::new(
                tally.close(self.counters.clone(), &self.leaving.notices),
            )),
        )
    }
}
