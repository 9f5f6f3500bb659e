//! Gaps, duplicates and reorderings, found by the numbers that producers give their messages.
//!
//! Each subscriber remembers, for each producer of its messages, the next number.
//! Skipped numbers are noted: those that arrive later were reordered, the others are missing.

use crate::load::wire::payload::PRODUCERS_MAX;
use serde::Serialize;
use std::collections::HashMap;

/// How many examples of each kind a report gives.
const EXAMPLES_MAX: usize = 5;

/// The most ranges of skipped messages that are remembered. What is skipped beyond counts as
/// missing at once, and as a duplicate should it arrive late after all.
const SKIPPED_RANGES_MAX: usize = 100_000;

/// What one subscriber has seen of each producer.
///
/// Most subscribers get messages of one producer only, so the first is stored inline.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    first: Option<Progress>,
    /// In the order of their numbers.
    #[expect(
        clippy::box_collection,
        reason = "a word instead of three for the many without"
    )]
    more: Option<Box<Vec<Progress>>>,
}

/// How far a subscriber has come with one producer.
#[derive(Debug, Clone, Copy)]
struct Progress {
    producer: u64,
    /// The first number that could have been seen; what came before is not this subscriber's.
    from: u64,
    /// The number that comes next.
    next: u64,
}

impl Seen {
    /// The next number expected from `producer`, if anything of it was seen.
    pub(crate) fn next_of(&self, producer: u64) -> Option<u64> {
        self.all().find(|p| p.producer == producer).map(|p| p.next)
    }

    fn all(&self) -> impl Iterator<Item = &Progress> {
        self.first
            .iter()
            .chain(self.more.iter().flat_map(|more| more.iter()))
    }

    fn of(&mut self, producer: u64, from: u64) -> &mut Progress {
        let fresh = Progress {
            producer,
            from,
            next: from,
        };
        if self.first.is_none_or(|p| p.producer == producer) {
            return self.first.get_or_insert(fresh);
        }
        let more = self.more.get_or_insert_default();
        // A run's producers are numbered from 0 up, and all of them or all but the first have their places here.
        let guess = (producer % u64::from(PRODUCERS_MAX)) as usize;
        let is_at = |index: &usize| more.get(*index).is_some_and(|p| p.producer == producer);
        let guessed = [guess, guess.wrapping_sub(1)].into_iter().find(is_at);
        let index = guessed.unwrap_or_else(|| {
            let found = more.binary_search_by_key(&producer, |p| p.producer);
            found.unwrap_or_else(|index| {
                more.insert(index, fresh);
                index
            })
        });
        &mut more[index]
    }
}

/// Where a message arrived, for the books.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// The subscriber's number.
    pub(crate) subscriber: u32,
    /// The producer.
    pub(crate) producer: u64,
    /// Its number.
    pub(crate) sequence: u64,
    /// Whether the subscriber was there from the producer's first message on.
    pub(crate) from_start: bool,
}

/// The books of one worker: what went missing, came twice or came late.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    skipped: HashMap<(u32, u64), Vec<std::ops::Range<u64>>>,
    skipped_ranges: usize,
    /// Which of a producer's messages a subscriber may see again, for having resumed from before
    /// them. Nearly always empty.
    repeats: HashMap<(u32, u64), std::ops::Range<u64>>,
    faults: OrderFaults,
}

impl Ledger {
    /// Enters a message that has arrived. Returns whether it is news.
    pub(crate) fn arrived(&mut self, seen: &mut Seen, arrival: &Arrival) -> bool {
        let Arrival {
            subscriber,
            producer,
            sequence,
            ..
        } = *arrival;
        let from = if arrival.from_start { 0 } else { sequence };
        let progress = seen.of(producer, from);
        let expected = progress.next;
        if sequence >= expected && !self.repeats.is_empty() {
            // The first news ends what can be repeated.
            self.repeats.remove(&(subscriber, producer));
        }
        if sequence == expected {
            progress.next = sequence.saturating_add(1);
            return true;
        }
        if sequence > expected {
            progress.next = sequence.saturating_add(1);
            self.skip(subscriber, producer, expected..sequence);
            return true;
        }
        if sequence < progress.from {
            // Its successor was the first that this subscriber saw: it has come too late.
            progress.from = sequence;
            self.faults.reordered.add(arrival, expected);
            return true;
        }
        if self.unskip(subscriber, producer, sequence) {
            self.faults.reordered.add(arrival, expected);
            return true;
        }
        let repeats = self.repeats.get_mut(&(subscriber, producer));
        if let Some(repeats) = repeats.filter(|repeats| repeats.contains(&sequence)) {
            // Once, and in order.
            repeats.start = sequence + 1;
            self.faults.repeats += 1;
        } else {
            self.faults.duplicates.add(arrival, expected);
        }
        false
    }

    /// A subscriber will resume from an offset that may lie before what it has seen.
    pub(crate) fn may_repeat(&mut self, seen: &Seen, subscriber: u32) {
        let seen_before = seen
            .all()
            .map(|p| ((subscriber, p.producer), p.from..p.next));
        self.repeats.extend(seen_before);
    }

    /// Closes the books on one subscriber and producer: everything below `count` should be there,
    /// but for the numbers of `excused` (ascending), which were never acknowledged to the producer.
    pub(crate) fn settle(
        &mut self,
        seen: &mut Seen,
        subscriber: u32,
        producer: u64,
        count: u64,
        excused: &[u64],
    ) {
        let progress = seen.of(producer, 0);
        let tail = progress.next..count.max(progress.next);
        progress.next = tail.end;
        let ranges = self
            .skipped
            .remove(&(subscriber, producer))
            .unwrap_or_default();
        for range in ranges.into_iter().chain([tail]) {
            self.miss(subscriber, producer, range, excused);
        }
    }

    /// The final account: whatever is still skipped is missing. `name` gives the stream of a subscriber.
    pub(crate) fn close(mut self, name: impl Fn(u32) -> String) -> OrderFaults {
        for ((subscriber, producer), ranges) in std::mem::take(&mut self.skipped) {
            for range in ranges {
                self.miss(subscriber, producer, range, &[]);
            }
        }
        let OrderFaults {
            missing,
            duplicates,
            reordered,
            ..
        } = &mut self.faults;
        for example in [missing, duplicates, reordered]
            .into_iter()
            .flat_map(|fault| &mut fault.examples)
        {
            example.stream = name(example.subscriber);
        }
        self.faults
    }

    /// The account so far, without what is skipped but may still come.
    pub(crate) fn faults_mut(&mut self) -> &mut OrderFaults {
        &mut self.faults
    }

    fn skip(&mut self, subscriber: u32, producer: u64, range: std::ops::Range<u64>) {
        if self.skipped_ranges == SKIPPED_RANGES_MAX {
            return self.miss(subscriber, producer, range, &[]);
        }
        self.skipped_ranges += 1;
        self.skipped
            .entry((subscriber, producer))
            .or_default()
            .push(range);
    }

    fn unskip(&mut self, subscriber: u32, producer: u64, sequence: u64) -> bool {
        let Some(ranges) = self.skipped.get_mut(&(subscriber, producer)) else {
            return false;
        };
        let Some(index) = ranges.iter().position(|range| range.contains(&sequence)) else {
            return false;
        };
        let range = ranges.swap_remove(index);
        self.skipped_ranges -= 1;
        for part in [range.start..sequence, sequence + 1..range.end] {
            if !part.is_empty() {
                self.skipped_ranges += 1;
                ranges.push(part);
            }
        }
        true
    }

    /// Counts what is missing: `range`, but for the numbers of `excused` (ascending).
    fn miss(
        &mut self,
        subscriber: u32,
        producer: u64,
        range: std::ops::Range<u64>,
        excused: &[u64],
    ) {
        // By whole gaps, never number by number: a damaged number can make a range of any length.
        let first = excused.partition_point(|&sequence| sequence < range.start);
        let within = excused[first..]
            .iter()
            .copied()
            .take_while(|sequence| range.contains(sequence));
        let mut from = range.start;
        for end in within.chain([range.end]) {
            if from < end {
                let missing = &mut self.faults.missing;
                missing.count = missing.count.saturating_add(end - from);
                missing.example(subscriber, producer, from, end);
            }
            from = end.saturating_add(1);
        }
    }
}

/// What was wrong with the order of messages, over all subscribers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OrderFaults {
    /// Messages that never arrived.
    pub missing: Fault,
    /// Messages that arrived again.
    pub duplicates: Fault,
    /// Messages that arrived after a later one of the same producer.
    pub reordered: Fault,
    /// Messages that arrived again because the subscriber, cut off between an event and the
    /// offset that follows it, resumed from before them. The protocol has no better way.
    pub repeats: u64,
    /// Values on the streams that are no messages of this program.
    pub strangers: u64,
}

impl OrderFaults {
    /// Whether every message came once and in order.
    pub fn is_clean(&self) -> bool {
        self.missing.count == 0 && self.duplicates.count == 0 && self.reordered.count == 0
    }
}

/// One kind of fault: how often, and the first few.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Fault {
    /// How many messages.
    pub count: u64,
    /// The first few.
    pub examples: Vec<Example>,
}

impl Fault {
    fn add(&mut self, arrival: &Arrival, expected: u64) {
        self.count += 1;
        self.example(
            arrival.subscriber,
            arrival.producer,
            expected,
            arrival.sequence,
        );
    }

    fn example(&mut self, subscriber: u32, producer: u64, expected: u64, received: u64) {
        if self.examples.len() < EXAMPLES_MAX {
            // The ledger knows subscribers by number; `Ledger::close` names their streams.
            let stream = String::new();
            self.examples.push(Example {
                stream,
                subscriber,
                producer,
                expected,
                received,
            });
        }
    }
}

/// Where a fault was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    /// The stream's name.
    pub stream: String,
    /// The subscriber's number in the run.
    pub subscriber: u32,
    /// The producer's number, as it stands in the payload.
    pub producer: u64,
    /// The number that should have come.
    pub expected: u64,
    /// The number that came instead; for what is missing, the one after the gap.
    pub received: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(arrivals: &[u64], from_start: bool, count: u64) -> OrderFaults {
        let (mut seen, mut ledger) = (Seen::default(), Ledger::default());
        for &sequence in arrivals {
            let arrival = Arrival {
                subscriber: 3,
                producer: 9,
                sequence,
                from_start,
            };
            ledger.arrived(&mut seen, &arrival);
        }
        ledger.settle(&mut seen, 3, 9, count, &[]);
        ledger.close(|_| String::new())
    }

    fn counts(faults: &OrderFaults) -> (u64, u64, u64) {
        (
            faults.missing.count,
            faults.duplicates.count,
            faults.reordered.count,
        )
    }

    #[test]
    fn each_fault_is_distinguished_and_shown() {
        let faults = run(&[0, 1, 4, 4, 6, 5, 7, 1], true, 10);
        assert_eq!(counts(&faults), (4, 2, 1));
        let gaps: Vec<_> = faults
            .missing
            .examples
            .iter()
            .map(|e| (e.expected, e.received))
            .collect();
        assert_eq!(gaps, [(2, 4), (8, 10)]);
        let late = &faults.reordered.examples[0];
        assert_eq!((late.expected, late.received, late.subscriber), (7, 5, 3));
        assert!(!faults.is_clean());
    }

    #[test]
    fn a_late_subscriber_misses_no_earlier_message() {
        assert_eq!(counts(&run(&[7, 8, 9], false, 10)), (0, 0, 0));
        assert_eq!(counts(&run(&[7, 8, 9], true, 10)), (7, 0, 0));
        assert_eq!(counts(&run(&[7, 6, 8, 6], false, 9)), (0, 1, 1));
    }

    #[test]
    fn producers_are_distinguished() {
        let (mut seen, mut ledger) = (Seen::default(), Ledger::default());
        for (producer, sequence) in [(1, 0), (2, 0), (1, 1), (3, 0), (2, 1), (3, 2)] {
            let arrival = Arrival {
                subscriber: 0,
                producer,
                sequence,
                from_start: true,
            };
            assert!(ledger.arrived(&mut seen, &arrival));
        }
        assert_eq!(
            [1, 2, 3, 4].map(|producer| seen.next_of(producer)),
            [Some(2), Some(2), Some(3), None]
        );
        assert_eq!(counts(&ledger.close(|_| String::new())), (1, 0, 0));
    }

    #[test]
    fn what_was_never_acknowledged_is_not_missed() {
        let (mut seen, mut ledger) = (Seen::default(), Ledger::default());
        for sequence in [0, 3] {
            let arrival = Arrival {
                subscriber: 0,
                producer: 1,
                sequence,
                from_start: true,
            };
            ledger.arrived(&mut seen, &arrival);
        }
        ledger.settle(&mut seen, 0, 1, 6, &[2, 5]);
        let faults = ledger.close(|_| String::new());
        assert_eq!(counts(&faults), (2, 0, 0));
    }

    #[test]
    fn repeats_after_a_resume_are_not_held_against_the_server() {
        let (mut seen, mut ledger) = (Seen::default(), Ledger::default());
        for resumed in [false, true] {
            if resumed {
                ledger.may_repeat(&seen, 0);
            }
            // Resumed from before 1 and 2; then 2 comes once more, without a reason.
            for sequence in if resumed {
                vec![1, 2, 3, 2]
            } else {
                vec![0, 1, 2]
            } {
                let arrival = Arrival {
                    subscriber: 0,
                    producer: 1,
                    sequence,
                    from_start: true,
                };
                ledger.arrived(&mut seen, &arrival);
            }
        }
        let faults = ledger.close(|_| String::new());
        assert_eq!((counts(&faults), faults.repeats), ((0, 1, 0), 2));
    }

    proptest! {
        /// Against a plain count: of 0..count, how many never came, came again, came late.
        #[test]
        fn the_books_agree_with_a_plain_count(
            arrivals in prop::collection::vec(0u64..40, 0..120),
        ) {
            let mut had = std::collections::HashSet::new();
            let (mut duplicates, mut reordered, mut highest) = (0, 0, None);
            for &n in &arrivals {
                if !had.insert(n) {
                    duplicates += 1;
                } else if highest.is_some_and(|h| n < h) {
                    reordered += 1;
                }
                highest = highest.max(Some(n));
            }
            let faults = run(&arrivals, true, 40);
            prop_assert_eq!(counts(&faults), (40 - had.len() as u64, duplicates, reordered));
        }
    }
}
